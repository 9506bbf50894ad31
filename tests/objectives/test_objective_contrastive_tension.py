"""Contrastive Tension: K negatives for each positive, taken from the global batch."""

import pytest
import torch
from objective_helpers import assert_same

from simcse_hf.objectives import EncodedBatch, build_objective

CASES = [(2, 3, 1), (8, 5, 7), (9, 5, 7), (5, 4, 2), (12, 16, 11)]  # rows, dimensions, negatives a positive


def objective_of(dim, negatives=7):
    return build_objective("contrastive_tension", dim, {"negatives_per_positive": negatives})


def reference(vectors, negatives):
    """Slow reference: the mean binary cross-entropy, pair by pair."""
    rows, losses = len(vectors), []
    for i in range(rows):
        for k in range(negatives + 1):
            probability = (vectors[i, 0] * vectors[(i + k) % rows, 1]).sum().sigmoid()
            losses.append(-(1 - probability if k else probability).log())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("rows, dim, negatives", CASES)
@pytest.mark.parametrize("scale", [0.2, 1.5])
def test_loss_and_gradient_match_a_slow_reference(rows, dim, negatives, scale):
    vectors = (scale * torch.randn(rows, 2, dim, dtype=torch.float64)).requires_grad_()
    assert_same(objective_of(dim, negatives)(EncodedBatch(vectors)), reference(vectors, negatives), vectors)


@pytest.mark.parametrize("rows, negatives", [(1, 0), (3, 2)])
def test_a_small_evaluation_batch_uses_all_its_other_rows(rows, negatives):
    vectors = torch.randn(rows, 2, 4, dtype=torch.float64)
    assert objective_of(4).eval()(EncodedBatch(vectors)).item() == pytest.approx(reference(vectors, negatives).item())
