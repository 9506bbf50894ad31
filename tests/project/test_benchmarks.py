"""Every benchmark is registered and explains itself, and a wrong name is refused before anything is measured."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.gpu.attention import measure_attention, measure_dropout
from benchmarks.harness import in_fresh_process

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_benchmark_is_registered():
    files = [
        path for path in (*FOLDER.glob("*.py"), *FOLDER.glob("*/__init__.py")) if "\ndef table(" in path.read_text()
    ]
    assert BENCHMARKS.keys() == {path.parent.name if path.stem == "__init__" else path.stem for path in files}


def test_a_wrong_name_of_texts_is_refused_with_the_names_that_exist():
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")
    with pytest.raises(SystemExit, match=r"--texts nosuch: choose from .*NLI triplets"):
        main(["cpu", "--texts", "nosuch"])


@pytest.fixture
def plan(tmp_path, capsys, monkeypatch):
    """Runs the plan of what a GPU should measure with tiny models on the CPU, and returns what it wrote."""
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*options):
        output = tmp_path / "plan.json"
        main(["gpu", "--plan", "--device", "cpu", "--tiny", "--output", str(output), *options])
        return json.loads(output.read_text()) | {"table": capsys.readouterr().out}

    return run


def failures(found):
    return {row["measurement"]: row["failed"] for row in found["plan"] if "failed" in row}


def test_the_plan_for_a_gpu_runs_on_a_cpu(plan):
    found = plan("--parts", "machine", "attention", "encoding")
    assert {row["part"] for row in found["plan"]} == {"machine", "attention", "encoding"}
    assert not failures(found) and found["left_out"] == []
    assert "| attention | padded, dropout | replays differ | True |" in found["table"]


@pytest.mark.slow
def test_every_part_of_the_plan_runs_on_a_cpu(plan):
    found = plan()
    runs = next(row["found"] for row in found["plan"] if row["measurement"] == "runs")
    assert not failures(found)
    assert runs["two runs are equal"] and runs["killed and resumed equals uninterrupted"]
    assert runs["another seed differs"]


def test_what_the_plan_has_no_time_for_is_named(plan):
    found = plan("--minutes", "0")
    assert found["plan"] == []
    parts = [row["part"] for row in found["left_out"]]
    assert list(dict.fromkeys(parts)) == "machine attention loss bits trainer steps encoding".split()
    assert "| trainer | paper, 8 rows, graphs | left out | no time |" in found["table"]


@pytest.fixture
def interpreted(monkeypatch):
    """Calls a measurement in a process that has Triton's interpreter from its beginning."""
    pytest.importorskip("triton", reason="needs Triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return in_fresh_process


@pytest.mark.slow
def test_the_candidate_in_triton_equals_padded_attention(interpreted):
    found = interpreted(measure_attention, "tile", "cpu", 2, torch.float32)
    assert max(found["relative error of the output"], *found["of the gradients"]) < 1e-6
    assert found["all finite"] and found["gradients equal in bits"]


@pytest.mark.slow
def test_the_candidate_in_triton_drops_what_was_asked_for(interpreted):
    found = interpreted(measure_dropout, "tile", "cpu", torch.float32, 2)
    assert sum(found["rates"]) / 5 == pytest.approx(0.1, abs=0.005)
    assert found["replays differ"] and found["backward pass has the masks of the forward pass"]
