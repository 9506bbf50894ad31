"""The example scripts, started as a user would, and the results.json that a run writes."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import VOCABULARY, fast_first, tiny_config
from transformers import AutoModel, BertForMaskedLM

from simcse_hf import SimCSE

ROOT = Path(__file__).parents[2]
WORDS = VOCABULARY[5:25]


@pytest.fixture
def start(save_checkpoint):
    return save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)), "start")


def _sentences(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (6,), generator=generator)) for _ in range(count)]


@pytest.fixture
def files(tmp_path):
    sentences, others = _sentences(64), _sentences(64, seed=1)
    (tmp_path / "texts.txt").write_text("\n".join(sentences) + "\n")
    rows = zip(sentences, others, reversed(others), strict=True)
    (tmp_path / "triplets.csv").write_text(
        "sent0,sent1,hard_neg\n" + "".join(f'"{a}","{b}","{c}"\n' for a, b, c in rows)
    )
    rows = zip(sentences[:12], others[:12], range(12), strict=True)
    (tmp_path / "dev.tsv").write_text(
        "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s % 6}\n" for a, b, s in rows)
    )
    return tmp_path


def _command(script, files, start, *more):
    data = "texts.txt" if script == "run_unsup.py" else "triplets.csv"
    return [
        *(sys.executable, str(ROOT / "examples" / script)),
        *("--model_name_or_path", str(start), "--train_file", str(files / data), "--dev_file", str(files / "dev.tsv")),
        *("--output_dir", str(files / "out"), "--per_device_train_batch_size", "8", "--learning_rate", "1e-3"),
        *("--max_steps", "6", "--eval_steps", "2", "--logging_steps", "2", "--use_cpu"),
        *more,
    ]


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Run an example in this process, because a new one takes seconds to import torch; return status and output."""

    def run(_, path, *arguments):
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(path, run_name="__main__")
        return ended.value.code, capsys.readouterr()

    return run


@pytest.mark.parametrize("script, pooler", fast_first(("run_unsup.py", "cls_before_pooler"), ("run_sup.py", "cls")))
def test_a_run_writes_its_results_and_a_model_that_automodel_loads(files, start, script, pooler, run_here):
    status, ran = run_here(*_command(script, files, start))
    assert status == 0
    results = json.loads((files / "out" / "results.json").read_text())
    assert results["steps"] == 6
    assert set(results["stsb_spearman"]) == {"initial", "best", "final"}
    for when, step in (("initial", 0), ("final", 6)):
        assert results[when]["step"] == step
        assert -100 <= results["stsb_spearman"][when] == results[when]["stsb_spearman"] <= 100
    state = json.loads((files / "out" / "trainer_state.json").read_text())
    trained = [e["eval_stsb_spearman"] for e in state["log_history"] if "eval_stsb_spearman" in e][1:]
    assert results["stsb_spearman"]["best"] == max(trained)
    start = results["start"] or results["initial"]  # plain pooling of a start without a pooler of its own
    assert f"before training   {start['stsb_spearman']:6.2f}" in ran.out
    assert "the dense + tanh head is fresh" in ran.err

    model = SimCSE(files / "out")
    assert model.pooler_type == pooler
    plain, info = AutoModel.from_pretrained(files / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    batch = model.tokenizer(["the cat sat"], return_tensors="pt")
    with torch.no_grad():
        output = plain.eval()(**batch)
    expected = output.pooler_output if pooler == "cls" else output.last_hidden_state[:, 0]
    torch.testing.assert_close(model.encode(["the cat sat"], normalize_embeddings=False), expected, atol=1e-5, rtol=0)


def test_a_checkpoint_is_the_start_of_a_classifier(files, start, run_here):
    rows = [f"{text},{'animal' if 'cat' in text else 'other'}\n" for text in _sentences(24)]
    (files / "labelled.csv").write_text("text,label\n" + "".join(rows))
    tables = [str(files / "labelled.csv")] * 2
    example = runpy.run_path(str(ROOT / "examples/finetune_classifier.py"))
    assert example["finetune"](str(start), *tables, epochs=1.0) >= 50
    with pytest.raises(SystemExit, match="triplets.csv: name the columns text and label"):
        example["finetune"](str(start), str(files / "triplets.csv"), tables[1])


@pytest.mark.parametrize("script, texts", [("run_unsup.py", "texts.txt"), ("run_sup.py", "triplets.csv")])
def test_the_python_of_an_example_trains(files, start, script, texts):
    example = runpy.run_path(str(ROOT / "examples" / script))
    options = {"max_steps": 1, "per_device_train_batch_size": 8, "eval_steps": 1, "save_steps": 1}
    example["train"](str(start), str(files / texts), str(files / "dev.tsv"), output_dir=str(files / "out"), **options)
    assert SimCSE(files / "out").encode("the cat").shape == (32,)


@pytest.mark.parametrize(
    "script, more, message",
    [
        ("run_unsup.py", ["--train_file", "absent.txt"], "absent.txt"),
        ("run_sup.py", ["--train_file", "texts.txt"], "texts.txt holds one text in a row"),
        ("run_unsup.py", ["--resume_from_checkpoint", "true"], "holds no checkpoint to resume from"),
        ("run_unsup.py", ["--resume_from_checkpoint", "absent"], "no such checkpoint directory"),
    ],
)
def test_invalid_arguments_end_with_a_one_line_error(files, start, script, more, message, monkeypatch, run_here):
    monkeypatch.chdir(files)
    status, ran = run_here(*_command(script, files, start, *more))
    assert status == 2 and message in ran.err and "Traceback" not in ran.err


def _make(path, *words):
    program = shutil.which("make")
    if program is None:
        pytest.skip("needs make")
    return subprocess.run([program, *words], cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True)


@pytest.mark.parametrize("name, found", [("python3.14", True), ("python3", True), ("python", True), ("pypy", False)])
def test_make_finds_any_recent_python_by_any_name(tmp_path, name, found):
    (tmp_path / name).symlink_to(sys.executable)
    (tmp_path / "python3.11").write_text("#!/bin/sh\nexit 1\n")  # too old, or broken
    (tmp_path / "python3.11").chmod(0o755)
    made = _make(tmp_path, "--eval", "found: ; $(info [$(PYTHON)])", "found")
    assert f"[{name if found else ''}]" in made.stdout
    needed = _make(tmp_path, "--dry-run", "--always-make", ".venv/.package").stdout
    assert ("Python 3.11 or later is needed" in needed) != found
