"""Objectives of labelled rows: Eq. 1 and 2 of arXiv:2106.04791 for premises, Eq. 2 of arXiv:2004.11362 for classes."""

import math

import pytest
import torch
from objective_helpers import assert_same, cosine
from relation_helpers import ABSENT, CONTRADICTION, ENTAILMENT, ROWS, embedded

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.labelled_contrastive import Softmax, SupCon


def encoded(embeddings, relations, premise_ids):
    """A batch of premises with hypotheses; each text of a row has the number of its premise."""
    ids = torch.tensor(premise_ids)[:, None].expand(embeddings.shape[:2])
    inputs = {"relations": torch.tensor(relations), "text_ids": ids}
    return EncodedBatch(embeddings, inputs)


def of_classes(sets):
    """A batch of texts with a label or several, and its embeddings."""
    width = max(map(len, sets))
    labels = torch.tensor([[*labels] + [ABSENT] * (width - len(labels)) for labels in sets])
    vectors = torch.randn(len(sets), 1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return EncodedBatch(vectors.requires_grad_(), {"labels": labels})


@pytest.mark.parametrize(
    "name, batch",
    [
        ("supcon", embedded([[0]], 4)),
        ("supcon", embedded([[1, 2], [2]], 4)),
        ("class_labels", of_classes([[0], [1], [2], [3]])),
        ("class_labels", of_classes([[0], [0]])),
    ],
    ids=["a single hypothesis", "no positive hypothesis", "no two texts of a class", "nothing but a positive"],
)
def test_nothing_to_contrast_is_zero_with_a_gradient_of_zero(name, batch):
    loss = build_objective(name, batch.embeddings.shape[-1])(batch)
    loss.backward()
    assert loss.item() == 0 and not batch.embeddings.grad.any()


# --- SupCon ---


def slow_loss(rows, vectors, temperature, similarity):
    """Eq. 2 for premises with an entailed hypothesis: the mean over these of -log softmax among those of all rows."""
    compare = cosine if similarity == "cosine" else torch.dot
    losses = []
    for i, premise in enumerate(vectors[:, 0]):
        scores = []
        positives = []
        for j, row in enumerate(rows):
            for position, relation in enumerate(row, start=1):
                scores.append(compare(premise, vectors[j, position]) / temperature)
                if j == i and relation == ENTAILMENT:
                    positives.append(scores[-1])
        if positives:
            losses.append(torch.stack(scores).logsumexp(0) - sum(positives) / len(positives))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("name", ROWS)
def test_supcon_equals_the_equation(name, temperature, similarity):
    batch = embedded(ROWS[name], 3)
    fast = SupCon(3, temperature, similarity)(batch)
    slow = slow_loss(ROWS[name], batch.embeddings, temperature, similarity)
    assert_same(fast, slow, batch.embeddings, rtol=1e-6, atol=1e-8)


def test_loss_and_gradient_stay_accurate_where_the_loss_is_nearly_zero():
    """Two premises are nearly equal to their entailed hypotheses. In float32, softmax(positive) rounds to 1."""
    vectors = torch.eye(4, dtype=torch.float64)[torch.tensor([[0, 0, 1], [2, 2, 3]])]
    vectors = vectors + 0.01 * torch.randn(2, 3, 4, dtype=torch.float64)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        leaf = vectors.to(dtype).requires_grad_()
        loss = SupCon(4, 0.05)(encoded(leaf, relations=[[0, 2], [0, 1]], premise_ids=[7, 8]))
        assert 0 < loss < 1e-6
        gradients += torch.autograd.grad(loss, leaf)
    found, exact = gradients
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-4 * exact.abs().max().item())


# --- premises as pairs, and limits to the candidates ---


@pytest.fixture
def hypotheses():
    """Premise 7 with three hypotheses, and premise 8 with two."""
    return torch.randn(2, 4, 4, dtype=torch.float64)


@pytest.fixture
def pairs(hypotheses):
    """A row for each hypothesis."""
    rows = torch.tensor([0, 0, 0, 1, 1])
    columns = torch.tensor([1, 2, 3, 1, 2])
    embeddings = torch.stack([hypotheses[rows, 0], hypotheses[rows, columns]], dim=1)
    return encoded(embeddings, [[0], [2], [0], [0], [1]], [7, 7, 7, 8, 8])


def test_rows_of_pairs_give_the_loss_of_whole_premises(pairs, hypotheses):
    whole = encoded(hypotheses, [[0, 2, 0], [0, 1, ABSENT]], [7, 8])
    torch.testing.assert_close(SupCon(4)(pairs), SupCon(4)(whole), rtol=1e-12, atol=0)


def labels_of(batch, **limits):
    """For each anchor and candidate: 0 for a positive, more for a negative, -100 if it is left out."""
    return SupCon(4, **limits).candidates(batch)[2]


@pytest.mark.parametrize("positives, negatives", [(1, None), (None, 1), (2, 2), (9, 9)])
def test_as_many_candidates_of_the_whole_batch_are_drawn_as_the_limits_allow(pairs, positives, negatives):
    """Section 4.4 of the paper: N- is bounded by the negatives in the batch and not by those of the premise."""
    unlimited = labels_of(pairs)
    assert [(unlimited == 0).sum(1).tolist(), (unlimited > 0).sum(1).tolist()] == [[2, 1], [3, 4]]
    chosen = set()
    for seed in range(60):
        torch.manual_seed(seed)
        labels = labels_of(pairs, max_positives=positives, max_negatives=negatives)
        kept = labels != ABSENT
        assert torch.equal(labels[kept], unlimited[kept])
        assert (labels == 0).sum(1).tolist() == [min(number, positives or 9) for number in (2, 1)]
        assert (labels > 0).sum(1).tolist() == [min(number, negatives or 9) for number in (3, 4)]
        chosen.add(tuple((labels > 0)[0].tolist()))
    assert len(chosen) == math.comb(3, min(3, negatives or 3)), "every choice is drawn"


