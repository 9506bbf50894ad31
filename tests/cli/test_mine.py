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
def base(tmp_path_factory, tokenizer):
    """A folder with a model, pairs and a corpus."""
    base = tmp_path_factory.mktemp("mine")
    save_model(base / "model", tokenizer)
    write(base / "pairs.csv", PAIRS)
    write(base / "corpus.txt", ["a man slept", "A CAT  sat on a mat", "the woman ran"])
    return base


def run(base, name, *options):
    line = f"--model {base / 'model'} --input {base / 'pairs.csv'} --output {base / name} --device cpu --quiet"
    return status("mine", *line.split(), *options)


def test_the_result_says_what_was_left_out_and_why(base, capsys):
    assert run(base, "counted.csv", "--corpus", str(base / "corpus.txt"), "--max_score", "0.9", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pairs"] == document["anchors"] == 4 and document["candidates"] == 6
    assert document["dropped"]["repeated candidate"] == 1 and document["options"]["max_score"] == 0.9
    assert document["dropped"]["positive of the same anchor"] == 4
    assert document["rows"] + document["pairs_without_negatives"] == 4


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_triplets_are_written_in_a_form_that_training_reads(base, suffix):
    assert run(base, f"triplets.{suffix}", "--corpus", str(base / "corpus.txt")) == 0
    rows = load_text_dataset(base / f"triplets.{suffix}", cache_dir=base)
    assert rows["sent0"] == [line.split(",")[0] for line in PAIRS[1:]] and rows.num_columns == 3
    assert all(negative != positive for negative, positive in zip(rows["sent2"], rows["sent1"], strict=True))


def test_bounds_that_leave_nothing_are_an_error_that_counts_them(base, capsys):
    assert run(base, "none.csv", "--max_score", "-1") == 2
    assert "no pair has 1 hard negative(s) left" in (message := capsys.readouterr().err)
    assert "x max_score" in message and not (base / "none.csv").exists()


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_audit_is_a_file_of_the_counted_negatives(base, suffix, capsys):
    audit = base / f"audit.{suffix}"
    assert run(base, f"audited-{suffix}.csv", "--audit", str(audit), "--json") == 0
    count = json.loads(capsys.readouterr().out)["suspicious"]
    assert sum(1 for _ in open_table(audit).rows(["reason", "negative_score"])) == count > 0
    assert run(base, f"again-{suffix}.csv", "--audit", str(audit)) == 2
    assert f"{audit} exists" in capsys.readouterr().err and not (base / f"again-{suffix}.csv").exists()
