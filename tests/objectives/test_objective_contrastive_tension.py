"""Contrastive Tension: K negatives for each positive, taken from the global batch."""

import math

import pytest
import torch
from datasets import Dataset
from process_helpers import Encoded, assert_same, in_processes, train_share

from simcse_hf.objectives import EncodedBatch, TrainingRows, make_objective

CASES = [(2, 3, 1), (8, 5, 7), (9, 5, 7), (5, 4, 2), (12, 16, 11)]  # rows, dimensions, negatives a positive


def objective_of(dim, negatives=7):
    return make_objective("contrastive_tension", dim, {}, {"negatives_per_positive": negatives})


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


def parts():
    torch.manual_seed(0)
    return Encoded(objective_of(4, negatives=3)), (torch.randn(6, 2, 6, dtype=torch.float64),)


def one_process(rank, processes):
    return train_share(*parts(), rank, processes)


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
    objective = make_objective("contrastive_tension", 4, {}, {})
    assert objective.encoders == 2 and objective.negatives_per_positive == 7
    assert not list(objective.parameters())


def test_two_processes_equal_one(tmp_path):
    assert_same(in_processes(one_process, tmp_path), *parts())


def test_large_logits_stay_finite():
    vectors = torch.full((9, 2, 4), 1000.0, requires_grad=True)
    loss = objective_of(4)(EncodedBatch(vectors))
    loss.backward()
    assert loss.item() == pytest.approx(4e6 * 7 / 8) and vectors.grad.isfinite().all()


@pytest.mark.parametrize("rows, negatives", [(1, 0), (3, 2)])
def test_a_small_evaluation_batch_uses_all_its_other_rows(rows, negatives):
    vectors = torch.randn(rows, 2, 4, dtype=torch.float64)
    assert objective_of(4).eval()(EncodedBatch(vectors)).item() == pytest.approx(reference(vectors, negatives)[0])


def test_half_precision_embeddings_are_computed_in_float32():
    vectors = torch.randn(9, 2, 16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective_of(16)(EncodedBatch(vectors))
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(reference(vectors.double(), 7)[0], rel=1e-5)


@pytest.mark.parametrize("negatives", [0, -1, 2.0, True, "7"])
def test_an_invalid_number_of_negatives_is_refused(negatives):
    with pytest.raises(ValueError, match="negatives_per_positive must be an integer above 0"):
        objective_of(4, negatives)


def test_unsuitable_rows_and_batches_are_refused():
    objective = objective_of(4)
    for num_sentences in (1, 2):
        objective.check(TrainingRows(num_sentences, 8))
        objective.check(TrainingRows(num_sentences, 4, processes=2))
    with pytest.raises(
        ValueError, match="negatives_per_positive is 7, but a row of a batch of 7 has only 6 other rows.*at most 6"
    ):
        objective.check(TrainingRows(2, 7))
    with pytest.raises(ValueError, match="rows with 3 sentences"):
        objective.check(TrainingRows(3, 64))
    with pytest.raises(ValueError, match="rows with relations"):
        objective.check(TrainingRows(2, 64, dataset=Dataset.from_dict({"input_ids": [[1]], "relations": [[0]]})))
