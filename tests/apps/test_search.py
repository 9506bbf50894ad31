"""The functions and commands `index` and `search`: from a file of texts to what is found and printed."""

import io
import json

import pytest
from cli_helpers import status
from evaluation_helpers import write
from retrieval_helpers import SENTENCES, assert_same, by_hand, write_table
from trainer_helpers import refuses

from simcse_hf import SentenceIndex, SimCSE, describe, duplicates, encode, index, index_add, index_delete, search


@pytest.fixture
def texts(tmp_path):
    """The file of the sentences."""
    return write(tmp_path / "texts.txt", SENTENCES)


@pytest.fixture
def folder(model, tmp_path):
    """The folder of an index of the sentences."""
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    return tmp_path / "index"


# --- an index is built, added to and searched ---


def test_an_index_records_an_absolute_path_of_its_model_and_is_searched_from_another_folder(
    checkpoint, model, texts, tmp_path, monkeypatch
):
    monkeypatch.chdir(checkpoint.parent)
    built = index(texts, tmp_path / "new", model=checkpoint.name)
    assert str(built) == f"80 sentences in the index {tmp_path / 'new'}"
    assert built.sentences == 80 and built.backend == "exact"
    assert describe(tmp_path / "new").model.name_or_path == str(checkpoint)
    monkeypatch.chdir(tmp_path)
    [found] = search("the cat", "new")
    assert_same(found.results, by_hand(model, "the cat"))


def test_search_finds_for_each_query_the_nearest_sentences_and_shows_them_in_a_cell(model, folder, texts):
    """An index that was loaded is searched, too."""
    queries, options = ["the cat", "dog"], {"top_k": 2, "threshold": -1}
    found = search(queries, folder, **options)
    assert [each.query for each in found] == queries
    for each in found:
        assert_same(each.results, by_hand(model, each.query, 2))
        assert each.best_score == each.results[0].score
    assert found == search(queries, SentenceIndex.load(folder, model), **options)
    assert found[0].results[0].sentence in repr(found)
    near = duplicates(texts, model, 0.5)
    assert near and str(near[0]) in repr(near)
    with refuses("leave out model"):
        search(queries, SentenceIndex.load(folder, model), model=model)


# --- kept columns ---


def test_the_command_filters_by_kept_columns_and_returns_them(model, tmp_path, capsys):
    """The sentences of the index have a source and a year."""
    folder = tmp_path / "index"
    index(write_table(tmp_path / "table.jsonl"), folder, model=model, column="text", keep=["source", "year"])

    def found(*words):
        assert status("search", "--index", str(folder), *words, "--json") == 0
        return json.loads(capsys.readouterr().out)

    document = found(SENTENCES[7], *"--top_k 4 --filter source=s1 --filter year=2001".split())
    assert list(document) == ["query", "results", "best_score"]
    results = document["results"]
    assert len(results) == 4 and results[0]["row"] == 7 and results[0]["sentence"] == SENTENCES[7]
    assert document["best_score"] == results[0]["score"]
    assert all(match["columns"] == {"source": "s1", "year": "2001"} for match in results)
    missing_cell = found("the cat", "--filter", "year=")
    assert [match["row"] for match in missing_cell["results"]] == [4]
    nothing = found("the cat", "--filter", "source=none")
    assert nothing["results"] == [] and nothing["best_score"] is None


# --- queries of standard input ---


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream, is_told", [(io.StringIO, False), (Terminal, True)])
def test_queries_are_the_lines_of_standard_input_and_a_person_is_told_what_to_type(
    stream, is_told, folder, model, monkeypatch, capsys
):
    monkeypatch.setattr("sys.stdin", stream("the cat\n\n"))
    assert status(*f"search --index {folder} --top_k 1 --quiet".split()) == 0
    printed = capsys.readouterr()
    sentence, score = by_hand(model, "the cat", 1)[0]
    assert printed.out == f"the cat\n  {score:.4f}  {sentence}\n\n"
    assert ("Type a text and press Enter" in printed.err) is is_told


