"""What a user is promised of InfoNCE: Eq. 1, 4, 5 and 8 of the paper to 1e-6, values and gradients."""

import math

import pytest
import torch

from simcse_hf.objectives.info_nce import InfoNCE, log_weight


def slow_similarity(a, b, kind):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    if kind == "dot":
        return dot
    return dot / (sum(x * x for x in a).sqrt() * sum(y * y for y in b).sqrt())


def slow_loss(anchors, positives, negatives, tau, alpha, kind, first=0):
    """The mean of Eq. 8, term by term in float64: Eq. 5 is alpha = 1, Eq. 1 and 4 have no negatives.

    Numerator and denominator are both divided by the largest term, lest e^(1 / 0.01) overflow.
    """
    losses = []
    for i, anchor in enumerate(anchors):
        own = first + i
        terms = []  # (weight, s(h_i, .)) of each term of the denominator
        for j, positive in enumerate(positives):
            terms.append((1.0, slow_similarity(anchor, positive, kind) / tau))
            for negative in negatives[j] if negatives is not None else ():
                terms.append((alpha if j == own else 1.0, slow_similarity(anchor, negative, kind) / tau))
        largest = max(s.item() for _, s in terms)
        denominator = sum(weight * torch.exp(s - largest) for weight, s in terms)
        numerator = slow_similarity(anchor, positives[own], kind) / tau - largest
        losses.append(torch.log(denominator) - numerator)
    return sum(losses) / len(losses)


def draw(n, k, dim=3, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    anchors, positives = (torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(2))
    negatives = torch.randn(n, k, dim, generator=generator, dtype=torch.float64) if k else None
    return [None if x is None else x.to(dtype).requires_grad_() for x in (anchors, positives, negatives)]


def gradients(loss, inputs):
    return torch.autograd.grad(loss, [x for x in inputs if x is not None])


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("temperature", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("n", [2, 3, 17])
def test_equals_the_equations(n, k, temperature, similarity):
    weight = 0.7 if k else 0.0
    inputs = draw(n, k)
    fast = InfoNCE(temperature, similarity, hard_negative_weight=weight)(*inputs)
    slow = slow_loss(*inputs, temperature, math.exp(weight), similarity)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9, abs=1e-9)
    for ours, exact in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("temperature", [0.01, 0.05, 1.0])
def test_float32_equals_the_equations(temperature, k):
    """Training runs in float32: what is left, of the gradient too, is the rounding of a logit, 1e-7 / temperature."""
    inputs = draw(17, k, dtype=torch.float32)
    exact_inputs = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
    fast = InfoNCE(temperature)(*inputs)
    slow = slow_loss(*exact_inputs, temperature, 1.0, "cosine")
    assert fast.item() == pytest.approx(slow.item(), rel=1e-6)
    for ours, exact in zip(gradients(fast, inputs), gradients(slow, exact_inputs), strict=True):
        assert (ours.double() - exact).norm() < 1e-6 / temperature * exact.norm()


def test_of_equal_vectors_is_the_log_of_the_number_of_candidates():
    """A closed form: nothing to tell apart, n positives and n * k hard negatives."""
    same = torch.ones(4, 5)
    assert InfoNCE()(same, same).item() == pytest.approx(math.log(4), rel=1e-6)
    assert InfoNCE()(same, same, torch.ones(4, 2, 5)).item() == pytest.approx(math.log(12), rel=1e-6)
    assert InfoNCE(hard_negative_alpha=3.0)(same, same, torch.ones(4, 2, 5)).item() == pytest.approx(
        math.log(4 + 6 + 3 * 2), rel=1e-6
    )


@pytest.mark.parametrize("weight", [-1.5, -0.693, 0.0, 0.693, 2.0])
def test_weight_is_the_log_of_alpha(weight):
    inputs = draw(3, 2)
    by_weight = InfoNCE(hard_negative_weight=weight)(*inputs)
    by_alpha = InfoNCE(hard_negative_alpha=math.exp(weight))(*inputs)
    slow = slow_loss(*inputs, 0.05, math.exp(weight), "cosine")
    assert by_weight.item() == pytest.approx(by_alpha.item(), rel=1e-12)
    assert by_weight.item() == pytest.approx(slow.item(), rel=1e-9)
    assert (by_weight.item() == InfoNCE()(*inputs).item()) == (weight == 0)


@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_only_own_hard_negatives_are_weighted(alpha):
    """A closed form: orthogonal anchors, each its own positive, and the next row's hard negative."""
    anchors = torch.eye(3)
    negatives = anchors.roll(1, 0)[:, None]
    loss = InfoNCE(1.0, hard_negative_alpha=alpha)(anchors, anchors, negatives)
    positives, own_negative, other_negatives = math.e + 1 + 1, alpha * 1, math.e + 1
    assert loss.item() == pytest.approx(math.log((positives + own_negative + other_negatives) / math.e), rel=1e-6)


@pytest.mark.parametrize("first", [0, 2, 5])
def test_first_positive_says_where_the_own_positives_stand(first):
    anchors = draw(3, 0, seed=1)[0]
    _, positives, negatives = draw(8, 2, seed=2)
    inputs = [anchors, positives, negatives]
    fast = InfoNCE(hard_negative_weight=0.9)(*inputs, first_positive=first)
    slow = slow_loss(*inputs, 0.05, math.exp(0.9), "cosine", first)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9)
    for ours, exact in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-9)


