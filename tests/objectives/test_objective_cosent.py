"""CoSENT: pairs with a higher score get a higher cosine."""

import math

import pytest
import torch
from datasets import Dataset
from process_helpers import assert_same, in_processes, train_share
from torch import nn

from simcse_hf.objectives import EncodedBatch, TrainingRows, make_objective
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
    objective = make_objective("cosent", 6, {"temperature": temperature}, {})
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


def test_half_precision_is_compared_in_float32():
    embeddings, scores = pairs_of(6)
    halved = embeddings.detach().bfloat16()
    loss = CoSENT(6)(EncodedBatch(halved, {"scores": scores.float()}))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(slow_loss(halved.double(), scores, 0.05).item(), rel=1e-5)


# --- checks ---


def rows_of(scores, num_sentences=2, batch_size=4, **columns):
    table = {"input_ids": [[[2, 5, 3]] * num_sentences] * len(scores), "score": scores} | columns
    return TrainingRows(num_sentences, batch_size, dataset=Dataset.from_dict(table))


@pytest.mark.parametrize("name", ["cosent", "angle"])
@pytest.mark.parametrize(
    "rows, message",
    [
        (rows_of([0.0, 1.0], num_sentences=1), "a training row holds 1 sentence.* columns sentence1, sentence2 and"),
        (TrainingRows(2, 4), "needs a score for each pair, but the training rows have no column 'score'"),
        (TrainingRows(2, 4, dataset=Dataset.from_dict({"input_ids": [[[2], [3]]]})), "have no column 'score'"),
        (rows_of([0.0, 1.0, math.nan]), "training row 3: the score nan is not a finite number"),
        (rows_of([0.0, None]), "training row 2: the score nan is not a finite number"),
        (rows_of([0.0, math.inf]), "training row 2: the score inf is not a finite number"),
        (rows_of([1.0, 1.0, 1.0]), "all 3 training pairs have the score 1, so objective '.*' has no order to learn"),
        (rows_of([0.0, 1.0], batch_size=1), "a batch of 1 has none to compare: raise per_device_train_batch_size"),
    ],
)
def test_rows_that_cannot_be_ranked_are_refused_before_the_first_step(name, rows, message):
    objective = make_objective(name, 6, {}, {})
    objective.check(rows_of([0.0, 1.0, 0.5]))
    with pytest.raises(ValueError, match=message):
        objective.check(rows)


def test_a_temperature_must_be_above_zero():
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        CoSENT(6, temperature=0)


# --- several processes ---


class Scored(nn.Module):
    """An objective of scored pairs over a linear map in place of an encoder, in float64."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(1)
        self.encoder, self.objective = nn.Linear(6, 4).double(), make_objective(name, 4, {}, {})

    def forward(self, texts, scores, text_ids):
        loss = self.objective(EncodedBatch(self.encoder(texts), {"scores": scores, "text_ids": text_ids}))
        return sum(loss.values()) if isinstance(loss, dict) else loss


def global_batch():
    texts, scores = pairs_of(4)
    return texts.detach(), scores.index_fill(0, torch.tensor([0]), 2.0), torch.tensor([[1, 2], [3, 1], [5, 6], [7, 7]])


def shares(rank, processes):
    """Train each objective in one process, with half of the pairs."""
    return {name: train_share(Scored(name), global_batch(), rank, processes) for name in ("cosent", "angle")}


def test_two_processes_equal_one(tmp_path):
    found = in_processes(shares, tmp_path)
    for name in ("cosent", "angle"):
        assert_same([share[name] for share in found], Scored(name), global_batch())
