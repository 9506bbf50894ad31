"""Tests of InfoNCE: Eq. 1, 4, 5 and 8 of the paper to 1e-6, values and gradients, in any size."""

import math

import pytest
import torch

from simcse_hf.objectives import chunked_info_nce, info_nce
from simcse_hf.objectives.info_nce import InfoNCE, log_weight

FORMS = {"plain": (2**62, 2**23), "chunked": (0, 2**23), "chunks of two rows": (0, 100), "a row a chunk": (0, 1)}


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Run a test on all logits at once, in one chunk and in many chunks."""
    plain_logits, chunk_logits = FORMS[request.param]
    monkeypatch.setattr(info_nce, "PLAIN_LOGITS", plain_logits)
    monkeypatch.setattr(chunked_info_nce, "CHUNK_LOGITS", chunk_logits)
    return request.param


def slow_similarity(a, b, kind):
    dot = (a * b).sum()
    return dot if kind == "dot" else dot / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


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
@pytest.mark.parametrize("n", [2, 3, 9])
def test_equals_the_equations(n, k, temperature, similarity, form):
    weight = 0.7 if k else 0.0
    inputs = draw(n, k)
    fast = InfoNCE(temperature, similarity, hard_negative_weight=weight)(*inputs)
    slow = slow_loss(*inputs, temperature, math.exp(weight), similarity)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9, abs=1e-9)
    for ours, exact in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("temperature", [0.01, 0.05, 1.0])
def test_float32_equals_the_equations(temperature, k, form):
    """In float32, loss and gradient differ only by the rounding of a logit, which is 1e-7 / temperature."""
    inputs = draw(9, k, dtype=torch.float32)
    exact_inputs = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
    fast = InfoNCE(temperature)(*inputs)
    slow = slow_loss(*exact_inputs, temperature, 1.0, "cosine")
    assert fast.item() == pytest.approx(slow.item(), rel=1e-6)
    for ours, exact in zip(gradients(fast, inputs), gradients(slow, exact_inputs), strict=True):
        assert (ours.double() - exact).norm() < 1e-6 / temperature * exact.norm()


def test_loss_of_equal_embeddings_is_the_log_of_the_number_of_candidates(form):
    """Closed form: if all embeddings are equal, each anchor has n positives and n * k hard negatives."""
    same = torch.ones(4, 5)
    assert InfoNCE()(same, same).item() == pytest.approx(math.log(4), rel=1e-6)
    assert InfoNCE()(same, same, torch.ones(4, 2, 5)).item() == pytest.approx(math.log(12), rel=1e-6)
    assert InfoNCE(hard_negative_alpha=3.0)(same, same, torch.ones(4, 2, 5)).item() == pytest.approx(
        math.log(4 + 6 + 3 * 2), rel=1e-6
    )


@pytest.mark.parametrize("weight", [-1.5, -0.693, 0.0, 0.693, 2.0])
def test_hard_negative_weight_is_the_log_of_alpha(weight):
    inputs = draw(3, 2)
    by_weight = InfoNCE(hard_negative_weight=weight)(*inputs)
    by_alpha = InfoNCE(hard_negative_alpha=math.exp(weight))(*inputs)
    slow = slow_loss(*inputs, 0.05, math.exp(weight), "cosine")
    assert by_weight.item() == pytest.approx(by_alpha.item(), rel=1e-12)
    assert by_weight.item() == pytest.approx(slow.item(), rel=1e-9)
    assert (by_weight.item() == InfoNCE()(*inputs).item()) == (weight == 0)


@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_only_a_rows_own_hard_negatives_are_weighted(alpha, form):
    """A closed form: orthogonal anchors, each its own positive, and the next row's hard negative."""
    anchors = torch.eye(3)
    negatives = anchors.roll(1, 0)[:, None]
    loss = InfoNCE(1.0, hard_negative_alpha=alpha)(anchors, anchors, negatives)
    positives, own_negative, other_negatives = math.e + 1 + 1, alpha * 1, math.e + 1
    assert loss.item() == pytest.approx(math.log((positives + own_negative + other_negatives) / math.e), rel=1e-6)


