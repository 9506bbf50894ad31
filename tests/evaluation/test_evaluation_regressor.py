"""The relatedness regressor."""

import numpy as np
import pytest
from evaluation_helpers import BagOfWords, random_pairs

from simcse_hf.evaluation import ScoredPairs
from simcse_hf.evaluation.regressor import rating_distribution, score_regressor
from simcse_hf.evaluation.vectors import SentenceVectors


def splits(sizes=(150, 40, 60)):
    found = {}
    for seed, (split, size) in enumerate(zip(("train", "dev", "test"), sizes, strict=True)):
        rows = random_pairs(size, seed)
        found[split] = ScoredPairs(split, *(list(column) for column in zip(*rows, strict=True)))
    return found


def score(parts):
    texts = [text for pairs in parts.values() for text in pairs.sentences1 + pairs.sentences2]
    return score_regressor("STSBenchmark", parts, SentenceVectors(BagOfWords(), texts), device="cpu")


def test_the_distribution_has_the_score_as_its_mean_and_two_neighbours():
    scores = np.array([1.0, 1.25, 3.6, 5.0])
    spread = rating_distribution(scores)
    assert spread @ np.arange(1, 6) == pytest.approx(scores, abs=1e-6)
    assert spread.sum(axis=1) == pytest.approx(np.ones(4))
    assert spread[1].tolist() == pytest.approx([0.75, 0.25, 0, 0, 0])
    # SentEval's target below 1 is short of the whole probability.
    assert rating_distribution(np.array([0.0, 0.4])).tolist() == pytest.approx(
        np.array([[0] * 5, [0.4, 0, 0, 0, 0]]), abs=1e-6
    )


def test_it_learns_and_scores_dev_and_test():
    parts = splits()
    result, scores = score(parts)
    assert result["test"]["spearman"] > 40 and result["dev"]["pairs"] == 40
    assert sorted(scores["test"]["gold"]) == sorted(parts["test"].scores)
    assert result["test"]["pearson"] == pytest.approx(
        100 * np.corrcoef(scores["test"]["predicted"], scores["test"]["gold"])[0, 1]
    )
    errors = (scores["test"]["predicted"] - scores["test"]["gold"]) ** 2
    assert result["test"]["mse"] == pytest.approx(errors.mean())


def test_every_split_is_needed():
    parts = splits()
    del parts["dev"]
    with pytest.raises(ValueError, match="STSBenchmark: the regressor needs .* dev is missing"):
        score(parts)
