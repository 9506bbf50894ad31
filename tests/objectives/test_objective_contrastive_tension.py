"""Contrastive Tension: K negatives for each positive, taken from the global batch."""

import pytest
import torch
from objective_helpers import assert_same
from torch.nn.functional import softplus

from simcse_hf.objectives import EncodedBatch, build_objective


def contrastive_tension(dim, negatives=7):
    return build_objective("contrastive_tension", dim, {"negatives_per_positive": negatives})


def slow_loss(vectors, negatives):
    """The mean binary cross-entropy, pair by pair: each row with itself, and with the rows after it."""
    rows = len(vectors)
    losses = []
    for i in range(rows):
        for step in range(negatives + 1):
            similarity = vectors[i, 0] @ vectors[(i + step) % rows, 1]
            losses.append(softplus(-similarity if step == 0 else similarity))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    "rows, dim, negatives",
    [(2, 3, 1), (9, 5, 7), (12, 16, 11)],
)
def test_loss_and_gradient_match_a_slow_reference(rows, dim, negatives):
    vectors = torch.randn(rows, 2, dim, dtype=torch.float64, requires_grad=True)
    loss = contrastive_tension(dim, negatives)(EncodedBatch(vectors))
    assert_same(loss, slow_loss(vectors, negatives), vectors)


@pytest.mark.parametrize("rows, negatives", [(1, 0), (3, 2)])
def test_a_small_evaluation_batch_uses_all_its_other_rows(rows, negatives):
    vectors = torch.randn(rows, 2, 4, dtype=torch.float64)
    loss = contrastive_tension(4).eval()(EncodedBatch(vectors))
    torch.testing.assert_close(loss, slow_loss(vectors, negatives))
