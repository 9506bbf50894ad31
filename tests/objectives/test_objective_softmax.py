"""Tests of the classifier: Eq. 1 of arXiv:2106.04791 over all pairs of a batch of uneven rows."""

import pytest
import torch
from relation_helpers import ROWS, embedded

from simcse_hf.objectives.labelled.nli import Softmax


def slow_loss(objective, rows, vectors):
    """Slow reference: the mean of -log p(label) over the pairs, with the classifier's layers written out."""
    first, _, second = objective.classifier
    losses = []
    for row, sentences in zip(rows, vectors, strict=True):
        u = sentences[0]
        for label, v in zip(row, sentences[1:], strict=False):
            features = [*u, *v, *((a - b).abs() for a, b in zip(u, v, strict=True))]
            hidden = []
            for weights, bias in zip(first.weight, first.bias, strict=True):
                value = sum(w * x for w, x in zip(weights, features, strict=True)) + bias
                hidden.append(value if value > 0 else 0 * value)
            scores = [
                sum(w * x for w, x in zip(weights, hidden, strict=True)) + bias
                for weights, bias in zip(second.weight, second.bias, strict=True)
            ]
            losses.append(-torch.log(torch.exp(scores[label]) / sum(map(torch.exp, scores))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("dim", "hidden_dim"), [(2, None), (3, 1), (5, 8)])
@pytest.mark.parametrize("name", ROWS)
def test_equals_the_equation(name, dim, hidden_dim):
    objective = Softmax(dim, hidden_dim).double()
    assert objective.classifier[0].out_features == (hidden_dim or dim)
    batch = embedded(ROWS[name], dim)
    fast, slow = objective(batch), slow_loss(objective, ROWS[name], batch.embeddings)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-12)
    inputs = [batch.embeddings, *objective.parameters()]
    gradients = [torch.autograd.grad(loss, inputs, materialize_grads=True) for loss in (fast, slow)]
    for ours, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-12)
    assert gradients[0][0].abs().max() > 0


def test_padding_of_short_rows_does_not_affect_the_loss():
    rows, objective = ROWS["ragged"], Softmax(4).double()
    batch, other = embedded(rows, 4), embedded(rows, 4)
    absent = torch.cat([torch.zeros(4, 1, dtype=bool), batch.inputs["relations"] < 0], dim=1)
    with torch.no_grad():
        other.embeddings[absent] = float("nan")
    loss = objective(batch)
    assert torch.equal(objective(other), loss)
    loss.backward()
    assert (batch.embeddings.grad[absent] == 0).all() and (batch.embeddings.grad[~absent] != 0).any(-1).all()


def test_a_batch_without_hypotheses_is_zero_and_reaches_every_parameter():
    """DistributedDataParallel waits for the gradient of every parameter."""
    batch, objective = embedded([[0], [1]], 4), Softmax(4).double()
    batch.inputs["relations"][:] = -100
    loss = objective(batch)
    loss.backward()
    assert loss.item() == 0 and all((p.grad == 0).all() for p in objective.parameters())


@pytest.mark.parametrize("name", ROWS)
def test_one_layer_is_the_softmax_of_sbert(name):
    """SBERT, section 3: softmax(W (u, v, |u - v|)) without a bias."""
    objective = Softmax(3, layers=1).double()
    assert [tuple(weights.shape) for weights in objective.parameters()] == [(3, 9)]
    (matrix,) = objective.parameters()
    batch = embedded(ROWS[name], 3)
    losses = []
    for row, (u, *others) in zip(ROWS[name], batch.embeddings, strict=True):
        for label, v in zip(row, others, strict=False):
            scores = (matrix @ torch.cat([u, v, (u - v).abs()])).exp()
            losses.append(-torch.log(scores[label] / scores.sum()))
    assert objective(batch).item() == pytest.approx((sum(losses) / len(losses)).item(), rel=1e-12)


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
                scores = torch.log_softmax(objective.logits(premise[None, 0], hypothesis[None])[0], 0)
                losses.append(-scores[relation if i == j else 2].item())
    assert len(losses) == 12
    plain = slow_loss(objective, rows, batch.embeddings).item()
    assert objective(batch).item() == pytest.approx((plain + sum(losses) / 12) / 2, rel=1e-12)
    assert objective.eval()(batch).item() == pytest.approx(plain, rel=1e-12)
