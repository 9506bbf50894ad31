"""Scores of candidates as the teacher: the losses of sentence-transformers, runs."""

import random

import pytest
import torch
from datasets import IterableDataset
from objective_helpers import assert_same
from torch.nn import functional as F
from trainer_helpers import model_of, refuses, sentences

from simcse_hf.objectives import EncodedBatch, build_objective

LOSSES = ("kl", "margin_mse")
#: Numbers of candidates of each row.
COUNTS = [2, 4, 3, 2, 3, 4]


def rows_of(counts=COUNTS):
    """Rows in FlagEmbedding's form, with a positive and the other candidates as negatives."""
    draw = random.Random(0)
    texts = iter(sentences(100))
    rows = []
    for count in counts:
        negatives = [next(texts) for _ in range(count - 1)]
        scores = [draw.uniform(-4, 4) for _ in negatives]
        pair = {"query": next(texts), "pos": [next(texts)], "pos_scores": [draw.uniform(0, 5)]}
        rows.append(pair | {"neg": negatives, "neg_scores": scores})
    return rows


def batch_of(counts=COUNTS, dtype=torch.float64):
    """Embeddings of rows with these numbers of candidates, their relations and scores, padded."""
    generator = torch.Generator().manual_seed(0)
    width = max(counts)
    present = torch.arange(width) < torch.tensor(counts)[:, None]
    relations = torch.full(present.shape, 2).index_fill(1, torch.tensor([0]), 0).masked_fill(~present, -100)
    embeddings = torch.randn(len(counts), width + 1, 5, generator=generator, dtype=dtype).requires_grad_()
    scores = torch.randn(present.shape, generator=generator, dtype=dtype).masked_fill(~present, 0.0)
    return embeddings, {"relations": relations, "scores": scores}


def by_loops(embeddings, inputs, loss, similarity, student, teacher):
    """The loss in a plain loop over rows."""
    if similarity == "cosine":
        embeddings = F.normalize(embeddings, dim=-1)
    losses = []
    for row, relations, scores in zip(embeddings, inputs["relations"], inputs["scores"], strict=True):
        there = relations != -100
        found = row[1:][there] @ row[0]
        wanted = scores[there]
        if loss == "margin_mse":
            for place in range(1, len(found)):
                losses.append(((found[0] - found[place]) - (wanted[0] - wanted[place])) ** 2)
        else:
            shares = (wanted / teacher).exp() / (wanted / teacher).exp().sum()
            own = (found / student).exp() / (found / student).exp().sum()
            losses.append(student**2 * (shares * (shares / own).log()).sum())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_lists_of_unequal_length_have_the_loss_of_plain_loops(loss, similarity):
    embeddings, inputs = batch_of()
    options = {"similarity_fct": similarity, "student_temperature": 0.4, "teacher_temperature": 1.5}
    found = build_objective("distill", 5, {"loss": loss} | options)(EncodedBatch(embeddings, inputs))
    expected = by_loops(embeddings, inputs, loss, similarity, 0.4, 1.5)
    assert_same(found, expected, embeddings)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_that_of_sentence_transformers(loss):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    embeddings, inputs = batch_of([4] * 6, torch.float32)
    options = {"temperature": 2.0} if loss == "kl" else {}
    theirs = losses.DistillKLDivLoss(None, **options) if loss == "kl" else losses.MarginMSELoss(None)
    expected = theirs.compute_loss_from_embeddings(list(embeddings.unbind(1)), inputs["scores"])
    ours = build_objective("distill", 5, {"loss": loss, "similarity_fct": "dot"} | options)
    assert ours(EncodedBatch(embeddings, inputs)).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_run_of_a_sum_with_simcse_logs_the_two_losses(trained):
    model = model_of(objective="distill+simcse", objective_options={"distill.loss": "kl"})
    trainer = trained(rows_of([3] * 16), model, logging_steps=1)
    first = trainer.state.log_history[0]
    assert first["simcse_loss"] + first["distill_loss"] == pytest.approx(first["loss"], abs=1e-3)


# --- runs ---


def test_rows_without_scores_a_teacher_beside_them_and_a_stream_are_refused(make):
    model = model_of(pooler_type="avg", objective="distill", objective_options={"loss": "kl"})
    with refuses("pos_scores neg_scores"):
        make([{"query": "q", "pos": "a", "neg": "b"}] * 8, model)
    with refuses("distill stream"):
        make(IterableDataset.from_generator(lambda: iter(rows_of())), model)
    with refuses("teacher texts"):
        make(rows_of(), model, teacher=["some-model"])
