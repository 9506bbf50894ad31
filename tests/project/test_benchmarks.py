"""The benchmarks run without data or a GPU, and their tables can be printed from the saved results."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import BENCHMARKS, main

ROOT = Path(__file__).parents[2]
with_peer = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="needs sentence-transformers, the peer"
)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
    )


def test_every_benchmark_is_registered():
    folder = ROOT / "benchmarks"
    paths = [
        path for path in (*folder.glob("*.py"), *folder.glob("*/__init__.py")) if "\ndef table(" in path.read_text()
    ]
    assert BENCHMARKS.keys() == {path.parent.name if path.stem == "__init__" else path.stem for path in paths}


@pytest.mark.slow
def test_a_benchmark_runs_as_a_command_without_data(tmp_path):
    output = tmp_path / "results.json"
    completed = run("info_nce", "--rows", "64", "--threads", "1", "--output", str(output))
    assert completed.returncode == 0, completed.stderr
    assert "| 64 | chunked |" in completed.stdout
    assert {"measured", "gradient_error_near_zero_loss", "machine"} <= json.loads(output.read_text()).keys()


@pytest.mark.parametrize(
    "arguments",
    [
        ["scaling"],
        ["search", "--parts", "random", "--hnsw_count", "500", "--dim", "8"],
        ["billion", "--parts", "disk", "--count", "2000", "--codes", "sq8", "--probes", "1", "8"],
    ],
)
def test_a_finished_benchmark_can_print_its_table_again(arguments, tmp_path, capsys):
    if arguments[0] in ("search", "billion"):
        pytest.importorskip("faiss", reason="needs faiss")
    output = tmp_path / "results.json"
    assert main([*arguments, "--output", str(output)]) == 0
    first = capsys.readouterr().out
    assert main([arguments[0], "--table", "--output", str(output)]) == 0
    assert capsys.readouterr().out.strip() in first


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/results").glob("*.json")), ids=lambda path: path.stem)
def test_every_committed_result_can_be_printed_as_a_table(path, capsys):
    names = {"real_text": "recipes", "precision_bf16": "objectives", "precision_float32": "objectives"}
    name = "evidence" if path.stem.startswith("evidence_") else names.get(path.stem, path.stem)
    if name in ("cpu", "gpu"):
        pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")
    assert main([name, "--table", "--output", str(path)]) == 0
    assert capsys.readouterr().out.count("|") > 10


TINY_GPU = ("gpu", "--device", "cpu", "--tiny", "--steps", "2")


@pytest.mark.slow
@with_peer
def test_the_gpu_benchmark_runs_end_to_end_on_a_cpu(tmp_path):
    output = tmp_path / "gpu.json"
    completed = run(*TINY_GPU, "--output", str(output))
    assert completed.returncode == 0, completed.stderr
    report = json.loads(output.read_text())
    assert not [row for row in report["rows"] if "failed" in row]
    assert {row["reason"] for row in report["left_out"]} <= {"flash-attn is not installed"}
    for work in {row["work"] for row in report["rows"] if "loss" in row}:
        losses = [row["loss"] for row in report["rows"] if row["work"] == work]
        assert max(losses) - min(losses) < 1e-4
    assert not [check for check in report["smoke_test"].values() if str(check).startswith("failed")]


@pytest.fixture
def gpu_benchmark(tmp_path, monkeypatch):
    """`gpu_benchmark(*words)` runs the benchmark for GPUs with tiny encoders on the CPU; returns its results."""
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def benchmark(*words):
        output = tmp_path / "gpu.json"
        try:
            main([*TINY_GPU, *words, "--output", str(output)])
        except KeyboardInterrupt:
            pass
        return json.loads(output.read_text())

    return benchmark


def test_the_gpu_benchmark_measures_training_and_encoding(gpu_benchmark, capsys):
    works = ["BERT-base, sentences, batch 64", "MiniLM, file to vectors"]
    contestants = ["padded", "plain", "sentence-transformers", "sentence-transformers, flash-attn"]
    report = gpu_benchmark("--works", *works, "--contestants", *contestants)
    assert [(row["work"], row["contestant"]) for row in report["rows"]] == [
        *((works[0], kind) for kind in contestants[:3]),
        (works[1], "ours"),
        (works[1], "sentence-transformers"),
    ]
    assert all(row.get("sentences_per_second", 0) > 0 for row in report["rows"])
    losses = [row["loss"] for row in report["rows"][:3]]
    assert max(losses) - min(losses) < 1e-4
    assert [row["reason"] for row in report["left_out"]] == ["flash-attn is not installed"]
    checks = report["smoke_test"]
    assert checks["attention of packed sentences, largest error against float32"] < 0.02
    assert checks["its gradients, largest error against float32"] < 0.05
    assert abs(checks["dropout rate of that attention, asked 0.1"] - 0.1) < 0.002
    assert "| MiniLM, file to vectors | ours |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_gpu_benchmark_records_failures_and_writes_each_row_at_once(gpu_benchmark, monkeypatch):
    from benchmarks.gpu import training

    def out_of_memory(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(training.CONTESTANTS, "plain", out_of_memory)
    monkeypatch.setitem(training.CONTESTANTS, "padded", interrupt)
    works = ["--works", "BERT-base, sentences, batch 64"]
    report = gpu_benchmark(*works, "--contestants", "plain", "transformers", "padded", "sentence-transformers")
    failed, measured = report["rows"]
    assert failed["contestant"] == "plain" and "CUDA out of memory" in failed["failed"]
    assert measured["contestant"] == "transformers" and measured["ms_a_step"] > 0


def test_nothing_begins_after_the_benchmarks_time_is_over(gpu_benchmark):
    report = gpu_benchmark("--works", "BERT-base, sentences, batch 64", "--contestants", "plain", "--minutes", "0")
    assert report["rows"] == [] and [row["reason"] for row in report["left_out"]] == ["no time"]


def test_kernels_and_the_busy_share_are_read_from_a_profile():
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")
    from benchmarks.gpu.profiling import kernels_and_share

    events = [(8, 10, "Memcpy HtoD"), (0, 4, "gemm"), (2, 6, "softmax")]
    assert kernels_and_share(events, steps=1) == (2, 0.8)
    assert kernels_and_share([(0, 9, "a"), (1, 2, "b")], steps=2) == (1, 1.0)
    assert kernels_and_share([]) == (0, 0)


@pytest.mark.slow
@with_peer
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_benchmark_without_a_gpu_ends_with_a_one_line_error(tmp_path):
    completed = run("gpu", "--output", str(tmp_path / "gpu.json"))
    assert completed.returncode == 1 and not (tmp_path / "gpu.json").exists()
    assert completed.stderr.strip().splitlines()[-1].startswith("no NVIDIA GPU was found; `--device cpu --tiny`")


def test_the_recorded_sentence_lengths_are_valid():
    lengths = json.loads((ROOT / "benchmarks/lengths.json").read_text())
    assert list(lengths["paper"]) == list(lengths["wikipedia"]) == ["sentence"]
    assert list(lengths["nli"]) == ["sent0", "sent1", "sent2"]
    for corpus in ("paper", "wikipedia", "nli"):
        for histogram in lengths[corpus].values():
            assert sum(histogram.values()) > 10_000
            assert min(map(int, histogram)) >= 2 and max(map(int, histogram)) <= 512