@pytest.mark.parametrize("first", [0, 2, 5])
def test_first_positive_is_the_row_of_the_first_anchors_positive(first, form):
    anchors = draw(3, 0, seed=1)[0]
    _, positives, negatives = draw(8, 2, seed=2)
    inputs = [anchors, positives, negatives]
    fast = InfoNCE(hard_negative_weight=0.9)(*inputs, first_positive=first)
    slow = slow_loss(*inputs, 0.05, math.exp(0.9), "cosine", first)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9)
    for ours, exact in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-9)


def test_gradient_stays_accurate_where_the_loss_is_nearly_zero(form):
    """softmax(positive) rounds to 1 in float32 there, and 1 - softmax to 0."""
    generator = torch.Generator().manual_seed(0)
    anchors = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
    positives = anchors + 0.02 * torch.randn(6, 6, generator=generator)
    inputs = [anchors.requires_grad_(), positives.requires_grad_()]
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    fast, exact = InfoNCE(0.05)(*inputs), InfoNCE(0.05)(*exact_inputs)
    assert 0 < exact.item() < 1e-7
    assert fast.item() == pytest.approx(exact.item(), rel=1e-5)
    for ours, expected in zip(gradients(fast, inputs), gradients(exact, exact_inputs), strict=True):
        error = (ours.double() - expected).norm() / expected.norm()
        assert expected.norm() > 0 and error < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_are_compared_in_float32(dtype, form):
    inputs = draw(17, 2, dim=16, dtype=dtype)
    widened = [x.detach().float().requires_grad_() for x in inputs]
    loss, expected = InfoNCE()(*inputs), InfoNCE()(*widened)
    assert loss.dtype == torch.float32 and loss.item() == expected.item()
    for ours, exact in zip(gradients(loss, inputs), gradients(expected, widened), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, exact.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_not_computed_under_autocast(dtype, form):
    inputs = draw(17, 2, dim=16, dtype=dtype)
    expected = InfoNCE()(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = InfoNCE()(*inputs)
    assert loss.dtype == torch.float32 and loss.item() == expected.item()


@pytest.mark.parametrize("k", [None, 0])
def test_a_single_pair_has_loss_and_gradient_0(k, form):
    anchors, positives, _ = draw(1, 0)
    negatives = None if k is None else torch.zeros(1, 0, 3, dtype=torch.float64)
    loss = InfoNCE()(anchors, positives, negatives)
    assert loss.item() == 0.0
    for gradient in gradients(loss, [anchors, positives]):
        assert (gradient == 0).all()


def test_a_single_pair_is_contrasted_with_its_hard_negatives(form):
    inputs = draw(1, 2)
    loss = InfoNCE(hard_negative_alpha=2.0)(*inputs)
    assert loss.item() == pytest.approx(slow_loss(*inputs, 0.05, 2.0, "cosine").item(), rel=1e-9)
    assert loss.item() > 0


def test_an_embedding_with_nan_gives_a_loss_of_nan(form):
    """NaN must reach the loss, where the Trainer can see it, even in a batch of one."""
    for n in (1, 3):
        anchors, positives, _ = draw(n, 0)
        broken = positives.detach().clone()
        broken[0, 0] = float("nan")
        assert math.isnan(InfoNCE()(anchors, broken).item())


def test_the_norm_of_an_embedding_matters_for_the_dot_product_only():
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
def test_invalid_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        InfoNCE(**arguments)


def test_log_weight_without_alpha_is_the_weight():
    assert log_weight(0.3, None) == 0.3
    assert log_weight(0.0, 1.0) == 0.0


# --- further candidates, both directions, equal texts ----------------------------------------------------------------


def slow_general(anchors, positives, negatives, extra, tau, alpha, kind, first, symmetric, ids, most=math.inf):
    """Slow reference: list the logit of the positive and of every negative of each query.

    `most` is the false-negative margin.
    """
    losses = []
    pairs = [("anchor", first + i) for i in range(len(anchors))]
    if symmetric:
        pairs += [("positive", j) for _, j in pairs]
    all_anchors = {first + i: anchor for i, anchor in enumerate(anchors)}
    for side, own in pairs:
        query, target = all_anchors[own], positives[own]
        if side == "positive":
            query, target = target, query
        own_texts = set() if ids is None else {ids[own][0].item(), ids[own][1].item()}
        counted = []
        highest = slow_similarity(query, target, kind) + most
        for j in range(len(positives)):
            others = [] if j == own else [(positives[j], 1)]
            if symmetric and j != own:
                others.append((all_anchors[j], 0))
            if negatives is not None:
                others += [(negative, 2 + m) for m, negative in enumerate(negatives[j])]
            for other, column in others:
                is_false_negative = slow_similarity(query, other, kind) > highest
                if not is_false_negative and (ids is None or ids[j][column].item() not in own_texts):
                    weight = alpha if j == own and column >= 2 else 1.0
                    counted.append(math.log(weight) + slow_similarity(query, other, kind) / tau)
        if extra is not None:
            similarities = [slow_similarity(query, other, kind) for other in extra]
            counted += [similarity / tau for similarity in similarities if similarity <= highest]
        margin = slow_similarity(query, target, kind) / tau
        losses.append(torch.logsumexp(torch.stack([margin, *counted]), 0) - margin)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("margin", [-0.3, 0.0, 0.4])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize(("similarity", "temperature"), [("cosine", 0.05), ("dot", 2.0)])
def test_false_negatives_are_left_out_as_in_the_slow_reference(similarity, temperature, k, symmetric, margin, form):
    n, total, first = (7, 7, 0) if symmetric else (4, 9, 3)
    anchors = draw(n, 0, dim=5, seed=1)[0]
    _, positives, negatives = draw(total, k, dim=5, seed=2)
    extra = draw(4, 0, dim=5, seed=3)[0]
    ids = torch.randint(0, 9, (total, 2 + k), generator=torch.Generator().manual_seed(4))
    weight = 0.7 if k else 0.0
    fast, everything = (
        InfoNCE(temperature, similarity, weight, symmetric=symmetric, false_negative_margin=m)(
            anchors, positives, negatives, first, extra_negatives=extra, text_ids=ids
        )
        for m in (margin, None)
    )
    alpha = math.exp(weight)
    slow = slow_general(
        anchors, positives, negatives, extra, temperature, alpha, similarity, first, symmetric, ids, margin
    )
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9)
    assert fast.item() < everything.item(), "some candidate must be above the margin, or the test shows nothing"
    inputs = [anchors, positives, negatives, extra]
    for ours, exact in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-9)


