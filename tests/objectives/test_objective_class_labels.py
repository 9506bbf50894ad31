"""The supervised contrastive loss of classes: Eq. 2 of arXiv:2004.11362, gradients, and rows that are refused."""

import pytest
import torch
from objective_helpers import assert_same

from simcse_hf.objectives import EncodedBatch, build_objective


def slow_loss(vectors, classes, tau, kind="cosine"):
    """The mean of Eq. 2 over the texts with a positive, term by term; the class `None` has no positive."""
    if kind == "cosine":
        vectors = [x / (x * x).sum().sqrt() for x in vectors]
    losses = []
    for i, anchor in enumerate(vectors):
        others = {j: (anchor * x).sum() / tau for j, x in enumerate(vectors) if j != i}
        positives = [j for j in others if classes[i] is not None and classes[j] == classes[i]]
        if positives:
            total = torch.logsumexp(torch.stack(list(others.values())), 0)
            losses.append(-sum(others[p] - total for p in positives) / len(positives))
    return sum(losses) / len(losses)


def objective(tau=0.3, kind="cosine"):
    return build_objective("class_labels", 5, {"temperature": tau, "similarity": kind})


@pytest.mark.parametrize("kind", ["cosine", "dot"])
@pytest.mark.parametrize("classes", [[0, 1, 0, 1], [0, 0, 0, 2, 1, 1], [3, 0, 3, 0, 3, 1]])
def test_equals_the_equation_with_the_gradient(classes, kind):
    vectors = torch.randn(len(classes), 1, 5, dtype=torch.float64, requires_grad=True)
    loss = objective(kind=kind)(EncodedBatch(vectors, {"labels": torch.tensor(classes)}))
    slow = slow_loss(vectors[:, 0], classes, 0.3, kind)
    assert_same(loss, slow, vectors)


def test_every_positive_of_an_anchor_counts_and_equal_anchors_are_one_class():
    """Rows a: p p, b: p n, a: p; the second positive of the first row and the hard negative are nobody's class."""
    vectors = torch.randn(3, 3, 5, dtype=torch.float64, requires_grad=True)
    relations, ids = torch.tensor([[0, 0], [0, 2], [0, -100]]), torch.tensor([7, 8, 7])
    inputs = {"relations": relations, "text_ids": ids[:, None].expand(3, 3)}
    classes = [7, 7, 7, 8, 8, None, 7, 7]
    loss = objective()(EncodedBatch(vectors, inputs))
    assert loss.item() == pytest.approx(slow_loss(vectors.flatten(0, 1)[:8], classes, 0.3).item(), rel=1e-12)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0]], ids=["no positive", "nothing else"])
def test_nothing_to_contrast_is_zero_with_a_gradient_of_zero(labels):
    vectors = torch.randn(len(labels), 1, 5, requires_grad=True)
    loss = objective()(EncodedBatch(vectors, {"labels": torch.tensor(labels)}))
    loss.backward()
    assert loss.item() == 0 and (vectors.grad == 0).all()
