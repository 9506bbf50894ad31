"""Objectives of labelled rows: Eq. 1 and 2 of arXiv:2106.04791 for premises, Eq. 2 of arXiv:2004.11362 for classes."""

import math

import pytest
import torch
from objective_helpers import assert_same, cosine
from relation_helpers import ROWS, embedded

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.labelled.contrastive import Softmax, SupCon


def encoded(embeddings, relations, premise_ids):
    ids = torch.tensor(premise_ids)[:, None].expand(embeddings.shape[:2])
    return EncodedBatch(embeddings, {"relations": torch.tensor(relations), "text_ids": ids})


def slow_contrast(rows, tau, kind):
    """The mean over the anchors with a positive: an anchor, its candidates, and which of them are positives."""
    compare, losses = cosine if kind == "cosine" else torch.dot, []
    for anchor, candidates, is_positive in rows:
        if any(is_positive):
            scores = torch.stack([compare(anchor, candidate) / tau for candidate in candidates])
            losses.append(-scores.log_softmax(0)[torch.tensor(is_positive)].mean())
    return sum(losses) / len(losses)


def slow_loss(rows, vectors, tau, kind):
    """Eq. 2 for premises, each with the hypotheses of all rows."""
    texts = [(j, *pair) for j, row in enumerate(rows) for pair in zip(row, vectors[j, 1:], strict=False)]
    candidates = [text for *_, text in texts]
    anchors = enumerate(vectors[:, 0])
    return slow_contrast([(x, candidates, [(j, r) == (i, 0) for j, r, _ in texts]) for i, x in anchors], tau, kind)


def slow_class_loss(vectors, classes, tau, kind="cosine"):
    """Eq. 2 for texts, each with all others; the class `None` has no positive."""
    rows = []
    for i, anchor in enumerate(vectors):
        others = [j for j in range(len(vectors)) if j != i]
        is_positive = [classes[i] is not None and classes[j] == classes[i] for j in others]
        rows.append((anchor, [vectors[j] for j in others], is_positive))
    return slow_contrast(rows, tau, kind)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("name", ROWS)
def test_equals_the_equation(name, temperature, similarity):
    batch = embedded(ROWS[name], 3)
    fast = SupCon(3, temperature, similarity)(batch)
    slow = slow_loss(ROWS[name], batch.embeddings, temperature, similarity)
    assert_same(fast, slow, batch.embeddings, rtol=1e-6, atol=1e-8)


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
    everything = SupCon(4).candidates(pairs)[2]
    limited = SupCon(4, max_positives=max_positives, max_negatives=max_negatives)
    drawn = set()
    for seed in range(60):
        torch.manual_seed(seed)
        labels = limited.candidates(pairs)[2]
        assert torch.equal(torch.where(labels == -100, everything, labels), everything)
        for found, whole, limit in (
            (labels == 0, everything == 0, max_positives),
            (labels > 0, everything > 0, max_negatives),
        ):
            assert found.sum(1).tolist() == [min(n, limit or n) for n in whole.sum(1).tolist()]
        drawn.add(tuple((labels > 0)[0].tolist()))
    negatives = (everything > 0)[0].sum().item()
    assert negatives == 3  # one of its own, two of the other premise
    assert len(drawn) == math.comb(negatives, min(max_negatives or negatives, negatives))


# --- Softmax ---


def slow_softmax(objective, rows, vectors):
    """Slow reference: the mean of -log p(label) over the pairs, with the classifier's layers written out."""
    first, *others = objective.classifier
    losses = []
    for row, sentences in zip(rows, vectors, strict=True):
        u = sentences[0]
        for label, v in zip(row, sentences[1:], strict=False):
            scores = first.weight @ torch.cat([u, v, (u - v).abs()])
            if others:
                scores = others[1].weight @ (scores + first.bias).relu() + others[1].bias
            losses.append(-torch.log(scores.exp()[label] / scores.exp().sum()))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("dim", "hidden_dim", "layers"), [(2, None, 2), (3, 1, 2), (5, 8, 2), (3, None, 1)])
