"""Distillation: the losses are those of the papers, in float64, one text and one comparison at a time."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from objective_helpers import assert_same, cosine

from simcse_hf.objectives import EncodedBatch, build_objective

DIM = 6
TEACHER_DIM = 4


def draw(rows=5, columns=2):
    """Embeddings of a student, and unit vectors of a teacher of another size."""
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(rows, columns, DIM, dtype=torch.float64, generator=generator)
    teacher = torch.randn(rows, columns, TEACHER_DIM, dtype=torch.float64, generator=generator)
    return student.requires_grad_(), F.normalize(teacher, dim=-1)


@pytest.fixture
def student_and_teacher():
    return draw()


def distilled(student, teacher, **options):
    """The loss of the objective, or its parts by name."""
    objective = build_objective("distill", student.shape[-1], options)
    return objective(EncodedBatch(student, {"teacher": teacher}))


# --- similarities ---


def slow_similarities(student, teacher):
    """The mean squared difference of two cosines, over all pairs of texts."""
    student = student.flatten(0, 1)
    teacher = teacher.flatten(0, 1)
    errors = []
    for i in range(len(student)):
        for j in range(len(student)):
            found = cosine(student[i], student[j])
            wanted = cosine(teacher[i], teacher[j])
            errors.append((found - wanted) ** 2)
    return sum(errors) / len(errors)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_similarities_are_compared_between_all_texts_of_all_columns(columns):
    student, teacher = draw(columns=columns)
    loss = distilled(student, teacher)
    assert_same(loss, slow_similarities(student, teacher), student)


# --- lists, as in RankCSE ---

LISTS = pytest.mark.parametrize("loss", ["listnet", "listmle"])


def softmax(values):
    total = sum(value.exp() for value in values)
    return [value.exp() / total for value in values]


def divergence(p, q):
    """The Kullback-Leibler divergence of q from p."""
    return sum(a * (a / b).log() for a, b in zip(p, q, strict=True))


def slow_consistency(student, temperature):
    """The mean Jensen-Shannon divergence of what an anchor and what its positive looks at."""
    anchors, positives = student.unbind(1)
    divergences = []
    for anchor, positive in zip(anchors, positives, strict=True):
        p = softmax([cosine(anchor, other) / temperature for other in positives])
        q = softmax([cosine(other, positive) / temperature for other in anchors])
        middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        divergences.append((divergence(p, middle) + divergence(q, middle)) / 2)
    return sum(divergences) / len(divergences)


def slow_listnet(scores, wanted, teacher_temperature):
    """The cross-entropy of the student's list under the teacher's."""
    targets = softmax([each / teacher_temperature for each in wanted])
    return -sum(target * probability.log() for target, probability in zip(targets, softmax(scores), strict=True))


def slow_listmle(scores, wanted):
    """The negative log-likelihood of the teacher's order, one place of the list after the other."""
    best_first = sorted(range(len(wanted)), key=lambda place: -wanted[place])
    loss = 0.0
    while best_first:
        left = torch.stack([scores[place] for place in best_first])
        loss -= left[0] - left.exp().sum().log()
        best_first.pop(0)
    return loss


def slow_ranking(student, teacher, loss, student_temperature, teacher_temperature):
    """The mean loss of the lists of all other rows."""
    losses = []
    for i in range(len(student)):
        scores = []
        wanted = []
        for j in range(len(student)):
            if j != i:
                scores.append(cosine(student[i, 0], student[j, 1]))
                wanted.append(cosine(teacher[i, 0], teacher[j, 1]))
        scores = [score / student_temperature for score in scores]
        if loss == "listnet":
            losses.append(slow_listnet(scores, wanted, teacher_temperature))
        else:
            losses.append(slow_listmle(scores, wanted))
    return sum(losses) / len(losses)


@pytest.fixture
def parts_of_rankcse(loss, student_and_teacher):
    """The parts of the loss, where all settings differ from their defaults."""
    return distilled(
        *student_and_teacher,
        loss=loss,
        temperature=0.1,
        student_temperature=0.2,
        consistency_weight=0.7,
    )


@LISTS
def test_the_loss_of_lists_is_a_consistency_and_a_ranking(parts_of_rankcse, loss):
    assert list(parts_of_rankcse) == ["consistency", loss]


