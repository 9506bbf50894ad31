"""The relatedness regressor."""

import numpy as np
import pytest
from evaluation_helpers import BagOfWords, random_pairs

from simcse_hf.evaluation import ScoredPairs
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.regressor import rating_distribution, score_regressor


def splits(sizes=(150, 40, 60)):
    result = {}
    for seed, (split, size) in enumerate(zip(("train", "dev", "test"), sizes, strict=True)):
        rows = random_pairs(size, seed)
        result[split] = ScoredPairs(split, *(list(column) for column in zip(*rows, strict=True)))
    return result


def score(parts):
    texts = [text for pairs in parts.values() for text in pairs.sentences1 + pairs.sentences2]
    return score_regressor("STSBenchmark", parts, SentenceEmbeddings(BagOfWords(), texts), device="cpu")


def test_a_rating_distribution_has_the_score_as_its_mean():
    scores = np.array([1.0, 1.25, 3.6, 5.0])
    spread = rating_distribution(scores)
    assert spread @ np.arange(1, 6) == pytest.approx(scores, abs=1e-6)
    assert spread.sum(axis=1) == pytest.approx(np.ones(4))
    assert spread[1].tolist() == pytest.approx([0.75, 0.25, 0, 0, 0])
    # SentEval's target below 1 is short of the whole probability.
    assert rating_distribution(np.array([0.0, 0.4])).tolist() == pytest.approx(
        np.array([[0] * 5, [0.4, 0, 0, 0, 0]]), abs=1e-6
    )


def test_the_regressor_learns_and_scores_dev_and_test():
    parts = splits()
    result, scores = score(parts)
    assert result["test"]["spearman"] > 40 and result["dev"]["pairs"] == 40
    assert sorted(scores["test"]["gold"]) == sorted(parts["test"].scores)
    assert result["test"]["pearson"] == pytest.approx(
        100 * np.corrcoef(scores["test"]["predicted"], scores["test"]["gold"])[0, 1]
    )
    errors = (scores["test"]["predicted"] - scores["test"]["gold"]) ** 2
    assert result["test"]["mse"] == pytest.approx(errors.mean())


def test_a_missing_split_is_an_error():
    parts = splits()
    del parts["dev"]
    with pytest.raises(ValueError, match="STSBenchmark: the regressor needs .* dev is missing"):
        score(parts)
