"""The plan of what a GPU should measure runs on a CPU; its branches for a GPU run with stand-ins."""

import json
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.harness import in_fresh_process

pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")

from benchmarks.gpu import graphs, steps
from benchmarks.gpu.attention import measure_attention, measure_dropout
from benchmarks.gpu.steps import compare_with_padding, time_steps


@pytest.fixture
def plan(tmp_path, capsys, monkeypatch):
    """Runs the plan of what a GPU should measure with tiny models on the CPU, and returns what it wrote."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*options):
        output = tmp_path / "plan.json"
        main(
            [
                "gpu",
                "--plan",
                "--device",
                "cpu",
                "--tiny",
                "--output",
                str(output),
                *options,
            ]
        )
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


def test_what_the_plan_has_no_time_for_is_named(plan):
    found = plan("--minutes", "0")
    assert found["plan"] == []
    parts = [row["part"] for row in found["left_out"]]
    assert list(dict.fromkeys(parts)) == "machine attention loss bits trainer steps encoding".split()
    assert "| trainer | paper, 8 rows, graphs | left out | no time |" in found["table"]


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
def test_attention_is_timed_by_replays_of_a_graph():
    assert measure_attention("padded", "cpu", 4)["ms forward and backward"] == 2.0
    assert len(measure_dropout("padded", "cpu", sentences=2)["rates"]) == 5


@pytest.mark.usefixtures("gpu_on_a_cpu")
def test_steps_are_captured_and_profiled(monkeypatch):
    events = [
        (0, 2_000_000, "gemm"),
        (3, 3_000_003, "gemm"),
        (4, 1_000_004, "norm"),
    ] * 3  # of three steps
    monkeypatch.setattr(steps, "profile", MagicMock())
    monkeypatch.setattr(steps, "device_events", lambda profiler: events)
    found = time_steps("cpu", True, "paper", 8, captures=True)
    assert found["graphs"] == found["shapes"] == len(found["ms of a graph"]) > 1
    assert (found["kernels a step"], found["ms in kernels a step"]) == (
        3,
        pytest.approx(6),
    )
    assert found["largest: times and ms a step"] == [["gemm", 2, 5.0], ["norm", 1, 1.0]]


@pytest.mark.usefixtures("gpu_on_a_cpu")
def test_gradients_of_graphs_are_read_from_the_optimizer():
    found = compare_with_padding("cpu", True, "cls_before_pooler", False)
    assert found["graphs"] > 1
    assert found["cosines of the gradient"] == pytest.approx([1.0] * 5)
    assert found["relative errors of the loss"] == pytest.approx([0.0] * 5, abs=1e-5)


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
