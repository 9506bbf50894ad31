"""The GPU benchmark, tried with toys on a CPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
slow = pytest.mark.skipif(
    "SIMCSE_HF_SLOW_TESTS" not in os.environ, reason="set SIMCSE_HF_SLOW_TESTS=1: takes a minute"
)
with_peer = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="needs sentence-transformers, the peer"
)


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )


@slow
@with_peer
def test_gpu_writes_a_row_of_each_work(tmp_path):
    output = tmp_path / "gpu.json"
    works = ["BERT-base, sentences", "RoBERTa-large, triplets", "BERT-base, encoding"]
    done = run("--device", "cpu", "--tiny", "--turns", "1", "--steps", "1", "--works", *works, "--output", str(output))
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    *training, encoding = report["rows"]
    for row in training:
        assert all(row[kind] > 0 and row["ratio"][kind] > 0 for kind in ("ours", "padded", "compiled", "peer"))
        assert row["agree"] < 1e-4 and not row["failed"] and not row["left_out"]
    assert encoding["agree"] < 0.02 and all(encoding[kind] > 0 for kind in ("ours", "padded", "peer"))
    assert report["left_out"] == []


@slow
@with_peer
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_line(tmp_path):
    done = run("--output", str(tmp_path / "gpu.json"))
    assert done.returncode == 1 and not (tmp_path / "gpu.json").exists()
    assert done.stderr.strip().splitlines()[-1].startswith("there is no NVIDIA GPU here: --device cpu --tiny")


def test_the_measured_lengths_fit_an_encoder():
    lengths = json.loads((BENCHMARKS / "lengths.json").read_text())
    assert list(lengths["wikipedia"]) == ["sentence"] and list(lengths["nli"]) == ["sent0", "sent1", "sent2"]
    for corpus in ("wikipedia", "nli"):
        for histogram in lengths[corpus].values():
            assert sum(histogram.values()) > 10_000
            assert min(map(int, histogram)) >= 2 and max(map(int, histogram)) <= 512
