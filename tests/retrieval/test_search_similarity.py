"""A model that compares by the dot product or a distance is compared, searched, mined and evaluated by it."""

import json

import numpy as np
import pytest
import torch
from conftest import tiny_config
from datasets import Dataset
from retrieval_helpers import SENTENCES

from simcse_hf import BertForCL, SentenceIndex, SimCSE, describe
from simcse_hf.apps.mining import mine_hard_negatives
from simcse_hf.evaluation.embeddings import embed_all
from simcse_hf.evaluation.tasks import read_task

DISTANCES = ["euclidean", "manhattan"]


@pytest.fixture(params=["dot", *DISTANCES])
def similarity(request):
    return request.param


@pytest.fixture
def model(save_checkpoint, similarity):
    config = tiny_config(initializer_range=0.5)
    model = BertForCL(config, pooler_type="avg", similarity_fn_name=similarity)
    return SimCSE(save_checkpoint(model), device="cpu")


def by_hand(model, queries, texts=SENTENCES):
    """The similarity of each query to each text, in float64."""
    x = model.encode(queries, normalize_embeddings=None).double().numpy()
    y = model.encode(texts, normalize_embeddings=None).double().numpy()
    if model.similarity_fn_name == "dot":
        return x @ y.T
    differences = x[:, None] - y
    if model.similarity_fn_name == "euclidean":
        return -np.linalg.norm(differences, axis=-1)
    return -np.abs(differences).sum(-1)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


# --- comparisons ---


def test_texts_are_compared_by_the_models_own_similarity(model):
    found = model.similarity(SENTENCES[:3], SENTENCES)
    assert_close(found, by_hand(model, SENTENCES[:3]))


def test_pairs_are_compared_by_the_models_own_similarity(model):
    found = model.similarity_pairwise(SENTENCES[:3], SENTENCES[5:8])
    assert_close(found, by_hand(model, SENTENCES[:3], SENTENCES[5:8]).diagonal())


def test_two_texts_are_compared_by_the_models_own_similarity(model):
    found = model.similarity(SENTENCES[0], SENTENCES[1])
    assert found == pytest.approx(by_hand(model, SENTENCES[:1], SENTENCES[1:2]).item(), abs=1e-4)


def test_vectors_of_a_model_that_does_not_compare_by_the_cosine_are_not_normalized(
    model,
):
    lengths = model.encode(SENTENCES[:3]).norm(dim=1)
    assert (lengths - 1).abs().min() > 1e-2


def test_vectors_are_compared_as_their_texts(model):
    vectors = model.encode(SENTENCES[:3])
    of_texts = model.similarity(SENTENCES[:3], SENTENCES[:3])
    assert torch.equal(model.similarity(vectors, vectors), of_texts)


def test_texts_may_come_in_an_array(model):
    expected = model.similarity(SENTENCES[:3], SENTENCES[3:5])
    first = np.array(SENTENCES[:3])
    second = np.array(SENTENCES[3:5], dtype=object)
    assert torch.equal(model.similarity(first, second), expected)


# --- an index ---


@pytest.fixture
def folder(model, tmp_path):
    """The folder of an index of `SENTENCES`."""
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    return tmp_path / "index"


def test_an_index_records_the_similarity(folder, similarity):
    assert describe(folder).model.similarity == similarity


def test_an_index_ranks_by_the_similarity(folder, model):
    index = SentenceIndex.load(folder, model)
    scores = by_hand(model, SENTENCES[:5])
    ranked = np.argsort(-scores, axis=1)[:, :4]
    for found, order, expected in zip(
        index.search(SENTENCES[:5], top_k=4),
        ranked,
        scores,
        strict=True,
    ):
        assert [match.row for match in found] == order.tolist()
        assert_close([match.score for match in found], expected[order])


def test_an_index_takes_vectors_that_are_not_normalized(model):
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    assert len(SentenceIndex.build(model, SENTENCES, vectors=[vectors])) == 80


def test_vectors_of_another_length_are_not_this_models(model):
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    with pytest.raises(ValueError, match="not this model's"):
        SentenceIndex.build(model, SENTENCES, vectors=[1.1 * vectors])


@pytest.mark.parametrize("similarity", DISTANCES)
def test_a_graph_is_refused_for_a_distance(model, similarity):
    with pytest.raises(ValueError, match=f"'hnsw'.*{similarity}"):
        SentenceIndex.build(model, SENTENCES, backend="hnsw")


def test_an_index_is_refused_to_a_model_of_another_similarity(folder, model, similarity):
    model.model.update_settings(similarity_fn_name="cosine")
    with pytest.raises(ValueError, match=f"similarity '{similarity}' there, 'cosine' here"):
        SentenceIndex.load(folder, model)


# --- mining and evaluation ---


@pytest.fixture
def mined(model):
    """Rows with the hard negatives of nine pairs, and the report."""
    pairs = Dataset.from_dict({"sent0": SENTENCES[:9], "sent1": SENTENCES[9:18]})
    return mine_hard_negatives(pairs, model)


def test_the_hard_negative_is_the_nearest_other_positive(model, mined):
    rows, _ = mined
    scores = by_hand(model, SENTENCES[:9], SENTENCES[9:18])
    np.fill_diagonal(scores, -np.inf)
    nearest = scores.argmax(axis=1)
    assert rows["hard_neg"] == [SENTENCES[9 + row] for row in nearest]


def test_the_positives_of_mining_are_scored_by_the_similarity(model, mined):
    _, report = mined
    scores = by_hand(model, SENTENCES[:9], SENTENCES[9:18])
    assert report.positive_score == pytest.approx(scores.diagonal().mean(), abs=1e-4)


def test_scored_pairs_are_predicted_by_the_similarity(model):
    embeddings = embed_all(model, {None: SENTENCES[:18]}, show_progress_bar=False)
    expected = by_hand(model, SENTENCES[:9], SENTENCES[9:18]).diagonal()
    assert_close(embeddings.pairs(SENTENCES[:9], SENTENCES[9:18]), expected)


def average_precision_of_two(scores):
    """Of the first two of some candidates, which are the positives."""
    ranks = scores.argsort()[::-1].tolist()
    first, second = sorted([ranks.index(0), ranks.index(1)])
    return (1 / (first + 1) + 2 / (second + 1)) / 2


def test_candidates_are_reranked_by_the_similarity(model, tmp_path):
    file = tmp_path / "rank.jsonl"
    row = {
        "query": SENTENCES[0],
        "positive": SENTENCES[1:3],
        "negative": SENTENCES[3:30],
    }
    file.write_text(json.dumps(row))
    task = read_task("reranking", str(file))
    embeddings = embed_all(model, {None: task.texts}, show_progress_bar=False)
    found = task.evaluate(embeddings, embeddings.similarity).metrics["map"]
    scores = by_hand(model, SENTENCES[:1], SENTENCES[1:30])[0]
    assert found == pytest.approx(100 * average_precision_of_two(scores))
