"""`simcse-hf train` passes its words on to the training functions."""

import sys

import pytest

from simcse_hf.cli.main import main

METHODS = {"unsup": "run.train_unsup", "sup": "run.train_sup", "mlm": "pretraining.train_mlm"}


@pytest.mark.parametrize("method", METHODS)
def test_passes_the_words_after_the_method_on(method, monkeypatch):
    calls = []

    def train(argv):
        calls.append((argv, list(sys.argv)))
        return 0

    monkeypatch.setattr(f"simcse_hf.training.{METHODS[method]}", train)
    before = list(sys.argv)
    words = ["recipe.yaml", "--learning_rate", "1e-4"]
    assert main(["train", method, *words]) == 0
    assert calls == [(words, [f"simcse-hf train {method}", *words])] and sys.argv == before


@pytest.mark.parametrize("method", METHODS)
def test_help_of_a_method_names_the_command(method, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", method, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: simcse-hf train {method} ")


def test_a_mistyped_model_is_one_line(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("a cat\na dog\n")
    words = ["--model_name_or_path", "./nope", "--train_file", str(tmp_path / "texts.txt")]
    assert main(["train", "unsup", *words, "--output_dir", str(tmp_path / "out"), "--use_cpu"]) == 2
    assert "simcse-hf train: error: --model_name_or_path ./nope" in capsys.readouterr().err.splitlines()[-1]


def test_an_unknown_option_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "mlm", "--nonsense"])
    assert ended.value.code == 2 and "--nonsense" in capsys.readouterr().err
