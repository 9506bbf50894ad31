"""An index of sentences: what a search returns, and which vectors are refused."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from search_helpers import EVERY_BACKEND, SENTENCES, CountingModel, assert_same, by_hand, write_table

from simcse_hf.search import Match, SentenceIndex


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.jsonl")


@EVERY_BACKEND
def test_top_k_and_threshold_hold_for_one_query_and_for_several(model, backend, tmp_path):
    """The reference's tool ignores both arguments for a list of queries."""
    built = SentenceIndex.build(model, SENTENCES[:50], backend=backend)
    built.save(tmp_path / "index")
    index = SentenceIndex.load(tmp_path / "index", model)
    index.add(SENTENCES[50:])
    queries = ["the cat sat", "a red house", SENTENCES[11]]
    scores = [score for _, score in by_hand(model, queries[0], 80)]
    threshold = (scores[1] + scores[2]) / 2
    for top_k, least in ((1, -1), (3, None), (80, threshold), (1, threshold), (500, None)):
        expected = [by_hand(model, query, top_k, -2 if least is None else least) for query in queries]
        several = index.search(queries, top_k=top_k, threshold=least)
        for query, results, wanted in zip(queries, several, expected, strict=True):
            assert_same(results, wanted)
            assert_same(index.search(query, top_k=top_k, threshold=least), wanted)
    assert len(index.search(queries[0], top_k=80, threshold=threshold)) == 2
    assert len(index.search(-model.encode("the cat"))) == 5, "by default the best five, whatever their score"
    assert index.search([]) == []
    assert len(index.search("the cat", top_k=np.int64(3), threshold=np.float32(-1))) == 3


def test_a_match_is_a_pair_that_knows_its_row_and_kept_columns(model, table):
    index = SentenceIndex.build(model, table, column="text", keep=["source", "year"])
    match = index.search(SENTENCES[7], top_k=1)[0]
    sentence, score = match
    assert (sentence, match.row) == (SENTENCES[7], 7) and match.columns == {"source": "s1", "year": "2001"}
    assert type(match) is Match and match.sentence is sentence and type(match.score) is float and score > 0.999
    assert json.loads(json.dumps(match)) == [sentence, score]
    with pytest.raises(ValueError, match="columns source, year"):
        index.add(["a sentence"])
    more = table.with_suffix(".csv")
    more.write_text("text,source,year\nsentence,new,1999\n")
    index.add(more)
    assert index.search("sentence", filters={"year": "1999"})[0].row == 80
    assert index[7] == sentence and index.search(SENTENCES[4], top_k=1)[0].columns["year"] == ""


@EVERY_BACKEND
def test_a_filter_leaves_exactly_the_sentences_with_its_values(backend, table, tmp_path):
    model, query = CountingModel(), SENTENCES[7]
    settings = {"backend": backend, "parameters": "nprobe=9" if backend == "ivf" else None}
    built = SentenceIndex.build(model, table, column="text", keep=["source", "year"], **settings)
    built.save(tmp_path / "index")
    index = SentenceIndex.load(tmp_path / "index", model)
    cases = [
        ({"source": "s2"}, [n for n in range(80) if n % 3 == 2]),
        ({"source": "s1", "year": "2001"}, [n for n in range(80) if n % 3 == 1 and n % 2]),
        ({"year": ""}, [4]),
    ]
    for filters, rows in cases:
        for top_k in (3, 80):
            assert_same(index.search(query, top_k=top_k, filters=filters), by_hand(model, query, top_k, rows=rows))
    assert index.search(query, filters={"source": "elsewhere"}) == []
    assert index.search([query, query], filters={"source": "elsewhere"}) == [[], []]


def test_truncated_embeddings_are_searched_with_truncated_queries(model, tmp_path):
    index = SentenceIndex.build(model, SENTENCES, truncate_dim=8)
    scores = model.encode(SENTENCES, truncate_dim=8) @ model.encode("the cat", truncate_dim=8)
    best = index.search("the cat", top_k=1)[0]
    assert best.row == scores.argmax() and best.score == pytest.approx(scores.max().item(), abs=1e-5)
    index.save(tmp_path / "index")
    assert_same(SentenceIndex.load(tmp_path / "index", model).search("the cat", top_k=1), [best])
    with pytest.raises(ValueError, match="'exact' has no parameters, got 'nprobe=3'"):
        SentenceIndex.load(tmp_path / "index", model, parameters="nprobe=3")


def test_a_file_gives_the_same_index_as_a_list(model, tmp_path, monkeypatch):
    monkeypatch.setattr("simcse_hf.indexes.sentences._WINDOW", 9)  # several windows
    text, file = tmp_path / "s.txt", tmp_path / "s.parquet"
    text.write_text("\n\n".join(SENTENCES) + "\n")
    pq.write_table(pa.table({"n": range(80), "said": SENTENCES}), file)
    first = SENTENCES[:40]
    model.build_index(first)
    first[0] = "changed"
    model.add_to_index(SENTENCES[40:])
    model.save_index(tmp_path / "index")
    expected = by_hand(model, "the cat", 80)
    loaded = SentenceIndex.load(tmp_path / "index", model)
    for each in (
        model,
        loaded,
        SentenceIndex.build(model, str(text)),
        SentenceIndex.build(model, file, column="said"),
    ):
        assert_same(each.search("the cat", top_k=80), expected)


def test_vectors_of_an_int8_export_may_differ_by_their_batch(model, monkeypatch):
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    noise = np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    noise -= (noise * vectors).sum(axis=1, keepdims=True) * vectors
    vectors += 0.14 * noise / np.linalg.norm(noise, axis=1, keepdims=True)  # cosines of 0.99
    with pytest.raises(ValueError, match="their cosine is 0.990"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors])
    exported = replace(model.identity(), backend="onnx")
    monkeypatch.setattr(model, "identity", lambda: exported)
    assert len(SentenceIndex.build(model, SENTENCES, vectors=[vectors])) == 80
    with pytest.raises(ValueError, match="not this model's for these sentences"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors[::-1]])


def test_sentences_may_come_from_a_generator_and_queries_in_an_array(model):
    model.build_index(sentence for sentence in SENTENCES)
    assert_same(model.search("the cat"), by_hand(model, "the cat"))
    model.build_index(np.array(SENTENCES))
    first, second = model.search(np.array(["the cat", "dog"]))
    assert_same(first, by_hand(model, "the cat"))
    assert_same(second, by_hand(model, "dog"))