@pytest.mark.parametrize("name", ROWS)
def test_softmax_equals_the_equation(name, dim, hidden_dim, layers):
    """With one layer it is SBERT's, section 3: softmax(W (u, v, |u - v|)) without a bias."""
    objective = Softmax(dim, hidden_dim, layers=layers).double()
    assert objective.classifier[0].out_features == (3 if layers == 1 else hidden_dim or dim)
    batch = embedded(ROWS[name], dim)
    fast, slow = objective(batch), slow_softmax(objective, ROWS[name], batch.embeddings)
    assert_same(fast, slow, [batch.embeddings, *objective.parameters()])


def test_a_batch_without_hypotheses_is_zero_and_reaches_every_parameter():
    """DistributedDataParallel waits for the gradient of every parameter."""
    batch, objective = embedded([[0], [1]], 4), Softmax(4).double()
    batch.inputs["relations"][:] = -100
    loss = objective(batch)
    loss.backward()
    assert loss.item() == 0 and all((p.grad == 0).all() for p in objective.parameters())


def test_augmenting_adds_the_pairs_of_the_contrastive_loss():
    """The mean of two cross-entropies: over the labelled pairs, and over each premise with all hypotheses."""
    rows, objective = [[0, 1], [2], [0, 2, 0]], Softmax(4, augment=True).double()
    batch = embedded(rows, 4)
    losses = []
    for i, premise in enumerate(batch.embeddings):
        if 0 not in rows[i]:
            continue  # it has no positive, so it is no anchor
        for j, row in enumerate(rows):
            for relation, hypothesis in zip(row, batch.embeddings[j, 1:], strict=False):
                pair = torch.stack([premise[0], hypothesis])
                losses.append(slow_softmax(objective, [[relation if i == j else 2]], pair[None]).item())
    assert len(losses) == 12
    plain = slow_softmax(objective, rows, batch.embeddings).item()
    assert objective(batch).item() == pytest.approx((plain + sum(losses) / 12) / 2, rel=1e-12)
    assert objective.eval()(batch).item() == pytest.approx(plain, rel=1e-12)


# --- classes ---


def class_labels(tau=0.3, kind="cosine"):
    return build_objective("class_labels", 5, {"temperature": tau, "similarity": kind})


@pytest.mark.parametrize("kind", ["cosine", "dot"])
@pytest.mark.parametrize("classes", [[0, 1, 0, 1], [0, 0, 0, 2, 1, 1], [3, 0, 3, 0, 3, 1]])
def test_class_labels_equal_the_equation(classes, kind):
    vectors = torch.randn(len(classes), 1, 5, dtype=torch.float64, requires_grad=True)
    loss = class_labels(kind=kind)(EncodedBatch(vectors, {"labels": torch.tensor(classes)}))
    slow = slow_class_loss(vectors[:, 0], classes, 0.3, kind)
    assert_same(loss, slow, vectors)


def test_every_positive_of_an_anchor_counts_and_equal_anchors_are_one_class():
    """Rows a: p p, b: p n, a: p; the second positive of the first row and the hard negative are nobody's class."""
    vectors = torch.randn(3, 3, 5, dtype=torch.float64, requires_grad=True)
    relations, ids = torch.tensor([[0, 0], [0, 2], [0, -100]]), torch.tensor([7, 8, 7])
    inputs = {"relations": relations, "text_ids": ids[:, None].expand(3, 3)}
    classes = [7, 7, 7, 8, 8, None, 7, 7]
    loss = class_labels()(EncodedBatch(vectors, inputs))
    assert loss.item() == pytest.approx(slow_class_loss(vectors.flatten(0, 1)[:8], classes, 0.3).item(), rel=1e-12)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0]], ids=["no positive", "nothing else"])
def test_no_class_to_contrast_is_zero_with_a_gradient_of_zero(labels):
    vectors = torch.randn(len(labels), 1, 5, requires_grad=True)
    loss = class_labels()(EncodedBatch(vectors, {"labels": torch.tensor(labels)}))
    loss.backward()
    assert loss.item() == 0 and (vectors.grad == 0).all()