def test_a_hard_negative_is_left_out_by_its_similarity_whatever_its_weight(form):
    anchor, positive = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.8, 0.6]])
    below, above = torch.tensor([[[0.7, 0.7]]]), torch.tensor([[[1.0, 0.1]]])
    loss = InfoNCE(hard_negative_weight=9.0, false_negative_margin=0.0)
    assert loss(anchor, positive, below).item() > 1
    assert loss(anchor, positive, above).item() == 0


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("queue", [0, 4])
@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize(("similarity", "temperature"), [("cosine", 0.05), ("dot", 1.0)])
def test_all_variants_equal_their_terms(similarity, temperature, k, queue, symmetric, duplicates, form):
    n, total, first = (7, 7, 0) if symmetric else (4, 9, 3)
    anchors = draw(n, 0, dim=5, seed=1)[0]
    _, positives, negatives = draw(total, k, dim=5, seed=2)
    extra = draw(queue, 0, dim=5, seed=3)[0] if queue else None
    ids = torch.randint(0, 9, (total, 2 + k), generator=torch.Generator().manual_seed(4)) if duplicates else None
    weight = 0.7 if k else 0.0
    fast = InfoNCE(temperature, similarity, weight, symmetric=symmetric)(
        anchors, positives, negatives, first, extra_negatives=extra, text_ids=ids
    )
    slow = slow_general(
        anchors, positives, negatives, extra, temperature, math.exp(weight), similarity, first, symmetric, ids
    )
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9)
    inputs = [anchors, positives, negatives, extra]
    for ours, exact in zip(gradients(fast, inputs), gradients(slow, inputs), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-9)


