"""Contrastive Tension: K negatives for each positive, taken from the global batch."""

import math

import pytest
import torch

from simcse_hf.objectives import EncodedBatch, build_objective

CASES = [(2, 3, 1), (8, 5, 7), (9, 5, 7), (5, 4, 2), (12, 16, 11)]  # rows, dimensions, negatives a positive


def objective_of(dim, negatives=7):
    return build_objective("contrastive_tension", dim, {"negatives_per_positive": negatives})


def pairs(rows, negatives):
    """Return tuples (row of the first encoder, row of the second, whether both are the same sentence)."""
    return [(i, (i + k) % rows, k == 0) for i in range(rows) for k in range(negatives + 1)]


def reference(vectors, negatives):
    """Slow reference: the mean binary cross-entropy pair by pair, and its gradient sigmoid(logit) - label."""
    rows = len(vectors)
    every = pairs(rows, negatives)
    loss, gradient = 0.0, torch.zeros_like(vectors)
    for i, j, same in every:
        one, other = vectors[i, 0], vectors[j, 1]
        probability = 1 / (1 + math.exp(-sum((a * b).item() for a, b in zip(one, other, strict=True))))
        loss -= math.log(probability if same else 1 - probability) / len(every)
        slope = (probability - same) / len(every)
        gradient[i, 0] += slope * other
        gradient[j, 1] += slope * one
    return loss, gradient


@pytest.mark.parametrize("rows, dim, negatives", CASES)
@pytest.mark.parametrize("scale", [0.2, 1.5])
def test_loss_and_gradient_match_a_slow_reference(rows, dim, negatives, scale):
    vectors = scale * torch.randn(rows, 2, dim, dtype=torch.float64)
    loss, gradient = reference(vectors, negatives)
    vectors.requires_grad_()
    actual = objective_of(dim, negatives)(EncodedBatch(vectors))
    actual.backward()
    assert actual.item() == pytest.approx(loss, rel=1e-10)
    torch.testing.assert_close(vectors.grad, gradient, rtol=1e-8, atol=1e-12)


def test_the_defaults_are_two_encoders_and_seven_negatives_as_in_the_paper():
    objective = build_objective("contrastive_tension", 4)
    assert objective.encoders == 2 and objective.negatives_per_positive == 7
    assert not list(objective.parameters())


def test_large_logits_stay_finite():
    vectors = torch.full((9, 2, 4), 1000.0, requires_grad=True)
    loss = objective_of(4)(EncodedBatch(vectors))
    loss.backward()
    assert loss.item() == pytest.approx(4e6 * 7 / 8) and vectors.grad.isfinite().all()


@pytest.mark.parametrize("rows, negatives", [(1, 0), (3, 2)])
def test_a_small_evaluation_batch_uses_all_its_other_rows(rows, negatives):
    vectors = torch.randn(rows, 2, 4, dtype=torch.float64)
    assert objective_of(4).eval()(EncodedBatch(vectors)).item() == pytest.approx(reference(vectors, negatives)[0])
