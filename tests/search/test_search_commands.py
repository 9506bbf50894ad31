"""The functions and commands `index` and `search`: from a file of texts to what is found and printed."""

import io
import json

import numpy as np
import pytest
from cli_helpers import status
from search_helpers import SENTENCES, assert_same, by_hand, write_table

from simcse_hf import SimCSE, duplicates, encode, index
from simcse_hf.search import SentenceIndex, describe, search


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(SENTENCES))
    return str(path)


def test_an_index_is_built_added_to_and_searched_by_name(model, checkpoint, tmp_path, monkeypatch):
    first, second = tmp_path / "a.txt", tmp_path / "b.csv"
    first.write_text("\n".join(SENTENCES[:50]))
    second.write_text("said,n\n" + "".join(f"{sentence},1\n" for sentence in SENTENCES[50:]))
    folder = str(tmp_path / "index")
    monkeypatch.chdir(checkpoint.parent)
    built = index(str(first), folder, model=checkpoint.name)
    assert (built.sentences, built.backend, str(built)) == (50, "exact", f"50 sentences in the index {folder}")
    assert describe(folder).model.name_or_path == str(checkpoint), "an absolute path, for searches from any folder"
    monkeypatch.chdir(tmp_path)
    assert index(str(second), folder, add=True, column="said").sentences == 80
    found = list(search(["the cat", "dog"], folder, top_k=2, threshold=-1))
    assert [each.query for each in found] == ["the cat", "dog"]
    for each in found:
        assert_same(each.results, by_hand(model, each.query, 2))
        assert each.best_score == each.results[0].score
    [single] = search("the cat", folder, model=model)
    assert_same(single.results, by_hand(model, "the cat"))


