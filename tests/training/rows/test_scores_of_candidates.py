"""Scores of candidates as the teacher: the losses of sentence-transformers, runs."""

import math
import random

import pytest
import torch
from datasets import IterableDataset
from process_helpers import in_processes
from torch.nn import functional as F
from trainer_helpers import make, model_of, refuses, sentences

from simcse_hf.objectives import EncodedBatch, build_objective

LOSSES = ("kl", "margin_mse")
#: Numbers of candidates of each row.
COUNTS = [2, 4, 3, 2, 3, 4]


def rows_of(counts=COUNTS, seed=0):
    """Rows in FlagEmbedding's form, with a positive and the other candidates as negatives."""
    draw = random.Random(seed)
    texts = iter(sentences(100, seed))
    rows = []
    for count in counts:
        negatives = [next(texts) for _ in range(count - 1)]
        scores = [draw.uniform(-4, 4) for _ in negatives]
        pair = {
            "query": next(texts),
            "pos": [next(texts)],
            "pos_scores": [draw.uniform(0, 5)],
        }
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
    """The loss in plain loops over rows and candidates."""
    if similarity == "cosine":
        embeddings = F.normalize(embeddings, dim=-1)
    total, count = 0.0, 0
    for row, relations, scores in zip(embeddings, inputs["relations"], inputs["scores"], strict=True):
        there = [place for place, relation in enumerate(relations.tolist()) if relation != -100]
        found = [row[0] @ row[1 + place] for place in there]
        wanted = [scores[place] for place in there]
        if loss == "margin_mse":
            for place in range(1, len(there)):
                total = total + ((found[0] - found[place]) - (wanted[0] - wanted[place])) ** 2
                count += 1
            continue
        q = [math.exp(y / teacher) for y in wanted]
        p = [torch.exp(s / student) for s in found]
        for one, other in zip(q, p, strict=True):
            share = one / sum(q)
            total = total + student**2 * share * (math.log(share) - torch.log(other / sum(p)))
        count += 1
    return total / count


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_lists_of_unequal_length_have_the_loss_of_plain_loops(loss, similarity):
    embeddings, inputs = batch_of()
    options = {
        "similarity_fct": similarity,
        "student_temperature": 0.4,
        "teacher_temperature": 1.5,
    }
    found = build_objective("distill", 5, {"loss": loss} | options)(EncodedBatch(embeddings, inputs))
    expected = by_loops(embeddings, inputs, loss, similarity, 0.4, 1.5)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each, embeddings, retain_graph=True)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_that_of_sentence_transformers(loss):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    embeddings, inputs = batch_of([4] * 6, torch.float32)
    options = {"temperature": 2.0} if loss == "kl" else {}
    theirs = losses.DistillKLDivLoss(None, **options) if loss == "kl" else losses.MarginMSELoss(None)
    expected = theirs.compute_loss_from_embeddings(list(embeddings.unbind(1)), inputs["scores"])
    ours = build_objective("distill", 5, {"loss": loss, "similarity_fct": "dot"} | options)
    assert ours(EncodedBatch(embeddings, inputs)).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_sum_with_simcse_is_the_sum_of_the_two_losses(tmp_path, tokenizer):
    name = "distill+simcse"
    embeddings, inputs = batch_of()
    batch = EncodedBatch(embeddings, inputs)
    both = build_objective(name, 5, {"distill.loss": "kl"})
    parts = build_objective("simcse", 5), build_objective("distill", 5, {"loss": "kl"})
    expected = sum(part(batch).item() for part in parts)
    assert sum(value.item() for value in both(batch).values()) == pytest.approx(expected)
    model = model_of(objective=name, objective_options={"distill.loss": "kl"})
    trainer = make(tmp_path, tokenizer, rows_of([3] * 16), model, logging_steps=1)
    trainer.train()
    first = trainer.state.log_history[0]
    assert first["simcse_loss"] + first["distill_loss"] == pytest.approx(first["loss"], abs=1e-3)


def share_of(rank, processes, loss):
    """The gradient of this process, averaged over the processes, at its own rows."""
    embeddings, inputs = batch_of()
    rows = slice(0, 4) if rank == 0 else slice(4, None)
    own = {name: x[rows] for name, x in inputs.items()} if processes > 1 else inputs
    mine = (embeddings[rows] if processes > 1 else embeddings).detach().requires_grad_()
    value = build_objective("distill", 5, {"loss": loss})(EncodedBatch(mine, own))
    value.backward()
    return mine.grad / processes


def gradients_of_both(rank, processes):
    return {loss: share_of(rank, processes, loss) for loss in LOSSES}


def test_two_processes_have_the_gradient_of_one(tmp_path):
    parts = in_processes(gradients_of_both, tmp_path)
    for loss in LOSSES:
        whole = share_of(0, 1, loss)
        torch.testing.assert_close(torch.cat([part[loss] for part in parts]), whole)


# --- runs ---


def test_rows_without_scores_a_teacher_beside_them_and_a_stream_are_refused(tmp_path, tokenizer):
    model = model_of(pooler_type="avg", objective="distill", objective_options={"loss": "kl"})
    with refuses("pos_scores neg_scores"):
        make(tmp_path, tokenizer, [{"query": "q", "pos": "a", "neg": "b"}] * 8, model)
    with refuses("distill stream"):
        make(tmp_path, tokenizer, IterableDataset.from_generator(lambda: iter(rows_of())), model)
    with refuses("teacher texts"):
        make(tmp_path, tokenizer, rows_of(), model, teacher=["some-model"])