def test_lines_of_standard_input_are_read_as_those_of_a_file(folder, monkeypatch, capsys):
    """Without a byte-order mark and a carriage return; with a byte that is no text or a NUL, the line is named."""
    content = b"\xef\xbb\xbfthe cat\r\na dog\n\xff\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="\n"))
    assert status(*f"search --index {folder} --json".split()) == 2
    printed = capsys.readouterr()
    assert [json.loads(line)["query"] for line in printed.out.splitlines()] == ["the cat", "a dog"]
    assert "standard input, line 3: byte 0xff" in printed.err
    monkeypatch.setattr("sys.stdin", io.StringIO("a\0cat\n"))
    assert status(*f"search --index {folder}".split()) == 2
    assert "line 1: a NUL" in capsys.readouterr().err


def test_escape_sequences_of_a_sentence_reach_a_program_and_not_the_terminal(model, tmp_path):
    sentence = "a cat \x1b[31msat\x07 on the mat"
    SentenceIndex.build(model, [sentence, "dog"]).save(tmp_path / "index")
    [found] = search("a cat sat on the mat", tmp_path / "index", top_k=1)
    assert "a cat  [31msat  on the mat" in str(found) and "\x1b" not in str(found)
    assert found.to_dict()["results"][0]["sentence"] == sentence


# --- prompts ---


def test_a_prompt_of_queries_stands_before_each_query_and_leaves_the_model_as_it_was(model, folder):
    [found] = search("cat", folder, model=model, prompt="the ")
    assert_same(found.results, by_hand(model, "the cat"))
    assert model.prompts == {"query": "", "document": ""}


def test_a_prompt_of_documents_becomes_the_models_and_that_of_later_searches(model, checkpoint, texts, tmp_path):
    folder = tmp_path / "prompted"
    index(texts, folder, model=model, prompt="the woman : ")
    assert model.prompts["document"] == "the woman : "
    [found] = search(f"the woman : {SENTENCES[7]}", folder, top_k=1)
    assert found.results[0].row == 7 and found.best_score == pytest.approx(1, abs=1e-5)
    with refuses("prompts {'document': 'the woman : '} there"):
        SentenceIndex.load(folder, SimCSE(checkpoint, device="cpu"))


# --- vectors that are there ---


@pytest.fixture
def source(tmp_path):
    """A table of numbers and sentences."""
    lines = [f"{number},{sentence}" for number, sentence in enumerate(SENTENCES)]
    return write(tmp_path / "s.csv", ["n,text", *lines])


def test_an_index_takes_the_vectors_of_its_file(model, source, tmp_path):
    encode(model, source, tmp_path / "vectors", column="text", shard_size=30, format="parquet")
    folder = tmp_path / "index"
    index(source, folder, model=model, vectors=tmp_path / "vectors")
    model.load_index(folder)
    assert_same(model.search("the cat"), by_hand(model, "the cat"))


def test_vectors_of_other_texts_or_columns_and_codes_are_refused(model, source, tmp_path):
    def refused(words, input=source, column=None, **options):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        encode(model, source, folder, **(options if "columns" in options else {"column": "text"} | options))
        with refuses(words):
            index(input, tmp_path / "index", model=model, vectors=folder, column=column)

    header, first, second, *others = source.read_text().splitlines()
    edited = write(tmp_path / "edited.csv", [header, first, *others, second])  # the first text is the same
    refused("another file (s.csv) than input edited.csv", edited)
    refused("column 'text', not 'n'", column="n")
    refused("several columns (text, n)", columns=["text", "n"])
    refused("vectors are uint8 of shape (80, 4)", precision="ubinary")


# --- refusals ---


def test_what_is_not_possible_is_refused(texts, folder, model):
    for call, words in (
        (lambda: index(texts, folder, model=model), "index-add"),
        (lambda: index_add(texts, folder, replace="id"), "no column 'id'"),
        (lambda: index_add(texts, folder, model=model, max_length=4), "leave out max_length"),
        (lambda: index_delete(folder), "rows and filters"),
        # A search is refused before a result is asked for.
        (lambda: search("a", folder, neighbors=[1]), "neighbors"),
        (lambda: search("a", folder, threshold="saved", prompt="q "), "the prompt 'query'"),
        (lambda: search("a", folder, pooler_type="max"), "pooler 'avg' there, 'max' here"),
        (lambda: duplicates(texts, model, 1.1), "threshold"),
    ):
        with refuses(words):
            call()
