"""InfoNCE and objective simcse: Eq. 1, 4, 5 and 8 of the paper, values and gradients, in batches of any size."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from objective_helpers import assert_same, cosine, slow_info_nce
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simcse_hf.objectives import EncodedBatch, InfoNCE, build_objective, info_nce
from simcse_hf.objectives.base import as_full_precision

DIM = 5


def draw(rows, columns=2, dim=DIM, dtype=torch.float64, seed=0):
    """Embeddings of the texts of some rows."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, columns, dim)
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64)
    return vectors.to(dtype).requires_grad_()


@dataclass
class Batch:
    """Embeddings, perhaps a queue of extra negatives, and perhaps the numbers of the texts."""

    embeddings: torch.Tensor
    queue: torch.Tensor | None
    text_ids: torch.Tensor | None

    @property
    def leaves(self):
        if self.queue is None:
            return [self.embeddings]
        return [self.embeddings, self.queue]


def draw_batch(rows, columns, queue_length, different_texts):
    """A batch with this many different texts; with `None`, their numbers are not known."""
    queue = None
    text_ids = None
    if queue_length:
        queue = draw(1, queue_length, seed=3)[0]
    if different_texts:
        generator = torch.Generator().manual_seed(4)
        shape = (rows, columns)
        text_ids = torch.randint(0, different_texts, shape, generator=generator)
    return Batch(draw(rows, columns, seed=1), queue, text_ids)


def slow_loss(batch, *arguments, margin=None, **options):
    """`slow_info_nce` of a batch; with the margin `None`, no candidate is too similar."""
    return slow_info_nce(
        batch.embeddings,
        *arguments,
        extra=() if batch.queue is None else batch.queue,
        ids=batch.text_ids,
        margin=math.inf if margin is None else margin,
        **options,
    )


def assert_same_loss(loss, expected, leaves):
    assert_same(loss, expected, leaves, rtol=1e-6, atol=1e-9)


# --- all logits at once, or in blocks of rows ---

AT_ONCE = 2**62
BLOCKS = {"chunks of two rows": 100, "a row a chunk": 1}
IN_BLOCKS = pytest.mark.parametrize("logits_of_a_block", BLOCKS.values(), ids=BLOCKS.keys())


@pytest.fixture(params=[AT_ONCE, *BLOCKS.values()], ids=["plain", *BLOCKS.keys()])
def at_once_and_in_blocks(request, monkeypatch):
    """Run a test on all logits at once and in blocks of rows."""
    monkeypatch.setattr(info_nce, "CHUNK_LOGITS", request.param)


AT_ONCE_AND_IN_BLOCKS = pytest.mark.usefixtures("at_once_and_in_blocks")


# --- every variant, in the second of two processes ---


def every_variant(test):
    """Run a test with every combination of the other options of the loss, and of what a batch may hold."""
    for names, values in {
        "columns, queue_length": [(2, 0), (2, 4), (4, 0), (4, 4)],
        "symmetric": [False, True],
        "different_texts": [None, 9],
        "margin": [None, 0.0, 0.4],
    }.items():
        test = pytest.mark.parametrize(names, values)(test)
    return test


@pytest.fixture
def rows_of_two_processes(columns, queue_length, different_texts):
    """Eight rows, of which the first four are those of the other process."""
    return draw_batch(8, columns, queue_length, different_texts)


@pytest.fixture
def weight(columns):
    """That of hard negatives, which rows of two columns do not have."""
    return 0.7 if columns > 2 else 0.0


@pytest.fixture
def variant(similarity, temperature, weight, symmetric, margin):
    return InfoNCE(temperature, similarity, weight, symmetric, margin)


def sent_by_the_first_process(batch, loss):
    """What the first of two processes sends, in the order in which it is gathered."""
    normalize = loss.similarity == "cosine"
    vectors = as_full_precision(batch.embeddings[:4], normalize)
    yield vectors[:, loss.start :]
    if batch.text_ids is not None:
        yield batch.text_ids[:4, loss.start :]
        yield batch.text_ids[:4, :2]


