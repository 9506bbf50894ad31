"""The plan of what a GPU should measure runs on a CPU."""

import pytest
from conftest import fast_first, read_json

from benchmarks.__main__ import main

pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")


@pytest.mark.parametrize("parts", fast_first(["machine", "attention", "encoding"], []))
def test_the_plan_of_what_a_gpu_should_measure_runs_on_a_cpu(parts, tmp_path, capsys, monkeypatch):
    """With tiny models, all of its parts or some."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options = ["--parts", *parts] if parts else []
    main(["gpu", *"--plan --device cpu --tiny --output".split(), str(tmp_path / "plan.json"), *options])
    found = read_json(tmp_path / "plan.json")
    assert not [row for row in found["plan"] if "failed" in row]
    assert "| attention | padded, dropout | replays differ | True |" in capsys.readouterr().out
    if parts:
        assert {row["part"] for row in found["plan"]} == set(parts) and found["left_out"] == []
        return
    runs = next(row["found"] for row in found["plan"] if row["measurement"] == "runs")
    assert runs["two runs are equal"] and runs["killed and resumed equals uninterrupted"]
    assert runs["another seed differs"]
