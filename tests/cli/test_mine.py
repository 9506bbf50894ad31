"""`simcse-hf mine`: from a file of pairs and a model to a file of triplets."""

import json

import pytest
from cli_helpers import save_model, status
from evaluation_helpers import write

from simcse_hf import load_text_dataset
from simcse_hf.data.table import open_table

PAIRS = [
    "query,positive",
    "a cat sat,a cat sat on a mat",
    "the dog ran,the dog ran in the house",
    "a bird sang,a bird sang in the tree",
    "red,the big red house",
]


@pytest.fixture(scope="module")
def base(module_path, tokenizer):
    """A folder with a model, pairs and a corpus."""
    save_model(module_path / "model", tokenizer)
    write(module_path / "pairs.csv", PAIRS)
    write(module_path / "corpus.txt", ["a man slept", "A CAT  sat on a mat", "the woman ran"])
    return module_path


def run(base, name, options):
    line = f"--model {base / 'model'} --input {base / 'pairs.csv'} --output {base / name} --device cpu --quiet"
    return status("mine", *f"{line} {options}".split())


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_triplets_and_the_audit_are_files_that_others_read_and_are_not_overwritten(base, suffix, capsys):
    triplets, audit = (base / f"{name}.{suffix}" for name in ("triplets", "audit"))
    options = f"--corpus {base / 'corpus.txt'} --audit {audit}"
    assert run(base, triplets.name, f"{options} --json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pairs"] == document["rows"] == 4 and document["candidates"] == 6
    assert document["dropped"]["repeated candidate"] == 1
    rows = load_text_dataset(triplets, cache_dir=base)
    assert rows["sent0"] == [line.split(",")[0] for line in PAIRS[1:]] and rows.num_columns == 3
    assert all(negative != positive for negative, positive in zip(rows["sent2"], rows["sent1"], strict=True))
    assert sum(1 for _ in open_table(audit).rows(["reason", "negative_score"])) == document["suspicious"] > 0
    assert run(base, f"again.{suffix}", options) == 2
    assert f"{audit} exists" in capsys.readouterr().err and not (base / f"again.{suffix}").exists()


def test_bounds_that_leave_nothing_are_an_error_that_counts_them(base, capsys):
    assert run(base, "none.csv", "--max_score -1") == 2
    assert "no pair has 1 hard negative(s) left" in (message := capsys.readouterr().err)
    assert "x max_score" in message and not (base / "none.csv").exists()