@pytest.fixture
def loss_of_the_second_process(rows_of_two_processes, variant, monkeypatch):
    """A function that computes the loss of the last four rows among the candidates of all eight."""
    batch = rows_of_two_processes

    def own_rows(own, gather):
        return torch.arange(4, 8)

    def loss(logits_of_a_block):
        sent = sent_by_the_first_process(batch, variant)

        def gather_rows(own, gather, missing=0):
            return torch.cat([next(sent), own])

        monkeypatch.setattr(info_nce, "CHUNK_LOGITS", logits_of_a_block)
        monkeypatch.setattr(info_nce, "gather_rows", gather_rows)
        monkeypatch.setattr(info_nce, "own_rows", own_rows)
        return variant(
            batch.embeddings[4:],
            gather=True,
            extra_negatives=batch.queue,
            text_ids=None if batch.text_ids is None else batch.text_ids[4:],
        )

    return loss


@pytest.mark.parametrize("similarity, temperature", [("cosine", 0.05), ("cosine", 0.01), ("dot", 2.0)])
@every_variant
def test_every_variant_of_the_loss_equals_its_terms(
    rows_of_two_processes,
    loss_of_the_second_process,
    similarity,
    temperature,
    weight,
    symmetric,
    margin,
):
    batch = rows_of_two_processes
    slow = slow_loss(
        batch,
        temperature,
        weight,
        similarity,
        rows=range(4, 8),
        symmetric=symmetric,
        margin=margin,
    )
    assert_same_loss(loss_of_the_second_process(AT_ONCE), slow, batch.leaves)


@IN_BLOCKS
@pytest.mark.parametrize("similarity, temperature", [("cosine", 0.05), ("dot", 2.0)])
@every_variant
def test_every_variant_of_the_loss_is_the_same_in_blocks_of_rows(
    rows_of_two_processes, loss_of_the_second_process, logits_of_a_block
):
    in_blocks = loss_of_the_second_process(logits_of_a_block)
    at_once = loss_of_the_second_process(AT_ONCE)
    assert_same_loss(in_blocks, at_once, rows_of_two_processes.leaves)


# --- the choice of negatives ---

EVERY_CHOICE = pytest.mark.parametrize("negatives", ["own", "batch+queries", "batch+documents", "all"])


@AT_ONCE_AND_IN_BLOCKS
@EVERY_CHOICE
@pytest.mark.parametrize("margin", [None, 0.1])
@pytest.mark.parametrize("different_texts", [None, 12])
@pytest.mark.parametrize("columns, queue_length", [(4, 0), (5, 3)])
def test_each_choice_of_negatives_equals_its_terms(negatives, columns, queue_length, different_texts, margin):
    batch = draw_batch(6, columns, queue_length, different_texts)
    info_nce_of_choice = InfoNCE(
        0.2,
        hard_negative_weight=0.7,
        false_negative_margin=margin,
        negatives=negatives,
    )
    loss = info_nce_of_choice(batch.embeddings, extra_negatives=batch.queue, text_ids=batch.text_ids)
    slow = slow_loss(batch, 0.2, 0.7, negatives=negatives, margin=margin)
    assert_same_loss(loss, slow, batch.leaves)


def slow_qwen3_embedding(embeddings, temperature):
    """Equation 1, for pairs: with m_ij = 1, three sums over the other rows."""
    queries, documents = F.normalize(embeddings, dim=-1).unbind(1)

    def term(one, other):
        return (one @ other / temperature).exp()

    losses = []
    for i in range(len(queries)):
        positive = term(queries[i], documents[i])
        total = positive
        for j in range(len(queries)):
            if j != i:
                total = total + term(queries[i], queries[j])
                total = total + term(documents[i], documents[j])
                total = total + term(queries[i], documents[j])
        losses.append(-(positive / total).log())
    return sum(losses) / len(losses)


def test_all_negatives_without_hard_ones_are_the_denominator_of_qwen3_embedding():
    embeddings = draw(5)
    loss = InfoNCE(0.1, negatives="all")(embeddings)
    assert_same_loss(loss, slow_qwen3_embedding(embeddings, 0.1), embeddings)


def test_own_negatives_are_told_from_the_positive_without_other_rows():
    embeddings = draw(4, 3)
    loss = InfoNCE(negatives="own")
    together = loss(embeddings, reduction="none")
    alone = [loss(row[None]).item() for row in embeddings]
    assert together.tolist() == pytest.approx(alone, rel=1e-9)