def test_a_text_that_comes_twice_is_no_negative_of_itself(form):
    """A closed form: rows 0 and 1 are the same pair, row 2 is orthogonal to both."""
    vectors = torch.eye(3)[[0, 0, 1]]
    ids = torch.tensor([[5, 5], [5, 5], [6, 6]])
    loss = InfoNCE(1.0)(vectors, vectors, text_ids=ids).item()
    two_left, three_left = math.log(1 + 1 / math.e), math.log(1 + 2 / math.e)
    assert loss == pytest.approx((2 * two_left + three_left) / 3, rel=1e-6)
    assert InfoNCE(1.0)(vectors, vectors).item() > loss


def test_a_hard_negative_equal_to_the_positive_is_left_out(form):
    anchors, positives, negatives = draw(3, 1)
    ids = torch.tensor([[0, 1, 1], [2, 3, 4], [5, 6, 7]])
    loss = InfoNCE()(anchors[:1], positives, negatives, text_ids=ids)
    expected = InfoNCE()(anchors[:1], positives, extra_negatives=negatives[1:, 0])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_loss_and_gradient_are_0_if_all_other_candidates_are_left_out(form):
    anchors, positives, negatives = inputs = draw(4, 1)
    loss = InfoNCE()(*inputs, text_ids=torch.full((4, 3), 8))
    assert loss.item() == 0.0
    for gradient in gradients(loss, inputs):
        assert (gradient == 0).all()


def test_text_ids_are_compared_in_all_64_bits(form):
    anchors, positives, _ = draw(2, 0)
    far = torch.tensor([[2**62, 2**62 + 1], [2**62 + 2, 2**62 + 3]])
    assert InfoNCE()(anchors, positives, text_ids=far).item() == InfoNCE()(anchors, positives).item()


def test_symmetric_over_parts_of_the_batch_is_the_mean_of_the_parts(form):
    """With several processes, each has its own anchors and the embeddings of all."""
    anchors, positives, negatives = inputs = draw(6, 1)
    loss = InfoNCE(symmetric=True, hard_negative_weight=0.4)
    whole = loss(*inputs)
    halves = [loss(anchors[i : i + 3], positives, negatives, i, all_anchors=anchors) for i in (0, 3)]
    mean = sum(halves) / 2
    assert mean.item() == pytest.approx(whole.item(), rel=1e-12)
    for ours, exact in zip(gradients(mean, inputs), gradients(whole, inputs), strict=True):
        torch.testing.assert_close(ours, exact)


def test_symmetric_loss_stays_the_same_if_anchors_and_positives_are_swapped(form):
    anchors, positives, negatives = draw(5, 2)
    loss = InfoNCE(symmetric=True)
    assert loss(anchors, positives).item() == pytest.approx(loss(positives, anchors).item(), rel=1e-12)
    assert loss(anchors, positives).item() != pytest.approx(InfoNCE()(anchors, positives).item())
    swapped = loss(positives, anchors, negatives).item()
    assert loss(anchors, positives, negatives).item() == pytest.approx(swapped, rel=1e-12)


def test_zero_embeddings_have_the_gradient_of_normalization(form):
    """Sentences that are absent from a row may be rows of zeros."""
    anchors, positives, _ = draw(4, 0)
    zeros = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    results = gradients(InfoNCE()(anchors, positives, extra_negatives=zeros), [anchors, positives])
    assert all(gradient.isfinite().all() for gradient in results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_positive": 2}, "4 anchors from row 2 need 6 positives, got 4"),
        ({"negatives": torch.ones(3, 1, 2)}, "4 positives, and negatives of 3 rows: give both per row"),
        ({"text_ids": torch.ones(4, 3)}, r"text_ids must be \(4, 2\), one per text, got \(4, 3\)"),
        ({"all_anchors": torch.ones(3, 2)}, "4 positives and 3 anchors: symmetric needs all_anchors"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        InfoNCE(symmetric="all_anchors" in change)(torch.ones(4, 2), torch.ones(4, 2), **change)


def test_the_default_temperature_under_the_dot_product_is_one():
    """SimCSE's Table D.1 lists the dot product with the temperature "N/A", that is without one."""
    assert (InfoNCE().temperature, InfoNCE(similarity="dot").temperature) == (0.05, 1.0)
    assert InfoNCE(0.3, similarity="dot").temperature == 0.3
