"""CoSENT and AnglE: pairs with a higher score get a higher cosine, and other angles in complex space."""

import pytest
import torch
from objective_helpers import assert_same, cosine, slow_info_nce

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.labelled.graded_pairs import AnglE, CoSENT

#: Texts 0 and 8 occur twice, and texts 2 and 3 stand in two pairs.
TEXT_IDS = torch.tensor([[0, 1], [2, 3], [4, 0], [2, 7], [8, 8], [10, 3]])


def pairs_of(rows=5, dim=6, seed=0):
    """Embeddings of pairs and scores from 0 to 2, some of which are equal."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(rows, 2, dim, dtype=torch.float64, generator=generator)
    scores = torch.randint(0, 3, (rows,), generator=generator).double()
    return embeddings.requires_grad_(), scores


def slow_loss(embeddings, scores, temperature, compare=cosine):
    """The formula, one comparison of two pairs at a time."""
    total, similarities = 1.0, [compare(*pair) for pair in embeddings]
    for i, higher in enumerate(scores):
        for j, lower in enumerate(scores):
            if higher > lower:
                total = total + ((similarities[j] - similarities[i]) / temperature).exp()
    return total.log()


@pytest.mark.parametrize("temperature", [0.05, 0.7])
@pytest.mark.parametrize("rows", [2, 5, 9])
def test_loss_and_gradient_match_a_slow_reference(rows, temperature):
    embeddings, scores = pairs_of(rows)
    scores[:2] = torch.tensor([0.0, 2.0])
    objective = build_objective("cosent", 6, {"temperature": temperature})
    loss = objective(EncodedBatch(embeddings, {"scores": scores}))
    expected = slow_loss(embeddings, scores, temperature)
    assert_same(loss, expected, embeddings)


def test_pairs_without_an_order_have_no_loss_and_no_gradient():
    embeddings, scores = pairs_of(4)
    loss = CoSENT(6)(EncodedBatch(embeddings, {"scores": torch.ones_like(scores)}))
    loss.backward()
    assert loss.item() == 0 and torch.equal(embeddings.grad, torch.zeros_like(embeddings))


# --- AnglE ---


def norm(x):
    return x.square().sum().sqrt()


def slow_angle(z, w):
    """The authors' definition: a quotient of complex numbers, divided by the ratio of the norms."""
    half = len(z) // 2
    total = 0.0
    for k in range(half):
        a, b, c, d = z[k], z[half + k], w[k], w[half + k]
        real = (a * c + b * d) / norm(w) ** 2
        imaginary = (b * c - a * d) / norm(w) ** 2
        total = total + (real + imaginary) / (norm(z) / norm(w))
    return total.abs()


def encoded(embeddings, scores, text_ids=TEXT_IDS):
    return EncodedBatch(embeddings, {"scores": scores, "text_ids": text_ids})


@pytest.mark.parametrize("positive_score", [1.0, 2.0])
def test_each_loss_and_its_gradient_match_a_slow_reference(positive_score):
    embeddings, scores = pairs_of(6)
    scores[:2] = torch.tensor([0.0, 2.0])
    options = {"cosine_weight": 0.5, "in_batch_weight": 2.0, "angle_weight": 3.0, "angle_temperature": 0.4}
    objective = build_objective("angle", 6, {"temperature": 0.1} | options | {"positive_score": positive_score})
    losses = objective(encoded(embeddings, scores))
    positives = [i for i, score in enumerate(scores) if score >= positive_score]
    in_batch = slow_info_nce(embeddings, 0.1, rows=positives, symmetric=True, ids=TEXT_IDS, pairs=positives)
    expected = {
        "cosine_loss": 0.5 * slow_loss(embeddings, scores, 0.1),
        "in_batch_loss": 2.0 * in_batch,
        "angle_loss": 3.0 * slow_loss(embeddings, scores, 0.4, slow_angle),
    }
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        assert_same(loss, expected[name], embeddings)


def test_a_batch_without_positive_pairs_has_no_in_batch_loss():
    embeddings, scores = pairs_of(6)
    losses = AnglE(6, positive_score=5.0)(encoded(embeddings, scores))
    assert losses["in_batch_loss"].item() == 0 and losses["angle_loss"] > 0
    sum(losses.values()).backward()
    assert torch.isfinite(embeddings.grad).all()