# --- Softmax ---


def slow_classifier(objective, premise, hypothesis):
    """The scores of the three relations, with the classifier's layers written out."""
    features = torch.cat([premise, hypothesis, (premise - hypothesis).abs()])
    first, *others = objective.classifier
    scores = first.weight @ features
    if others:
        second = others[1]
        hidden = (scores + first.bias).relu()
        scores = second.weight @ hidden + second.bias
    return scores


def slow_softmax(objective, rows, vectors):
    """The mean of -log p(label) over the pairs."""
    losses = []
    for row, (premise, *hypotheses) in zip(rows, vectors, strict=True):
        for label, hypothesis in zip(row, hypotheses, strict=False):
            losses.append(-slow_classifier(objective, premise, hypothesis).log_softmax(0)[label])
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    "dim, hidden_dim, layers, width",
    [(2, None, 2, 2), (5, 8, 2, 8), (3, None, 1, 3)],
    ids=["by default as wide as the embeddings", "as wide as given", "without a hidden layer"],
)
@pytest.mark.parametrize("name", ROWS)
def test_softmax_equals_the_equation(name, dim, hidden_dim, layers, width):
    """With one layer it is SBERT's, section 3: softmax(W (u, v, |u - v|)) without a bias."""
    objective = Softmax(dim, hidden_dim, layers=layers).double()
    assert objective.classifier[0].out_features == width
    batch = embedded(ROWS[name], dim)
    slow = slow_softmax(objective, ROWS[name], batch.embeddings)
    assert_same(objective(batch), slow, [batch.embeddings, *objective.parameters()])


def test_a_batch_without_hypotheses_is_zero_and_reaches_every_parameter():
    """DistributedDataParallel waits for the gradient of every parameter."""
    objective = Softmax(4).double()
    batch = embedded([[0], [1]], 4)
    batch.inputs["relations"][:] = ABSENT
    loss = objective(batch)
    loss.backward()
    assert loss.item() == 0
    for parameter in objective.parameters():
        assert parameter.grad is not None and not parameter.grad.any()


ROWS_TO_AUGMENT = [
    [0, 1],
    [2],
    [0, 2, 0],
]  # the second premise has no positive, so it is no anchor


def slow_augmentation(objective, vectors):
    """The mean cross-entropy of each anchor with all hypotheses, where those of other rows contradict it."""
    pairs = []
    labels = []
    for i in (0, 2):
        for j, others in enumerate(ROWS_TO_AUGMENT):
            for position, relation in enumerate(others, start=1):
                pairs.append((vectors[i, 0], vectors[j, position]))
                labels.append([relation if i == j else CONTRADICTION])
    return slow_softmax(objective, labels, pairs)


def test_augmenting_adds_the_pairs_of_the_contrastive_loss():
    """The mean of two cross-entropies: over the labelled pairs, and over each premise with all hypotheses."""
    objective = Softmax(4, augment=True).double()
    batch = embedded(ROWS_TO_AUGMENT, 4)
    plain = slow_softmax(objective, ROWS_TO_AUGMENT, batch.embeddings)
    augmented = slow_augmentation(objective, batch.embeddings)
    torch.testing.assert_close(objective(batch), (plain + augmented) / 2, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        objective.eval()(batch), plain, rtol=1e-12, atol=0
    )  # nothing is augmented in evaluation


# --- classes ---


def class_labels(similarity="cosine"):
    return build_objective("class_labels", 5, {"temperature": 0.3, "similarity": similarity})


def slow_class_loss(vectors, sets, compare=cosine):
    """MulSupCon: the mean over all pairs of an anchor and one of its labels that another text has."""
    losses = []
    for i, anchor in enumerate(vectors):
        scores = {j: compare(anchor, other) / 0.3 for j, other in enumerate(vectors) if j != i}
        total = torch.stack(list(scores.values())).logsumexp(0)
        for label in sets[i]:
            positives = [score for j, score in scores.items() if label in sets[j]]
            if positives:
                losses.append(sum(total - score for score in positives) / len(positives))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("similarity, compare", [("cosine", cosine), ("dot", torch.dot)])
@pytest.mark.parametrize(
    "sets",
    [
        [[0], [0], [0], [2], [1], [1]],
        [[0, 1], [1], [0, 1, 2], [2], [3]],
        [[0], [], [0], [1, 2]],
        [[5, 4], [4, 6], [7], [8]],
    ],
    ids=["a label each", "other numbers of labels", "a text without labels", "labels of one text"],
)
def test_class_labels_equal_the_equation(sets, similarity, compare):
    batch = of_classes(sets)
    loss = class_labels(similarity)(batch)
    assert_same(loss, slow_class_loss(batch.embeddings[:, 0], sets, compare), batch.embeddings)
    labels = batch.inputs["labels"]
    if labels.shape[1] == 1:
        assert class_labels(similarity)(EncodedBatch(batch.embeddings, {"labels": labels[:, 0]})) == loss


def test_every_positive_of_an_anchor_counts_and_equal_anchors_are_one_class():
    """Rows a: p p, b: p n, a: p; the second positive of the first row and the hard negative are nobody's class."""
    vectors = torch.randn(3, 3, 5, dtype=torch.float64, requires_grad=True)
    batch = encoded(vectors, relations=[[0, 0], [0, 2], [0, ABSENT]], premise_ids=[7, 8, 7])
    slow = slow_class_loss(vectors.flatten(0, 1)[:8], [[7], [7], [7], [8], [8], [], [7], [7]])
    torch.testing.assert_close(class_labels()(batch), slow, rtol=1e-12, atol=0)
