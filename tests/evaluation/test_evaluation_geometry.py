"""Alignment, uniformity and spectrum against their definitions, written out as loops in float64."""

import math

import pytest
import torch

from simcse_hf.evaluation import alignment, isotropy, metrics, singular_spectrum, uniformity

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
