"""InfoNCE and objective simcse: Eq. 1, 4, 5 and 8 of the paper, values and gradients, in batches of any size."""

import math

import pytest
import torch
import torch.nn.functional as F
from objective_helpers import assert_same, slow_info_nce
from torch.autograd.graph import saved_tensors_hooks

from simcse_hf.objectives import EncodedBatch, InfoNCE, build_objective, info_nce

DIM = 5


def draw(rows, columns=2, dim=DIM, dtype=torch.float64):
    """Embeddings of the texts of some rows."""
    return torch.randn(rows, columns, dim, dtype=dtype, requires_grad=True)


# --- all logits at once, or in blocks of rows ---


#: All logits at once, blocks of two rows, and a row in each block.
MOST_LOGITS = [2**62, 100, 1]


@pytest.fixture(params=MOST_LOGITS)
def at_once_and_in_blocks(request, monkeypatch):
    """Run a test on all logits at once and in blocks of rows."""
    monkeypatch.setattr(info_nce, "CHUNK_LOGITS", request.param)


AT_ONCE_AND_IN_BLOCKS = pytest.mark.usefixtures("at_once_and_in_blocks")

# --- every variant ---

CHOICES = [{}, {"symmetric": True}]
CHOICES += [{"negatives": each} for each in ("own", "batch+queries", "batch+documents", "all")]


@pytest.mark.parametrize("columns, queue_length", [(2, 4), (4, 0), (5, 3)])
@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("margin", [None, 0.1])
@pytest.mark.parametrize("similarity, temperature", [("cosine", 0.05), ("dot", 2.0)])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_variant_of_the_loss_equals_its_terms(
    columns, queue_length, has_ids, margin, similarity, temperature, choice, monkeypatch
):
    embeddings = draw(6, columns)
    queue = draw(1, queue_length)[0] if queue_length else None
    ids = torch.randint(0, 12, (6, columns)) if has_ids else None
    weight = 0.7 if columns > 2 else 0.0
    variant = InfoNCE(temperature, similarity, weight, false_negative_margin=margin, **choice)
    known = {"extra": () if queue is None else queue, "ids": ids, "margin": math.inf if margin is None else margin}
    slow = slow_info_nce(embeddings, temperature, weight, similarity, **known, **choice)
    leaves = [embeddings] if queue is None else [embeddings, queue]
    for most in MOST_LOGITS:
        monkeypatch.setattr(info_nce, "CHUNK_LOGITS", most)
        loss = variant(embeddings, extra_negatives=queue, text_ids=ids)
        assert_same(loss, slow, leaves)
        slow = loss  # whose gradient takes less time


# --- rows of unequal length ---


@AT_ONCE_AND_IN_BLOCKS
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("choice", CHOICES[1:], ids=str)
def test_a_text_that_a_row_does_not_have_is_no_candidate(choice, guided):
    embeddings = draw(4, 4)
    lengths = [4, 3, 3, 4]
    present = torch.arange(4) < torch.tensor(lengths)[:, None]
    guide = F.normalize(embeddings.detach(), dim=-1) if guided else None  # the student's own vectors
    variant = InfoNCE(hard_negative_weight=0.7, **choice)
    rows = [row[:length] for row, length in zip(embeddings, lengths, strict=True)]
    slow = slow_info_nce(rows, weight=0.7, margin=0.0 if guided else math.inf, **choice)
    assert_same(variant(embeddings, present=present, guide=guide), slow, embeddings)


# --- rounding ---


@AT_ONCE_AND_IN_BLOCKS
def test_loss_and_gradient_stay_accurate_where_the_loss_is_nearly_zero():
    """softmax(positive) rounds to 1 in float32 there, and 1 - softmax(positive) to 0."""
    anchors = torch.linalg.qr(torch.randn(6, 6))[0]
    positives = anchors + 0.02 * torch.randn(6, 6)
    found = []
    for dtype in (torch.float32, torch.float64):
        pairs = torch.stack([anchors, positives], dim=1).to(dtype).requires_grad_()
        loss = InfoNCE(0.05)(pairs)
        found += [loss.item(), torch.autograd.grad(loss, pairs)[0].double()]
    loss, gradient, exact, exact_gradient = found
    assert 0 < exact < 1e-7
    assert loss == pytest.approx(exact, rel=1e-5)
    assert 0 < (gradient - exact_gradient).norm() < 1e-5 * exact_gradient.norm()


