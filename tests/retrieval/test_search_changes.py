"""Sentences that are deleted, replaced, near to another one, or nearly the same."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import status
from retrieval_helpers import (
    SENTENCES,
    CountingModel,
    assert_same,
    by_hand,
    write_table,
)

from simcse_hf import (
    SentenceIndex,
    describe,
    duplicates,
    encode,
    index,
    index_add,
    index_delete,
    search,
)

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


def build(backend="exact", sentences=SENTENCES, **options):
    if backend != "exact":
        pytest.importorskip("faiss", reason="the extra `faiss` is not installed")
    parameters = BACKENDS[backend]
    return SentenceIndex.build(
        CountingModel(),
        sentences,
        backend=backend,
        parameters=parameters,
        **options,
    )


def save_and_load(built, folder):
    built.save(folder)
    return SentenceIndex.load(folder, CountingModel())


def rows_of(matches):
    return [match.row for match in matches]


def scores_of(matches):
    return [match.score for match in matches]


# --- a search after sentences were deleted ---

QUERIES = [SENTENCES[7], "the cat sat", "a red house"]


@pytest.fixture(params=["in memory", "saved and loaded"])
def deleted(request, backend, tmp_path):
    """An index from which `GONE` was deleted."""
    built = build(backend)
    built.delete(GONE)
    return built if request.param == "in memory" else save_and_load(built, tmp_path / "index")


@ALL
def test_an_index_counts_the_sentences_that_are_left(deleted):
    assert len(deleted) == 75


@ALL
@pytest.mark.parametrize("top_k", [1, 5, 80])
def test_a_deleted_sentence_is_found_by_no_search(deleted, top_k):
    for found in deleted.search(QUERIES, top_k=top_k):
        assert len(found) == min(top_k, 75)
        assert not set(rows_of(found)) & set(GONE)


@ALL
@pytest.mark.parametrize("top_k", [1, 5, 80])
def test_the_others_have_the_scores_that_they_had_before(deleted, backend, top_k):
    before = build(backend).search(QUERIES, top_k=80)
    for found, all_of_them in zip(deleted.search(QUERIES, top_k=top_k), before, strict=True):
        left = [match.score for match in all_of_them if match.row not in GONE]
        np.testing.assert_allclose(scores_of(found), left[:top_k], atol=1e-6)


@pytest.fixture
def added_to(backend, tmp_path):
    """An index from which sentences were deleted and to which one was added, saved and loaded each time."""
    built = build(backend)
    built.delete(GONE)
    loaded = save_and_load(built, tmp_path / "index")
    loaded.add(["a new sentence"])
    return save_and_load(loaded, tmp_path / "index")


@ALL
def test_a_deleted_sentence_does_not_come_back_when_others_are_added(added_to):
    for found in added_to.search(QUERIES, top_k=100):
        assert sorted(rows_of(found)) == [*LEFT, 80]


@ALL
def test_the_numbers_of_all_others_stay(added_to):
    assert added_to[9] == SENTENCES[9]
    assert added_to[80] == "a new sentence"


def test_the_scores_and_the_order_of_what_is_left_are_those_of_a_slow_search(model):
    built = SentenceIndex.build(model, SENTENCES)
    built.delete(GONE)
    assert_same(built.search("the cat", top_k=80), by_hand(model, "the cat", 80, rows=LEFT))


def test_an_index_whose_sentences_were_all_deleted_finds_nothing():
    built = build()
    built.delete(range(80))
    assert len(built) == 0
    assert built.search("the cat") == []


def test_a_large_graph_is_walked_past_deleted_sentences(monkeypatch):
    pytest.importorskip("faiss", reason="the extra `faiss` is not installed")
    more_than_these_are_not_all_compared = 10
    monkeypatch.setattr(
        "simcse_hf.retrieval.faiss_index._FEW",
        more_than_these_are_not_all_compared,
    )
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


def test_sentences_are_deleted_by_the_values_of_kept_columns(with_columns):
    with_columns.delete(filters={"source": "s1", "year": "2001"})
    left = [n for n in range(80) if not (n % 3 == 1 and n % 2 == 1)]
    assert sorted(rows_of(with_columns.search("a cat", top_k=80))) == left


def test_sentences_are_deleted_by_their_numbers_and_by_values_at_once(with_columns):
    with_columns.delete([3], filters={"source": "s1"})
    left = [n for n in range(80) if n != 3 and n % 3 != 1]
    assert sorted(rows_of(with_columns.search("a cat", top_k=80))) == left


def test_filters_find_what_is_left(with_columns):
    with_columns.delete([3], filters={"source": "s1", "year": "2001"})
    found = with_columns.search("a cat", top_k=80, filters={"year": "2001"})
    assert sorted(rows_of(found)) == [n for n in range(1, 80, 2) if n != 3 and n % 3 != 1]


@pytest.fixture
def without_row_3(with_columns):
    with_columns.delete([3])
    return with_columns


@pytest.mark.parametrize(
    "rows, filters, words",
    [
        ([1, 3], None, "sentence 3 of the index was deleted"),
        ([1, 80], None, "row must be an integer between 0 and 79, got 80"),
        ([-1], None, "row must be an integer between 0 and 79, got -1"),
        ([1], {"source": "none"}, "no sentence with {'source': 'none'} to delete"),
        ((), {"color": "red"}, r"no column 'color' \(kept: 'source', 'year'\)"),
    ],
)
def test_what_is_not_there_cannot_be_deleted_and_nothing_changes(
    without_row_3,
    rows,
    filters,
    words,
):
    with pytest.raises(ValueError, match=words):
        without_row_3.delete(rows, filters=filters)
    assert len(without_row_3) == 79


def test_a_deleted_sentence_cannot_be_read(without_row_3):
    with pytest.raises(ValueError, match="sentence 3 of the index was deleted"):
        without_row_3[3]


def test_a_deleted_sentence_has_no_neighbours(without_row_3):
    with pytest.raises(ValueError, match="sentence 3 of the index was deleted"):
        without_row_3.neighbors(3)


# --- a deleted text leaves the disk ---


@pytest.fixture
def folder_without_confidential_rows(table, tmp_path):
    """A saved index of the table twice, from which the rows of one source were deleted."""
    table.write_text(table.read_text().replace('"s2"', '"confidential"'))
    built = build(sentences=table, column="text", keep=["source"])
    built.add(table)
    built.save(tmp_path / "index")
    built.delete(filters={"source": "confidential"})
    built.save(tmp_path / "index")
    return tmp_path / "index"


def test_the_text_of_a_deleted_sentence_is_in_no_file(folder_without_confidential_rows):
    [path] = folder_without_confidential_rows.rglob("*.parquet")
    saved = str(pq.read_table(path).to_pylist())
    assert SENTENCES[2] not in saved
    assert "confidential" not in saved
    assert SENTENCES[1] in saved


def test_a_saved_index_counts_the_sentences_that_are_left(
    folder_without_confidential_rows,
):
    confidential = 2 * 26
    assert describe(folder_without_confidential_rows).count == 160 - confidential


# --- replace ---


def write_ids(path, rows):
    """Write rows of an id and a text."""
    path.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in rows))
    return path


def write_numbered_ids(path):
    """Write `SENTENCES` with the ids id0, id1 ..."""
    return write_ids(path, [(f"id{row}", text) for row, text in enumerate(SENTENCES)])


@pytest.fixture
def replaced(backend, tmp_path):
    """An index in which two new sentences replaced one; a third is new. It was saved and loaded."""
    built = build(backend, write_numbered_ids(tmp_path / "a.jsonl"), column="text", keep=["id"])
    new = [("id5", "a first new text"), ("other", "a second"), ("id5", "a third")]
    built.add(write_ids(tmp_path / "b.jsonl", new), replace="id")
    return save_and_load(built, tmp_path / "index")


@ALL
def test_a_replaced_sentence_is_not_found(replaced):
    assert len(replaced) == 82
    assert 5 not in rows_of(replaced.search(SENTENCES[5], top_k=100))


@ALL
def test_new_sentences_get_new_numbers(replaced):
    assert replaced[80] == "a first new text"
    assert replaced[81] == "a second"
    assert replaced[82] == "a third"


@ALL
def test_new_sentences_with_the_value_of_the_replaced_one_are_found_by_it(replaced):
    found = replaced.search("a text", top_k=100, filters={"id": "id5"})
    assert sorted(rows_of(found)) == [80, 82]


def test_an_empty_value_replaces_nothing(tmp_path):
    first = write_ids(tmp_path / "a.jsonl", [("", "one"), ("x", "two")])
    built = build(sentences=first, column="text", keep=["id"])
    built.add(write_ids(tmp_path / "b.jsonl", [("", "three")]), replace="id")
    assert len(built) == 3


# --- neighbours of a sentence ---


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in COMPRESSED])
def test_the_neighbours_of_a_sentence_are_those_of_a_slow_search_without_itself(
    backend,
):
    itself, *expected = by_hand(CountingModel(), SENTENCES[7], 6)
    assert itself[0] == SENTENCES[7]
    assert_same(build(backend).neighbors(7), expected)


@ALL
def test_a_sentence_is_not_its_own_neighbour(backend):
    found = build(backend).neighbors(7)
    assert len(found) == 5
    assert 7 not in rows_of(found)


@ALL
def test_a_deleted_sentence_is_nobodys_neighbour(backend):
    built = build(backend)
    nearest = rows_of(built.neighbors(7))[0]
    built.delete([nearest])
    found = built.neighbors(7, top_k=80)
    assert len(found) == 78
    assert nearest not in rows_of(found)


SOURCE_2 = range(2, 80, 3)


def test_neighbours_obey_filters(with_columns):
    found = with_columns.neighbors(7, top_k=4, filters={"source": "s2"})
    assert_same(found, by_hand(CountingModel(), SENTENCES[7], 4, rows=SOURCE_2))


def test_neighbours_obey_a_threshold(with_columns):
    first_two = by_hand(CountingModel(), SENTENCES[7], 2, rows=SOURCE_2)
    threshold = first_two[1][1] - 1e-4
    found = with_columns.neighbors(7, filters={"source": "s2"}, threshold=threshold)
    assert_same(found, first_two)


# --- near-duplicates ---


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(SENTENCES))
    return path


def pairs_by_hand(model):
    """The cosine of each pair of `SENTENCES`, by their numbers."""
    vectors = np.asarray(model.encode(SENTENCES), dtype=float)
    pairs = {}
    for a in range(80):
        for b in range(a + 1, 80):
            pairs[a, b] = vectors[a] @ vectors[b]
    return pairs


@pytest.mark.parametrize("queries", [64, 7])
def test_duplicates_are_all_pairs_above_the_threshold(model, texts, monkeypatch, queries):
    monkeypatch.setattr("simcse_hf.retrieval.exact._QUERIES", queries)
    monkeypatch.setattr("simcse_hf.retrieval.exact._BLOCK", 16)
    pairs = pairs_by_hand(model)
    ranked = sorted(pairs.values(), reverse=True)
    threshold = (ranked[39] + ranked[40]) / 2
    expected = {rows: score for rows, score in pairs.items() if score >= threshold}
    found = {(pair.row, pair.other_row): pair.score for pair in duplicates(texts, model, threshold)}
    assert len(found) == 40
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, abs=1e-5)


def test_duplicates_come_with_their_texts(model, texts):
    for pair in duplicates(texts, model, 0.9):
        assert pair.sentence == SENTENCES[pair.row]
        assert pair.other == SENTENCES[pair.other_row]


def test_copies_are_duplicates_at_a_threshold_of_1(model, texts):
    texts.write_text("\n".join(SENTENCES[:40] + SENTENCES[:40]))
    found = {(pair.row, pair.other_row) for pair in duplicates(texts, model, 1)}
    assert found >= {(n, n + 40) for n in range(40)}


@pytest.fixture
def vectors(model, texts, tmp_path):
    """The folder of the encoded texts."""
    encode(model, texts, tmp_path / "vectors")
    return tmp_path / "vectors"


def test_duplicates_of_vectors_are_those_of_their_texts(model, texts, vectors):
    expected = list(duplicates(texts, model, 0.9))
    assert list(duplicates(texts, model, 0.9, vectors=vectors)) == expected


def test_texts_whose_vectors_are_there_are_not_encoded(model, texts, vectors, monkeypatch):
    encoded = []
    plain_encode = model.encode

    def counting_encode(texts, **options):
        encoded.extend(texts)
        return plain_encode(texts, **options)

    monkeypatch.setattr(model, "encode", counting_encode)
    list(duplicates(texts, model, 0.9, vectors=vectors))
    assert len(encoded) < 5, "a probe of the model and of the vectors"


# --- commands ---


@pytest.fixture
def folder(checkpoint, tmp_path):
    """The folder of an index with ids."""
    file = write_numbered_ids(tmp_path / "a.jsonl")
    index(file, tmp_path / "index", model=checkpoint, column="text", keep=["id"])
    return str(tmp_path / "index")


def found_rows(folder):
    [found] = search("the cat", folder, top_k=100)
    return sorted(rows_of(found.results))


def without(*gone):
    return [row for row in range(80) if row not in gone]


def test_the_command_index_delete_deletes_by_number_and_by_value(folder, capsys):
    assert status("index-delete", "--index", folder, "--rows", "3", "4", "--quiet") == 0
    assert status("index-delete", "--index", folder, "--filter", "id=id9", "--quiet") == 0
    assert capsys.readouterr().out.endswith(f"77 sentences in the index {folder}\n")
    assert found_rows(folder) == without(3, 4, 9)


def test_index_add_replaces_sentences(folder, tmp_path):
    new = write_ids(tmp_path / "b.jsonl", [("id5", "a first new text")])
    assert index_add(new, folder, replace="id", column="text").sentences == 80
    assert found_rows(folder) == [*without(5), 80]


def test_a_sentence_is_not_deleted_twice(folder):
    index_delete(folder, rows=[3])
    with pytest.raises(ValueError, match="sentence 3 of the index was deleted"):
        index_delete(folder, rows=[3])


def test_the_command_search_finds_the_neighbours_of_sentences(model, tmp_path, capsys):
    folder = str(tmp_path / "index")
    SentenceIndex.build(model, SENTENCES).save(folder)
    assert (
        status(
            "search",
            "--index",
            folder,
            "--neighbors",
            "7",
            "11",
            "--top_k",
            "3",
            "--json",
        )
        == 0
    )
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["query"] for document in documents] == [
        SENTENCES[7],
        SENTENCES[11],
    ]
    for document in documents:
        found = [(match["sentence"], match["score"]) for match in document["results"]]
        _, *neighbours = by_hand(model, document["query"], 4)
        assert_same(found, neighbours)


@pytest.fixture
def duplicates_of_an_escape_sequence(checkpoint, tmp_path, capsys):
    """`duplicates_of_an_escape_sequence(*words)` is what the command prints of a file with a pair of equal lines."""
    texts = tmp_path / "texts.txt"
    texts.write_text("a cat \x1b[31msat\nthe dog ran\na cat \x1b[31msat\n")
    command = [
        "duplicates",
        str(texts),
        "--model",
        str(checkpoint),
        "--threshold",
        "0.9999",
    ]

    def printed(*words):
        assert status(*command, *words, "--quiet") == 0
        return capsys.readouterr().out

    return printed


def test_the_command_duplicates_prints_pairs_without_escape_sequences(
    duplicates_of_an_escape_sequence,
):
    printed = duplicates_of_an_escape_sequence()
    assert printed == "1.0000\n       0  a cat  [31msat\n       2  a cat  [31msat\n"


def test_the_command_duplicates_prints_the_texts_themselves_as_json(
    duplicates_of_an_escape_sequence,
):
    document = json.loads(duplicates_of_an_escape_sequence("--json"))
    assert document["row"] == 0
    assert document["other_row"] == 2
    assert document["sentence"] == "a cat \x1b[31msat"
