"""A model that compares by the dot product or a distance is compared, searched, mined and evaluated by it."""

import json

import numpy as np
import pytest
import torch
from conftest import tiny_config
from datasets import Dataset
from search_helpers import SENTENCES

from simcse_hf import BertForCL, SimCSE
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.sts import ScoredPairs, predict_pairs
from simcse_hf.evaluation.user_tasks import read_task
from simcse_hf.search import SentenceIndex, describe
from simcse_hf.search.mining import mine_hard_negatives

SCORES = {
    "dot": lambda x, y: x @ y.T,
    "euclidean": lambda x, y: -np.linalg.norm(x[:, None] - y, axis=-1),
    "manhattan": lambda x, y: -np.abs(x[:, None] - y).sum(-1),
}
EVERY = pytest.mark.parametrize("similarity", SCORES)


@pytest.fixture
def model(save_checkpoint, similarity):
    model = BertForCL(tiny_config(initializer_range=0.5), pooler_type="avg", similarity_fn_name=similarity)
    return SimCSE(save_checkpoint(model), device="cpu")


def by_hand(model, queries, texts=SENTENCES):
    x, y = (model.encode(each, normalize_embeddings=None).double().numpy() for each in (queries, texts))
    return SCORES[model.similarity_fn_name](x, y)


@EVERY
def test_texts_are_compared_by_the_models_own_similarity(model, similarity):
    expected = by_hand(model, SENTENCES[:3])
    np.testing.assert_allclose(model.similarity(SENTENCES[:3], SENTENCES), expected, rtol=0, atol=1e-4)
    found = model.similarity_pairwise(SENTENCES[:3], SENTENCES[5:8])
    np.testing.assert_allclose(found, np.diag(expected[:, 5:8]), rtol=0, atol=1e-4)
    assert model.similarity(SENTENCES[0], SENTENCES[1]) == pytest.approx(expected[0, 1], abs=1e-4)
    vectors = model.encode(SENTENCES[:3])
    assert (vectors.norm(dim=1) - 1).abs().min() > 1e-2, "the vectors are not normalized"
    assert torch.equal(model.similarity(vectors, vectors), model.similarity(SENTENCES[:3], SENTENCES[:3]))


@EVERY
def test_texts_may_come_in_an_array(model, similarity):
    expected = model.similarity(SENTENCES[:3], SENTENCES[3:5])
    assert torch.equal(model.similarity(np.array(SENTENCES[:3]), np.array(SENTENCES[3:5], dtype=object)), expected)


@EVERY
def test_an_index_ranks_by_it_records_it_and_is_refused_to_a_model_of_another(model, similarity, tmp_path):
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    assert describe(tmp_path / "index").model.similarity == similarity
    index = SentenceIndex.load(tmp_path / "index", model)
    for results, scores in zip(index.search(SENTENCES[:5], top_k=4), by_hand(model, SENTENCES[:5]), strict=True):
        order = np.argsort(-scores)[:4]
        assert [match.row for match in results] == order.tolist()
        np.testing.assert_allclose([match.score for match in results], scores[order], rtol=0, atol=1e-4)
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    assert len(SentenceIndex.build(model, SENTENCES, vectors=[vectors])) == 80
    with pytest.raises(ValueError, match="not this model's"):
        SentenceIndex.build(model, SENTENCES, vectors=[1.1 * vectors])
    if similarity != "dot":
        with pytest.raises(ValueError, match=f"'hnsw'.*{similarity}"):
            SentenceIndex.build(model, SENTENCES, backend="hnsw")
    model.model.update_settings(similarity_fn_name="cosine")
    with pytest.raises(ValueError, match=f"similarity '{similarity}' there, 'cosine' here"):
        SentenceIndex.load(tmp_path / "index", model)


@EVERY
def test_hard_negatives_pairs_and_rankings_are_scored_by_it(model, similarity, tmp_path):
    scores = by_hand(model, SENTENCES)
    rows, report = mine_hard_negatives(Dataset.from_dict({"sent0": SENTENCES[:9], "sent1": SENTENCES[9:18]}), model)
    mined = scores[:9, 9:18].copy()
    assert report.positive_score == pytest.approx(np.diag(mined).mean(), abs=1e-4)
    np.fill_diagonal(mined, -np.inf)
    assert rows["hard_neg"] == [SENTENCES[9 + column] for column in mined.argmax(axis=1)]
    pairs = ScoredPairs("pairs", SENTENCES[:9], SENTENCES[9:18], [float(n % 5) for n in range(9)])
    scored = predict_pairs(SentenceEmbeddings(model, pairs.texts, show_progress_bar=False), pairs)
    np.testing.assert_allclose(scored["predicted"], np.diag(scores[:9, 9:18]), rtol=0, atol=1e-4)
    row = {"query": SENTENCES[0], "positive": SENTENCES[1:3], "negative": SENTENCES[3:30]}
    (tmp_path / "rank.jsonl").write_text(json.dumps(row))
    task = read_task("reranking", str(tmp_path / "rank.jsonl"))
    embeddings = SentenceEmbeddings(model, task.texts, show_progress_bar=False)
    ranks = np.argsort(np.argsort(-scores[0, 1:30]))[:2]
    expected = sum((number + 1) / (rank + 1) for number, rank in enumerate(sorted(ranks))) / 2
    assert task.evaluate(embeddings, embeddings.similarity).metrics["map"] == pytest.approx(100 * expected)
