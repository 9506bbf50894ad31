"""Scores of candidates as the teacher: files of FlagEmbedding, the losses of sentence-transformers, runs."""

import json
import math
import random

import pytest
import torch
from process_helpers import in_processes
from torch.nn import functional as F
from trainer_helpers import make, model_of, sentences

from simcse_hf.data.scored_pairs import read_scored_lists
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


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_kl_is_the_loss_of_sentence_transformers(temperature):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    embeddings, inputs = batch_of([3] * 6, torch.float32)
    options = {} if temperature is None else {"temperature": temperature}
    ours = build_objective("distill", 5, {"loss": "kl", "similarity_fct": "dot"} | options)
    theirs = losses.DistillKLDivLoss(None, **options)
    expected = theirs.compute_loss_from_embeddings(list(embeddings.unbind(1)), inputs["scores"])
    assert ours(EncodedBatch(embeddings, inputs)).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("negatives", [1, 3])
def test_margin_mse_is_the_loss_of_sentence_transformers(negatives):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    embeddings, inputs = batch_of([1 + negatives] * 6, torch.float32)
    ours = build_objective("distill", 5, {"loss": "margin_mse", "similarity_fct": "dot"})
    expected = losses.MarginMSELoss(None).compute_loss_from_embeddings(list(embeddings.unbind(1)), inputs["scores"])
    assert ours(EncodedBatch(embeddings, inputs)).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("name", ["simcse+distill", "distill+simcse"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_sum_with_simcse_is_the_sum_of_the_two_losses(name, loss):
    embeddings, inputs = batch_of()
    batch = EncodedBatch(embeddings, inputs)
    both = build_objective(name, 5, {"distill.loss": loss})
    parts = build_objective("simcse", 5), build_objective("distill", 5, {"loss": loss})
    expected = sum(part(batch).item() for part in parts)
    assert sum(value.item() for value in both(batch).values()) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["simcse+distill:0.5", "distill+simcse"])
def test_a_sum_with_simcse_learns_from_scored_lists(tmp_path, tokenizer, name):
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


# --- reading ---


def test_each_positive_becomes_a_row_with_all_negatives(tmp_path):
    row = {
        "query": "q",
        "pos": ["a", "b"],
        "neg": ["c"],
        "pos_scores": [3, 2.5],
        "neg_scores": [-1],
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    rows = read_scored_lists(tmp_path / "rows.jsonl")
    assert rows["texts"][:] == [["q", "a", "c"], ["q", "b", "c"]]
    assert rows["score"][:] == [[3.0, -1.0], [2.5, -1.0]]
    assert rows["relations"][:] == [[0, 2], [0, 2]]


@pytest.mark.parametrize("column", ["scores", "label", "score"])
def test_a_column_holds_the_scores_of_all_candidates_in_their_order(column):
    rows = read_scored_lists(
        [
            {
                "query": "q",
                "positive": "a",
                "negative_1": "b",
                "negative_2": "c",
                column: [3, 2, 1],
            }
        ]
    )
    assert rows[0]["texts"] == ["q", "a", "b", "c"]
    assert rows[0]["score"] == [3.0, 2.0, 1.0]


GOOD = {
    "query": "q",
    "pos": ["a"],
    "neg": ["b", "c"],
    "pos_scores": [3.0],
    "neg_scores": [1.0, 0.0],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"neg_scores": [1.0, None]}, "row 2: the score None is not a finite number"),
        ({"pos_scores": [math.inf]}, "the score inf"),
        ({"neg_scores": [1.0, "high"]}, "the score 'high'"),
        ({"neg_scores": [1.0]}, "row 2: 1 and 1 scores .* for 1 positives and 2 negatives"),
        ({"pos_scores": [1.0, 2.0]}, "row 2: 2 and 2 scores"),
        (
            {"neg": [], "neg_scores": []},
            "row 2: a query needs a positive and at least one negative",
        ),
        ({"neg": ["b", " "]}, "row 2: a text is empty"),
        ({"query": None}, "row 2: expected a text"),
    ],
)
def test_a_row_with_a_wrong_score_or_text_is_refused_by_its_number(change, message):
    with pytest.raises(ValueError, match=message):
        read_scored_lists([GOOD, GOOD | change])


def test_rows_without_scores_are_refused(tmp_path, tokenizer):
    model = model_of(pooler_type="avg", objective="distill", objective_options={"loss": "kl"})
    rows = [{"query": "q", "pos": "a", "neg": "b"}] * 8
    with pytest.raises(
        ValueError,
        match="no scores of candidates.*Add pos_scores and neg_scores, or scores",
    ):
        make(tmp_path, tokenizer, rows, model)


# --- runs ---


def trainer_of(tmp_path, tokenizer, loss="kl", output="run", **options):
    model = model_of(
        pooler_type="avg",
        objective="distill",
        objective_options={"loss": loss},
        dropout=0.0,
    )
    rows = rows_of([2, 4, 3, 2, 3, 4, 2, 3] * 3)
    for row in rows:  # cosines
        row["pos_scores"] = [score / 10 for score in row["pos_scores"]]
        row["neg_scores"] = [score / 10 for score in row["neg_scores"]]
    return make(tmp_path, tokenizer, rows, model, output_dir=str(tmp_path / output), **options)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_lowers_the_loss_on_files_of_a_reranker(tmp_path, tokenizer, loss):
    trainer = trainer_of(tmp_path, tokenizer, loss, max_steps=30, logging_steps=3, learning_rate=3e-3)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("loss", LOSSES)
def test_chunks_give_the_weights_of_one_pass(tmp_path, tokenizer, loss):
    whole = trainer_of(tmp_path, tokenizer, loss, optim="sgd")
    chunks = trainer_of(tmp_path, tokenizer, loss, output="chunks", optim="sgd", gradcache_chunk_size=3)
    whole.train(), chunks.train()
    for name, x in whole.model.state_dict().items():
        torch.testing.assert_close(chunks.model.state_dict()[name], x, atol=2e-4, rtol=1e-3)


def test_a_resumed_run_has_the_same_bits(tmp_path, tokenizer):
    saves = {"save_strategy": "steps", "save_steps": 2}
    whole = trainer_of(tmp_path, tokenizer, output="whole", **saves)
    whole.train()
    resumed = trainer_of(tmp_path, tokenizer, output="resumed", **saves)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for name, x in whole.model.state_dict().items():
        assert torch.equal(x, resumed.model.state_dict()[name]), name


def test_a_teacher_beside_the_scores_is_refused(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="teacher reads the texts of training rows"):
        trainer_of(tmp_path, tokenizer, teacher=["some-model"])


def test_a_stream_of_scored_lists_is_refused(tmp_path, tokenizer):
    from datasets import IterableDataset

    model = model_of(pooler_type="avg", objective="distill", objective_options={"loss": "kl"})
    stream = IterableDataset.from_generator(lambda: iter(rows_of()))
    with pytest.raises(ValueError, match="distill does not work with a stream"):
        make(tmp_path, tokenizer, stream, model)
