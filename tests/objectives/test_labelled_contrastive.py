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


def assert_zero_with_a_gradient_of_zero(loss, leaves):
    loss.backward()
    assert loss.item() == 0
    for leaf in leaves:
        assert leaf.grad is not None
        assert not leaf.grad.any()


# --- SupCon ---


def slow_anchor_loss(anchor, candidates, is_positive, temperature, similarity):
    """Eq. 2 for one anchor: the mean over its positives of -log softmax."""
    compare = cosine if similarity == "cosine" else torch.dot
    scores = torch.stack([compare(anchor, candidate) / temperature for candidate in candidates])
    return -scores.log_softmax(0)[torch.tensor(is_positive)].mean()


def mean_over_anchors_with_a_positive(anchors, temperature, similarity):
    """The mean of Eq. 2; each anchor comes with its candidates and which of them are positives."""
    losses = []
    for anchor, candidates, is_positive in anchors:
        if any(is_positive):
            loss = slow_anchor_loss(anchor, candidates, is_positive, temperature, similarity)
            losses.append(loss)
    return sum(losses) / len(losses)


def slow_loss(rows, vectors, temperature, similarity):
    """Eq. 2 for premises, each with the hypotheses of all rows."""
    candidates = []
    own_row = []
    relations = []
    for j, row in enumerate(rows):
        for position, relation in enumerate(row, start=1):
            candidates.append(vectors[j, position])
            own_row.append(j)
            relations.append(relation)
    anchors = []
    for i, premise in enumerate(vectors[:, 0]):
        is_positive = []
        for j, relation in zip(own_row, relations, strict=True):
            is_positive.append(j == i and relation == ENTAILMENT)
        anchors.append((premise, candidates, is_positive))
    return mean_over_anchors_with_a_positive(anchors, temperature, similarity)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("name", ROWS)
def test_supcon_equals_the_equation(name, temperature, similarity):
    batch = embedded(ROWS[name], 3)
    fast = SupCon(3, temperature, similarity)(batch)
    slow = slow_loss(ROWS[name], batch.embeddings, temperature, similarity)
    assert_same(fast, slow, batch.embeddings, rtol=1e-6, atol=1e-8)


@pytest.fixture
def vectors_with_a_loss_near_zero():
    """Two premises whose entailed hypotheses are nearly equal to them."""
    vectors = torch.eye(4, dtype=torch.float64)[torch.tensor([[0, 0, 1], [2, 2, 3]])]
    return vectors + 0.01 * torch.randn(2, 3, 4, dtype=torch.float64)


def loss_and_gradient(vectors, dtype):
    leaf = vectors.to(dtype).requires_grad_()
    batch = encoded(leaf, relations=[[0, 2], [0, 1]], premise_ids=[7, 8])
    loss = SupCon(4, 0.05, "cosine")(batch)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tiny_loss_is_not_rounded_to_zero(vectors_with_a_loss_near_zero, dtype):
    """In float32, softmax(positive) rounds to 1."""
    loss, _ = loss_and_gradient(vectors_with_a_loss_near_zero, dtype)
    assert 0 < loss < 1e-6