def test_what_is_as_close_as_the_positive_but_for_rounding_is_kept():
    """The similarities of copies differ by their places in the matrix product: here by 2 units of rounding."""
    vectors = F.normalize(draw(257, dim=384, dtype=torch.float32).detach(), dim=-1)
    vectors[:, 1] = vectors[0, 1]
    torch.testing.assert_close(InfoNCE(false_negative_margin=0.0)(vectors), InfoNCE()(vectors))
    vectors[:, 1] *= 1 + 2e-7 * torch.rand(257, 1)
    embeddings = draw(257, dtype=torch.float32)
    for margin in (None, 0.0):
        loss = InfoNCE(1.0, false_negative_margin=margin)(embeddings, guide=vectors)
        torch.testing.assert_close(loss, InfoNCE(1.0)(embeddings))


# --- nothing to compare, and NaN ---


@AT_ONCE_AND_IN_BLOCKS
@pytest.mark.parametrize("rows, columns, ids", [(1, 2, None), (4, 3, 8)], ids=["one row", "equal texts"])
def test_loss_and_gradient_are_0_if_there_is_no_other_candidate(rows, columns, ids):
    embeddings = draw(rows, columns)
    loss = InfoNCE()(embeddings, text_ids=None if ids is None else torch.full((rows, columns), ids))
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert loss.item() == 0.0
    assert not gradient.any()


@AT_ONCE_AND_IN_BLOCKS
@pytest.mark.parametrize("rows", [1, 3])
def test_an_embedding_with_nan_gives_a_loss_of_nan(rows):
    """NaN must reach the loss, where the Trainer can see it, even in a batch of one."""
    broken = draw(rows).detach()
    broken[0, 1, 0] = float("nan")
    assert math.isnan(InfoNCE()(broken).item())


# --- memory ---

ROWS = 300


def kept_for_the_backward_pass():
    """The elements of all tensors that are kept for the backward pass of 300 rows."""
    sizes = []
    pairs = draw(ROWS)
    with saved_tensors_hooks(lambda tensor: (sizes.append(tensor.numel()), tensor)[1], lambda tensor: tensor):
        InfoNCE()(pairs).backward()
    return sum(sizes)


def test_of_many_rows_not_all_logits_are_kept(monkeypatch):
    assert kept_for_the_backward_pass() >= ROWS**2
    monkeypatch.setattr(info_nce, "CHUNK_LOGITS", 9000)
    assert kept_for_the_backward_pass() < ROWS**2


# --- the objective ---


#: Seven different texts for the 24 places of six rows of an anchor, a positive and two hard negatives.
TEXT_IDS = torch.arange(24).view(6, 4) % 7


def test_settings_and_options_reach_the_loss():
    embeddings = draw(6, 4)
    options = {"temperature": 0.1, "similarity": "dot", "hard_negative_weight": 0.6, "symmetric": True}
    options |= {"mask_duplicates": True, "false_negative_margin": 0.5}
    loss = build_objective("simcse", DIM, options)(EncodedBatch(embeddings, {"text_ids": TEXT_IDS}))
    expected = slow_info_nce(embeddings, 0.1, 0.6, "dot", symmetric=True, ids=TEXT_IDS, margin=0.5)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)


def test_the_card_says_what_the_negatives_are():
    own, every = (build_objective("simcse", DIM, {"negatives": negatives}) for negatives in ("own", "all"))
    assert own.summary.endswith("the row's own hard negatives alone") and "qwen3-embedding" in every.papers


@pytest.mark.parametrize("options", [{}, {"mask_duplicates": True, "false_negative_margin": 0.1}])
def test_both_directions_have_a_loss_of_their_own_as_in_sentence_transformers(options):
    """`MultipleNegativesSymmetricRankingLoss`: the anchors alone are the candidates of a positive."""
    embeddings = draw(6, 4)
    objective = build_objective("simcse", DIM, {"bidirectional": True, "temperature": 0.2} | options)
    loss = objective(EncodedBatch(embeddings, {"text_ids": TEXT_IDS}))
    margin = options.get("false_negative_margin", math.inf)
    ids = TEXT_IDS if options else None
    ids_back = TEXT_IDS[:, :2].flip(1) if options else None
    there = slow_info_nce(embeddings, 0.2, ids=ids, margin=margin)
    back = slow_info_nce(embeddings[:, :2].flip(1), 0.2, ids=ids_back, margin=margin)
    assert_same(loss, (there + back) / 2, embeddings)
