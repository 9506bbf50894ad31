"""Sentences that are deleted, replaced, near to another one, or nearly the same."""

import json
import pickle
from threading import Thread

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import status
from evaluation_helpers import write
from retrieval_helpers import SENTENCES, CountingModel, assert_same, by_hand, write_table
from trainer_helpers import refuses

from simcse_hf import DataError, SentenceIndex, describe, duplicates, encode, index, search

#: Backends with their parameters. With few sentences and all cells probed, the approximate indexes are exact. SQ8 is
#: quantized; the last two take no filter.
BACKENDS = {
    "exact": None,
    "hnsw": None,
    "ivf": "nprobe=9",
    "Flat": None,
    "IVF4,SQ8": "nprobe=4",
    "SQ8": None,
    "PCA8,Flat": None,
}
#: Those that may rank close neighbours in another order.
COMPRESSED = ["IVF4,SQ8", "SQ8", "PCA8,Flat"]
ALL = pytest.mark.parametrize("backend", BACKENDS)
GONE = [0, 7, 8, 41, 79]
LEFT = [row for row in range(80) if row not in GONE]
QUERIES = [SENTENCES[7], "the cat sat", "a red house"]


def build(backend="exact", sentences=SENTENCES, **options):
    if backend != "exact":
        pytest.importorskip("faiss")
    model = CountingModel()
    return SentenceIndex.build(model, sentences, backend=backend, parameters=BACKENDS.get(backend), **options)


def save_and_load(built, tmp_path):
    built.save(tmp_path / "index")
    return SentenceIndex.load(tmp_path / "index", CountingModel())


def rows_of(matches):
    return [match.row for match in matches]


# --- several threads ---


@pytest.mark.parametrize("backend", ["exact", "hnsw", "ivf"])
def test_threads_that_add_delete_search_and_save_leave_each_sentence_with_its_own_vector(backend, tmp_path):
    built = build(backend)
    errors = []

    def work(number):
        try:
            for step in range(12):
                built.add([f"thread{number} step{step} text{text}" for text in range(3)])
                own = f"thread{number} step{step} text1"
                assert built.search(own, top_k=1)[0].sentence == own
                built.delete([match.row for match in built.search(own, top_k=1)])
            built.save(tmp_path / "index")
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    loaded = SentenceIndex.load(tmp_path / "index", built.model)
    for left in (built, loaded, pickle.loads(pickle.dumps(built))):
        assert len(left) == 80 + 4 * 12 * 2
        for row in range(80, len(left.rows)):
            if left.rows["sentence"][row].is_valid:
                assert left.search(left[row], top_k=1)[0].row == row


# --- a search after sentences were deleted ---


@ALL
def test_a_deleted_sentence_is_found_by_no_search_and_the_others_keep_scores_and_numbers(backend, tmp_path):
    built = build(backend)
    before = built.search(QUERIES, top_k=80)
    built.delete(GONE)
    loaded = save_and_load(built, tmp_path)
    for left in (built, loaded):
        assert len(left) == 75
        for top_k in (1, 5, 80):
            for found, all_of_them in zip(left.search(QUERIES, top_k=top_k), before, strict=True):
                scores = {match.row: match.score for match in all_of_them if match.row not in GONE}
                best = pytest.approx(list(scores.values())[:top_k], abs=1e-6)
                assert [match.score for match in found] == best == [scores[row] for row in rows_of(found)]
    loaded.add(["a new sentence"])
    loaded = save_and_load(loaded, tmp_path)
    for found in loaded.search(QUERIES, top_k=100):
        assert sorted(rows_of(found)) == [*LEFT, 80]
    assert loaded[9] == SENTENCES[9] and loaded[80] == "a new sentence"
    loaded.delete([*LEFT, 80])
    assert len(loaded) == 0 and loaded.search("the cat") == []


