"""Correlations, cosines and the geometry against their definitions in float64, and what encoders may return."""

import math

import evaluate
import numpy as np
import pytest
import scipy.stats
import torch
from evaluation_helpers import Fixed

from simcse_hf.evaluation import (
    METRIC_MODULE,
    alignment,
    cosine_similarity_pairs,
    isotropy,
    metrics,
    singular_spectrum,
    uniformity,
)
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.metric_module import SimilarityCorrelation

random = np.random.RandomState(0)
A, B = random.randn(50), random.randint(0, 5, 50).astype(float)


def test_a_zero_embedding_has_cosine_zero():
    x = np.eye(3, dtype=np.float32)
    x[1] = 0
    assert cosine_similarity_pairs(x, np.eye(3, dtype=np.float32)) == pytest.approx([1, 0, 1])


def test_the_metric_is_loaded_by_its_file_and_works_in_batches_and_combined(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path)
    metric = evaluate.load(METRIC_MODULE)
    result = metric.compute(predictions=A, references=B)
    assert result["spearman"] == pytest.approx(scipy.stats.spearmanr(A, B).statistic, abs=1e-12)
    assert result["pearson"] == pytest.approx(scipy.stats.pearsonr(A, B).statistic, abs=1e-12)
    for start in range(0, 50, 10):
        metric.add_batch(predictions=A[start : start + 10], references=B[start : start + 10])
    assert metric.compute() == pytest.approx(result)
    assert evaluate.combine([SimilarityCorrelation()]).compute(predictions=A, references=B) == pytest.approx(result)


torch.manual_seed(0)
X, Y = torch.randn(23, 6, dtype=torch.float64), torch.randn(23, 6, dtype=torch.float64)


def unit(row):
    return [value / math.sqrt(sum(v * v for v in row)) for value in row]


def squared_distance(a, b):
    return sum((u - v) ** 2 for u, v in zip(unit(a), unit(b), strict=True))


def test_alignment_is_the_mean_squared_distance_of_normalised_embeddings():
    expected = sum(squared_distance(a, b) for a, b in zip(X.tolist(), Y.tolist(), strict=True)) / len(X)
    assert alignment(X, Y) == pytest.approx(expected, abs=1e-12)
    assert alignment(X.float(), 7 * Y.float()) == pytest.approx(expected, abs=1e-5)
    assert isinstance(alignment(X, Y), float) and alignment(X, 3 * X) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("t", [2, 0.5, 300])
@pytest.mark.parametrize("elements", [1, 23 * 5, 1 << 20])
def test_uniformity_is_the_log_mean_over_distinct_pairs_for_any_block_size(monkeypatch, t, elements):
    monkeypatch.setattr(metrics, "BLOCK_ELEMENTS", elements)
    rows = X.tolist()
    potentials = [-t * squared_distance(rows[i], rows[j]) for i in range(len(rows)) for j in range(i + 1, len(rows))]
    highest = max(potentials)
    expected = highest + math.log(sum(math.exp(p - highest) for p in potentials) / len(potentials))
    assert uniformity(X, t) == pytest.approx(expected, abs=1e-10)
    assert uniformity(5 * X.float(), t) == pytest.approx(expected, abs=1e-4 * max(1, t))


def test_the_singular_spectrum_of_normalised_embeddings_starts_at_one():
    gram = torch.tensor([unit(row) for row in X.tolist()], dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(gram.T @ gram).flip(0)
    expected = (eigenvalues / eigenvalues[0]).sqrt().tolist()
    assert singular_spectrum(X) == pytest.approx(expected, abs=1e-9)
    assert singular_spectrum(torch.eye(4)) == pytest.approx([1.0] * 4)


def test_isotropy_is_one_for_symmetric_directions_and_small_for_a_cone():
    symmetric = torch.cat([torch.eye(4), -torch.eye(4)])
    assert isotropy(symmetric) == pytest.approx(1.0, abs=1e-6)
    cone = torch.ones(50, 4) + 0.01 * torch.randn(50, 4)
    # All vectors along one direction c: Z(c) = 50 e and Z(-c) = 50 / e.
    assert isotropy(cone) == pytest.approx(math.exp(-2), abs=1e-2)


@pytest.mark.parametrize(
    "convert, dtype",
    [
        (lambda x: x.tolist(), np.float64),
        (lambda x: torch.tensor(x, requires_grad=True), np.float32),
        (lambda x: torch.tensor(x).bfloat16(), np.float32),
        (lambda x: x.astype(np.float64), np.float64),
    ],
)
def test_encoders_may_return_arrays_tensors_or_lists(convert, dtype):
    x = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    got = SentenceEmbeddings(Fixed(convert(x)), ["bb", "a"])(["a", "bb"])
    assert got.dtype == dtype and np.array_equal(got, x[::-1])


def test_encode_is_called_without_normalization_if_it_takes_the_argument():
    class Model:
        def encode(self, texts, *, normalize_embeddings=True, show_progress_bar=False):
            assert normalize_embeddings is None and show_progress_bar
            return np.eye(len(texts), dtype=np.float32)

    SentenceEmbeddings(Model(), ["a cat", "red"])
