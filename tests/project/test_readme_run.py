"""README's command, function and Trainer are one run: the same steps, weights, log, verdict and files."""

import json
import re
from pathlib import Path

import pytest
from docs_workspace import ROOT, blocks, commands, make_workspace, simcse_arguments
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


def content(folder):
    """The content of results.json without what differs between two equal runs."""
    results = json.loads((folder / "results.json").read_text())
    for name in _OF_ONE_RUN:
        results.pop(name)
    return without_times(results)


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if not _TIMES.search(name)}
    if isinstance(value, list):
        return [without_times(inner) for inner in value]
    return value


@pytest.mark.parametrize("name", FOLDERS[1:])
def test_the_weights_are_equal_in_every_bit(printed, name):
    folder, _ = printed
    first, other = (load_file(folder / "outputs" / each / "model.safetensors") for each in (FOLDERS[0], name))
    assert first.keys() == other.keys()
    assert all(first[key].equal(other[key]) for key in first)


@pytest.mark.parametrize("name", FOLDERS[1:])
def test_the_results_say_the_same(printed, name):
    folder, _ = printed
    assert content(folder / "outputs" / name) == content(folder / "outputs" / FOLDERS[0])


@pytest.mark.parametrize("name", FOLDERS[1:])
def test_the_log_has_the_same_steps_and_losses(printed, name):
    folder, _ = printed

    def log(run):
        state = json.loads((folder / "outputs" / run / "trainer_state.json").read_text())
        return without_times(state["log_history"])

    assert log(name) == log(FOLDERS[0])


@pytest.mark.parametrize("name", FOLDERS[1:])
def test_the_folders_hold_the_same_files(printed, name):
    folder, _ = printed
    files = [{path.name for path in Path(folder, "outputs", each).iterdir()} for each in (FOLDERS[0], name)]
    assert files[0] == files[1]


def test_each_says_the_same_verdict(printed):
    _, verdicts = printed
    assert len(verdicts) == len(FOLDERS)
    assert len(set(verdicts)) == 1


def test_the_page_shows_these_three():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"outputs/{name}" in text for name in FOLDERS)
