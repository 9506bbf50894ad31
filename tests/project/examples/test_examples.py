"""The example scripts, started as a user would, and the results.json that a run writes."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from conftest import fast_first, tiny_config
from evaluation_helpers import write_rows
from trainer_helpers import sentences
from transformers import AutoModel, BertForMaskedLM, Trainer

from simcse_hf import SimCSE

ROOT = Path(__file__).parents[3]


@pytest.fixture
def start(save_checkpoint):
    return save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)), "start")


@pytest.fixture
def files(tmp_path):
    texts, others = sentences(64), sentences(64, seed=1)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    rows = zip(texts, others, others[::-1], strict=True)
    write_rows(tmp_path / "triplets.csv", ["sent0", "sent1", "hard_neg"], rows)
    scored = [(texts[i], others[i], i % 6) for i in range(12)]
    write_rows(tmp_path / "dev.tsv", ["sentence1", "sentence2", "score"], scored)
    return tmp_path


def _command(script, files, start, *more):
    data = "texts.txt" if script == "run_unsup.py" else "triplets.csv"
    line = f"--model_name_or_path {start} --train_file {files / data} --dev_file {files / 'dev.tsv'} --use_cpu "
    line += f"--output_dir {files / 'out'} --per_device_train_batch_size 8 --learning_rate 1e-3 --max_steps 6 "
    line += "--eval_steps 2 --logging_steps 2"
    return [str(ROOT / "examples" / script), *line.split(), *more]


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Run an example in this process, because a new one takes seconds to import torch; return status and output."""

    def run(path, *arguments):
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(path, run_name="__main__")
        return ended.value.code, capsys.readouterr()

    return run


@pytest.mark.parametrize(
    "script, pooler",
    fast_first(("run_unsup.py", "cls_before_pooler"), ("run_sup.py", "cls")),
)
def test_a_run_writes_its_results_and_a_model_that_automodel_loads(files, start, script, pooler, run_here):
    status, _ = run_here(*_command(script, files, start))
    assert status == 0
    results = json.loads((files / "out" / "results.json").read_text())
    assert results["steps"] == results["final"]["step"] == 6
    assert set(results["stsb_spearman"]) == {"initial", "best", "final"}
    assert SimCSE(files / "out").pooler_type == pooler
    _, info = AutoModel.from_pretrained(files / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


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


@pytest.mark.parametrize("script, texts", [("run_unsup.py", "texts.txt"), ("run_sup.py", "triplets.csv")])
def test_the_python_of_an_example_trains(files, start, script, texts):
    train = runpy.run_path(str(ROOT / "examples" / script))["train"]
    options = {"max_steps": 1, "per_device_train_batch_size": 8, "eval_steps": 1, "save_steps": 1}
    paths = (start, files / texts, files / "dev.tsv")
    train(*map(str, paths), output_dir=str(files / "out"), **options)
    assert SimCSE(files / "out").encode("the cat").shape == (32,)


def test_invalid_arguments_end_with_a_one_line_error(files, start, run_here):
    status, ran = run_here(*_command("run_sup.py", files, start, "--train_file", "absent.txt"))
    assert status == 2 and "absent.txt" in ran.err and "Traceback" not in ran.err
