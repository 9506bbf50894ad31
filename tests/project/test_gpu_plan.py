"""The plan of what a GPU should measure runs on a CPU; its branches for a GPU run with stand-ins."""

import json
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from benchmarks.__main__ import main

pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")

from benchmarks.gpu import graphs
from benchmarks.gpu.steps import compare_with_padding


@pytest.fixture
def plan(tmp_path, capsys, monkeypatch):
    """Runs the plan of what a GPU should measure with tiny models on the CPU, and returns what it wrote."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*options):
        output = tmp_path / "plan.json"
        main(["gpu", *"--plan --device cpu --tiny --output".split(), str(output), *options])
        return json.loads(output.read_text()) | {"table": capsys.readouterr().out}

    return run


def failures(found):
    return {row["measurement"]: row["failed"] for row in found["plan"] if "failed" in row}


def test_the_plan_for_a_gpu_runs_on_a_cpu(plan):
    found = plan("--parts", "machine", "attention", "encoding")
    assert {row["part"] for row in found["plan"]} == {
        "machine",
        "attention",
        "encoding",
    }
    assert not failures(found) and found["left_out"] == []
    assert "| attention | padded, dropout | replays differ | True |" in found["table"]


@pytest.mark.slow
def test_every_part_of_the_plan_runs_on_a_cpu(plan):
    found = plan()
    runs = next(row["found"] for row in found["plan"] if row["measurement"] == "runs")
    assert not failures(found)
    assert runs["two runs are equal"] and runs["killed and resumed equals uninterrupted"]
    assert runs["another seed differs"]


@pytest.fixture
def gpu_on_a_cpu(monkeypatch):
    """Stand-ins for torch's functions of a GPU: what is captured runs, a replay does nothing."""
    standing_in = MagicMock()
    standing_in.Event.return_value.elapsed_time.return_value = 2.0
    standing_in.graph.side_effect = standing_in.stream.side_effect = lambda *args, **kwargs: nullcontext()
    for name in "Event CUDAGraph Stream current_stream stream graph synchronize graph_pool_handle".split():
        monkeypatch.setattr(torch.cuda, name, getattr(standing_in, name))
    for name in ("memory_allocated", "max_memory_reserved", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x)
    monkeypatch.setattr(graphs, "DEVICE", "cpu")


@pytest.mark.usefixtures("gpu_on_a_cpu")
def test_gradients_of_graphs_are_read_from_the_optimizer():
    found = compare_with_padding("cpu", True, "cls_before_pooler", False)
    assert found["graphs"] > 1
    assert found["cosines of the gradient"] == pytest.approx([1.0] * 5)
    assert found["relative errors of the loss"] == pytest.approx([0.0] * 5, abs=1e-5)