def test_the_gradient_stays_accurate_where_the_loss_is_nearly_zero(
    vectors_with_a_loss_near_zero,
):
    _, gradient = loss_and_gradient(vectors_with_a_loss_near_zero, torch.float32)
    _, exact = loss_and_gradient(vectors_with_a_loss_near_zero, torch.float64)
    largest = exact.abs().max().item()
    torch.testing.assert_close(gradient, exact, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([[0]], id="a single hypothesis"),
        pytest.param([[1, 2], [2]], id="no positive"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_to_contrast_is_zero_with_a_gradient(rows, training):
    batch = embedded(rows, 4)
    loss = SupCon(4).train(training)(batch)
    assert_zero_with_a_gradient_of_zero(loss, [batch.embeddings])


# --- premises as pairs, and limits to the candidates ---


@pytest.fixture
def premises():
    """The embeddings of premises 7 and 8."""
    return torch.randn(2, 4, dtype=torch.float64)


@pytest.fixture
def hypotheses():
    """Three hypotheses of premise 7, and two of premise 8."""
    return torch.randn(5, 4, dtype=torch.float64)


@pytest.fixture
def pairs(premises, hypotheses):
    """A row for each hypothesis."""
    ids = [7, 7, 7, 8, 8]
    embeddings = torch.stack([premises[[0, 0, 0, 1, 1]], hypotheses], dim=1)
    return encoded(embeddings, [[0], [2], [0], [0], [1]], ids)


@pytest.fixture
def whole_premises(premises, hypotheses):
    """A row for each premise, with the same embeddings."""
    embeddings = torch.zeros(2, 4, 4, dtype=torch.float64)
    embeddings[:, 0] = premises
    embeddings[0, 1:] = hypotheses[:3]
    embeddings[1, 1:3] = hypotheses[3:]
    return encoded(embeddings, [[0, 2, 0], [0, 1, ABSENT]], [7, 8])


def test_rows_of_pairs_give_the_loss_of_whole_premises(pairs, whole_premises):
    loss_of_pairs = SupCon(4)(pairs).item()
    loss_of_premises = SupCon(4)(whole_premises).item()
    assert loss_of_pairs == pytest.approx(loss_of_premises, rel=1e-12)


LIMITS = pytest.mark.parametrize(
    "limits",
    [
        {"max_positives": 1},
        {"max_negatives": 1},
        {"max_positives": 1, "max_negatives": 2},
        {"max_positives": 2, "max_negatives": 3},
    ],
)


def labels_of(batch, **limits):
    """For each anchor and candidate: 0 for a positive, more for a negative, -100 if it is left out."""
    return SupCon(4, **limits).candidates(batch)[2]


def drawn_labels(batch, limits, draws=60):
    drawn = []
    for seed in range(draws):
        torch.manual_seed(seed)
        drawn.append(labels_of(batch, **limits))
    return drawn


def limited(counts, limit):
    """The numbers of candidates, none of them above the limit."""
    return counts if limit is None else counts.clamp(max=limit)


@LIMITS
def test_a_limit_leaves_candidates_out_and_changes_no_relation(pairs, limits):
    unlimited = labels_of(pairs)
    for labels in drawn_labels(pairs, limits):
        kept = labels != ABSENT
        assert torch.equal(labels[kept], unlimited[kept])


@LIMITS
def test_as_many_positives_are_kept_as_the_limit_allows(pairs, limits):
    wanted = limited((labels_of(pairs) == 0).sum(1), limits.get("max_positives"))
    for labels in drawn_labels(pairs, limits):
        assert torch.equal((labels == 0).sum(1), wanted)


@LIMITS
def test_as_many_negatives_of_the_whole_batch_are_kept_as_the_limit_allows(pairs, limits):
    """Section 4.4 of the paper: N- is bounded by the negatives in the batch and not by those of the premise."""
    wanted = limited((labels_of(pairs) > 0).sum(1), limits.get("max_negatives"))
    for labels in drawn_labels(pairs, limits):
        assert torch.equal((labels > 0).sum(1), wanted)


def test_the_negatives_of_a_premise_are_those_of_the_whole_batch(pairs):
    negatives_of_the_first = (labels_of(pairs) > 0)[0].sum().item()
    assert negatives_of_the_first == 3  # one of its own, two of the other premise


@LIMITS
def test_every_choice_of_negatives_is_drawn(pairs, limits):
    chosen = {tuple((labels > 0)[0].tolist()) for labels in drawn_labels(pairs, limits)}
    assert len(chosen) == math.comb(3, limits.get("max_negatives", 3))


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
            scores = slow_classifier(objective, premise, hypothesis)
            losses.append(-torch.log(scores.exp()[label] / scores.exp().sum()))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    "dim, hidden_dim, layers",
    [(2, None, 2), (3, 1, 2), (5, 8, 2), (3, None, 1)],
)
@pytest.mark.parametrize("name", ROWS)
def test_softmax_equals_the_equation(name, dim, hidden_dim, layers):
    """With one layer it is SBERT's, section 3: softmax(W (u, v, |u - v|)) without a bias."""
    objective = Softmax(dim, hidden_dim, layers=layers).double()
    batch = embedded(ROWS[name], dim)
    fast = objective(batch)
    slow = slow_softmax(objective, ROWS[name], batch.embeddings)
    assert_same(fast, slow, [batch.embeddings, *objective.parameters()])


@pytest.mark.parametrize(
    "dim, hidden_dim, layers, width",
    [
        pytest.param(2, None, 2, 2, id="by default that of the embeddings"),
        pytest.param(5, 8, 2, 8, id="as given"),
        pytest.param(3, 1, 2, 1, id="a single unit"),
        pytest.param(3, None, 1, 3, id="without a hidden layer, the relations"),
    ],
)
def test_the_first_layer_of_the_classifier_has_the_width(dim, hidden_dim, layers, width):
    assert Softmax(dim, hidden_dim, layers=layers).classifier[0].out_features == width


def test_a_batch_without_hypotheses_is_zero_and_reaches_every_parameter():
    """DistributedDataParallel waits for the gradient of every parameter."""
    objective = Softmax(4).double()
    batch = embedded([[0], [1]], 4)
    batch.inputs["relations"][:] = ABSENT
    assert_zero_with_a_gradient_of_zero(objective(batch), objective.parameters())


ROWS_TO_AUGMENT = [
    [0, 1],
    [2],
    [0, 2, 0],
]  # the second premise has no positive, so it is no anchor


def slow_augmentation(objective, vectors):
    """The mean cross-entropy of each anchor with all hypotheses, where those of other rows contradict it."""
    losses = []
    for i, row in enumerate(ROWS_TO_AUGMENT):
        if ENTAILMENT not in row:
            continue
        for j, others in enumerate(ROWS_TO_AUGMENT):
            for position, relation in enumerate(others, start=1):
                label = relation if i == j else CONTRADICTION
                pair = torch.stack([vectors[i, 0], vectors[j, position]])
                losses.append(slow_softmax(objective, [[label]], pair[None]).item())
    assert len(losses) == 2 * 6, "two anchors, six hypotheses"
    return sum(losses) / len(losses)


def test_augmenting_adds_the_pairs_of_the_contrastive_loss():
    """The mean of two cross-entropies: over the labelled pairs, and over each premise with all hypotheses."""
    objective = Softmax(4, augment=True).double()
    batch = embedded(ROWS_TO_AUGMENT, 4)
    plain = slow_softmax(objective, ROWS_TO_AUGMENT, batch.embeddings).item()
    augmented = slow_augmentation(objective, batch.embeddings)
    assert objective(batch).item() == pytest.approx((plain + augmented) / 2, rel=1e-12)


def test_nothing_is_augmented_in_evaluation():
    objective = Softmax(4, augment=True).double().eval()
    batch = embedded(ROWS_TO_AUGMENT, 4)
    plain = slow_softmax(objective, ROWS_TO_AUGMENT, batch.embeddings).item()
    assert objective(batch).item() == pytest.approx(plain, rel=1e-12)


# --- classes ---


def class_labels(similarity="cosine"):
    return build_objective("class_labels", 5, {"temperature": 0.3, "similarity": similarity})


def slow_class_loss(vectors, classes, similarity="cosine"):
    """Eq. 2 for texts, each with all others; the class `None` has no positive."""
    anchors = []
    for i, anchor in enumerate(vectors):
        candidates = []
        is_positive = []
        for j, candidate in enumerate(vectors):
            if j != i:
                candidates.append(candidate)
                is_positive.append(classes[i] is not None and classes[j] == classes[i])
        anchors.append((anchor, candidates, is_positive))
    return mean_over_anchors_with_a_positive(anchors, 0.3, similarity)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("classes", [[0, 1, 0, 1], [0, 0, 0, 2, 1, 1], [3, 0, 3, 0, 3, 1]])
def test_class_labels_equal_the_equation(classes, similarity):
    vectors = torch.randn(len(classes), 1, 5, dtype=torch.float64, requires_grad=True)
    batch = EncodedBatch(vectors, {"labels": torch.tensor(classes)})
    slow = slow_class_loss(vectors[:, 0], classes, similarity)
    assert_same(class_labels(similarity)(batch), slow, vectors)


def slow_loss_of_several_labels(vectors, sets, temperature=0.3):
    """MulSupCon: the mean over all pairs of an anchor and one of its labels that another text has."""
    losses = []
    for i, anchor in enumerate(vectors):
        scores = {j: cosine(anchor, other) / temperature for j, other in enumerate(vectors) if j != i}
        total = torch.stack(list(scores.values())).logsumexp(0)
        for label in sets[i]:
            positives = [score for j, score in scores.items() if label in sets[j]]
            if positives:
                losses.append(sum(total - score for score in positives) / len(positives))
    return sum(losses) / len(losses)


def padded(sets):
    width = max(map(len, sets))
    return torch.tensor([[*labels] + [ABSENT] * (width - len(labels)) for labels in sets])


@pytest.mark.parametrize(
    "sets",
    [
        pytest.param([[0, 1], [1], [0, 1, 2], [2], [3]], id="other numbers of labels"),
        pytest.param([[0, 1], [0, 1], [1, 0], [2]], id="equal sets"),
        pytest.param([[0], [], [0], [1, 2]], id="a text without labels"),
        pytest.param([[5, 4], [4, 6], [7], [8]], id="labels of one text"),
    ],
)
def test_several_labels_of_a_text_equal_the_equation(sets):
    vectors = torch.randn(len(sets), 1, 5, dtype=torch.float64, requires_grad=True)
    loss = class_labels()(EncodedBatch(vectors, {"labels": padded(sets)}))
    assert_same(loss, slow_loss_of_several_labels(vectors[:, 0], sets), vectors)


def test_one_label_of_each_text_is_the_same_in_a_list():
    vectors = torch.randn(6, 1, 5, dtype=torch.float64)
    classes = torch.tensor([0, 1, 0, 1, 1, 2])
    alone, listed = (class_labels()(EncodedBatch(vectors, {"labels": x})) for x in (classes, classes[:, None]))
    assert alone.item() == listed.item()


def test_every_positive_of_an_anchor_counts_and_equal_anchors_are_one_class():
    """Rows a: p p, b: p n, a: p; the second positive of the first row and the hard negative are nobody's class."""
    vectors = torch.randn(3, 3, 5, dtype=torch.float64, requires_grad=True)
    batch = encoded(vectors, relations=[[0, 0], [0, 2], [0, ABSENT]], premise_ids=[7, 8, 7])
    classes = [7, 7, 7, 8, 8, None, 7, 7]
    slow = slow_class_loss(vectors.flatten(0, 1)[:8], classes)
    assert class_labels()(batch).item() == pytest.approx(slow.item(), rel=1e-12)


@pytest.mark.parametrize(
    "classes",
    [
        pytest.param([0, 1, 2, 3], id="no positive"),
        pytest.param([0, 0], id="nothing else"),
    ],
)
def test_no_class_to_contrast_is_zero_with_a_gradient_of_zero(classes):
    vectors = torch.randn(len(classes), 1, 5, requires_grad=True)
    batch = EncodedBatch(vectors, {"labels": torch.tensor(classes)})
    assert_zero_with_a_gradient_of_zero(class_labels()(batch), [vectors])
