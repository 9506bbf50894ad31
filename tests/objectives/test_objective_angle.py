"""AnglE: the weighted sum of CoSENT, an in-batch loss and a ranking by angles in complex space."""

import cmath
import math

import pytest
import torch
from test_objective_cosent import cosine, pairs_of, slow_loss
from torch import nn

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.labelled.scored_pairs import AnglE, angle_similarity

TEXT_IDS = torch.tensor([[0, 1], [2, 3], [4, 0], [6, 7], [8, 8], [10, 11]])  # texts 0 and 8 occur twice


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


def slow_angle_loss(embeddings, scores, temperature):
    angles, total = [slow_angle(*pair) for pair in embeddings], 1.0
    for i, higher in enumerate(scores):
        for j, lower in enumerate(scores):
            if higher > lower:
                total = total + ((angles[j] - angles[i]) / temperature).exp()
    return total.log()


def slow_in_batch_loss(embeddings, scores, text_ids, temperature, positive_score):
    terms = []
    for i in range(len(scores)):
        for column in (0, 1):
            if scores[i] < positive_score:
                continue
            anchor, partner = embeddings[i, column], embeddings[i, 1 - column]
            own = {int(text_ids[i, 0]), int(text_ids[i, 1])}
            best = (cosine(anchor, partner) / temperature).exp()
            total = best
            for j in range(len(scores)):
                for other in (0, 1):
                    if int(text_ids[j, other]) not in own:
                        total = total + (cosine(anchor, embeddings[j, other]) / temperature).exp()
            terms.append(-(best / total).log())
    return sum(terms) / len(terms)


def encoded(embeddings, scores, text_ids=TEXT_IDS):
    return EncodedBatch(embeddings, {"scores": scores, "text_ids": text_ids})


@pytest.mark.parametrize("positive_score", [1.0, 2.0])
def test_each_loss_and_its_gradient_match_a_slow_reference(positive_score):
    embeddings, scores = pairs_of(6)
    scores[:2] = torch.tensor([0.0, 2.0])
    options = {"cosine_weight": 0.5, "in_batch_weight": 2.0, "angle_weight": 3.0, "angle_temperature": 0.4}
    objective = build_objective("angle", 6, {"temperature": 0.1} | options | {"positive_score": positive_score})
    losses = objective(encoded(embeddings, scores))
    expected = {
        "cosine_loss": 0.5 * slow_loss(embeddings, scores, 0.1),
        "in_batch_loss": 2.0 * slow_in_batch_loss(embeddings, scores, TEXT_IDS, 0.1, positive_score),
        "angle_loss": 3.0 * slow_angle_loss(embeddings, scores, 0.4),
    }
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        assert loss.item() == pytest.approx(expected[name].item(), rel=1e-9), name
        found, exact = (torch.autograd.grad(x, embeddings, retain_graph=True)[0] for x in (loss, expected[name]))
        torch.testing.assert_close(found, exact, rtol=1e-7, atol=1e-11)


def test_the_similarity_is_the_cosine_plus_the_sine_of_the_angle():
    """For one complex number of length 1 each, z = e^{ia} and w = e^{ib}: |cos(a - b) + sin(a - b)|."""
    for a, b in ((0.3, 0.1), (2.0, -1.0), (-0.4, 1.3)):
        z, w = (torch.tensor([[x.real, x.imag]]) for x in (cmath.exp(1j * a), cmath.exp(1j * b)))
        expected = abs(math.cos(a - b) + math.sin(a - b))
        assert angle_similarity(z, w).item() == pytest.approx(expected, rel=1e-5)


def test_the_angle_loss_is_that_of_sentence_transformers_at_its_scale():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    embeddings, scores = pairs_of(6)
    expected = losses.AnglELoss(nn.Identity()).compute_loss_from_embeddings(list(embeddings.unbind(1)), scores)
    found = AnglE(6, angle_temperature=0.05)(encoded(embeddings, scores))["angle_loss"]
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)


def test_a_batch_without_positive_pairs_has_no_in_batch_loss():
    embeddings, scores = pairs_of(6)
    losses = AnglE(6, positive_score=5.0)(encoded(embeddings, scores))
    assert losses["in_batch_loss"].item() == 0 and losses["angle_loss"] > 0
    sum(losses.values()).backward()
    assert torch.isfinite(embeddings.grad).all()
