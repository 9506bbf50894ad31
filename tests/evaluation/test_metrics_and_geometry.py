"""Correlations, cosines and the geometry against their definitions in float64, and what encoders may return."""

import math

import evaluate
import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from evaluation_helpers import BagOfWords, Fixed, random_texts

from simcse_hf.evaluation import (
    METRIC_MODULE,
    ScoredPairs,
    alignment,
    cosine_similarity_pairs,
    isotropy,
    metrics,
    singular_spectrum,
    uniformity,
)
from simcse_hf.evaluation.embeddings import embed_all
from simcse_hf.evaluation.metric_module import SimilarityCorrelation
from simcse_hf.evaluation.tasks.senteval import GeometryTask


def test_a_zero_embedding_has_cosine_zero():
    x = np.eye(3, dtype=np.float32)
    x[1] = 0
    assert cosine_similarity_pairs(x, np.eye(3, dtype=np.float32)) == pytest.approx([1, 0, 1])


# --- the metric ---

random = np.random.RandomState(0)
PREDICTED = random.randn(50)
GOLD = random.randint(0, 5, 50).astype(float)
CORRELATIONS = {
    "spearman": scipy.stats.spearmanr(PREDICTED, GOLD).statistic,
    "pearson": scipy.stats.pearsonr(PREDICTED, GOLD).statistic,
}


def test_the_metric_gives_the_correlations_of_scipy_also_in_batches_and_combined(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path)
    metric = evaluate.load(METRIC_MODULE)
    assert metric.compute(predictions=PREDICTED, references=GOLD) == pytest.approx(CORRELATIONS, abs=1e-12)
    for start in range(0, 50, 10):
        batch = slice(start, start + 10)
        metric.add_batch(predictions=PREDICTED[batch], references=GOLD[batch])
    assert metric.compute() == pytest.approx(CORRELATIONS)
    combined = evaluate.combine([SimilarityCorrelation()])
    assert combined.compute(predictions=PREDICTED, references=GOLD) == pytest.approx(CORRELATIONS)


# --- alignment ---

torch.manual_seed(0)
X, Y = torch.randn(2, 23, 6, dtype=torch.float64)


def slow_alignment():
    """The program of the paper, arXiv:2005.10242."""
    return (F.normalize(X, dim=1) - F.normalize(Y, dim=1)).norm(p=2, dim=1).pow(2).mean().item()


def test_alignment_is_the_mean_squared_distance_of_normalised_embeddings():
    assert alignment(X, Y) == pytest.approx(slow_alignment(), abs=1e-12)
    assert alignment(X.float(), 7 * Y.float()) == pytest.approx(slow_alignment(), abs=1e-5)
    assert alignment(X, 3 * X) == pytest.approx(0, abs=1e-12)


# --- uniformity ---


def slow_uniformity(t):
    """The program of the paper."""
    return torch.pdist(F.normalize(X, dim=1), p=2).pow(2).mul(-t).exp().mean().log().item()


@pytest.mark.parametrize("elements", [1, 23 * 5, 1 << 20])
@pytest.mark.parametrize("t", [2, 300])
def test_uniformity_is_the_log_mean_over_distinct_pairs_for_any_block_size(elements, t, monkeypatch):
    monkeypatch.setattr(metrics, "BLOCK_ELEMENTS", elements)
    assert uniformity(X, t) == pytest.approx(slow_uniformity(t), abs=1e-10)
    assert uniformity(5 * X.float(), t) == pytest.approx(slow_uniformity(t), abs=1e-4 * t)


# --- directions ---


def test_the_singular_spectrum_is_that_of_normalised_embeddings_and_starts_at_one():
    rows = F.normalize(X, dim=1)
    eigenvalues = torch.linalg.eigvalsh(rows.T @ rows).flip(0)
    expected = (eigenvalues / eigenvalues[0]).sqrt().tolist()
    assert singular_spectrum(X) == pytest.approx(expected, abs=1e-9)
    assert singular_spectrum(torch.eye(4)) == pytest.approx([1.0] * 4)


def test_isotropy_is_one_for_symmetric_directions_and_small_for_a_cone():
    symmetric = torch.cat([torch.eye(4), -torch.eye(4)])
    assert isotropy(symmetric) == pytest.approx(1.0, abs=1e-6)
    cone = torch.ones(50, 4) + 0.01 * torch.randn(50, 4)
    # All vectors along one direction c: Z(c) = 50 e and Z(-c) = 50 / e.
    assert isotropy(cone) == pytest.approx(math.exp(-2), abs=1e-2)


# --- encoders ---

VECTORS = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)


@pytest.mark.parametrize(
    "returned, dtype",
    [(torch.tensor(VECTORS, requires_grad=True).bfloat16(), np.float32), (VECTORS.astype(np.float64), np.float64)],
    ids=["bfloat16 with a gradient", "float64"],
)
def test_encoders_may_return_arrays_tensors_or_lists(returned, dtype):
    embeddings = embed_all(Fixed(returned), {None: ["bb", "a"]})(["a", "bb"])
    assert embeddings.dtype == dtype
    assert np.array_equal(embeddings, VECTORS[::-1])


def test_encode_is_called_without_normalization_if_it_takes_the_argument():
    class Model:
        def encode(self, texts, *, normalize_embeddings=True, show_progress_bar=False):
            assert normalize_embeddings is None
            assert show_progress_bar
            return np.eye(len(texts), dtype=np.float32)

    embed_all(Model(), {None: ["a cat", "red"]})


@pytest.mark.parametrize("scale", [5.0, 1.0])
def test_alignment_is_over_the_pairs_above_four_fifths_of_the_scale_of_their_scores(scale):
    sides = random_texts(6, 1), random_texts(6, 2)
    pairs = ScoredPairs("test", *sides, [scale * score for score in (1.0, 0.9, 0.8, 0.5, 0.1, 0.0)])
    task = GeometryTask.of("geometry", {"test": pairs}, "here")
    assert task.evaluate(BagOfWords()).details["positive_pairs"] == 2
