"""An index of sentences: what a search returns, and which vectors are refused."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from retrieval_helpers import (
    EVERY_BACKEND,
    SENTENCES,
    CountingModel,
    assert_same,
    by_hand,
    write_table,
)

from simcse_hf import Match, SentenceIndex


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.jsonl")


# --- top_k and threshold ---

QUERIES = ["the cat sat", "a red house", SENTENCES[11]]


@pytest.fixture
def index(model, backend, tmp_path):
    """An index that was saved and loaded, and to which sentences were added."""
    built = SentenceIndex.build(model, SENTENCES[:50], backend=backend)
    built.save(tmp_path / "index")
    loaded = SentenceIndex.load(tmp_path / "index", model)
    loaded.add(SENTENCES[50:])
    return loaded


@pytest.fixture
def threshold(model):
    """A score that two sentences have for the first query."""
    scores = [score for _, score in by_hand(model, QUERIES[0], 80)]
    return (scores[1] + scores[2]) / 2


@pytest.fixture(params=[(1, "lowest"), (3, None), (80, "two"), (1, "two"), (500, None)], ids=str)
def limits(request, threshold):
    """A top_k and a threshold."""
    top_k, least = request.param
    return top_k, {"lowest": -1, "two": threshold, None: None}[least]


def expected_matches(model, query, limits):
    top_k, threshold = limits
    return by_hand(model, query, top_k, -2 if threshold is None else threshold)


@EVERY_BACKEND
@pytest.mark.parametrize("query", QUERIES)
def test_top_k_and_threshold_hold_for_one_query(index, model, query, limits):
    top_k, threshold = limits
    found = index.search(query, top_k=top_k, threshold=threshold)
    assert_same(found, expected_matches(model, query, limits))


@EVERY_BACKEND
def test_top_k_and_threshold_hold_for_several_queries(index, model, limits):
    """The reference's tool ignores both arguments for a list of queries."""
    top_k, threshold = limits
    several = index.search(QUERIES, top_k=top_k, threshold=threshold)
    for query, found in zip(QUERIES, several, strict=True):
        assert_same(found, expected_matches(model, query, limits))


@EVERY_BACKEND
def test_a_threshold_leaves_the_sentences_above_it(index, threshold):
    assert len(index.search(QUERIES[0], top_k=80, threshold=threshold)) == 2


@EVERY_BACKEND
def test_by_default_the_best_five_are_found_whatever_their_score(index, model):
    assert len(index.search(-model.encode("the cat"))) == 5


@EVERY_BACKEND
def test_no_queries_find_nothing(index):
    assert index.search([]) == []


@EVERY_BACKEND
def test_top_k_and_threshold_may_be_numbers_of_numpy(index):
    assert len(index.search("the cat", top_k=np.int64(3), threshold=np.float32(-1))) == 3


# --- matches ---


@pytest.fixture
def index_of_table(model, table):
    return SentenceIndex.build(model, table, column="text", keep=["source", "year"])


@pytest.fixture
def match(index_of_table):
    """The nearest sentence to a sentence of the index."""
    [match] = index_of_table.search(SENTENCES[7], top_k=1)
    return match


def test_a_match_is_a_pair_of_a_sentence_and_its_score(match):
    sentence, score = match
    assert type(match) is Match
    assert sentence == match.sentence == SENTENCES[7]
    assert score == match.score > 0.999
    assert type(match.score) is float


def test_a_match_knows_its_row(match):
    assert match.row == 7


def test_a_match_knows_its_kept_columns(match):
    assert match.columns == {"source": "s1", "year": "2001"}


def test_a_match_is_written_to_json_as_a_pair(match):
    assert json.loads(json.dumps(match)) == [match.sentence, match.score]


def test_a_missing_cell_of_a_kept_column_is_empty(index_of_table):
    [match] = index_of_table.search(SENTENCES[4], top_k=1)
    assert match.columns["year"] == ""


def test_an_index_gives_the_sentence_of_a_row(index_of_table):
    assert index_of_table[7] == SENTENCES[7]


def test_a_sentence_without_the_kept_columns_is_not_added(index_of_table):
    with pytest.raises(ValueError, match="columns source, year"):
        index_of_table.add(["a sentence"])


def test_a_file_with_the_kept_columns_is_added(index_of_table, tmp_path):
    more = tmp_path / "more.csv"
    more.write_text("text,source,year\nsentence,new,1999\n")
    index_of_table.add(more)
    [match] = index_of_table.search("sentence", filters={"year": "1999"})
    assert match.row == 80


# --- filters ---


@pytest.fixture
def filterable(backend, table, tmp_path):
    """An index with kept columns that was saved and loaded; all cells are probed."""
    built = SentenceIndex.build(
        CountingModel(),
        table,
        column="text",
        keep=["source", "year"],
        backend=backend,
        parameters="nprobe=9" if backend == "ivf" else None,
    )
    built.save(tmp_path / "index")
    return SentenceIndex.load(tmp_path / "index", CountingModel())


@EVERY_BACKEND
@pytest.mark.parametrize("top_k", [3, 80])
@pytest.mark.parametrize(
    "filters, rows",
    [
        ({"source": "s2"}, range(2, 80, 3)),
        ({"source": "s1", "year": "2001"}, range(1, 80, 6)),
        ({"year": ""}, [4]),
    ],
)
def test_a_filter_leaves_exactly_the_sentences_with_its_values(filterable, filters, rows, top_k):
    found = filterable.search(SENTENCES[7], top_k=top_k, filters=filters)
    assert_same(found, by_hand(CountingModel(), SENTENCES[7], top_k, rows=rows))


