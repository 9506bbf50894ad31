"""An index of sentences: what a search returns, and which vectors are refused."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from retrieval_helpers import EVERY_BACKEND, SENTENCES, CountingModel, assert_same, by_hand, write_table
from trainer_helpers import refuses

from simcse_hf import Match, SentenceIndex


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.jsonl")


# --- top_k and threshold ---

QUERIES = ["the cat sat", "a red house", SENTENCES[11]]


@EVERY_BACKEND
def test_top_k_and_threshold_hold_for_one_query_and_for_several(model, backend, tmp_path):
    """In an index that was saved and loaded, and to which sentences were added."""
    built = SentenceIndex.build(model, SENTENCES[:50], backend=backend)
    built.save(tmp_path / "index")
    index = SentenceIndex.load(tmp_path / "index", model)
    index.add(SENTENCES[50:])
    scores = [score for _, score in by_hand(model, QUERIES[0], 80)]
    two = (scores[1] + scores[2]) / 2  # a score that two sentences have for the first query
    for top_k, threshold in ((1, -1), (3, None), (80, two), (1, two), (500, None)):
        several = index.search(QUERIES, top_k=top_k, threshold=threshold)
        for query, found in zip(QUERIES, several, strict=True):
            expected = by_hand(model, query, top_k, -2 if threshold is None else threshold)
            assert_same(found, expected)
            assert_same(index.search(query, top_k=top_k, threshold=threshold), expected)
    assert len(index.search(QUERIES[0], top_k=80, threshold=two)) == 2
    assert len(index.search(-model.encode("the cat"))) == 5, "whatever their score"
    assert index.search([]) == []
    assert len(index.search("the cat", top_k=np.int64(3), threshold=np.float32(-1))) == 3


# --- matches ---


@pytest.fixture
def index_of_table(model, table):
    return SentenceIndex.build(model, table, column="text", keep=["source", "year"])


def test_a_match_is_a_pair_of_a_sentence_and_its_score_and_knows_its_row_and_columns(index_of_table):
    [match] = index_of_table.search(SENTENCES[7], top_k=1)
    sentence, score = match
    assert type(match) is Match and type(match.score) is float
    assert sentence == match.sentence == index_of_table[7] == SENTENCES[7]
    assert score == match.score > 0.999
    assert match.row == 7 and match.columns == {"source": "s1", "year": "2001"}
    assert json.loads(json.dumps(match)) == [match.sentence, match.score]
    [match] = index_of_table.search(SENTENCES[4], top_k=1)
    assert match.columns["year"] == "", "a missing cell"


def test_sentences_are_added_with_the_kept_columns(index_of_table, tmp_path):
    with refuses("columns source, year"):
        index_of_table.add(["a sentence"])
    more = tmp_path / "more.csv"
    more.write_text("text,source,year\nsentence,new,1999\n")
    index_of_table.add(more)
    [match] = index_of_table.search("sentence", filters={"year": "1999"})
    assert match.row == 80


# --- filters ---


@EVERY_BACKEND
def test_a_filter_leaves_exactly_the_sentences_with_its_values(backend, table, tmp_path):
    """In an index that was saved and loaded; all cells are probed."""
    SentenceIndex.build(
        CountingModel(),
        table,
        column="text",
        keep=["source", "year"],
        backend=backend,
        parameters="nprobe=9" if backend == "ivf" else None,
    ).save(tmp_path / "index")
    index = SentenceIndex.load(tmp_path / "index", CountingModel())
    for filters, rows in (
        ({"source": "s2"}, range(2, 80, 3)),
        ({"source": "s1", "year": "2001"}, range(1, 80, 6)),
        ({"year": ""}, [4]),
    ):
        for top_k in (3, 80):
            found = index.search(SENTENCES[7], top_k=top_k, filters=filters)
            assert_same(found, by_hand(CountingModel(), SENTENCES[7], top_k, rows=rows))
    assert index.search(SENTENCES[7], filters={"source": "elsewhere"}) == []
    assert index.search(SENTENCES[7:9], filters={"source": "elsewhere"}) == [[], []]


# --- truncated embeddings ---


def test_truncated_embeddings_are_searched_with_truncated_queries_also_after_loading(model, tmp_path):
    SentenceIndex.build(model, SENTENCES, truncate_dim=8).save(tmp_path / "index")
    scores = model.encode(SENTENCES, truncate_dim=8) @ model.encode("the cat", truncate_dim=8)
    [match] = SentenceIndex.load(tmp_path / "index", model).search("the cat", top_k=1)
    assert match.row == scores.argmax()
    assert match.score == pytest.approx(scores.max().item(), abs=1e-5)
    with refuses("'exact' has no parameters, got 'nprobe=3'"):
        SentenceIndex.load(tmp_path / "index", model, parameters="nprobe=3")


# --- sources of sentences ---


@pytest.fixture(autouse=True)
def several_windows(monkeypatch):
    """Files are read in windows of nine sentences."""
    monkeypatch.setattr("simcse_hf.retrieval.sentences._TOGETHER", 9)


def assert_ranks_all(searched, model):
    assert_same(searched.search("the cat", top_k=80), by_hand(model, "the cat", 80))


def test_a_model_builds_adds_to_saves_and_keeps_its_index(model, tmp_path):
    sentences = list(SENTENCES[:40])
    model.build_index(sentences)
    sentences[0] = "changed"
    model.add_to_index(SENTENCES[40:])
    assert_ranks_all(model, model)
    model.save_index(tmp_path / "index")
    assert_ranks_all(SentenceIndex.load(tmp_path / "index", model), model)


def test_lines_a_column_a_generator_and_an_array_give_the_same_index_as_a_list(model, tmp_path):
    lines, table = tmp_path / "s.txt", tmp_path / "s.parquet"
    lines.write_text("\n\n".join(SENTENCES) + "\n")
    pq.write_table(pa.table({"n": range(80), "said": SENTENCES}), table)
    assert_ranks_all(SentenceIndex.build(model, str(lines)), model)
    assert_ranks_all(SentenceIndex.build(model, table, column="said"), model)
    assert_ranks_all(SentenceIndex.build(model, (sentence for sentence in SENTENCES)), model)
    index = SentenceIndex.build(model, np.array(SENTENCES))
    assert_ranks_all(index, model)
    for query, found in zip(QUERIES, index.search(np.array(QUERIES)), strict=True):
        assert_same(found, by_hand(model, query))


# --- given vectors ---


def test_vectors_of_any_length_are_compared_by_their_cosine(model):
    halves = model.encode(SENTENCES, convert_to_numpy=True) / 2
    index = SentenceIndex.build(model, SENTENCES, vectors=[halves])
    assert_ranks_all(index, model)
    assert index.search(halves[7], top_k=1)[0].score == pytest.approx(1, abs=1e-5)


def test_vectors_of_an_int8_export_may_differ_by_their_batch_and_others_may_not(model, monkeypatch):
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    noise = np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    noise -= (noise * vectors).sum(axis=1, keepdims=True) * vectors
    vectors = vectors + 0.14 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    with refuses("their cosine is 0.990"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors])
    identity = replace(model.identity(), backend="onnx")  # as an export identifies itself
    monkeypatch.setattr(model, "identity", lambda: identity)
    assert len(SentenceIndex.build(model, SENTENCES, vectors=[vectors])) == 80
    with refuses("not this model's for these sentences"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors[::-1]])
