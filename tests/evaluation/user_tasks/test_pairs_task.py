"""Pair classification from a user's file."""

import numpy as np
import pytest
from evaluation_helpers import binary_pairs, encode, write_rows

from simcse_hf.evaluation.user_tasks import read_task

HEADER = ["sentence1", "sentence2", "label"]


@pytest.fixture
def table(tmp_path):
    return write_rows(tmp_path / "mine.csv", HEADER, binary_pairs())


def average_precision(gold, scores):
    """The mean over the positives of the precision at their rank, for scores without ties."""
    ranked = [g for _, g in sorted(zip(scores, gold, strict=True), key=lambda pair: -pair[0])]
    return np.mean([np.mean(ranked[: rank + 1]) for rank, g in enumerate(ranked) if g])


def test_average_precision_equals_its_definition(table):
    result = read_task("pairs", table).evaluate(encode)
    rows = binary_pairs()
    x, y = (encode([row[i] for row in rows]).astype(np.float64) for i in (0, 1))
    cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    gold = [row[2] for row in rows]
    assert result.metrics["average_precision"] == pytest.approx(100 * average_precision(gold, cosines))
    assert result.details == {"protocol": "average precision of the cosine", "examples": 60, "positives": sum(gold)}


def test_a_split_separates_no_pairs_that_share_a_text(tmp_path):
    rows = binary_pairs(60)
    # Chains of three: the second pair has the first text of the first, and the third the second text of the second.
    rows = [(rows[i - 1][0] if i % 3 == 1 else a, b, label) for i, (a, b, label) in enumerate(rows)]
    rows = [(a, rows[i - 1][1] if i % 3 == 2 else b, label) for i, (a, b, label) in enumerate(rows)]
    task = read_task("pairs", write_rows(tmp_path / "mine.tsv", HEADER, rows))
    first, second = task.split(0.3, seed=1)
    assert len(first) + len(second) == 60 and abs(len(first) - 18) <= 2
    assert not set(first.texts) & set(second.texts)
    assert first.evaluate(encode).metrics["average_precision"] > 0


def test_pairs_that_all_hang_together_cannot_be_split(tmp_path):
    rows = [("the same text", b, label) for _, b, label in binary_pairs(20)]
    task = read_task("pairs", write_rows(tmp_path / "mine.csv", HEADER, rows))
    with pytest.raises(ValueError, match="mine.csv: 20 of 20 units are linked by shared texts.*two separate files"):
        task.split(0.5)
    with pytest.raises(ValueError, match="share must lie between 0 and 1"):
        task.split(1.0)
