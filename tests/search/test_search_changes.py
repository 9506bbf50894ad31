"""Sentences that are deleted, replaced, near to another one, or nearly the same."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import status
from search_helpers import SENTENCES, CountingModel, assert_same, by_hand, write_table

from simcse_hf import duplicates, encode, index
from simcse_hf.search import SentenceIndex, describe, search

#: With few sentences and all cells probed, the approximate indexes are exact. SQ8 is quantized; the last two take no
#: filter.
BACKENDS = {
    **{"exact": None, "hnsw": None, "ivf": "nprobe=9", "Flat": None},
    **{"IVF4,SQ8": "nprobe=4", "SQ8": None, "PCA8,Flat": None},
}
ALL = pytest.mark.parametrize("backend", BACKENDS)
GONE = [0, 7, 8, 41, 79]


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.jsonl")


def build(backend="exact", sentences=SENTENCES, **options):
    if backend != "exact":
        pytest.importorskip("faiss", reason="the extra `faiss` is not installed")
    return SentenceIndex.build(CountingModel(), sentences, backend=backend, parameters=BACKENDS[backend], **options)


def rows_of(matches):
    return [match.row for match in matches]


# --- delete ----------------------------------------------------------------------------------------------------------


@ALL
def test_a_deleted_sentence_is_found_by_no_search_also_after_saving_loading_and_adding(backend, tmp_path):
    built, queries = build(backend), [SENTENCES[7], "the cat sat", "a red house"]
    before = built.search(queries, top_k=80)
    built.delete(GONE)
    built.save(tmp_path / "index")
    loaded = SentenceIndex.load(tmp_path / "index", CountingModel())
    for each in (built, loaded):
        assert len(each) == 75
        for top_k in (1, 5, 80):
            for found, all_of_them in zip(each.search(queries, top_k=top_k), before, strict=True):
                left = [match for match in all_of_them if match.row not in GONE]
                assert len(found) == min(top_k, 75) and not set(rows_of(found)) & set(GONE)
                np.testing.assert_allclose([m.score for m in found], [m.score for m in left[:top_k]], atol=1e-6)
    loaded.add(["a new sentence"])
    loaded.save(tmp_path / "index")
    again = SentenceIndex.load(tmp_path / "index", CountingModel())
    for found in again.search(queries, top_k=100):
        assert sorted(rows_of(found)) == [row for row in range(81) if row not in GONE]
    assert again[80] == "a new sentence" and again[9] == SENTENCES[9], "the numbers of all others stay"


def test_the_scores_and_the_order_of_what_is_left_are_those_of_a_slow_search(model):
    built = SentenceIndex.build(model, SENTENCES)
    built.delete(GONE)
    left = [row for row in range(80) if row not in GONE]
    assert_same(built.search("the cat", top_k=80), by_hand(model, "the cat", 80, rows=left))


def test_sentences_are_deleted_by_the_values_of_kept_columns(table):
    built = build(sentences=table, column="text", keep=["source", "year"])
    built.delete([3], filters={"source": "s1", "year": "2001"})
    left = [n for n in range(80) if n != 3 and not (n % 3 == 1 and n % 2)]
    assert sorted(rows_of(built.search("a cat", top_k=80))) == left
    assert sorted(rows_of(built.search("a cat", top_k=80, filters={"year": "2001"}))) == [n for n in left if n % 2]


def test_what_is_not_there_cannot_be_deleted_and_nothing_changes(table):
    built = build(sentences=table, column="text", keep=["source"])
    built.delete([3])
    for call, words in (
        (lambda: built.delete([1, 3]), "sentence 3 of the index was deleted"),
        (lambda: built.delete([1, 80]), "row must be an integer between 0 and 79, got 80"),
        (lambda: built.delete([-1]), "row must be an integer between 0 and 79, got -1"),
        (lambda: built.delete([1], filters={"source": "none"}), "no sentence with {'source': 'none'} to delete"),
        (lambda: built.delete(filters={"color": "red"}), r"no column 'color' \(kept: 'source'\)"),
        (lambda: built[3], "sentence 3 of the index was deleted"),
        (lambda: built.neighbors(3), "sentence 3 of the index was deleted"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert len(built) == 79


def test_the_text_of_a_deleted_sentence_is_in_no_file(table, tmp_path):
    folder = tmp_path / "index"
    table.write_text(table.read_text().replace('"s2"', '"confidential"'))
    built = build(sentences=table, column="text", keep=["source"])
    built.add(table)
    built.save(folder)
    built.delete(filters={"source": "confidential"})
    built.save(folder)
    [rows] = (str(pq.read_table(path).to_pylist()) for path in folder.rglob("*.parquet"))
    assert "confidential" not in rows and SENTENCES[2] not in rows and SENTENCES[1] in rows
    assert describe(folder).count == len(built) == 108


def test_an_index_whose_sentences_were_all_deleted_finds_nothing():
    built = build()
    built.delete(range(80))
    assert len(built) == 0 and built.search("the cat") == []


def test_a_large_graph_is_walked_past_deleted_sentences(monkeypatch):
    pytest.importorskip("faiss", reason="the extra `faiss` is not installed")
    monkeypatch.setattr("simcse_hf.indexes.faiss_index._FEW", 10)  # more than these are not all compared
    built = build("hnsw")
    built.delete(GONE)
    left = [row for row in range(80) if row not in GONE]
    assert_same(built.search(SENTENCES[7], top_k=9), by_hand(CountingModel(), SENTENCES[7], 9, rows=left))


# --- replace ---------------------------------------------------------------------------------------------------------


def write_ids(path, rows):
    path.write_text("".join(json.dumps({"text": text, "id": name}) + "\n" for name, text in rows))
    return path


@ALL
def test_new_sentences_replace_those_with_the_same_value_in_a_kept_column(backend, tmp_path):
    file = write_ids(tmp_path / "a.jsonl", [(f"id{row}", text) for row, text in enumerate(SENTENCES)])
    built = build(backend, file, column="text", keep=["id"])
    new = write_ids(tmp_path / "b.jsonl", [("id5", "a first new text"), ("other", "a second"), ("id5", "a third")])
    built.add(new, replace="id")
    built.save(tmp_path / "index")
    loaded = SentenceIndex.load(tmp_path / "index", CountingModel())
    assert len(loaded) == 82 and [loaded[row] for row in (80, 81, 82)] == ["a first new text", "a second", "a third"]
    assert 5 not in rows_of(loaded.search(SENTENCES[5], top_k=100))
    assert sorted(rows_of(loaded.search("a text", top_k=100, filters={"id": "id5"}))) == [80, 82]


def test_an_empty_value_replaces_nothing(tmp_path):
    built = build(sentences=write_ids(tmp_path / "a.jsonl", [("", "one"), ("x", "two")]), column="text", keep=["id"])
    built.add(write_ids(tmp_path / "b.jsonl", [("", "three")]), replace="id")
    assert len(built) == 3


# --- neighbours of a sentence ----------------------------------------------------------------------------------------


@ALL
def test_the_neighbours_of_a_sentence_are_those_of_a_slow_search_without_itself(backend):
    built, model = build(backend), CountingModel()
    expected = by_hand(model, SENTENCES[7], 6)[1:]
    found = built.neighbors(7)
    if backend in ("IVF4,SQ8", "SQ8", "PCA8,Flat"):  # which may rank close neighbours in another order
        assert len(found) == 5 and 7 not in rows_of(found)
    else:
        assert_same(found, expected)
    best = rows_of(found)[0]
    built.delete([best])
    assert best not in rows_of(built.neighbors(7, top_k=80)) and len(built.neighbors(7, top_k=80)) == 78


def test_neighbours_obey_filters_and_a_threshold(table):
    built = build(sentences=table, column="text", keep=["source"])
    rows = [n for n in range(80) if n % 3 == 2]
    expected = by_hand(CountingModel(), SENTENCES[7], 4, rows=rows)
    assert_same(built.neighbors(7, top_k=4, filters={"source": "s2"}), expected)
    least = expected[1][1] - 1e-4
    assert_same(built.neighbors(7, filters={"source": "s2"}, threshold=least), expected[:2])


# --- near-duplicates -------------------------------------------------------------------------------------------------


def pairs_by_hand(model, sentences, threshold):
    vectors = np.asarray(model.encode(sentences), dtype=float)
    scores = vectors @ vectors.T
    count = len(sentences)
    return {(a, b): scores[a, b] for a in range(count) for b in range(a + 1, count) if scores[a, b] >= threshold}


@pytest.mark.parametrize("queries", [64, 7])
def test_duplicates_are_all_pairs_above_the_threshold(model, tmp_path, monkeypatch, queries):
    monkeypatch.setattr("simcse_hf.indexes.exact._QUERIES", queries)
    monkeypatch.setattr("simcse_hf.indexes.exact._BLOCK", 16)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SENTENCES))
    scores = sorted(pairs_by_hand(model, SENTENCES, -1).values())
    threshold = (scores[-40] + scores[-41]) / 2
    found = list(duplicates(texts, model, threshold))
    expected = pairs_by_hand(model, SENTENCES, threshold)
    assert [(pair.row, pair.other_row) for pair in found] == list(expected) and len(expected) == 40
    np.testing.assert_allclose([pair.score for pair in found], list(expected.values()), atol=1e-5)
    assert all((pair.sentence, pair.other) == (SENTENCES[pair.row], SENTENCES[pair.other_row]) for pair in found)


def test_copies_are_duplicates_at_a_threshold_of_1(model, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SENTENCES[:40] + SENTENCES[:40]))
    assert {(pair.row, pair.other_row) for pair in duplicates(texts, model, 1)} >= {(n, n + 40) for n in range(40)}


def test_duplicates_take_vectors_that_are_there(model, tmp_path, monkeypatch):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SENTENCES))
    encode(model, texts, tmp_path / "vectors")
    expected = list(duplicates(texts, model, 0.9))
    encoded = []
    monkeypatch.setattr(model, "encode", lambda texts, encode=model.encode, **options: encoded.extend(texts) or encode(
        texts, **options))  # fmt: skip
    assert list(duplicates(texts, model, 0.9, vectors=tmp_path / "vectors")) == expected
    assert len(encoded) < 5, "a probe of the model and of the vectors"


# --- commands --------------------------------------------------------------------------------------------------------


def test_the_command_index_deletes_and_replaces(model, checkpoint, tmp_path, capsys):
    folder = str(tmp_path / "index")
    file = write_ids(tmp_path / "a.jsonl", [(f"id{row}", text) for row, text in enumerate(SENTENCES)])
    index(file, folder, model=checkpoint, column="text", keep=["id"])
    assert status("index", "--output", folder, "--delete", "3", "4", "--delete_where", "id=id9", "--quiet") == 0
    assert capsys.readouterr().out == f"77 sentences in the index {folder}\n"
    new = write_ids(tmp_path / "b.jsonl", [("id5", "a first new text")])
    assert index(new, folder, replace="id", column="text", delete=[6]).sentences == 76
    gone = {3, 4, 5, 6, 9}
    [found] = search("the cat", folder, top_k=100)
    assert sorted(rows_of(found.results)) == [row for row in range(81) if row not in gone]
    assert status("index", "--output", folder, "--delete", "3", "--quiet") == 2
    assert "sentence 3 of the index was deleted" in capsys.readouterr().err


def test_the_command_search_finds_the_neighbours_of_sentences(model, checkpoint, tmp_path, capsys):
    folder = str(tmp_path / "index")
    SentenceIndex.build(model, SENTENCES).save(folder)
    assert status("search", "--index", folder, "--neighbors", "7", "11", "--top_k", "3", "--json") == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["query"] for document in documents] == [SENTENCES[7], SENTENCES[11]]
    for document in documents:
        found = [(each["sentence"], each["score"]) for each in document["results"]]
        assert_same(found, by_hand(model, document["query"], 4)[1:])


def test_the_command_duplicates_prints_pairs_without_escape_sequences(checkpoint, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("a cat \x1b[31msat\nthe dog ran\na cat \x1b[31msat\n")
    words = ["duplicates", str(texts), "--model", str(checkpoint), "--threshold", "0.9999"]
    assert status(*words, "--quiet") == 0
    assert capsys.readouterr().out == "1.0000\n       0  a cat  [31msat\n       2  a cat  [31msat\n"
    assert status(*words, "--json", "--quiet") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["row"], document["other_row"], document["sentence"]) == (0, 2, "a cat \x1b[31msat")
