"""Tests of the supervised contrastive loss: Eq. 2 of arXiv:2106.04791, values and gradients."""

import math

import pytest
import torch
from relation_helpers import ROWS, embedded

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.labelled.nli import SupCon, premise_candidates


def encoded(embeddings, relations, premise_ids):
    ids = torch.tensor(premise_ids)[:, None].expand(embeddings.shape[:2])
    return EncodedBatch(embeddings, {"relations": torch.tensor(relations), "text_ids": ids})


def slow_similarity(a, b, kind):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    if kind == "dot":
        return dot
    return dot / (sum(x * x for x in a).sqrt() * sum(y * y for y in b).sqrt())


def slow_loss(rows, vectors, tau, kind):
    """The mean of Eq. 2 over the premises with a positive, term by term.

    Numerator and denominator are both divided by the largest term, lest e^(1 / 0.01) overflow.
    """
    losses = []
    for i, sentences in enumerate(vectors):
        positives, negatives = [], []
        for j, others in enumerate(vectors):
            for relation, hypothesis in zip(rows[j], others[1:], strict=False):
                s = slow_similarity(sentences[0], hypothesis, kind) / tau
                (positives if i == j and relation == 0 else negatives).append(s)
        if positives:
            largest = max(s.item() for s in positives + negatives)
            denominator = sum(torch.exp(s - largest) for s in positives + negatives)
            losses.append(-sum(s - largest - torch.log(denominator) for s in positives) / len(positives))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("dim", [3])
@pytest.mark.parametrize("name", ROWS)
def test_equals_the_equation(name, dim, temperature, similarity):
    batch = embedded(ROWS[name], dim)
    fast = SupCon(dim, temperature, similarity)(batch)
    slow = slow_loss(ROWS[name], batch.embeddings, temperature, similarity)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9, abs=1e-9)
    ours, exact = (torch.autograd.grad(loss, batch.embeddings)[0] for loss in (fast, slow))
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-8)
    assert exact.abs().max() > 0


def test_padding_of_short_rows_does_not_affect_the_loss():
    batch, other = embedded(ROWS["ragged"], 4), embedded(ROWS["ragged"], 4)
    absent = torch.cat([torch.zeros(4, 1, dtype=bool), batch.inputs["relations"] < 0], dim=1)
    with torch.no_grad():
        other.embeddings[absent] = float("nan")
    loss = SupCon(4)(batch)
    assert torch.equal(SupCon(4)(other), loss)
    loss.backward()
    assert (batch.embeddings.grad[absent] == 0).all() and (batch.embeddings.grad[~absent] != 0).any(-1).all()


def test_the_gradient_stays_accurate_where_the_loss_is_nearly_zero():
    """In float32, where softmax(positive) rounds to 1; the reference is float64."""
    vectors = torch.eye(4, dtype=torch.float64)[torch.tensor([[0, 0, 1], [2, 2, 3]])]
    vectors = vectors + 0.01 * torch.randn(2, 3, 4, dtype=torch.float64)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        x = vectors.to(dtype).requires_grad_()
        loss = SupCon(4, 0.05, "cosine")(encoded(x, [[0, 2], [0, 1]], [7, 8]))
        gradients.append(torch.autograd.grad(loss, x)[0].double())
        assert 0 < loss.item() < 1e-6
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4 * gradients[1].abs().max().item())


@pytest.mark.parametrize("rows", [[[0]], [[1, 2], [2]]], ids=["a single hypothesis", "no positive"])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_to_contrast_is_zero_with_a_gradient(rows, training):
    batch = embedded(rows, 4)
    loss = SupCon(4).train(training)(batch)
    loss.backward()
    assert loss.item() == 0 and (batch.embeddings.grad == 0).all()


def pairs_of_two_premises():
    """The pairs of premises 7 and 8, and the same embeddings as one row per premise."""
    premises, hypotheses = torch.randn(2, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    relations, ids = [0, 2, 0, 0, 1], [7, 7, 7, 8, 8]
    pairs = torch.stack([premises[torch.tensor(ids) - 7], hypotheses], dim=1)
    grouped = torch.zeros(2, 4, 4, dtype=torch.float64)
    grouped[:, 0], grouped[0, 1:], grouped[1, 1:3] = premises, hypotheses[:3], hypotheses[3:]
    return encoded(pairs, [[r] for r in relations], ids), encoded(grouped, [[0, 2, 0], [0, 1, -100]], [7, 8])


def test_rows_of_pairs_give_the_loss_of_whole_premises():
    pairs, grouped = pairs_of_two_premises()
    assert SupCon(4)(pairs).item() == pytest.approx(SupCon(4)(grouped).item(), rel=1e-12)


@pytest.mark.parametrize(("max_positives", "max_negatives"), [(1, None), (None, 1), (1, 2), (2, 3)])
def test_limits_hold_for_the_positives_and_the_negatives_of_the_whole_batch(max_positives, max_negatives):
    """Section 4.4 of the paper: N- is bounded by the negatives in the batch and not by those of the premise."""
    pairs, _ = pairs_of_two_premises()
    everything = premise_candidates(pairs, True)
    drawn = set()
    for seed in range(60):
        torch.manual_seed(seed)
        limited = premise_candidates(pairs, True, max_positives, max_negatives)
        for mask, whole, limit in (
            (limited.positives, everything.positives, max_positives),
            (limited.negatives, everything.negatives, max_negatives),
        ):
            assert not (mask & ~whole).any()
            assert mask.sum(1).tolist() == [min(n, limit or n) for n in whole.sum(1).tolist()]
        drawn.add(tuple(limited.negatives[0].tolist()))
    negatives = everything.negatives[0].sum().item()
    assert negatives == 3  # one of its own, two of the other premise
    assert len(drawn) == math.comb(negatives, min(max_negatives or negatives, negatives))


def test_drawn_candidates_alone_make_up_the_loss():
    pairs, _ = pairs_of_two_premises()
    torch.manual_seed(3)
    loss = SupCon(4, max_positives=1, max_negatives=1)(pairs)
    torch.manual_seed(3)
    chosen = premise_candidates(pairs, True, 1, 1)
    terms = []
    for premise, positive, negative in zip(chosen.premises, chosen.positives, chosen.negatives, strict=True):
        scores = [premise @ chosen.hypotheses[mask][0] for mask in (positive, negative)]
        terms.append(math.log(1 + math.exp(scores[1] - scores[0])))
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-9)
    evaluated = SupCon(4, max_positives=1, max_negatives=1).eval()(pairs)
    assert evaluated.item() == pytest.approx(SupCon(4)(pairs).item(), rel=1e-12)


def test_the_default_settings_are_those_of_the_paper():
    for name in ("supcon", "softmax:0.7+supcon:0.3"):
        defaults = build_objective(name, 4).defaults
        assert defaults["learning_rate"] == 2e-5
        assert (defaults["per_device_train_batch_size"], defaults["num_train_epochs"]) == (64, 1)
        assert defaults["train_sampling_strategy"] == "sequential"
        assert build_objective(name, 4).needs_text_ids
    assert (SupCon(4).similarity, SupCon(4).temperature, SupCon(4).nli_sampling) == ("dot", 1.0, "pairs")
