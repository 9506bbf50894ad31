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


def test_a_benchmark_runs_as_a_command_without_data(tmp_path):
    output = tmp_path / "results.json"
    completed = run("info_nce", "--rows", "64", "--threads", "1", "--output", str(output))
    assert completed.returncode == 0, completed.stderr
    assert "| 64 | chunked |" in completed.stdout
    assert {"measured", "gradient_error_near_zero_loss", "machine"} <= json.loads(output.read_text()).keys()


@pytest.mark.parametrize(
    "arguments", [["scaling"], ["search", "--parts", "random", "--hnsw_count", "500", "--dim", "8"]]
)
def test_a_finished_benchmark_can_print_its_table_again(arguments, tmp_path, capsys):
    if arguments[0] == "search":
        pytest.importorskip("faiss", reason="needs faiss")
    output = tmp_path / "results.json"
    assert main([*arguments, "--output", str(output)]) == 0
    first = capsys.readouterr().out
    assert main([arguments[0], "--table", "--output", str(output)]) == 0
    assert capsys.readouterr().out.strip() in first


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/results").glob("*.json")), ids=lambda path: path.stem)
def test_every_committed_result_can_be_printed_as_a_table(path, capsys):
    names = {"real_text": "recipes", "precision_bf16": "objectives", "precision_float32": "objectives"}
    names |= {"objectives_minilm": "objectives"}
    name = "evidence" if path.stem.startswith("evidence_") else names.get(path.stem, path.stem)
    if name in ("cpu", "gpu"):
        pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")
    assert main([name, "--table", "--output", str(path)]) == 0
    assert capsys.readouterr().out.count("|") > 10


@pytest.mark.slow
@with_peer
def test_the_gpu_benchmark_writes_a_row_for_each_workload(tmp_path):
    output = tmp_path / "gpu.json"
    works = ["BERT-base, sentences", "RoBERTa-large, triplets", "BERT-base, encoding"]
    tiny = ("--device", "cpu", "--tiny", "--turns", "1", "--steps", "1")
    completed = run("gpu", *tiny, "--works", *works, "--output", str(output))
    assert completed.returncode == 0, completed.stderr
    report = json.loads(output.read_text())
    *training, encoding = report["rows"]
    for row in training:
        assert all(row[kind] > 0 and row["ratio"][kind] > 0 for kind in ("ours", "padded", "compiled", "peer"))
        assert row["agree"] < 1e-4 and not row["failed"] and not row["left_out"]
    assert encoding["agree"] < 0.02 and all(encoding[kind] > 0 for kind in ("ours", "padded", "peer"))
    assert report["left_out"] == []


@pytest.mark.slow
@with_peer
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_benchmark_without_a_gpu_ends_with_a_one_line_error(tmp_path):
    completed = run("gpu", "--output", str(tmp_path / "gpu.json"))
    assert completed.returncode == 1 and not (tmp_path / "gpu.json").exists()
    assert completed.stderr.strip().splitlines()[-1].startswith("no NVIDIA GPU was found; `--device cpu --tiny`")


def test_the_recorded_sentence_lengths_are_valid():
    lengths = json.loads((ROOT / "benchmarks/lengths.json").read_text())
    assert list(lengths["wikipedia"]) == ["sentence"] and list(lengths["nli"]) == ["sent0", "sent1", "sent2"]
    for corpus in ("wikipedia", "nli"):
        for histogram in lengths[corpus].values():
            assert sum(histogram.values()) > 10_000
            assert min(map(int, histogram)) >= 2 and max(map(int, histogram)) <= 512
