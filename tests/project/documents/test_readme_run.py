"""README's command, function and Trainer are one run: the same steps, weights, log, verdict and files."""

from conftest import read_json
from docs_helpers import blocks, commands, make_workspace, simcse_arguments
from safetensors.torch import load_file
from trainer_helpers import without_times

from simcse_hf.cli.main import main

FOLDERS = ("my-unsup", "by-function", "by-trainer")


def read(run):
    """The weights of a run, its results and log without what differs between two equal runs, and its files."""
    results = read_json(run / "results.json")
    for name in ("model", "command"):
        del results[name]
    log = read_json(run / "trainer_state.json")["log_history"]
    weights = {name: weight.tolist() for name, weight in load_file(run / "model.safetensors").items()}
    return weights, without_times(results), without_times(log), {path.name for path in run.iterdir()}


def test_the_weights_the_results_the_log_the_files_and_the_verdict_are_equal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_workspace(tmp_path, with_model=False)
    printed = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(map(str, words))))
    for language, block in blocks("README.md"):
        if language == "python" and "sentences.txt" in block:
            exec(compile(block, "README.md", "exec"), {})
        elif language == "bash":
            for command in commands(block):
                if "--train_file" in command:
                    assert main(simcse_arguments(command)) == 0
    by_command, by_function, by_trainer = (read(tmp_path / "outputs" / name) for name in FOLDERS)
    assert by_command == by_function == by_trainer
    verdicts = [text for text in printed if "before training" in text]
    assert len(verdicts) == len(FOLDERS) and len(set(verdicts)) == 1
