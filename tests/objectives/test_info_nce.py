"""InfoNCE and objective simcse: Eq. 1, 4, 5 and 8 of the paper, values and gradients, in batches of any size."""

import math

import pytest
import torch
from objective_helpers import assert_same, cosine, slow_info_nce
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simcse_hf.objectives import EncodedBatch, InfoNCE, build_objective, info_nce
from simcse_hf.objectives.base import as_full_precision

DIM = 5


@pytest.fixture(
    params={"plain": 2**62, "chunks of two rows": 100, "a row a chunk": 1}.items(),
    ids=lambda x: x[0],
)
def form(request, monkeypatch):
    """Run a test on all logits at once and in blocks of rows."""
    monkeypatch.setattr(info_nce, "CHUNK_LOGITS", request.param[1])


def draw(rows, columns=2, dim=DIM, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, columns, dim, generator=generator, dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
    )


@pytest.mark.parametrize("margin", [None, 0.0, 0.4])
@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("columns, queue", [(2, 0), (2, 4), (4, 0), (4, 4)])
@pytest.mark.parametrize(
    ("similarity", "temperature"), [("cosine", 0.05), ("cosine", 0.01), ("dot", 2.0)]
)
def test_all_variants_equal_their_terms(
    similarity,
    temperature,
    columns,
    queue,
    symmetric,
    duplicates,
    margin,
    form,
    monkeypatch,
):
    """Here the rows are those of the second of two processes, which reads the candidates of both."""
    everything, extra = (
        draw(8, columns, seed=1),
        draw(1, queue, seed=3)[0] if queue else None,
    )
    ids = (
        torch.randint(0, 9, (8, columns), generator=torch.Generator().manual_seed(4))
        if duplicates
        else None
    )
    start = 0 if symmetric else 1
    of_other = [as_full_precision(everything[:4, start:], similarity == "cosine")]
    if duplicates:
        of_other += [ids[:4, start:], ids[:4, :2]]
    gathered = iter(of_other)
    monkeypatch.setattr(
        info_nce,
        "gather_rows",
        lambda x, gather, missing=0: torch.cat([next(gathered), x]),
    )
    monkeypatch.setattr(info_nce, "own_rows", lambda rows, gather: torch.arange(4, 8))
    weight = 0.7 if columns > 2 else 0.0
    fast = InfoNCE(temperature, similarity, weight, symmetric, margin)(
        everything[4:],
        gather=True,
        extra_negatives=extra,
        text_ids=ids[4:] if duplicates else None,
    )
    more = {
        "symmetric": symmetric,
        "ids": ids,
        "margin": math.inf if margin is None else margin,
        "rows": range(4, 8),
    }
    slow = slow_info_nce(
        everything,
        temperature,
        weight,
        similarity,
        extra=[] if extra is None else extra,
        **more,
    )
    assert_same(
        fast,
        slow,
        [everything] if extra is None else [everything, extra],
        rtol=1e-6,
        atol=1e-9,
    )


@pytest.mark.parametrize("margin", [None, 0.1])
@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("columns, queue", [(4, 0), (5, 3)])
@pytest.mark.parametrize(
    "negatives", ["own", "batch+queries", "batch+documents", "all"]
)
def test_each_choice_of_negatives_equals_its_terms(
    negatives, columns, queue, duplicates, margin, form
):
    embeddings, extra = (
        draw(6, columns, seed=1),
        draw(1, queue, seed=3)[0] if queue else None,
    )
    ids = (
        torch.randint(0, 12, (6, columns), generator=torch.Generator().manual_seed(4))
        if duplicates
        else None
    )
    loss = InfoNCE(
        0.2, hard_negative_weight=0.7, false_negative_margin=margin, negatives=negatives
    )(embeddings, extra_negatives=extra, text_ids=ids)
    more = {
        "ids": ids,
        "margin": math.inf if margin is None else margin,
        "extra": [] if extra is None else extra,
    }
    slow = slow_info_nce(embeddings, 0.2, 0.7, negatives=negatives, **more)
    assert_same(
        loss,
        slow,
        [embeddings] if extra is None else [embeddings, extra],
        rtol=1e-6,
        atol=1e-9,
    )