@EVERY_BACKEND
def test_a_filter_that_no_sentence_passes_finds_nothing(filterable):
    assert filterable.search(SENTENCES[7], filters={"source": "elsewhere"}) == []


@EVERY_BACKEND
def test_a_filter_that_no_sentence_passes_finds_nothing_for_several_queries(filterable):
    queries = [SENTENCES[7], SENTENCES[8]]
    assert filterable.search(queries, filters={"source": "elsewhere"}) == [[], []]


# --- truncated embeddings ---


@pytest.fixture
def truncated(model):
    return SentenceIndex.build(model, SENTENCES, truncate_dim=8)


def test_truncated_embeddings_are_searched_with_truncated_queries(model, truncated):
    embeddings = model.encode(SENTENCES, truncate_dim=8)
    scores = embeddings @ model.encode("the cat", truncate_dim=8)
    [match] = truncated.search("the cat", top_k=1)
    assert match.row == scores.argmax()
    assert match.score == pytest.approx(scores.max().item(), abs=1e-5)


def test_a_saved_index_of_truncated_embeddings_finds_the_same(model, truncated, tmp_path):
    truncated.save(tmp_path / "index")
    loaded = SentenceIndex.load(tmp_path / "index", model)
    assert_same(loaded.search("the cat", top_k=1), truncated.search("the cat", top_k=1))


def test_parameters_that_the_backend_does_not_have_are_refused(model, truncated, tmp_path):
    truncated.save(tmp_path / "index")
    with pytest.raises(ValueError, match="'exact' has no parameters, got 'nprobe=3'"):
        SentenceIndex.load(tmp_path / "index", model, parameters="nprobe=3")


# --- sources of sentences ---


@pytest.fixture(autouse=True)
def several_windows(monkeypatch):
    """Files are read in windows of nine sentences."""
    monkeypatch.setattr("simcse_hf.retrieval.sentences._TOGETHER", 9)


def assert_ranks_all(searched, model):
    assert_same(searched.search("the cat", top_k=80), by_hand(model, "the cat", 80))


def test_a_model_keeps_its_index_when_the_list_of_sentences_changes(model):
    sentences = list(SENTENCES)
    model.build_index(sentences)
    sentences[0] = "changed"
    assert_ranks_all(model, model)


def test_a_model_adds_to_its_index(model):
    model.build_index(SENTENCES[:40])
    model.add_to_index(SENTENCES[40:])
    assert_ranks_all(model, model)


def test_the_saved_index_of_a_model_is_loaded(model, tmp_path):
    model.build_index(SENTENCES)
    model.save_index(tmp_path / "index")
    assert_ranks_all(SentenceIndex.load(tmp_path / "index", model), model)


def test_a_file_of_lines_gives_the_same_index_as_a_list(model, tmp_path):
    file = tmp_path / "s.txt"
    file.write_text("\n\n".join(SENTENCES) + "\n")
    assert_ranks_all(SentenceIndex.build(model, str(file)), model)


def test_a_column_of_a_file_gives_the_same_index_as_a_list(model, tmp_path):
    file = tmp_path / "s.parquet"
    pq.write_table(pa.table({"n": range(80), "said": SENTENCES}), file)
    assert_ranks_all(SentenceIndex.build(model, file, column="said"), model)


def test_sentences_may_come_from_a_generator(model):
    model.build_index(sentence for sentence in SENTENCES)
    assert_ranks_all(model, model)


def test_sentences_may_come_in_an_array(model):
    model.build_index(np.array(SENTENCES))
    assert_ranks_all(model, model)


def test_queries_may_come_in_an_array(model):
    model.build_index(SENTENCES)
    first, second = model.search(np.array(["the cat", "dog"]))
    assert_same(first, by_hand(model, "the cat"))
    assert_same(second, by_hand(model, "dog"))


# --- vectors of an export ---


@pytest.fixture
def vectors_of_export(model):
    """Embeddings whose cosine with the model's is 0.99."""
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    noise = np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    noise -= (noise * vectors).sum(axis=1, keepdims=True) * vectors
    return vectors + 0.14 * noise / np.linalg.norm(noise, axis=1, keepdims=True)


@pytest.fixture
def exported(model, monkeypatch):
    """The model, as an ONNX export identifies itself."""
    identity = replace(model.identity(), backend="onnx")
    monkeypatch.setattr(model, "identity", lambda: identity)
    return model


def test_vectors_that_differ_from_the_models_are_refused(model, vectors_of_export):
    with pytest.raises(ValueError, match="their cosine is 0.990"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors_of_export])


def test_vectors_of_an_int8_export_may_differ_by_their_batch(vectors_of_export, exported):
    assert len(SentenceIndex.build(exported, SENTENCES, vectors=[vectors_of_export])) == 80


def test_vectors_of_other_sentences_are_refused_to_an_export(vectors_of_export, exported):
    with pytest.raises(ValueError, match="not this model's for these sentences"):
        SentenceIndex.build(exported, SENTENCES, vectors=[vectors_of_export[::-1]])
