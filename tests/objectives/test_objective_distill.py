"""Distillation: the losses are those of the papers, in float64, one text and one comparison at a time."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from objective_helpers import assert_same, cosine

from simcse_hf.objectives import EncodedBatch, build_objective

LISTS = ("listnet", "listmle")


def draw(rows=5, columns=2, dim=6, teacher_dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(
        rows, columns, dim, dtype=torch.float64, generator=generator
    )
    teacher = torch.randn(
        rows, columns, teacher_dim, dtype=torch.float64, generator=generator
    )
    return embeddings.requires_grad_(), F.normalize(teacher, dim=-1)


def softmax(values):
    return [value.exp() / sum(other.exp() for other in values) for value in values]


def similarities(embeddings, teacher):
    texts, wanted = embeddings.flatten(0, 1), teacher.flatten(0, 1)
    terms = [
        (cosine(texts[i], texts[j]) - cosine(wanted[i], wanted[j])) ** 2
        for i in range(len(texts))
        for j in range(len(texts))
    ]
    return sum(terms) / len(terms)


def consistency(embeddings, temperature):
    total, rows = 0.0, len(embeddings)
    for i in range(rows):
        p = softmax(
            [
                cosine(embeddings[i, 0], embeddings[j, 1]) / temperature
                for j in range(rows)
            ]
        )
        q = softmax(
            [
                cosine(embeddings[j, 0], embeddings[i, 1]) / temperature
                for j in range(rows)
            ]
        )
        m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        total += (
            sum(
                a * (a / c).log() + b * (b / c).log()
                for a, b, c in zip(p, q, m, strict=True)
            )
            / 2
        )
    return total / rows


def ranking(embeddings, teacher, loss, student_temperature, teacher_temperature):
    total, rows = 0.0, len(embeddings)
    for i in range(rows):
        others = [j for j in range(rows) if j != i]
        scores = [
            cosine(embeddings[i, 0], embeddings[j, 1]) / student_temperature
            for j in others
        ]
        wanted = [cosine(teacher[i, 0], teacher[j, 1]) for j in others]
        if loss == "listnet":
            targets = softmax([x / teacher_temperature for x in wanted])
            total -= sum(
                t * s.log() for t, s in zip(targets, softmax(scores), strict=True)
            )
        else:
            order = sorted(range(rows - 1), key=lambda k: -wanted[k])
            for place, k in enumerate(order):
                total -= (
                    scores[k]
                    - torch.stack([scores[other] for other in order[place:]])
                    .exp()
                    .sum()
                    .log()
                )
    return total / rows


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_similarities_are_compared_between_all_texts_of_all_columns(columns):
    embeddings, teacher = draw(columns=columns)
    loss = build_objective("distill", 6)(EncodedBatch(embeddings, {"teacher": teacher}))
    assert_same(loss, similarities(embeddings, teacher), embeddings)


@pytest.mark.parametrize("loss", LISTS)
def test_lists_have_the_formulas_of_rankcse(loss):
    embeddings, teacher = draw()
    options = {"loss": loss, "student_temperature": 0.2, "consistency_weight": 0.7}
    objective = build_objective("distill", 6, {"temperature": 0.1} | options)
    parts = objective(EncodedBatch(embeddings, {"teacher": teacher}))
    assert list(parts) == ["consistency", loss]
    assert_same(parts["consistency"], 0.7 * consistency(embeddings, 0.1), embeddings)
    assert_same(parts[loss], ranking(embeddings, teacher, loss, 0.2, 0.1), embeddings)


@pytest.mark.parametrize("loss", LISTS)
def test_a_row_that_is_alone_in_its_batch_has_no_loss_and_no_gradient(loss):
    embeddings, teacher = draw(rows=1)
    parts = build_objective("distill", 6, {"loss": loss})(
        EncodedBatch(embeddings, {"teacher": teacher})
    )
    total = sum(parts.values())
    assert (
        total.item() == 0.0 and (torch.autograd.grad(total, embeddings)[0] == 0).all()
    )


def test_the_consistency_stays_a_divergence_where_probabilities_round_to_zero():
    """A public copy of RankCSE clamps log M from below, which turns the term into a negative entropy."""
    embeddings = (
        torch.eye(4, dtype=torch.float32)[:, None].repeat(1, 2, 1).requires_grad_()
    )
    objective = build_objective("distill", 4, {"temperature": 0.005, "loss": "listnet"})
    parts = objective(EncodedBatch(embeddings, {"teacher": embeddings.detach()}))
    assert parts["consistency"].item() == pytest.approx(0, abs=1e-6)
    sum(parts.values()).backward()
    assert embeddings.grad.isfinite().all()
    swapped = torch.stack(
        [torch.eye(4), torch.eye(4).roll(1, 0)], dim=1
    )  # P and Q have nothing in common
    parts = objective(EncodedBatch(swapped, {"teacher": swapped}))
    assert parts["consistency"].item() == pytest.approx(math.log(2), rel=1e-5)


def test_vectors_are_compared_through_a_linear_map_as_in_jasper():
    embeddings, teacher = draw()
    objective = build_objective(
        "distill", 6, {"loss": "vectors", "keep_projection": False}
    )
    objective.attach(SimpleNamespace(teacher_dim=4))
    objective.double()
    parts = objective(EncodedBatch(embeddings, {"teacher": teacher}))
    layer = objective.projection
    projected = [layer.weight @ s + layer.bias for s in embeddings.flatten(0, 1)]
    far = [
        1 - cosine(s, t) for s, t in zip(projected, teacher.flatten(0, 1), strict=True)
    ]
    assert_same(parts["vector_loss"], 10 * sum(far) / len(far), embeddings)
    assert_same(
        parts["similarity_loss"], 200 * similarities(embeddings, teacher), embeddings
    )
    same_size = build_objective(
        "distill", 6, {"loss": "vectors", "keep_projection": False}
    )
    assert not list(same_size.parameters())
    with pytest.raises(
        ValueError, match="4 numbers and are compared with 6: set model.teacher_dim"
    ):
        same_size(EncodedBatch(embeddings, {"teacher": teacher}))
