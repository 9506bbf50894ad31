"""The example scripts, as functions and started as a user would."""

import runpy
import sys

import pytest
import torch
from conftest import ROOT, tiny_config
from evaluation_helpers import write, write_rows
from trainer_helpers import scored, sentences, texts
from transformers import BertForMaskedLM, Trainer

from simcse_hf import SimCSE


@pytest.fixture
def start(save_checkpoint):
    return save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)), "start")


@pytest.fixture
def files(tmp_path):
    write(tmp_path / "texts.txt", sentences(64))
    texts(64, 3).to_csv(tmp_path / "triplets.csv")
    scored(12).to_csv(tmp_path / "dev.tsv", sep="\t")
    return tmp_path


def test_a_checkpoint_in_half_precision_is_the_start_of_a_classifier_in_float32(files, save_checkpoint, monkeypatch):
    rows = [(text, "animal" if "cat" in text else "other") for text in sentences(24)]
    without = [("", "animal"), (" ", "other"), ("a cat", "")]
    table = str(write_rows(files / "labelled.csv", ["text", "label"], rows + without))
    example = runpy.run_path(str(ROOT / "examples/finetune_classifier.py"))
    assert example["read"](table) == rows, "no row without a text or a label"
    types = []
    train = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda trainer: types.append(trainer.model.dtype) or train(trainer))
    half = save_checkpoint(BertForMaskedLM(tiny_config()).to(torch.bfloat16), "half")
    assert example["finetune"](str(half), table, table, epochs=1.0) >= 50
    assert types == [torch.float32]


@pytest.mark.parametrize("script, rows", [("run_unsup.py", "texts.txt"), ("run_sup.py", "triplets.csv")])
def test_the_python_of_an_example_trains(files, start, script, rows):
    train = runpy.run_path(str(ROOT / "examples" / script))["train"]
    options = {"max_steps": 1, "per_device_train_batch_size": 8, "eval_steps": 1, "save_steps": 1}
    paths = (start, files / rows, files / "dev.tsv")
    train(*map(str, paths), output_dir=str(files / "out"), **options)
    assert SimCSE(files / "out").encode("the cat").shape == (32,)


@pytest.mark.parametrize("script", ["run_unsup.py", "run_sup.py"])
def test_an_example_is_the_command_and_ends_with_its_error(start, script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--model", str(start), "--train_file", "absent.txt", "--use_cpu"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    assert ended.value.code == 2 and "absent.txt" in capsys.readouterr().err