def test_a_large_graph_is_walked_past_deleted_sentences(monkeypatch):
    monkeypatch.setattr("simcse_hf.retrieval.faiss_index._FEW", 10)  # more are not all compared
    built = build("hnsw")
    built.delete(GONE)
    expected = by_hand(CountingModel(), SENTENCES[7], 9, rows=LEFT)
    assert_same(built.search(SENTENCES[7], top_k=9), expected)


# --- what to delete ---


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.jsonl")


@pytest.fixture
def with_columns(table):
    """An index of the table, whose rows have a source s0, s1 or s2, and the year 2000 or 2001."""
    return build(sentences=table, column="text", keep=["source", "year"])


def test_sentences_are_deleted_by_numbers_and_by_the_values_of_kept_columns(with_columns):
    with_columns.delete(filters={"source": "s1", "year": "2001"})
    left = [n for n in range(80) if not (n % 3 == 1 and n % 2 == 1)]
    assert sorted(rows_of(with_columns.search("a cat", top_k=80))) == left
    with_columns.delete([3], filters={"source": "s1"})
    left = [n for n in range(80) if n != 3 and n % 3 != 1]
    assert sorted(rows_of(with_columns.search("a cat", top_k=80))) == left
    found = with_columns.search("a cat", top_k=80, filters={"year": "2001"})
    assert sorted(rows_of(found)) == [n for n in left if n % 2]


def test_what_is_not_there_cannot_be_deleted_or_read_and_nothing_changes(with_columns):
    with_columns.delete([3])
    for rows, filters, words in (
        ([1, 3], None, "sentence 3 of the index was deleted"),
        ([1, 80], None, "row must be got 80"),
        ([1], {"source": "none"}, "{'source': 'none'}"),
        ((), {"color": "red"}, "no column 'color' (kept: 'source', 'year')"),
    ):
        with refuses(words):
            with_columns.delete(rows, filters=filters)
    for use in (with_columns.__getitem__, with_columns.neighbors):
        with refuses("sentence 3 of the index was deleted"):
            use(3)
    assert len(with_columns) == 79


def test_the_text_of_a_deleted_sentence_is_in_no_file(table, tmp_path):
    table.write_text(table.read_text().replace('"s2"', '"confidential"'))
    built = build(sentences=table, column="text", keep=["source"])
    built.add(table)
    built.save(tmp_path / "index")
    built.delete(filters={"source": "confidential"})
    built.save(tmp_path / "index")
    [path] = (tmp_path / "index").rglob("*.parquet")
    saved = str(pq.read_table(path).to_pylist())
    assert SENTENCES[1] in saved and SENTENCES[2] not in saved and "confidential" not in saved
    assert describe(tmp_path / "index").count == 160 - 2 * 26


# --- replace ---


def write_ids(path, rows):
    """Write rows of an id and a text."""
    return write(path, [json.dumps({"id": name, "text": text}) for name, text in rows])


def write_numbered_ids(path):
    """Write `SENTENCES` with the ids id0, id1 ..."""
    return write_ids(path, [(f"id{row}", text) for row, text in enumerate(SENTENCES)])


@ALL
def test_new_sentences_replace_the_one_of_the_same_id(backend, tmp_path):
    """Another one is new. An empty id replaces nothing."""
    built = build(backend, write_numbered_ids(tmp_path / "a.jsonl"), column="text", keep=["id"])
    new = [("id5", "a first new text"), ("other", "a second"), ("", "a third"), ("", "a fourth")]
    built.add(write_ids(tmp_path / "b.jsonl", new), replace="id")
    built.add(write_ids(tmp_path / "c.jsonl", [("", "a fifth")]), replace="id")
    loaded = save_and_load(built, tmp_path)
    assert len(loaded) == 84
    assert 5 not in rows_of(loaded.search(SENTENCES[5], top_k=100))
    assert [loaded[row] for row in range(80, 85)] == [*(text for _, text in new), "a fifth"]
    found = loaded.search("a text", top_k=100, filters={"id": "id5"})
    assert rows_of(found) == [80]
    twice = write_ids(tmp_path / "d.jsonl", [("id6", "a text"), ("id7", "another"), ("id6", "a later text")])
    with refuses("'id6' in the column 'id'", DataError):
        loaded.add(twice, replace="id")
    assert len(loaded) == 84 and loaded[6] == SENTENCES[6]