# --- rows of unequal length ---


def present_texts(*rows):
    """Which texts each row has: 1 for one that it has, and 0 for one that it lacks."""
    return torch.tensor([[text == "1" for text in row] for row in rows])


def texts_of_rows(embeddings, present):
    """The embeddings of the texts that each row has."""
    return [row[has] for row, has in zip(embeddings, present, strict=True)]


@AT_ONCE_AND_IN_BLOCKS
@EVERY_CHOICE
@pytest.mark.parametrize("guided", [False, True])
def test_each_choice_of_negatives_reads_rows_of_unequal_length(negatives, guided):
    embeddings = draw(4, 4)
    present = present_texts("1111", "1110", "1110", "1111")
    guide = None
    margin = math.inf
    if guided:  # by the student's own vectors
        guide = F.normalize(embeddings.detach(), dim=-1)
        margin = 0.0
    loss = InfoNCE(negatives=negatives)(embeddings, present=present, guide=guide)
    rows = texts_of_rows(embeddings, present)
    slow = slow_info_nce(rows, negatives=negatives, margin=margin)
    assert_same_loss(loss, slow, embeddings)


@AT_ONCE_AND_IN_BLOCKS
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_text_that_a_row_does_not_have_is_no_candidate(symmetric):
    embeddings = draw(5, 4)
    present = present_texts("1111", "1100", "1110", "1100", "1111")
    variant = InfoNCE(hard_negative_weight=0.7, symmetric=symmetric)
    rows = texts_of_rows(embeddings, present)
    slow = slow_info_nce(rows, weight=0.7, symmetric=symmetric)
    assert_same_loss(variant(embeddings, present=present), slow, embeddings)


# --- rounding ---


@pytest.fixture
def pairs_with_a_loss_near_zero():
    """Six orthogonal anchors, each with a positive that is nearly equal to it."""
    generator = torch.Generator().manual_seed(0)
    anchors = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
    positives = anchors + 0.02 * torch.randn(6, 6, generator=generator)
    return torch.stack([anchors, positives], dim=1)