@LISTS
def test_the_consistency_is_that_of_rankcse_times_its_weight(parts_of_rankcse, student_and_teacher):
    student, _ = student_and_teacher
    expected = 0.7 * slow_consistency(student, temperature=0.1)
    assert_same(parts_of_rankcse["consistency"], expected, student)


@LISTS
def test_the_ranking_loss_is_that_of_rankcse(parts_of_rankcse, loss, student_and_teacher):
    """The teacher's temperature is half of the student's by default."""
    student, teacher = student_and_teacher
    expected = slow_ranking(student, teacher, loss, 0.2, 0.1)
    assert_same(parts_of_rankcse[loss], expected, student)


@pytest.fixture
def lonely():
    """The student's embedding of the only row of a batch."""
    student, _ = draw(rows=1)
    return student


@pytest.fixture
def loss_of_lonely(loss, lonely):
    _, teacher = draw(rows=1)
    return sum(distilled(lonely, teacher, loss=loss).values())


@LISTS
def test_a_row_that_is_alone_in_its_batch_has_the_loss_0(loss_of_lonely):
    assert loss_of_lonely.item() == 0.0


@LISTS
def test_a_row_that_is_alone_in_its_batch_has_a_gradient_of_0(loss_of_lonely, lonely):
    (gradient,) = torch.autograd.grad(loss_of_lonely, lonely)
    assert torch.equal(gradient, torch.zeros_like(gradient))


# --- the consistency where probabilities round to 0 ---


@pytest.fixture
def agreeing():
    """Four rows of two equal texts, which have nothing in common with the other rows."""
    return torch.eye(4)[:, None].repeat(1, 2, 1).requires_grad_()


def sharp_parts(student):
    """The parts of ListNet with a temperature so low that probabilities round to 0."""
    teacher = student.detach()
    return distilled(student, teacher, temperature=0.005, loss="listnet")


def test_the_consistency_of_equal_texts_is_0_where_probabilities_round_to_0(agreeing):
    """A public copy of RankCSE clamps log M from below, which turns the term into a negative entropy."""
    consistency = sharp_parts(agreeing)["consistency"]
    assert consistency.item() == pytest.approx(0, abs=1e-6)


def test_the_gradient_is_finite_where_probabilities_round_to_0(agreeing):
    sum(sharp_parts(agreeing).values()).backward()
    assert agreeing.grad.isfinite().all()


def test_the_consistency_of_lists_with_nothing_in_common_is_log_2():
    next_anchor = torch.eye(4).roll(1, 0)
    swapped = torch.stack([torch.eye(4), next_anchor], dim=1)
    consistency = sharp_parts(swapped)["consistency"]
    assert consistency.item() == pytest.approx(math.log(2), rel=1e-5)


# --- vectors, as in Jasper ---


def comparing_vectors():
    """The objective whose linear map is dropped after training."""
    options = {"loss": "vectors", "keep_projection": False}
    return build_objective("distill", DIM, options)


@pytest.fixture
def with_linear_map():
    """The objective, which knows that the teacher's vectors are of another size."""
    objective = comparing_vectors()
    objective.attach(SimpleNamespace(teacher_dim=TEACHER_DIM))
    return objective.double()


@pytest.fixture
def parts_of_jasper(with_linear_map, student_and_teacher):
    student, teacher = student_and_teacher
    return with_linear_map(EncodedBatch(student, {"teacher": teacher}))


def test_vectors_are_compared_through_a_linear_map_as_in_jasper(parts_of_jasper, with_linear_map, student_and_teacher):
    student, teacher = student_and_teacher
    layer = with_linear_map.projection
    distances = []
    for text, wanted in zip(student.flatten(0, 1), teacher.flatten(0, 1), strict=True):
        projected = layer.weight @ text + layer.bias
        distances.append(1 - cosine(projected, wanted))
    expected = 10 * sum(distances) / len(distances)
    assert_same(parts_of_jasper["vector_loss"], expected, student)


def test_similarities_are_compared_as_well_as_vectors_as_in_jasper(parts_of_jasper, student_and_teacher):
    student, teacher = student_and_teacher
    expected = 200 * slow_similarities(student, teacher)
    assert_same(parts_of_jasper["similarity_loss"], expected, student)


def test_vectors_of_the_same_size_need_no_linear_map():
    assert not list(comparing_vectors().parameters())
