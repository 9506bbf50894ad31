"""What the commands refuse: the status is 2, and the last line names the option, the file or the value."""

import re
import sys

import pytest
from cli_helpers import status
from evaluation_helpers import write

from simcse_hf.encoding.simcse import load_model

MODEL = ["--model", "./no/such/folder"]
FIT = ["postprocess", "fit", *MODEL, "--input", "a", "--output", "b"]
USAGE = {
    "an unknown command": (["trian"], "did you mean train"),
    "an unknown way to train": (["train", "unsupp"], "did you mean unsup"),
    "an unknown part of a command": (["postprocess", "fti"], "did you mean fit"),
    "a mistyped option": (
        ["encode", "--modle", "m", "--input", "a.txt"],
        "required: --model, --output",
    ),
    "a mistyped option of training": (
        ["train", "unsup", "--max_step", "2"],
        "did you mean --max_steps",
    ),
    "an option of earlier versions": (
        ["train", "unsup", "--evaluation_strategy", "no"],
        "did you mean --eval_strate",
    ),
    "half an option": (
        ["train", "mlm", "--overwrite_output", "true"],
        "did you mean --overwrite_output_dir",
    ),
    "a recipe": (
        ["train", "sup", "sup-simcse-bert-base-uncase"],
        "did you mean sup-simcse-bert-base-uncased",
    ),
    "an option that does not exist": (["train", "mlm", "--nonsense"], "--nonsense"),
    "an option of other commands": (["export", "--model"], "--output, --to/--format$"),
    "an option without its value": (["search", "--index"], "--index: expected"),
    "nothing to evaluate": (["evaluate", *MODEL], "give data_dir, pairs, task or mteb"),
    "tasks and a set of tasks": (
        ["evaluate", *MODEL, "--data_dir", ".", "--task_set", "sts", "--tasks", "MR"],
        "name the tasks twice",
    ),
    "a task of an unknown kind": (
        ["evaluate", *MODEL, "--task", "ranking=a.csv"],
        "'ranking' is no kind of task",
    ),
    "a task without a file": (
        ["evaluate", *MODEL, "--task", "pairs="],
        "must be KIND=FILE",
    ),
    "an unknown part of the data": (
        ["evaluate", *MODEL, "--data_dir", ".", "--mode", "train"],
        "invalid choice: 'train'",
    ),
    "a folder that is missing": (
        ["evaluate", *MODEL, "--data_dir", "absent"],
        "data_dir absent does not exist",
    ),
    "an unknown task": (
        ["evaluate", *MODEL, "--data_dir", ".", "--tasks", "STS99"],
        "unknown task STS99",
    ),
    "a task whose file is missing": (
        ["evaluate", *MODEL, "--task", "pairs=no.csv"],
        "no.csv: no such file or folder",
    ),
    "a comparison of a model with itself": (
        ["compare", "a", "a"],
        "at least two different",
    ),
    "a comparison on nothing": (["compare", "a", "b"], "give data_dir, pairs or task"),
    "a comparison with a missing file": (
        ["compare", "a", "b.json"],
        "b.json: there is no such file",
    ),
    "a port that does not exist": (
        ["demo", "--index", "i", "--port", "70000"],
        "port must be .* 65535, got 70000",
    ),
    "a count of nothing": (
        ["demo", "--index", "i", "--top_k", "0"],
        "top_k must be an integer above 0, got 0",
    ),
    "a count that is no number": (
        ["search", "--index", "i", "--top_k", "many"],
        "--top_k: invalid int value: 'many'",
    ),
    "a repository without an owner": (
        ["push", "model", "my-model"],
        "'my-model' names no owner: give OWNER/NAME",
    ),
    "pairs that are no table": (
        ["mine", *MODEL, "--input", "a", "--output", "x.txt"],
        "output must end in .csv",
    ),
    "an unknown transform": ([*FIT, "--method", "zca"], "invalid choice: 'zca'"),
    "a smaller flow": (
        [*FIT, "--method", "flow", "--dim", "3"],
        "method flow has no option dim",
    ),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage(case, capsys):
    words, message = USAGE[case]
    ended = status(*words)
    error = " ".join(capsys.readouterr().err.split())
    assert ended == 2 and "simcse-hf" in error and re.search(message, error), error


#: Every command that loads a model, without the model's name, which comes last.
MODEL_COMMANDS = {
    "encode": "--input texts.txt --output output --model",
    "index": "--input texts.txt --output output --model",
    "evaluate": "--pairs p.tsv --model",
    "export": "--to onnx --output output",
    "postprocess": "fit --method whitening --input texts.txt --output output --model",
    "train": "unsup --train_file texts.txt --output_dir output --use_cpu --model",
}


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_a_mistyped_model_is_named_in_one_line(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "texts.txt", ["a cat", "a dog"])
    write(tmp_path / "p.tsv", ["1\ta\tb", "2\tb\tc"])
    for model in ("bert-base-uncsed", "./no/such/folder", "two words"):
        assert status(command, *MODEL_COMMANDS[command].split(), model) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert line.startswith(f"simcse-hf {command}: error: ") and model in line
        assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_a_model_that_is_not_here_says_why_the_hub_was_not_asked(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "texts.txt", ["a cat", "a dog"])
    write(tmp_path / "p.tsv", ["1\ta\tb", "2\tb\tc"])
    assert status(command, *MODEL_COMMANDS[command].split(), "bert-base-uncsed") == 2
    assert "HF_HUB_OFFLINE is set: unset it, or name the folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_a_folder_without_a_model_is_named(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "texts.txt", ["a cat", "a dog"])
    write(tmp_path / "p.tsv", ["1\ta\tb", "2\tb\tc"])
    assert status(command, *MODEL_COMMANDS[command].split(), "empty") == 2
    assert "empty: this folder holds no model" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["meta", "toaster", ""])
def test_a_device_that_this_machine_does_not_have(name):
    with pytest.raises(ValueError, match=f"device {name}: this machine cannot use it"):
        load_model("model", device=name)


def test_a_demo_without_gradio_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert status("demo", "--index", "no-such-folder") == 2
    assert "simcse-hf[demo]" in capsys.readouterr().err
