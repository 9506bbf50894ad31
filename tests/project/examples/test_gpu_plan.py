"""The plan of what a GPU should measure runs on a CPU."""

import pytest
from conftest import read_json

from benchmarks.__main__ import main

pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")


@pytest.fixture
def plan(tmp_path, capsys, monkeypatch):
    """Runs the plan of what a GPU should measure with tiny models on the CPU, and returns what it wrote."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*options):
        output = tmp_path / "plan.json"
        main(["gpu", *"--plan --device cpu --tiny --output".split(), str(output), *options])
        return read_json(output) | {"table": capsys.readouterr().out}

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
