"""Distillation: the losses are those of the papers, in float64, one text and one comparison at a time."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from objective_helpers import assert_same, cosine

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.base import ABSENT

DIM = 6
TEACHER_DIM = 4


def draw(columns=2):
    """Embeddings of a student, and unit vectors of a teacher of another size."""
    student = torch.randn(5, columns, DIM, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(5, columns, TEACHER_DIM, dtype=torch.float64)
    return student, F.normalize(teacher, dim=-1)


def distilled(student, teacher, **options):
    """The loss of the objective, or its parts by name."""
    objective = build_objective("distill", student.shape[-1], options)
    return objective(EncodedBatch(student, {"teacher": teacher}))


# --- similarities ---


def slow_similarities(student, teacher):
    """The mean squared difference of two cosines, over all pairs of texts."""
    texts = list(zip(student, teacher, strict=True))
    errors = []
    for (x, of_x), (y, of_y) in itertools.product(texts, texts):
        errors.append((cosine(x, y) - cosine(of_x, of_y)) ** 2)
    return sum(errors) / len(errors)


@pytest.mark.parametrize("lengths", [[1] * 5, [3] * 5, [3, 2, 3, 2, 3]], ids=["texts", "triplets", "ragged rows"])
def test_similarities_are_compared_between_all_texts_that_there_are(lengths):
    student, teacher = draw(columns=max(lengths))
    present = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    inputs = {"teacher": teacher, "relations": torch.where(present[:, 1:], 0, ABSENT)}
    loss = build_objective("distill", DIM)(EncodedBatch(student, inputs))
    assert_same(loss, slow_similarities(student[present], teacher[present]), student)


# --- lists, as in RankCSE ---


def slow_consistency(student, temperature):
    """The mean Jensen-Shannon divergence of what an anchor and what its positive looks at."""
    anchors, positives = student.unbind(1)
    divergences = []
    for anchor, positive in zip(anchors, positives, strict=True):
        p = (F.cosine_similarity(anchor, positives) / temperature).softmax(0)
        q = (F.cosine_similarity(anchors, positive) / temperature).softmax(0)
        middle = ((p + q) / 2).log()
        divergences.append((F.kl_div(middle, p, reduction="sum") + F.kl_div(middle, q, reduction="sum")) / 2)
    return sum(divergences) / len(divergences)


def slow_listmle(scores, wanted):
    """The negative log-likelihood of the teacher's order, one place of the list after the other."""
    best_first = scores[wanted.argsort(descending=True)]
    return sum(best_first[place:].logsumexp(0) - best_first[place] for place in range(len(scores)))


def slow_ranking(student, teacher, loss, student_temperature, teacher_temperature):
    """The mean loss of the lists of all other rows."""
    losses = []
    for i in range(len(student)):
        others = torch.arange(len(student)) != i
        scores = F.cosine_similarity(student[i, 0], student[others, 1]) / student_temperature
        wanted = F.cosine_similarity(teacher[i, 0], teacher[others, 1])
        if loss == "listnet":
            losses.append(F.cross_entropy(scores, (wanted / teacher_temperature).softmax(0)))
        else:
            losses.append(slow_listmle(scores, wanted))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("loss", ["listnet", "listmle"])
def test_the_loss_of_lists_is_a_consistency_and_a_ranking_as_in_rankcse(loss):
    """The teacher's temperature is half of the student's by default. A batch of one row has no list to compare."""
    student, teacher = draw()
    temperatures = {"temperature": 0.1, "student_temperature": 0.2}
    parts = distilled(student, teacher, loss=loss, consistency_weight=0.7, **temperatures)
    assert list(parts) == ["consistency", loss]
    assert_same(parts["consistency"], 0.7 * slow_consistency(student, temperature=0.1), student)
    assert_same(parts[loss], slow_ranking(student, teacher, loss, 0.2, 0.1), student)
    alone = sum(distilled(student[:1], teacher[:1], loss=loss).values())
    assert alone.item() == 0 and not torch.autograd.grad(alone, student)[0].any()


# --- the consistency where probabilities round to 0 ---


def sharp_parts(student):
    """The parts of ListNet with a temperature so low that probabilities round to 0."""
    teacher = student.detach()
    return distilled(student, teacher, temperature=0.005, loss="listnet")


def test_the_consistency_is_exact_where_probabilities_round_to_0():
    """A public copy of RankCSE clamps log M from below, which turns the term into a negative entropy."""
    agreeing = torch.eye(4)[:, None].repeat(1, 2, 1).requires_grad_()  # and nothing in common with other rows
    parts = sharp_parts(agreeing)
    assert parts["consistency"].item() == pytest.approx(0, abs=1e-6)
    sum(parts.values()).backward()
    assert agreeing.grad.isfinite().all()
    swapped = torch.stack([torch.eye(4), torch.eye(4).roll(1, 0)], dim=1)
    assert sharp_parts(swapped)["consistency"].item() == pytest.approx(math.log(2), rel=1e-5)


# --- vectors, as in Jasper ---


def test_vectors_are_compared_through_a_linear_map_as_in_jasper():
    student, teacher = draw()
    objective = build_objective("distill", DIM, {"loss": "vectors", "keep_projection": False})
    assert not list(objective.parameters()), "none is needed for vectors of the same size"
    objective.attach(SimpleNamespace(teacher_dim=TEACHER_DIM))
    parts = objective.double()(EncodedBatch(student, {"teacher": teacher}))
    layer = objective.projection
    distances = []
    for text, wanted in zip(student.flatten(0, 1), teacher.flatten(0, 1), strict=True):
        distances.append(1 - cosine(layer.weight @ text + layer.bias, wanted))
    assert_same(parts["vector_loss"], 10 * sum(distances) / len(distances), student)
    similarities = slow_similarities(student.flatten(0, 1), teacher.flatten(0, 1))
    assert_same(parts["similarity_loss"], 200 * similarities, student)