def test_all_negatives_without_hard_ones_are_the_denominator_of_qwen3_embedding():
    """Equation 1, for pairs: with m_ij = 1, three sums over the other rows."""
    embeddings = draw(5)
    queries, documents = torch.nn.functional.normalize(embeddings, dim=-1).unbind(1)
    losses = []
    for i in range(5):
        positive = (queries[i] @ documents[i] / 0.1).exp()
        total = positive
        for j in set(range(5)) - {i}:
            for one, other in (
                (queries[i], queries[j]),
                (documents[i], documents[j]),
                (queries[i], documents[j]),
            ):
                total = total + (one @ other / 0.1).exp()
        losses.append(-(positive / total).log())
    assert_same(
        InfoNCE(0.1, negatives="all")(embeddings),
        sum(losses) / 5,
        embeddings,
        rtol=1e-6,
        atol=1e-9,
    )


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize(
    "negatives", ["own", "batch+queries", "batch+documents", "all"]
)
def test_each_choice_of_negatives_reads_rows_of_unequal_length(negatives, guided, form):
    embeddings = draw(4, 4)
    present = torch.tensor(
        [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    ).bool()
    rows = [row[there] for row, there in zip(embeddings, present, strict=True)]
    guide = (
        torch.nn.functional.normalize(embeddings.detach(), dim=-1) if guided else None
    )  # as the loss sees them
    loss = InfoNCE(negatives=negatives)(embeddings, present=present, guide=guide)
    slow = slow_info_nce(rows, negatives=negatives, margin=0.0 if guided else math.inf)
    assert_same(loss, slow, embeddings, rtol=1e-6, atol=1e-9)


def test_own_negatives_are_told_from_the_positive_without_other_rows():
    embeddings = draw(4, 3)
    losses = InfoNCE(negatives="own")(embeddings, reduction="none")
    for number in range(4):
        alone = InfoNCE(negatives="own")(embeddings[number : number + 1])
        assert losses[number].item() == pytest.approx(alone.item(), rel=1e-9)


def test_gradient_stays_accurate_where_the_loss_is_nearly_zero(form):
    """softmax(positive) rounds to 1 in float32 there, and 1 - softmax to 0."""
    generator = torch.Generator().manual_seed(0)
    anchors = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
    pairs = torch.stack(
        [anchors, anchors + 0.02 * torch.randn(6, 6, generator=generator)], 1
    ).requires_grad_()
    exact_pairs = pairs.detach().double().requires_grad_()
    fast, exact = InfoNCE(0.05)(pairs), InfoNCE(0.05)(exact_pairs)
    assert 0 < exact.item() < 1e-7 and fast.item() == pytest.approx(
        exact.item(), rel=1e-5
    )
    (ours,), (expected,) = (
        torch.autograd.grad(fast, pairs),
        torch.autograd.grad(exact, exact_pairs),
    )
    assert 0 < (ours.double() - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("margin", [None, 0.0])
def test_copies_of_the_positive_are_kept_whatever_the_order_of_the_sums(margin):
    """The similarities of copies differ by rounding, by their places in the matrix product: here by 2 units."""
    guide = torch.nn.functional.normalize(
        draw(257, dim=384, dtype=torch.float32).detach(), dim=-1
    )
    guide[:, 1] = guide[0, 1]
    torch.testing.assert_close(
        InfoNCE(false_negative_margin=0.0)(guide), InfoNCE()(guide)
    )
    guide[:, 1] *= 1 + 2e-7 * torch.rand(257, 1)
    embeddings = draw(257, dtype=torch.float32)
    kept = InfoNCE(1.0)(embeddings)
    torch.testing.assert_close(
        InfoNCE(1.0, false_negative_margin=margin)(embeddings, guide=guide), kept
    )


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_text_that_a_row_does_not_have_is_no_candidate(symmetric, form):
    embeddings = draw(5, 4)
    present = torch.tensor(
        [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    ).bool()
    loss = InfoNCE(hard_negative_weight=0.7, symmetric=symmetric)(
        embeddings, present=present
    )
    rows = [row[there] for row, there in zip(embeddings, present, strict=True)]
    slow = slow_info_nce(rows, weight=0.7, symmetric=symmetric)
    assert_same(loss, slow, embeddings, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "embeddings, ids", [(draw(1), None), (draw(4, 3), torch.full((4, 3), 8))]
)
def test_loss_and_gradient_are_0_if_there_is_no_other_candidate(embeddings, ids, form):
    loss = InfoNCE()(embeddings, text_ids=ids)
    assert loss.item() == 0.0 and (torch.autograd.grad(loss, embeddings)[0] == 0).all()


A, B, C, P, Q, R = range(6)


@pytest.mark.parametrize(
    "ids, left_out, symmetric",
    [
        (
            [[A, P], [A, Q], [B, R]],
            [(1, 1)],
            False,
        ),  # the other positive of an equal anchor
        (
            [[A, P], [B, P], [C, R]],
            [(1, 0), (1, 1)],
            True,
        ),  # the anchor of an equal positive
        (
            [[A, P], [P, Q], [B, R]],
            [(1, 0), (1, 1)],
            True,
        ),  # a text that is a positive here and an anchor there
        (
            [[A, P, B], [A, Q, B], [C, R, Q]],
            [(1, 1), (2, 2)],
            False,
        ),  # also as a hard negative
        (
            [[A, P], [B, P], [B, Q]],
            [(1, 1)],
            False,
        ),  # but not the positive of an anchor with an equal positive
    ],
)
def test_a_text_that_is_known_to_mean_the_same_is_no_negative_of_the_first_anchor(
    ids, left_out, symmetric, form
):
    embeddings = draw(len(ids), len(ids[0]))
    losses = InfoNCE(1.0, symmetric=symmetric)(
        embeddings, text_ids=torch.tensor(ids), reduction="none"
    )
    negatives = {
        (row, column)
        for row in range(1, len(ids))
        for column in range(0 if symmetric else 1, len(ids[0]))
    }
    negatives |= {(0, column) for column in range(2, len(ids[0]))}
    texts = [embeddings[place] for place in sorted(negatives.difference(left_out))]
    scores = torch.stack(
        [cosine(embeddings[0, 0], text) for text in [embeddings[0, 1], *texts]]
    )
    assert losses[0].item() == pytest.approx(
        (scores.logsumexp(0) - scores[0]).item(), rel=1e-9
    )


def test_an_embedding_with_nan_gives_a_loss_of_nan(form):
    """NaN must reach the loss, where the Trainer can see it, even in a batch of one."""
    for rows in (1, 3):
        broken = draw(rows).detach()
        broken[0, 1, 0] = float("nan")
        assert math.isnan(InfoNCE()(broken).item())


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements of any tensor that an operation makes, those of the backward pass included."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        sizes = [
            tensor.numel()
            for tensor in tree_leaves(made)
            if isinstance(tensor, torch.Tensor)
        ]
        self.elements = max(self.elements, *sizes, 0)
        return made


@pytest.mark.parametrize("limit, in_blocks", [(2**62, False), (9000, True)])
def test_many_rows_are_compared_in_blocks_and_nothing_of_the_size_of_all_logits_is_made_or_kept(
    limit, in_blocks, monkeypatch
):
    rows, kept = 300, []
    monkeypatch.setattr(info_nce, "CHUNK_LOGITS", limit)
    pairs = draw(rows)
    with (
        LargestTensor() as largest,
        saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x),
    ):
        InfoNCE()(pairs).backward()
    assert largest.elements == (limit if in_blocks else rows**2)
    assert (sum(kept) < rows**2) == in_blocks


# --- the objective ---


def test_settings_and_options_reach_the_loss():
    settings = {"temperature": 0.1, "similarity": "dot", "hard_negative_weight": 0.6}
    embeddings, ids = draw(6, 4), torch.arange(24).view(6, 4) % 7
    options = {"symmetric": True, "mask_duplicates": True, "false_negative_margin": 0.5}
    objective = build_objective("simcse", DIM, settings | options)
    assert (
        objective.needs_text_ids
        and not build_objective("simcse", DIM, settings).needs_text_ids
    )
    expected = slow_info_nce(
        embeddings, 0.1, 0.6, "dot", symmetric=True, ids=ids, margin=0.5
    )
    assert objective(
        EncodedBatch(embeddings, {"text_ids": ids})
    ).item() == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize("negatives", ["own", "all"])
def test_the_choice_of_negatives_holds_at_every_width_and_without_training(negatives):
    embeddings = draw(6, 4)
    objective = build_objective(
        "simcse", DIM, {"negatives": negatives, "matryoshka_dims": [3]}
    ).eval()
    losses = objective(EncodedBatch(embeddings))
    for width in (DIM, 3):
        slow = slow_info_nce(embeddings[..., :width], negatives=negatives)
        assert losses[f"loss_{width}"].item() == pytest.approx(slow.item(), rel=1e-9)


def test_the_card_names_the_negatives_and_their_paper():
    own, qwen = (
        build_objective("simcse", DIM, {"negatives": negatives})
        for negatives in ("own", "all")
    )
    assert own.summary.endswith("the row's own hard negatives alone")
    assert "qwen3-embedding" in qwen.papers


@pytest.mark.parametrize(
    "options", [{}, {"mask_duplicates": True}, {"false_negative_margin": 0.1}]
)
def test_both_directions_have_a_loss_of_their_own_as_in_sentence_transformers(options):
    """`MultipleNegativesSymmetricRankingLoss`: the anchors alone are the candidates of a positive."""
    embeddings, ids = draw(6, 4), torch.arange(24).view(6, 4) % 7
    objective = build_objective(
        "simcse", DIM, {"bidirectional": True, "temperature": 0.2} | options
    )
    more = {
        "ids": ids if "mask_duplicates" in options else None,
        "margin": options.get("false_negative_margin", 9.0),
    }
    there = slow_info_nce(embeddings, 0.2, **more)
    more["ids"] = more["ids"] if more["ids"] is None else ids[:, :2].flip(1)
    back = slow_info_nce(embeddings[:, :2].flip(1), 0.2, **more)
    loss = objective(EncodedBatch(embeddings, {"text_ids": ids}))
    assert_same(loss, (there + back) / 2, embeddings, rtol=1e-6, atol=1e-9)
