"""CoSENT and AnglE: pairs with a higher score get a higher cosine, and other angles in complex space."""

import pytest
import torch
from objective_helpers import assert_same, cosine, slow_info_nce

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.scored_pairs import AnglE, CoSENT

#: Texts 0 and 8 occur twice, and texts 2 and 3 stand in two pairs.
TEXT_IDS = torch.tensor([[0, 1], [2, 3], [4, 0], [2, 7], [8, 8], [10, 3]])


@pytest.fixture
def embeddings(rows):
    """Those of pairs."""
    return torch.randn(rows, 2, 6, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def scores(rows):
    """Scores from 0 to 2, some of which are equal and the first two of which are not."""
    return torch.cat([torch.tensor([0, 2]), torch.randint(0, 3, (rows - 2,))]).double()


@pytest.fixture
def rows():
    return len(TEXT_IDS)


# --- CoSENT ---


def slow_cosent(embeddings, scores, temperature, compare=cosine):
    """The formula, one comparison of two pairs at a time."""
    similarities = [compare(first, second) for first, second in embeddings]
    total = 1.0
    for i, higher in enumerate(scores):
        for j, lower in enumerate(scores):
            if higher > lower:
                total = total + ((similarities[j] - similarities[i]) / temperature).exp()
    return total.log()


@pytest.mark.parametrize("temperature", [0.05, 0.7])
@pytest.mark.parametrize("rows", [2, 9])
def test_loss_and_gradient_match_a_slow_reference(embeddings, scores, temperature):
    objective = build_objective("cosent", 6, {"temperature": temperature})
    loss = objective(EncodedBatch(embeddings, {"scores": scores}))
    assert_same(loss, slow_cosent(embeddings, scores, temperature), embeddings)


def test_pairs_without_an_order_have_no_loss_and_no_gradient(embeddings, scores):
    loss = CoSENT(6)(EncodedBatch(embeddings, {"scores": torch.ones_like(scores)}))
    loss.backward()
    assert loss.item() == 0
    assert not embeddings.grad.any()


# --- AnglE ---


def slow_angle(z, w):
    """The authors' definition: a quotient of complex numbers, divided by the ratio of the norms."""
    z, w = (torch.complex(*vector.chunk(2)) for vector in (z, w))
    quotients = z * w.conj() / w.norm() ** 2 / (z.norm() / w.norm())
    return (quotients.real + quotients.imag).sum().abs()


@pytest.mark.parametrize("positive_score", [1.0, 2.0])
def test_angle_has_three_losses(embeddings, scores, positive_score):
    """CoSENT, CoSENT with the authors' angle, and the contrast of the positive pairs."""
    options = {
        "temperature": 0.1,
        "cosine_weight": 0.5,
        "in_batch_weight": 2.0,
        "angle_weight": 3.0,
        "angle_temperature": 0.4,
        "positive_score": positive_score,
    }
    inputs = {"scores": scores, "text_ids": TEXT_IDS}
    losses = build_objective("angle", 6, options)(EncodedBatch(embeddings, inputs))
    positives = [row for row, score in enumerate(scores) if score >= positive_score]
    contrast = slow_info_nce(embeddings, 0.1, rows=positives, symmetric=True, ids=TEXT_IDS, pairs=positives)
    expected = {
        "cosine_loss": 0.5 * slow_cosent(embeddings, scores, 0.1),
        "in_batch_loss": 2.0 * contrast,
        "angle_loss": 3.0 * slow_cosent(embeddings, scores, 0.4, slow_angle),
    }
    assert losses.keys() == expected.keys()
    for name, slow in expected.items():
        assert_same(losses[name], slow, embeddings)


def test_a_batch_without_positive_pairs_has_no_in_batch_loss_and_a_finite_gradient(embeddings, scores):
    inputs = {"scores": scores, "text_ids": TEXT_IDS}
    losses = AnglE(6, positive_score=5.0)(EncodedBatch(embeddings, inputs))
    assert losses["in_batch_loss"].item() == 0
    assert losses["angle_loss"] > 0
    sum(losses.values()).backward()
    assert embeddings.grad.isfinite().all()
