"""What a user is promised of the supervised contrastive loss: Eq. 2 of arXiv:2106.04791, values and gradients."""

import math

import pytest
import torch
from relation_helpers import ROWS, embedded, training_rows

from simcse_hf.objectives import EncodedBatch, TrainingRows
from simcse_hf.objectives.supcon import SupCon


def slow_similarity(a, b, kind):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    if kind == "dot":
        return dot
    return dot / (sum(x * x for x in a).sqrt() * sum(y * y for y in b).sqrt())


def slow_loss(rows, vectors, tau, kind):
    """The mean of Eq. 2 over the premises with a positive, term by term.

    Numerator and denominator are both divided by the largest term, lest e^(1 / 0.01) overflow.
    """
    losses = []
    for i, sentences in enumerate(vectors):
        positives, negatives = [], []
        for j, others in enumerate(vectors):
            for relation, hypothesis in zip(rows[j], others[1:], strict=False):
                s = slow_similarity(sentences[0], hypothesis, kind) / tau
                (positives if i == j and relation == 0 else negatives).append(s)
        if positives:
            largest = max(s.item() for s in positives + negatives)
            denominator = sum(torch.exp(s - largest) for s in positives + negatives)
            losses.append(-sum(s - largest - torch.log(denominator) for s in positives) / len(positives))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("temperature", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("dim", [2, 7])
@pytest.mark.parametrize("name", ROWS)
def test_equals_the_equation(name, dim, temperature, similarity):
    batch = embedded(ROWS[name], dim)
    fast = SupCon(dim, temperature, similarity)(batch)
    slow = slow_loss(ROWS[name], batch.vectors, temperature, similarity)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9, abs=1e-9)
    ours, exact = (torch.autograd.grad(loss, batch.vectors)[0] for loss in (fast, slow))
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-8)
    assert exact.abs().max() > 0


def test_a_case_by_hand():
    """Two premises in the plane; the second has no positive and counts only by its hypothesis."""
    vectors = torch.tensor([[[1.0, 0], [1, 0], [0, 1]], [[0, 1], [-1, 0], [9, 9]]])
    batch = EncodedBatch(vectors, {"relations": torch.tensor([[0, 2], [1, -100]])})
    wanted = math.log(math.e + 1 + 1 / math.e) - 1
    assert SupCon(2, temperature=1.0, similarity="dot")(batch).item() == pytest.approx(wanted, abs=1e-6)


def test_two_positives_are_averaged_and_stand_in_each_others_denominator():
    vectors = torch.tensor([[[1.0, 0], [1, 0], [0, 1]]])
    batch = EncodedBatch(vectors, {"relations": torch.tensor([[0, 0]])})
    wanted = math.log(math.e + 1) - 1 / 2
    assert SupCon(2, temperature=1.0, similarity="dot")(batch).item() == pytest.approx(wanted, abs=1e-6)


def test_neutral_and_contradictory_hypotheses_are_negatives_alike():
    batch, other = embedded([[0, 1], [0, 2]], 4), embedded([[0, 2], [0, 1]], 4)
    assert torch.equal(SupCon(4)(batch), SupCon(4)(other))


def test_cosine_ignores_lengths_and_the_dot_product_does_not():
    batch, longer = embedded(ROWS["ragged"], 4), embedded(ROWS["ragged"], 4, scale=3.0)
    assert SupCon(4)(batch).item() == pytest.approx(SupCon(4)(longer).item(), rel=1e-9)
    losses = [SupCon(4, 1.0, "dot")(each).item() for each in (batch, longer)]
    assert abs(losses[0] - losses[1]) > 0.1


def test_what_is_no_sentence_has_no_part():
    batch, other = embedded(ROWS["ragged"], 4), embedded(ROWS["ragged"], 4)
    absent = torch.cat([torch.zeros(4, 1, dtype=bool), batch.inputs["relations"] < 0], dim=1)
    with torch.no_grad():
        other.vectors[absent] = float("nan")
    loss = SupCon(4)(batch)
    assert torch.equal(SupCon(4)(other), loss)
    loss.backward()
    assert (batch.vectors.grad[absent] == 0).all() and (batch.vectors.grad[~absent] != 0).any(-1).all()


def test_the_gradient_stays_accurate_where_the_loss_is_nearly_zero():
    """In float32, where softmax(positive) rounds to 1; the reference is float64."""
    vectors = torch.eye(4, dtype=torch.float64)[torch.tensor([[0, 0, 1], [2, 2, 3]])]
    vectors = vectors + 0.01 * torch.randn(2, 3, 4, dtype=torch.float64)
    relations = {"relations": torch.tensor([[0, 2], [0, 1]])}
    gradients = []
    for dtype in (torch.float32, torch.float64):
        x = vectors.to(dtype).requires_grad_()
        loss = SupCon(4, temperature=0.05)(EncodedBatch(x, relations))
        gradients.append(torch.autograd.grad(loss, x)[0].double())
        assert 0 < loss.item() < 1e-6
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4 * gradients[1].abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_vectors_are_compared_in_full(dtype):
    batch = embedded(ROWS["ragged"], 4, dtype)
    exact = slow_loss(ROWS["ragged"], batch.vectors.double(), 0.05, "cosine").item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = SupCon(4)(batch)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("rows", [[[0]], [[1, 2], [2]]], ids=["a single hypothesis", "no positive"])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_to_contrast_is_zero_with_a_gradient(rows, training):
    batch = embedded(rows, 4)
    loss = SupCon(4).train(training)(batch)
    loss.backward()
    assert loss.item() == 0 and (batch.vectors.grad == 0).all()


def test_rows_are_checked_before_training():
    objective = SupCon(4)
    objective.check(training_rows([[0, 2], [1, 0]], batch_size=1))
    objective.check(training_rows([[0]], batch_size=1, processes=2))
    with pytest.raises(ValueError, match=r"supcon.* need a column `relations`"):
        objective.check(TrainingRows(2, 4))
    with pytest.raises(ValueError, match=r"training row 2: the premise has no entailed hypothesis.*\[1, 2\].*groups"):
        objective.check(training_rows([[0, 2], [1, 2]]))
    with pytest.raises(ValueError, match="training row 2: a batch of one premise with one hypothesis.*raise per_dev"):
        objective.check(training_rows([[0, 2], [0]], batch_size=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be above 0, got nan"),
        ({"similarity": "euclidean"}, "similarity must be one of cosine, dot, got 'euclidean'"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        SupCon(4, **options)
