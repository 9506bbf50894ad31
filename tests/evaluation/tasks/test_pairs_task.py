"""Pair classification from a user's file."""

import numpy as np
import pytest
from evaluation_helpers import binary_pairs, encode, write_rows
from sklearn.metrics import average_precision_score

from simcse_hf import read_task


@pytest.fixture
def read_pairs(tmp_path):
    """`read_pairs(rows)` writes pairs of texts with a label to a file, and reads them as a task."""
    header = ["sentence1", "sentence2", "label"]
    return lambda rows: read_task("pairs", write_rows(tmp_path / "mine.csv", header, rows))


# --- the score ---


def cosine(first, second):
    x, y = encode([first, second]).astype(np.float64)
    return x @ y / np.linalg.norm(x) / np.linalg.norm(y)


def test_average_precision_equals_its_definition(read_pairs):
    rows = binary_pairs()
    gold = [label for _, _, label in rows]
    cosines = [cosine(first, second) for first, second, _ in rows]
    result = read_pairs(rows).evaluate(encode)
    expected = 100 * average_precision_score(gold, cosines)
    assert result.metrics["average_precision"] == pytest.approx(expected)
    positives = sum(gold)
    assert result.details == {"protocol": "average precision of the cosine", "examples": 60, "positives": positives}


# --- splits ---


def chains_of_three():
    """60 pairs, of which every three share a first text or a second text."""
    rows = []
    for first, second, third in zip(*[iter(binary_pairs(60))] * 3, strict=True):
        second = (first[0], *second[1:])
        third = (third[0], second[1], third[2])
        rows += [first, second, third]
    return rows


def test_a_split_separates_no_pairs_that_share_a_text(read_pairs):
    first, second = read_pairs(chains_of_three()).split(0.3, seed=1)
    assert not set(first.texts) & set(second.texts)
    assert len(first) == pytest.approx(18, abs=2) and len(first) + len(second) == 60
    assert first.evaluate(encode).metrics["average_precision"] > 0


@pytest.mark.parametrize("share, words", [(0.5, "mine.csv: 20 of 20 rows .*two separate files"), (1.0, "share")])
def test_pairs_that_cannot_be_split_are_refused(share, words, read_pairs):
    rows = [("the same text", second, label) for _, second, label in binary_pairs(20)]
    with pytest.raises(ValueError, match=words):
        read_pairs(rows).split(share)
