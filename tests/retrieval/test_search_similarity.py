"""A model that compares by the dot product or a distance is compared, searched, mined and evaluated by it."""

import json

import numpy as np
import pytest
import torch
from conftest import tiny_config
from datasets import Dataset
from retrieval_helpers import SENTENCES
from sklearn.metrics import average_precision_score
from trainer_helpers import refuses

from simcse_hf import BertForCL, SentenceIndex, SimCSE, describe, read_task
from simcse_hf.apps.mining import mine_hard_negatives
from simcse_hf.evaluation.embeddings import embed_all

DISTANCES = ["euclidean", "manhattan"]
FIRST, SECOND = SENTENCES[:9], SENTENCES[9:18]


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
    x, y = (model.encode(each, normalize_embeddings=None).double() for each in (queries, texts))
    if model.similarity_fn_name == "dot":
        return (x @ y.T).numpy()
    return -torch.cdist(x, y, p=2 if model.similarity_fn_name == "euclidean" else 1).numpy()


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_texts_and_pairs_are_compared_by_the_models_own_similarity_and_vectors_are_not_normalized(model):
    first, second = SENTENCES[:3], SENTENCES[5:8]
    assert_close(model.similarity(first, SENTENCES), by_hand(model, first))
    expected = by_hand(model, first, second)
    assert_close(model.similarity_pairwise(first, second), expected.diagonal())
    assert model.similarity(first[0], second[0]) == pytest.approx(expected[0, 0], abs=1e-4)
    vectors = model.encode(first)
    assert (vectors.norm(dim=1) - 1).abs().min() > 1e-2
    assert torch.equal(model.similarity(vectors, vectors), model.similarity(first, first))


# --- an index ---


def test_an_index_records_the_similarity_and_ranks_by_it(model, similarity, tmp_path):
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    assert describe(tmp_path / "index").model.similarity == similarity
    index = SentenceIndex.load(tmp_path / "index", model)
    scores = by_hand(model, SENTENCES[:5])
    ranked = np.argsort(-scores, axis=1)[:, :4]
    for found, order, expected in zip(index.search(SENTENCES[:5], top_k=4), ranked, scores, strict=True):
        assert [match.row for match in found] == order.tolist()
        assert_close([match.score for match in found], expected[order])
    model.model.update_settings(similarity_fn_name="cosine")
    with refuses(f"similarity '{similarity}' there, 'cosine' here"):
        SentenceIndex.load(tmp_path / "index", model)


def test_an_index_takes_the_models_vectors_as_they_are_and_none_of_another_length(model):
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    assert len(SentenceIndex.build(model, SENTENCES, vectors=[vectors])) == 80
    with refuses("not this model's"):
        SentenceIndex.build(model, SENTENCES, vectors=[1.1 * vectors])


@pytest.mark.parametrize("similarity", DISTANCES)
def test_a_graph_is_refused_for_a_distance(model, similarity):
    with refuses(f"'hnsw' {similarity}"):
        SentenceIndex.build(model, SENTENCES, backend="hnsw")


# --- mining and evaluation ---


def test_the_hard_negative_is_the_nearest_other_positive(model):
    pairs = Dataset.from_dict({"sent0": FIRST, "sent1": SECOND})
    rows, report = mine_hard_negatives(pairs, model)
    scores = by_hand(model, FIRST, SECOND)
    assert report.positive_score == pytest.approx(scores.diagonal().mean(), abs=1e-4)
    np.fill_diagonal(scores, -np.inf)
    assert rows["hard_neg"] == [SENTENCES[9 + row] for row in scores.argmax(axis=1)]


def test_scored_pairs_are_predicted_by_the_similarity(model):
    embeddings = embed_all(model, {None: SENTENCES[:18]}, show_progress_bar=False)
    expected = by_hand(model, FIRST, SECOND).diagonal()
    assert_close(embeddings.pairs(FIRST, SECOND), expected)


def test_candidates_are_reranked_by_the_similarity(model, tmp_path):
    file = tmp_path / "rank.jsonl"
    file.write_text(json.dumps({"query": SENTENCES[0], "positive": SENTENCES[1:3], "negative": SENTENCES[3:30]}))
    task = read_task("reranking", str(file))
    embeddings = embed_all(model, {None: task.texts}, show_progress_bar=False)
    found = task.evaluate(embeddings, embeddings.similarity).metrics["map"]
    scores = by_hand(model, SENTENCES[:1], SENTENCES[1:30])[0]
    assert found == pytest.approx(100 * average_precision_score([1] * 2 + [0] * 27, scores))