def loss_and_gradient(pairs, dtype):
    leaf = pairs.to(dtype).requires_grad_()
    loss = InfoNCE(0.05)(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient.double()


@AT_ONCE_AND_IN_BLOCKS
def test_the_loss_stays_accurate_where_it_is_nearly_zero(pairs_with_a_loss_near_zero):
    """softmax(positive) rounds to 1 in float32 there."""
    loss, _ = loss_and_gradient(pairs_with_a_loss_near_zero, torch.float32)
    exact, _ = loss_and_gradient(pairs_with_a_loss_near_zero, torch.float64)
    assert 0 < exact < 1e-7
    assert loss == pytest.approx(exact, rel=1e-5)


@AT_ONCE_AND_IN_BLOCKS
def test_the_gradient_stays_accurate_where_the_loss_is_nearly_zero(
    pairs_with_a_loss_near_zero,
):
    """1 - softmax(positive) rounds to 0 in float32 there."""
    _, gradient = loss_and_gradient(pairs_with_a_loss_near_zero, torch.float32)
    _, exact = loss_and_gradient(pairs_with_a_loss_near_zero, torch.float64)
    assert 0 < (gradient - exact).norm() < 1e-5 * exact.norm()


@pytest.fixture
def vectors_with_equal_positives():
    """Unit vectors of pairs, all of which have the same positive.

    The similarities of copies differ by rounding, by their places in the matrix product: here by 2 units.
    """
    drawn = draw(257, dim=384, dtype=torch.float32).detach()
    vectors = F.normalize(drawn, dim=-1)
    vectors[:, 1] = vectors[0, 1]
    return vectors


def test_copies_of_the_positive_are_kept_whatever_the_order_of_the_sums(
    vectors_with_equal_positives,
):
    kept = InfoNCE()(vectors_with_equal_positives)
    loss = InfoNCE(false_negative_margin=0.0)(vectors_with_equal_positives)
    torch.testing.assert_close(loss, kept)


@pytest.mark.parametrize("margin", [None, 0.0])
def test_what_a_guide_finds_as_close_as_the_positive_but_for_rounding_is_kept(margin, vectors_with_equal_positives):
    guide = vectors_with_equal_positives
    guide[:, 1] *= 1 + 2e-7 * torch.rand(257, 1)
    embeddings = draw(257, dtype=torch.float32)
    kept = InfoNCE(1.0)(embeddings)
    loss = InfoNCE(1.0, false_negative_margin=margin)(embeddings, guide=guide)
    torch.testing.assert_close(loss, kept)


# --- nothing to compare, and NaN ---


@pytest.fixture
def lonely(batch):
    """Embeddings without a candidate but the positive, and the numbers of their texts."""
    if batch == "one row":
        return draw(1), None
    return draw(4, 3), torch.full((4, 3), 8)


NO_OTHER_CANDIDATE = pytest.mark.parametrize("batch", ["one row", "equal texts"])


@NO_OTHER_CANDIDATE
@AT_ONCE_AND_IN_BLOCKS
def test_the_loss_is_0_if_there_is_no_other_candidate(lonely):
    embeddings, ids = lonely
    assert InfoNCE()(embeddings, text_ids=ids).item() == 0.0


@NO_OTHER_CANDIDATE
@AT_ONCE_AND_IN_BLOCKS
def test_the_gradient_is_0_if_there_is_no_other_candidate(lonely):
    embeddings, ids = lonely
    loss = InfoNCE()(embeddings, text_ids=ids)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert torch.equal(gradient, torch.zeros_like(gradient))


@AT_ONCE_AND_IN_BLOCKS
@pytest.mark.parametrize("rows", [1, 3])
def test_an_embedding_with_nan_gives_a_loss_of_nan(rows):
    """NaN must reach the loss, where the Trainer can see it, even in a batch of one."""
    broken = draw(rows).detach()
    broken[0, 1, 0] = float("nan")
    assert math.isnan(InfoNCE()(broken).item())


# --- texts that mean the same ---

A, B, C, P, Q, R = range(6)


def slow_loss_of_the_first_anchor(embeddings, left_out, symmetric):
    """Its loss among all candidates but those in the places (row, column) that are left out."""
    rows, columns = embeddings.shape[:2]
    anchor = embeddings[0, 0]
    scores = [cosine(anchor, embeddings[0, 1])]
    for row in range(rows):
        for column in range(columns):
            if row == 0 and column < 2:
                continue
            if column == 0 and not symmetric:
                continue
            if (row, column) not in left_out:
                scores.append(cosine(anchor, embeddings[row, column]))
    return torch.stack(scores).logsumexp(0) - scores[0]


@AT_ONCE_AND_IN_BLOCKS
@pytest.mark.parametrize(
    "ids, left_out, symmetric",
    [
        pytest.param(
            [[A, P], [A, Q], [B, R]],
            [(1, 1)],
            False,
            id="the other positive of an equal anchor",
        ),
        pytest.param(
            [[A, P], [B, P], [C, R]],
            [(1, 0), (1, 1)],
            True,
            id="the anchor of an equal positive",
        ),
        pytest.param(
            [[A, P], [P, Q], [B, R]],
            [(1, 0), (1, 1)],
            True,
            id="a text that is a positive here and an anchor there",
        ),
        pytest.param(
            [[A, P, B], [A, Q, B], [C, R, Q]],
            [(1, 1), (2, 2)],
            False,
            id="also as a hard negative",
        ),
        pytest.param(
            [[A, P], [B, P], [B, Q]],
            [(1, 1)],
            False,
            id="but not the positive of an anchor with an equal positive",
        ),
    ],
)
def test_a_text_that_is_known_to_mean_the_same_is_no_negative_of_the_first_anchor(ids, left_out, symmetric):
    ids = torch.tensor(ids)
    embeddings = draw(*ids.shape)
    variant = InfoNCE(1.0, symmetric=symmetric)
    losses = variant(embeddings, text_ids=ids, reduction="none")
    expected = slow_loss_of_the_first_anchor(embeddings, left_out, symmetric)
    assert losses[0].item() == pytest.approx(expected.item(), rel=1e-9)


# --- memory ---

ROWS = 300


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation makes, those of the backward pass included."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def largest_tensor():
    """The elements of the largest tensor that a training step makes of 300 rows."""
    pairs = draw(ROWS)
    with LargestTensor() as largest:
        InfoNCE()(pairs).backward()
    return largest.elements


def kept_for_the_backward_pass():
    """The elements of all tensors that are kept for the backward pass of 300 rows."""
    sizes = []

    def keep(tensor):
        sizes.append(tensor.numel())
        return tensor

    def give_back(tensor):
        return tensor

    pairs = draw(ROWS)
    with saved_tensors_hooks(keep, give_back):
        InfoNCE()(pairs).backward()
    return sum(sizes)


@pytest.fixture
def blocks_of_9000(monkeypatch):
    monkeypatch.setattr(info_nce, "CHUNK_LOGITS", 9000)


def test_the_largest_tensor_of_few_rows_is_that_of_all_logits():
    assert largest_tensor() == ROWS**2


def test_all_logits_of_few_rows_are_kept_for_the_backward_pass():
    assert kept_for_the_backward_pass() >= ROWS**2


def test_the_largest_tensor_of_many_rows_is_that_of_a_block(blocks_of_9000):
    assert largest_tensor() == 9000


def test_of_many_rows_less_than_all_logits_is_kept_for_the_backward_pass(
    blocks_of_9000,
):
    assert kept_for_the_backward_pass() < ROWS**2


# --- the objective ---


def objective_of(**options):
    return build_objective("simcse", DIM, options)


@pytest.fixture
def embeddings():
    """Six rows of an anchor, a positive and two hard negatives."""
    return draw(6, 4)


@pytest.fixture
def text_ids():
    """Seven different texts for the 24 places of these rows."""
    return torch.arange(24).view(6, 4) % 7


def test_settings_and_options_reach_the_loss(embeddings, text_ids):
    objective = objective_of(
        temperature=0.1,
        similarity="dot",
        hard_negative_weight=0.6,
        symmetric=True,
        mask_duplicates=True,
        false_negative_margin=0.5,
    )
    loss = objective(EncodedBatch(embeddings, {"text_ids": text_ids}))
    expected = slow_info_nce(embeddings, 0.1, 0.6, "dot", symmetric=True, ids=text_ids, margin=0.5)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize("mask_duplicates", [True, False])
def test_the_objective_needs_numbers_of_texts_only_to_mask_duplicates(mask_duplicates):
    objective = objective_of(mask_duplicates=mask_duplicates)
    assert objective.needs_text_ids is mask_duplicates


@pytest.mark.parametrize("width", [DIM, 3])
@pytest.mark.parametrize("negatives", ["own", "all"])
def test_the_choice_of_negatives_holds_at_every_width_and_without_training(negatives, width, embeddings):
    objective = objective_of(negatives=negatives, matryoshka_dims=[3]).eval()
    loss = objective(EncodedBatch(embeddings))[f"loss_{width}"]
    slow = slow_info_nce(embeddings[..., :width], negatives=negatives)
    assert loss.item() == pytest.approx(slow.item(), rel=1e-9)


def test_the_card_says_that_the_negatives_are_those_of_the_row_alone():
    summary = objective_of(negatives="own").summary
    assert summary.endswith("the row's own hard negatives alone")


def test_the_card_names_the_paper_of_all_negatives():
    assert "qwen3-embedding" in objective_of(negatives="all").papers


@pytest.mark.parametrize("options", [{}, {"mask_duplicates": True}, {"false_negative_margin": 0.1}])
def test_both_directions_have_a_loss_of_their_own_as_in_sentence_transformers(options, embeddings, text_ids):
    """`MultipleNegativesSymmetricRankingLoss`: the anchors alone are the candidates of a positive."""
    objective = objective_of(bidirectional=True, temperature=0.2, **options)
    loss = objective(EncodedBatch(embeddings, {"text_ids": text_ids}))
    ids = None
    ids_back = None
    if "mask_duplicates" in options:
        ids = text_ids
        ids_back = text_ids[:, :2].flip(1)
    margin = options.get("false_negative_margin", math.inf)
    pairs_back = embeddings[:, :2].flip(1)
    there = slow_info_nce(embeddings, 0.2, ids=ids, margin=margin)
    back = slow_info_nce(pairs_back, 0.2, ids=ids_back, margin=margin)
    assert_same_loss(loss, (there + back) / 2, embeddings)
