"""The example scripts, started as a user would, and the results.json that a run writes."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import fast_first, tiny_config
from evaluation_helpers import write_rows
from trainer_helpers import sentences
from transformers import AutoModel, BertForMaskedLM, Trainer

from simcse_hf import SimCSE

ROOT = Path(__file__).parents[2]


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
    return [
        str(ROOT / "examples" / script),
        *(
            "--model_name_or_path",
            str(start),
            "--train_file",
            str(files / data),
            "--dev_file",
            str(files / "dev.tsv"),
        ),
        *(
            "--output_dir",
            str(files / "out"),
            "--per_device_train_batch_size",
            "8",
            "--learning_rate",
            "1e-3",
        ),
        *("--max_steps", "6", "--eval_steps", "2", "--logging_steps", "2", "--use_cpu"),
        *more,
    ]


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
    status, ran = run_here(*_command(script, files, start))
    assert status == 0
    results = json.loads((files / "out" / "results.json").read_text())
    assert results["steps"] == 6
    assert set(results["stsb_spearman"]) == {"initial", "best", "final"}
    for when, step in (("initial", 0), ("final", 6)):
        assert results[when]["step"] == step
        assert -100 <= results["stsb_spearman"][when] == results[when]["stsb_spearman"] <= 100
    start = results["start"] or results["initial"]  # plain pooling of a start without a pooler of its own
    assert f"before training   {start['stsb_spearman']:6.2f}" in ran.out
    assert "the dense + tanh head is fresh" in ran.err

    model = SimCSE(files / "out")
    assert model.pooler_type == pooler
    _, info = AutoModel.from_pretrained(files / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_a_finished_run_is_replaced_only_on_request(files, start, run_here):
    command = [*_command("run_unsup.py", files, start), "--max_steps", "2"]
    assert run_here(*command)[0] == 0
    before = (files / "out" / "model.safetensors").read_bytes()
    status, ran = run_here(*command)
    assert status == 2 and "holds an earlier run" in ran.err and "--overwrite_output_dir" in ran.err
    assert (files / "out" / "model.safetensors").read_bytes() == before
    assert run_here(*command, "--overwrite_output_dir", "--learning_rate", "1e-4")[0] == 0
    assert (files / "out" / "model.safetensors").read_bytes() != before


def test_a_checkpoint_is_the_start_of_a_classifier(files, start, run_here):
    rows = [(text, "animal" if "cat" in text else "other") for text in sentences(24)]
    write_rows(
        files / "labelled.csv",
        ["text", "label"],
        [*rows, ("", "animal"), (" ", "other"), ("a cat", "")],
    )
    tables = [str(files / "labelled.csv")] * 2
    example = runpy.run_path(str(ROOT / "examples/finetune_classifier.py"))
    assert example["read"](files / "labelled.csv") == rows, "no row without a text or a label"
    assert example["finetune"](str(start), *tables, epochs=1.0) >= 50
    with pytest.raises(SystemExit, match="triplets.csv: name the columns text and label"):
        example["finetune"](str(start), str(files / "triplets.csv"), tables[1])


def test_a_classifier_learns_in_float32_from_a_checkpoint_in_half_precision(files, save_checkpoint, monkeypatch):
    half = save_checkpoint(BertForMaskedLM(tiny_config()).to(torch.bfloat16), "half")
    rows = [(text, "animal" if "cat" in text else "other") for text in sentences(24)]
    write_rows(files / "labelled.csv", ["text", "label"], rows)
    types = []
    monkeypatch.setattr(Trainer, "train", lambda trainer: types.append(trainer.model.dtype))
    example = runpy.run_path(str(ROOT / "examples/finetune_classifier.py"))
    example["finetune"](str(half), *[str(files / "labelled.csv")] * 2)
    assert types == [torch.float32]


@pytest.mark.parametrize("script, texts", [("run_unsup.py", "texts.txt"), ("run_sup.py", "triplets.csv")])
def test_the_python_of_an_example_trains(files, start, script, texts):
    example = runpy.run_path(str(ROOT / "examples" / script))
    options = {
        "max_steps": 1,
        "per_device_train_batch_size": 8,
        "eval_steps": 1,
        "save_steps": 1,
    }
    example["train"](
        str(start),
        str(files / texts),
        str(files / "dev.tsv"),
        output_dir=str(files / "out"),
        **options,
    )
    assert SimCSE(files / "out").encode("the cat").shape == (32,)


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("--train_file", "absent.txt", "absent.txt"),
        ("--train_file", "texts.txt", "holds one text in a row"),
        ("--resume_from_checkpoint", "true", "holds no checkpoint to resume from"),
        ("--resume_from_checkpoint", "absent", "there is no such folder"),
    ],
)
def test_invalid_arguments_end_with_a_one_line_error(files, start, option, value, message, monkeypatch, run_here):
    monkeypatch.chdir(files)
    status, ran = run_here(*_command("run_sup.py", files, start, option, value))
    assert status == 2 and message in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    "name, found",
    [("python3.14", True), ("python3", True), ("python", True), ("pypy", False)],
)
def test_make_finds_any_recent_python_by_any_name(tmp_path, name, found):
    (tmp_path / name).symlink_to(sys.executable)
    (tmp_path / "python3.11").write_text("#!/bin/sh\nexit 1\n")  # too old, or broken
    (tmp_path / "python3.11").chmod(0o755)
    program = shutil.which("make") or pytest.skip("needs make")

    def make(*words):
        command = [program, *words]
        return subprocess.run(
            command,
            cwd=ROOT,
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
        ).stdout

    made = make("--eval", "found: ; $(info [$(PYTHON)])", "found")
    assert f"[{name if found else ''}]" in made
    needed = make("--dry-run", "--always-make", ".venv/.package")
    assert ("Python 3.11 or later is needed" in needed) != found