@pytest.mark.parametrize("backend", ["exact", "hnsw"])
def test_an_addition_with_an_error_at_its_end_adds_nothing(backend, tmp_path):
    built = build(backend)
    texts = [f"text {number}" for number in range(10_000)]
    with_nan = [CountingModel().encode(texts), np.full((1, 8), np.nan, np.float32)]
    for last, vectors in ((7, None), ("text 10000", with_nan)):
        (tmp_path / "texts.json").write_text(json.dumps([{"text": text} for text in [*texts, last]]))
        for _ in range(2):
            with pytest.raises(ValueError):
                built.add(tmp_path / "texts.json", vectors=vectors)
            assert len(built) == len(built.vectors) == 80


# --- what faiss does not reach at first ---


def build_with_rare(rows, backend, parameters, folder):
    """An index of 1500 sentences, of which these rows have the id rare."""
    ids = [("rare" if number in rows else "common", f"text{number}") for number in range(1500)]
    built = build(backend, write_ids(folder / "a.jsonl", ids), column="text", keep=["id"])
    built.vectors.set_parameters(parameters)
    return built


@pytest.mark.parametrize("backend", ["ivf", "IVF64,SQ8", "PCA8,IVF64,Flat"])
def test_an_inverted_file_probes_more_cells_before_it_finds_too_few(backend, tmp_path):
    built = build_with_rare((3, 1400), backend, "nprobe=1", tmp_path)
    for searched in (built, save_and_load(built, tmp_path)):
        for query in ("text8", "text700"):
            assert sorted(rows_of(searched.search(query, filters={"id": "rare"}))) == [3, 1400]
            assert len(searched.search(query, top_k=1000)) == 1000
            assert searched.vectors.search(built.model.encode([query]), 1)[1][0, 0] == int(query[4:])


