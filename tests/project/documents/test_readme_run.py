"""README's command, function and Trainer are one run: the same steps, weights, log, verdict and files."""

import json
import re

import pytest
from docs_helpers import blocks, commands, make_workspace, simcse_arguments
from safetensors.torch import load_file

from simcse_hf.cli.main import main

FOLDERS = ("my-unsup", "by-function", "by-trainer")
#: What differs between two equal runs.
_OF_ONE_RUN = ("model", "command", "train_seconds")
_TIMES = re.compile(r"runtime|per_second")


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Run the three in a folder with the files that they name; return what each printed of its verdict."""
    folder = tmp_path_factory.mktemp("readme")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_workspace(folder, with_model=False)
        patch.setattr(
            "builtins.print",
            lambda *words, **_: found.append(" ".join(map(str, words))),
        )
        for language, block in blocks("README.md"):
            if language == "python" and "sentences.txt" in block:
                exec(compile(block, "README.md", "exec"), {})
            elif language == "bash":
                for command in commands(block):
                    if "--train_file" in command:
                        assert main(simcse_arguments(command)) == 0
    return folder, [text for text in found if "before training" in text]


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if not _TIMES.search(name)}
    if isinstance(value, list):
        return [without_times(inner) for inner in value]
    return value


def read(run):
    """The weights of a run, its results and log without what differs between two equal runs, and its files."""
    results = json.loads((run / "results.json").read_text())
    for name in _OF_ONE_RUN:
        del results[name]
    log = json.loads((run / "trainer_state.json").read_text())["log_history"]
    weights = {name: weight.tolist() for name, weight in load_file(run / "model.safetensors").items()}
    return weights, without_times(results), without_times(log), {path.name for path in run.iterdir()}


@pytest.mark.parametrize("name", FOLDERS[1:])
def test_the_weights_the_results_the_log_and_the_files_are_equal(printed, name):
    folder, _ = printed
    assert read(folder / "outputs" / name) == read(folder / "outputs" / FOLDERS[0])


def test_each_says_the_same_verdict(printed):
    _, verdicts = printed
    assert len(verdicts) == len(FOLDERS) and len(set(verdicts)) == 1
