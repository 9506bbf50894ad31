"""CoSENT: pairs with a higher score get a higher cosine."""

import pytest
import torch
from torch import nn

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.labelled.scored_pairs import CoSENT


def pairs_of(rows=5, dim=6, seed=0):
    """Embeddings of pairs and scores from 0 to 2, some of which are equal."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(rows, 2, dim, dtype=torch.float64, generator=generator)
    scores = torch.randint(0, 3, (rows,), generator=generator).double()
    return embeddings.requires_grad_(), scores


def cosine(x, y):
    return (x * y).sum() / (x.square().sum().sqrt() * y.square().sum().sqrt())


def slow_loss(embeddings, scores, temperature):
    """The formula, one comparison of two pairs at a time."""
    cosines = [cosine(*pair) for pair in embeddings]
    total = 1.0
    for i, higher in enumerate(scores):
        for j, lower in enumerate(scores):
            if higher > lower:
                total = total + ((cosines[j] - cosines[i]) / temperature).exp()
    return total.log()


@pytest.mark.parametrize("temperature", [0.05, 0.7])
@pytest.mark.parametrize("rows", [2, 5, 9])
def test_loss_and_gradient_match_a_slow_reference(rows, temperature):
    embeddings, scores = pairs_of(rows)
    scores[:2] = torch.tensor([0.0, 2.0])
    objective = build_objective("cosent", 6, {"temperature": temperature})
    loss = objective(EncodedBatch(embeddings, {"scores": scores}))
    expected = slow_loss(embeddings, scores, temperature)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    found, exact = (torch.autograd.grad(x, embeddings)[0] for x in (loss, expected))
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-12)


def test_the_loss_is_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    embeddings, scores = pairs_of(8)
    peer = losses.CoSENTLoss(nn.Identity())
    expected = peer.compute_loss_from_embeddings(list(embeddings.unbind(1)), scores)
    loss = CoSENT(6)(EncodedBatch(embeddings, {"scores": scores}))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)


def test_only_the_order_of_the_scores_matters():
    embeddings, scores = pairs_of(8)
    losses = [CoSENT(6)(EncodedBatch(embeddings, {"scores": x})).item() for x in (scores, 10 * scores - 3)]
    assert losses[0] == losses[1] > 0


def test_pairs_without_an_order_have_no_loss_and_no_gradient():
    embeddings, scores = pairs_of(4)
    loss = CoSENT(6)(EncodedBatch(embeddings, {"scores": torch.ones_like(scores)}))
    loss.backward()
    assert loss.item() == 0 and torch.equal(embeddings.grad, torch.zeros_like(embeddings))


# --- checks ---


# --- several processes ---