def test_a_search_that_reaches_too_few_says_what_to_set_and_names_no_score_of_nothing(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr("simcse_hf.retrieval.faiss_index._FEW", 0)  # not even few are all compared
    built = build_with_rare((1400,), "HNSW2", "efSearch=1", tmp_path)
    assert built.search("text8", filters={"id": "rare"}, threshold=0.9) == []
    assert "HNSW2 found fewer than 1" in caplog.text and "efSearch" in caplog.text
    assert "e+38" not in caplog.text and "3402823" not in caplog.text


# --- neighbours of a sentence ---


@ALL
def test_the_neighbours_of_a_sentence_are_those_of_a_slow_search_without_itself_and_without_deleted_ones(backend):
    built = build(backend)
    found = built.neighbors(7)
    assert len(found) == 5 and 7 not in rows_of(found)
    if backend not in COMPRESSED:
        itself, *expected = by_hand(CountingModel(), SENTENCES[7], 6)
        assert itself[0] == SENTENCES[7]
        assert_same(found, expected)
    nearest = found[0].row
    built.delete([nearest])
    found = built.neighbors(7, top_k=80)
    assert len(found) == 78 and nearest not in rows_of(found)


def test_neighbours_obey_filters_and_a_threshold(with_columns):
    expected = by_hand(CountingModel(), SENTENCES[7], 4, rows=range(2, 80, 3))
    assert_same(with_columns.neighbors(7, top_k=4, filters={"source": "s2"}), expected)
    found = with_columns.neighbors(7, filters={"source": "s2"}, threshold=expected[1][1] - 1e-4)
    assert_same(found, expected[:2])


# --- near-duplicates ---


@pytest.fixture
def texts(tmp_path):
    return write(tmp_path / "texts.txt", SENTENCES)


@pytest.mark.parametrize("queries", [64, 7])
def test_duplicates_are_all_pairs_above_the_threshold(model, texts, monkeypatch, queries):
    monkeypatch.setattr("simcse_hf.retrieval.exact._QUERIES", queries)
    monkeypatch.setattr("simcse_hf.retrieval.exact._BLOCK", 16)
    vectors = np.asarray(model.encode(SENTENCES), dtype=float)
    pairs = {(a, b): vectors[a] @ vectors[b] for a in range(80) for b in range(a + 1, 80)}
    ranked = sorted(pairs.values(), reverse=True)
    threshold = (ranked[39] + ranked[40]) / 2
    expected = {rows: score for rows, score in pairs.items() if score >= threshold}
    found = list(duplicates(texts, model, threshold))
    assert [(pair.row, pair.other_row) for pair in found] == list(expected) and len(found) == 40
    assert [pair.score for pair in found] == pytest.approx(list(expected.values()), abs=1e-5)
    for pair in found:
        assert pair.sentence == SENTENCES[pair.row] and pair.other == SENTENCES[pair.other_row]


def test_copies_are_duplicates_at_a_threshold_of_1(model, texts):
    write(texts, SENTENCES[:40] * 2)
    found = {(pair.row, pair.other_row) for pair in duplicates(texts, model, 1)}
    assert found >= {(n, n + 40) for n in range(40)}


def test_duplicates_of_vectors_are_those_of_their_texts_which_are_not_encoded(model, texts, tmp_path, monkeypatch):
    encode(model, texts, tmp_path / "vectors")
    expected = list(duplicates(texts, model, 0.9))
    encoded = []
    plain_encode = model.encode

    def counting_encode(texts, **options):
        encoded.extend(texts)
        return plain_encode(texts, **options)

    monkeypatch.setattr(model, "encode", counting_encode)
    assert list(duplicates(texts, model, 0.9, vectors=tmp_path / "vectors")) == expected
    assert len(encoded) < 5, "a probe of the model and of the vectors"


# --- commands ---


def test_the_commands_index_delete_and_index_add_change_an_index(checkpoint, tmp_path, capsys):
    folder = tmp_path / "index"
    index(write_numbered_ids(tmp_path / "a.jsonl"), folder, model=checkpoint, column="text", keep=["id"])

    def found_rows():
        [found] = search("the cat", folder, top_k=100)
        return sorted(rows_of(found.results))

    for chosen in ("--rows 3 4", "--filter id=id9"):
        assert status(*f"index-delete --index {folder} {chosen} --quiet".split()) == 0
    assert capsys.readouterr().out.endswith(f"77 sentences in the index {folder}\n")
    left = [row for row in range(80) if row not in (3, 4, 9)]
    assert found_rows() == left
    new = write(tmp_path / "b.csv", ["id,said,by", "id5,a first new text,him"])
    assert status(*f"index-add --input {new} --index {folder} --replace id --column said --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 77
    left.remove(5)
    assert found_rows() == [*left, 80]


def test_the_command_search_finds_the_neighbours_of_sentences(model, tmp_path, capsys):
    folder = tmp_path / "index"
    SentenceIndex.build(model, SENTENCES).save(folder)
    assert status(*f"search --index {folder} --neighbors 7 11 --top_k 3 --json".split()) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["query"] for document in documents] == [SENTENCES[7], SENTENCES[11]]
    for document in documents:
        found = [(match["sentence"], match["score"]) for match in document["results"]]
        _, *neighbours = by_hand(model, document["query"], 4)
        assert_same(found, neighbours)


def test_the_command_duplicates_prints_pairs_without_escape_sequences_and_json_with_them(checkpoint, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("a cat \x1b[31msat\nthe dog ran\na cat \x1b[31msat\n")
    command = f"duplicates {texts} --model {checkpoint} --threshold 0.9999 --quiet".split()
    assert status(*command) == 0
    assert capsys.readouterr().out == "1.0000\n       0  a cat  [31msat\n       2  a cat  [31msat\n"
    assert status(*command, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["row"] == 0 and document["other_row"] == 2 and document["sentence"] == "a cat \x1b[31msat"