def test_gradient_stays_accurate_where_the_loss_is_nearly_zero():
    """softmax(positive) rounds to 1 in float32 there, and 1 - softmax to 0."""
    generator = torch.Generator().manual_seed(0)
    anchors = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
    positives = anchors + 0.02 * torch.randn(6, 6, generator=generator)
    inputs = [anchors.requires_grad_(), positives.requires_grad_()]
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    fast, exact = InfoNCE(0.05)(*inputs), InfoNCE(0.05)(*exact_inputs)
    assert 0 < exact.item() < 1e-7
    assert fast.item() == pytest.approx(exact.item(), rel=1e-5)
    for ours, wanted in zip(gradients(fast, inputs), gradients(exact, exact_inputs), strict=True):
        error = (ours.double() - wanted).norm() / wanted.norm()
        assert wanted.norm() > 0 and error < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_vectors_are_compared_in_float32(dtype):
    inputs = draw(17, 2, dim=16, dtype=dtype)
    widened = [x.detach().float().requires_grad_() for x in inputs]
    loss, wanted = InfoNCE()(*inputs), InfoNCE()(*widened)
    assert loss.dtype == torch.float32 and loss.item() == wanted.item()
    for ours, exact in zip(gradients(loss, inputs), gradients(wanted, widened), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, exact.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_does_not_reach_the_logits(dtype):
    inputs = draw(17, 2, dim=16, dtype=dtype)
    wanted = InfoNCE()(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = InfoNCE()(*inputs)
    assert loss.dtype == torch.float32 and loss.item() == wanted.item()


@pytest.mark.parametrize("k", [None, 0])
def test_a_single_pair_has_nothing_to_tell_apart(k):
    anchors, positives, _ = draw(1, 0)
    negatives = None if k is None else torch.zeros(1, 0, 3, dtype=torch.float64)
    loss = InfoNCE()(anchors, positives, negatives)
    assert loss.item() == 0.0
    for gradient in gradients(loss, [anchors, positives]):
        assert (gradient == 0).all()


def test_a_single_pair_with_hard_negatives_is_told_from_them():
    inputs = draw(1, 2)
    loss = InfoNCE(hard_negative_alpha=2.0)(*inputs)
    assert loss.item() == pytest.approx(slow_loss(*inputs, 0.05, 2.0, "cosine").item(), rel=1e-9)
    assert loss.item() > 0


def test_a_broken_vector_gives_a_broken_loss():
    """NaN must reach the loss, where the Trainer can see it, even in a batch of one."""
    for n in (1, 3):
        anchors, positives, _ = draw(n, 0)
        broken = positives.detach().clone()
        broken[0, 0] = float("nan")
        assert math.isnan(InfoNCE()(anchors, broken).item())


def test_length_of_a_vector_matters_for_dot_only():
    anchors, positives, negatives = (x.detach() for x in draw(3, 1))
    assert InfoNCE()(anchors * 7, positives, negatives).item() == pytest.approx(
        InfoNCE()(anchors, positives, negatives).item()
    )
    dot = InfoNCE(1.0, "dot")
    assert dot(anchors * 7, positives, negatives).item() != pytest.approx(dot(anchors, positives, negatives).item())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"temperature": -0.05}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"similarity": "euclidean"}, "similarity must be one of cosine, dot, got 'euclidean'"),
        ({"hard_negative_alpha": 0.0}, "hard_negative_alpha must be above 0, got 0.0"),
        ({"hard_negative_alpha": -1.0}, "hard_negative_alpha"),
        ({"hard_negative_alpha": float("nan")}, "hard_negative_alpha"),
        ({"hard_negative_alpha": 2.0, "hard_negative_weight": 0.7}, "not both"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        InfoNCE(**arguments)


def test_log_weight_of_no_alpha_is_the_weight():
    assert log_weight(0.3, None) == 0.3
    assert log_weight(0.0, 1.0) == 0.0