@pytest.mark.parametrize("words", ["--add {more}", "--input {more} --add", "--add --input {more}"])
def test_a_file_is_added_in_every_order_of_the_words(words, model, checkpoint, tmp_path, capsys):
    folder, more = tmp_path / "index", tmp_path / "more.txt"
    SentenceIndex.build(model, SENTENCES).save(folder)
    more.write_text("one more\nand another\n")
    assert status("index", "--output", str(folder), *words.format(more=more).split(), "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 82
    assert index(output=folder, add=more).sentences == 84
    with pytest.raises(ValueError, match="input and add both name a file: name it once"):
        index(more, folder, add=more)


def test_kept_columns_are_returned_and_filtered_by(model, checkpoint, tmp_path, capsys):
    folder = str(tmp_path / "index")
    table = str(write_table(tmp_path / "table.jsonl"))
    index(table, folder, model=checkpoint, column="text", keep=["source", "year"])
    words = ["--index", folder, SENTENCES[7], "--top_k", "4", "--filter", "source=s1", "--filter"]
    assert status("search", *words, "year=2001", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    found = document["results"]
    expected = by_hand(model, SENTENCES[7], 4, rows=[n for n in range(80) if n % 3 == 1 and n % 2])
    assert_same([(each["sentence"], each["score"]) for each in found], expected)
    assert found[0]["row"] == 7 and all(each["columns"] == {"source": "s1", "year": "2001"} for each in found)
    assert list(document) == ["query", "results", "best_score"] and document["best_score"] == found[0]["score"]
    [empty] = search("the cat", folder, filters={"year": ""})
    assert [match.row for match in empty.results] == [4]
    assert next(search("the cat", folder, filters={"source": "none"})).best_score is None
    assert status("search", "--index", folder, "the cat", "--filter", "year=", "--json") == 0
    assert [each["row"] for each in json.loads(capsys.readouterr().out)["results"]] == [4]
    for condition, message in (("year", "must be KEY=VALUE, got 'year'"), ("source=s2", "names source twice")):
        assert status("search", *words, condition) == 2
        assert message in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_queries_are_the_lines_of_standard_input_and_a_person_sees_a_prompt(
    model, texts, checkpoint, tmp_path, capsys, monkeypatch
):
    folder = str(tmp_path / "index")
    index(texts, folder, model=checkpoint)
    best, score = by_hand(model, "the cat", 1)[0]
    for stream, prompts in ((io.StringIO, ""), (Terminal, "search> " * 3)):
        monkeypatch.setattr("sys.stdin", stream("the cat\n\n"))
        assert status("search", "--index", folder, "--top_k", "1", "--quiet") == 0
        printed = capsys.readouterr()
        assert printed.out == f"the cat\n  {score:.4f}  {best}\n\n"
        assert printed.err.endswith(prompts) and ("search>" in printed.err) == bool(prompts)
        assert ("Type a text and press Enter" in printed.err) == bool(prompts)


def test_escape_sequences_of_a_sentence_do_not_reach_the_terminal(model, tmp_path, capsys):
    sentence = "a cat \x1b[31msat\x07 on the mat"
    SentenceIndex.build(model, [sentence, "dog"]).save(tmp_path / "index")
    [found] = search("a cat sat on the mat", str(tmp_path / "index"), top_k=1)
    assert "a cat  [31msat  on the mat" in str(found) and "\x1b" not in str(found)
    assert found.to_dict()["results"][0]["sentence"] == sentence


def test_a_prompt_of_queries_leaves_the_model_as_it_was(model, texts, tmp_path):
    folder = str(tmp_path / "index")
    index(texts, folder, model=model)
    [found] = search("cat", folder, model=model, prompt="the ")
    assert_same(found.results, by_hand(model, "the cat"))
    assert model.prompts == {"query": "", "document": ""}


def test_a_prompt_of_documents_is_that_of_later_searches(model, checkpoint, texts, tmp_path):
    folder = str(tmp_path / "index")
    index(texts, folder, model=model, prompt="the woman : ")
    assert model.prompts["document"] == "the woman : "
    [found] = search("cat", folder, top_k=80)
    documents = model.encode([f"the woman : {text}" for text in SENTENCES]).double()
    expected = (documents @ model.encode("cat").double()).numpy()
    np.testing.assert_allclose([match.score for match in found.results], np.sort(expected)[::-1], atol=1e-5)
    with pytest.raises(ValueError, match=r"prompts \{'document': 'the woman : '\} there"):
        SentenceIndex.load(folder, SimCSE(checkpoint, device="cpu"))


def test_vectors_are_taken_if_they_are_of_the_same_file_and_column(model, checkpoint, tmp_path):
    source, edited = tmp_path / "s.csv", tmp_path / "edited.csv"
    lines = ["n,text", *(f"{number},{sentence}" for number, sentence in enumerate(SENTENCES))]
    source.write_text("\n".join(lines))
    edited.write_text("\n".join([lines[0], lines[1], *lines[3:], lines[2]]))  # the first text is the same
    encode(model, source, tmp_path / "vectors", shard_size=30, format="parquet", column="text")
    encode(model, source, tmp_path / "several", columns=["text", "n"])
    encode(model, source, tmp_path / "codes", precision="ubinary", column="text")
    folder = str(tmp_path / "index")
    index(str(source), folder, model=checkpoint, vectors=str(tmp_path / "vectors"))
    model.load_index(folder)
    assert_same(model.search("the cat"), by_hand(model, "the cat"))
    for path, vectors, column, message in (
        (edited, "vectors", None, r"vectors holds the vectors of another file \(s\.csv\) than input .*edited\.csv"),
        (source, "vectors", "n", "the vectors of column 'text', not 'n'"),
        (source, "several", None, r"several holds the vectors of several columns \(text, n\)"),
        (source, "codes", None, r"vectors are uint8 of shape \(80, 4\): give embeddings of floats \(no codes\)"),
    ):
        given = {"vectors": str(tmp_path / vectors), "column": column, "overwrite": True}
        with pytest.raises(ValueError, match=message):
            index(str(path), folder, model=checkpoint, **given)


def test_what_index_and_search_refuse(model, texts, tmp_path):
    folder = str(tmp_path / "index")
    index(texts, folder, model=model)
    for call, words in (
        (lambda: index(texts, folder, model=model), "output .*index holds an index: set add to add to it"),
        (
            lambda: index(texts, folder, add=True, backend="hnsw"),
            "add, replace and delete keep the index as it was made",
        ),
        (lambda: index(texts, str(tmp_path / "new")), "model is missing"),
        (lambda: index(output=folder), "input or output is missing"),
        (lambda: index(texts, model=model), "input or output is missing"),
        (lambda: index(output=folder, delete=[1], add=True), "input or output is missing"),
        (lambda: index(output=folder, delete=[1], column="text"), "input or output is missing"),
        (lambda: index(output=folder, delete=[80]), "row must be an integer between 0 and 79, got 80"),
        (lambda: index(output=folder, delete_where={"id": "7"}), r"no column 'id' \(kept: none\)"),
        (lambda: index(texts, folder, replace="id"), r"no column 'id' \(kept: none\)"),
        (lambda: search("a", folder, neighbors=[1]), "neighbors are found without queries"),
        (lambda: search((), folder, neighbors=[1], prompt="a"), "neighbors are found without queries"),
        (lambda: search((), folder, neighbors=[1], top_k=0).__next__(), "top_k must be an integer above 0"),
        (lambda: search((), folder, neighbors=[80]).__next__(), "row must be an integer between 0 and 79, got 80"),
        (lambda: duplicates(texts, model, 1.1), "threshold must be a cosine"),
        (lambda: index(texts, folder, add=True, model=model, max_length=4), "loaded already: leave out max_length"),
        (lambda: search("a", folder, threshold="saved", prompt="query: "), "threshold saved .* the prompt 'query'"),
        (lambda: search("a", folder, prompt="a", prompt_name="query"), "prompt and prompt_name are both given"),
        (lambda: search("a", folder, threshold=2), "threshold must be a cosine"),
        (lambda: search("a", folder, pooler_type="max"), "pooler 'avg' there, 'max' here"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
