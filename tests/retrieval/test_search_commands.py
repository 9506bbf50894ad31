"""The functions and commands `index` and `search`: from a file of texts to what is found and printed."""

import io
import json

import numpy as np
import pytest
from cli_helpers import status
from retrieval_helpers import SENTENCES, assert_same, by_hand, write_table

from simcse_hf import (
    SentenceIndex,
    SimCSE,
    describe,
    duplicates,
    encode,
    index,
    index_add,
    index_delete,
    search,
)


@pytest.fixture
def texts(tmp_path):
    """The file of the sentences."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(SENTENCES))
    return str(path)


@pytest.fixture
def folder(model, tmp_path):
    """The folder of an index of the sentences."""
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    return str(tmp_path / "index")


# --- an index is built, added to and searched ---


def test_index_says_what_it_built(checkpoint, texts, tmp_path):
    built = index(texts, str(tmp_path / "new"), model=checkpoint)
    assert built.sentences == 80
    assert built.backend == "exact"
    assert str(built) == f"80 sentences in the index {tmp_path / 'new'}"


def test_an_index_records_an_absolute_path_of_its_model(checkpoint, texts, tmp_path, monkeypatch):
    """So that it can be searched from any folder."""
    monkeypatch.chdir(checkpoint.parent)
    index(texts, str(tmp_path / "new"), model=checkpoint.name)
    assert describe(tmp_path / "new").model.name_or_path == str(checkpoint)


def test_an_index_is_searched_from_another_folder(checkpoint, model, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    index(texts, str(tmp_path / "new"), model=checkpoint.name)
    monkeypatch.chdir(tmp_path)
    [found] = search("the cat", "new")
    assert_same(found.results, by_hand(model, "the cat"))


def test_a_column_of_another_file_is_added(model, tmp_path):
    first = tmp_path / "a.txt"
    first.write_text("\n".join(SENTENCES[:50]))
    second = tmp_path / "b.csv"
    second.write_text("said,n\n" + "".join(f"{sentence},1\n" for sentence in SENTENCES[50:]))
    folder = str(tmp_path / "index")
    index(str(first), folder, model=model)
    assert index_add(str(second), folder, column="said").sentences == 80
    [found] = search("the cat", folder, model=model)
    assert_same(found.results, by_hand(model, "the cat"))


def test_search_finds_for_each_query_the_nearest_sentences(model, folder):
    found = list(search(["the cat", "dog"], folder, top_k=2, threshold=-1))
    assert [each.query for each in found] == ["the cat", "dog"]
    for each in found:
        assert_same(each.results, by_hand(model, each.query, 2))


def test_the_best_score_of_a_query_is_that_of_the_first_sentence(folder):
    [found] = search("the cat", folder)
    assert found.best_score == found.results[0].score


def test_search_takes_a_model_that_is_loaded(model, folder):
    [found] = search("the cat", folder, model=model)
    assert_same(found.results, by_hand(model, "the cat"))


@pytest.fixture
def two_more(tmp_path):
    path = tmp_path / "more.txt"
    path.write_text("one more\nand another\n")
    return path


def test_a_file_is_added_by_the_command_and_the_function(folder, two_more, capsys):
    assert status("index-add", "--index", folder, "--input", str(two_more), "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 82
    assert index_add(two_more, folder).sentences == 84


# --- kept columns ---


@pytest.fixture
def table_folder(model, tmp_path):
    """The folder of an index whose sentences have a source and a year."""
    table = str(write_table(tmp_path / "table.jsonl"))
    folder = str(tmp_path / "index_of_table")
    index(table, folder, model=model, column="text", keep=["source", "year"])
    return folder


@pytest.fixture
def filtered(table_folder, capsys):
    """What the command found among the sentences of one source and year, as JSON."""
    filters = ["--filter", "source=s1", "--filter", "year=2001"]
    words = ["--index", table_folder, SENTENCES[7], "--top_k", "4", *filters]
    assert status("search", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_search_is_filtered_by_kept_columns(model, filtered):
    rows = [n for n in range(80) if n % 3 == 1 and n % 2 == 1]
    found = [(match["sentence"], match["score"]) for match in filtered["results"]]
    assert_same(found, by_hand(model, SENTENCES[7], 4, rows=rows))


def test_kept_columns_are_returned(filtered):
    for match in filtered["results"]:
        assert match["columns"] == {"source": "s1", "year": "2001"}


def test_the_number_of_a_row_is_returned(filtered):
    assert filtered["results"][0]["row"] == 7


def test_the_json_of_a_search_has_the_query_the_results_and_the_best_score(filtered):
    assert list(filtered) == ["query", "results", "best_score"]
    assert filtered["best_score"] == filtered["results"][0]["score"]


def test_a_missing_cell_is_found_by_an_empty_value(table_folder):
    [found] = search("the cat", table_folder, filters={"year": ""})
    assert [match.row for match in found.results] == [4]


def test_the_command_finds_a_missing_cell_by_an_empty_value(table_folder, capsys):
    assert status("search", "--index", table_folder, "the cat", "--filter", "year=", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [match["row"] for match in document["results"]] == [4]


def test_a_search_that_finds_nothing_has_no_best_score(table_folder):
    [found] = search("the cat", table_folder, filters={"source": "none"})
    assert found.best_score is None


@pytest.mark.parametrize(
    "conditions, message",
    [
        (["year"], "must be KEY=VALUE, got 'year'"),
        (["source=s1", "source=s2"], "names source twice"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused(table_folder, capsys, conditions, message):
    words = []
    for condition in conditions:
        words += ["--filter", condition]
    assert status("search", "--index", table_folder, "a cat", *words) == 2
    assert message in capsys.readouterr().err


# --- queries of standard input ---


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def search_standard_input(folder, monkeypatch, capsys):
    """`search_standard_input(stream)` is what the command prints of one line, and beside it, as errors."""

    def printed(stream):
        monkeypatch.setattr("sys.stdin", stream)
        assert status("search", "--index", folder, "--top_k", "1", "--quiet") == 0
        return capsys.readouterr()

    return printed


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_queries_are_the_lines_of_standard_input(search_standard_input, model, stream):
    sentence, score = by_hand(model, "the cat", 1)[0]
    printed = search_standard_input(stream("the cat\n\n"))
    assert printed.out == f"the cat\n  {score:.4f}  {sentence}\n\n"


@pytest.mark.parametrize("stream, is_told", [(io.StringIO, False), (Terminal, True)])
def test_a_person_is_told_what_to_type(search_standard_input, stream, is_told):
    printed = search_standard_input(stream("the cat\n\n"))
    assert ("Type a text and press Enter" in printed.err) is is_told


# --- escape sequences ---

SENTENCE_WITH_ESCAPES = "a cat \x1b[31msat\x07 on the mat"


@pytest.fixture
def found_with_escapes(model, tmp_path):
    SentenceIndex.build(model, [SENTENCE_WITH_ESCAPES, "dog"]).save(tmp_path / "index")
    [found] = search("a cat sat on the mat", str(tmp_path / "index"), top_k=1)
    return found


def test_escape_sequences_of_a_sentence_do_not_reach_the_terminal(found_with_escapes):
    assert "a cat  [31msat  on the mat" in str(found_with_escapes)
    assert "\x1b" not in str(found_with_escapes)


def test_a_program_gets_the_sentence_itself(found_with_escapes):
    assert found_with_escapes.to_dict()["results"][0]["sentence"] == SENTENCE_WITH_ESCAPES


# --- prompts ---


def test_a_prompt_of_queries_stands_before_each_query(model, folder):
    [found] = search("cat", folder, model=model, prompt="the ")
    assert_same(found.results, by_hand(model, "the cat"))


def test_a_prompt_of_queries_leaves_the_model_as_it_was(model, folder):
    list(search("cat", folder, model=model, prompt="the "))
    assert model.prompts == {"query": "", "document": ""}


@pytest.fixture
def folder_with_prompt(model, texts, tmp_path):
    folder = str(tmp_path / "prompted")
    index(texts, folder, model=model, prompt="the woman : ")
    return folder


def test_a_prompt_of_documents_becomes_the_models(model, folder_with_prompt):
    assert model.prompts["document"] == "the woman : "


def test_a_prompt_of_documents_is_that_of_later_searches(model, folder_with_prompt):
    [found] = search("cat", folder_with_prompt, top_k=80)
    documents = model.encode([f"the woman : {text}" for text in SENTENCES]).double()
    scores = documents @ model.encode("cat").double()
    expected = sorted(scores.tolist(), reverse=True)
    np.testing.assert_allclose([match.score for match in found.results], expected, atol=1e-5)


def test_an_index_is_refused_to_a_model_with_another_prompt(checkpoint, folder_with_prompt):
    with pytest.raises(ValueError, match=r"prompts \{'document': 'the woman : '\} there"):
        SentenceIndex.load(folder_with_prompt, SimCSE(checkpoint, device="cpu"))


# --- vectors that are there ---


@pytest.fixture
def source(tmp_path):
    """A table of numbers and sentences."""
    path = tmp_path / "s.csv"
    lines = [f"{number},{sentence}" for number, sentence in enumerate(SENTENCES)]
    path.write_text("\n".join(["n,text", *lines]))
    return path


@pytest.fixture
def vectors(request, model, source, tmp_path):
    """The folder of the sentences, encoded with the options of the test."""
    options = {"column": "text"} | getattr(request, "param", {})
    encode(model, source, tmp_path / "vectors", **options)
    return str(tmp_path / "vectors")


def encoded_with(**options):
    return pytest.mark.parametrize("vectors", [options], indirect=True, ids=[""])


@encoded_with(shard_size=30, format="parquet")
def test_an_index_takes_the_vectors_of_its_file(model, source, vectors, tmp_path):
    folder = str(tmp_path / "index")
    index(str(source), folder, model=model, vectors=vectors)
    model.load_index(folder)
    assert_same(model.search("the cat"), by_hand(model, "the cat"))


def test_the_vectors_of_another_file_are_refused(model, source, vectors, tmp_path):
    header, first, second, *others = source.read_text().splitlines()
    edited = tmp_path / "edited.csv"
    edited.write_text("\n".join([header, first, *others, second]))  # the first text is the same
    message = r"vectors holds the vectors of another file \(s\.csv\) than input .*edited\.csv"
    with pytest.raises(ValueError, match=message):
        index(str(edited), str(tmp_path / "index"), model=model, vectors=vectors)


def test_the_vectors_of_another_column_are_refused(model, source, vectors, tmp_path):
    with pytest.raises(ValueError, match="the vectors of column 'text', not 'n'"):
        index(
            str(source),
            str(tmp_path / "index"),
            model=model,
            vectors=vectors,
            column="n",
        )


@encoded_with(column=None, columns=["text", "n"])
def test_the_vectors_of_several_columns_are_refused(model, source, vectors, tmp_path):
    message = r"vectors holds the vectors of several columns \(text, n\)"
    with pytest.raises(ValueError, match=message):
        index(str(source), str(tmp_path / "index"), model=model, vectors=vectors)


@encoded_with(precision="ubinary")
def test_codes_are_refused(model, source, vectors, tmp_path):
    message = r"vectors are uint8 of shape \(80, 4\): give embeddings of floats \(no codes\)"
    with pytest.raises(ValueError, match=message):
        index(str(source), str(tmp_path / "index"), model=model, vectors=vectors)


# --- refusals ---


def test_an_index_is_not_replaced_without_a_word(model, texts, folder):
    with pytest.raises(ValueError, match="output .*index holds an index: add to it with index-add"):
        index(texts, folder, model=model)


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, "rows and filters are missing"),
        ({"rows": [80]}, "row must be an integer between 0 and 79, got 80"),
        ({"filters": {"id": "7"}}, r"no column 'id' \(kept: none\)"),
    ],
)
def test_a_deletion_that_is_not_possible_is_refused(folder, options, words):
    with pytest.raises(ValueError, match=words):
        index_delete(folder, **options)


def test_sentences_are_replaced_by_a_kept_column_only(texts, folder):
    with pytest.raises(ValueError, match=r"no column 'id' \(kept: none\)"):
        index_add(texts, folder, replace="id")


def test_an_option_of_loading_is_refused_for_a_model_that_is_loaded(model, texts, folder):
    with pytest.raises(ValueError, match="loaded already: leave out max_length"):
        index_add(texts, folder, model=model, max_length=4)


@pytest.mark.parametrize(
    "query, options, words",
    [
        ("a", {"neighbors": [1]}, "neighbors takes the place of queries"),
        ((), {"neighbors": [1], "prompt": "a"}, "neighbors takes the place of queries"),
        (
            "a",
            {"threshold": "saved", "prompt": "query: "},
            "threshold saved .* the prompt 'query'",
        ),
        ("a", {"threshold": 2}, "threshold must be a cosine"),
        ("a", {"pooler_type": "max"}, "pooler 'avg' there, 'max' here"),
    ],
)
def test_a_search_that_is_not_possible_is_refused_before_a_result_is_asked_for(
    folder,
    query,
    options,
    words,
):
    with pytest.raises(ValueError, match=words):
        search(query, folder, **options)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"neighbors": [1], "top_k": 0}, "top_k must be an integer above 0"),
        ({"neighbors": [80]}, "row must be an integer between 0 and 79, got 80"),
    ],
)
def test_neighbours_that_do_not_exist_are_refused(folder, options, words):
    with pytest.raises(ValueError, match=words):
        next(search((), folder, **options))


def test_a_threshold_of_duplicates_that_is_no_cosine_is_refused(model, texts):
    with pytest.raises(ValueError, match="threshold must be a cosine"):
        duplicates(texts, model, 1.1)
