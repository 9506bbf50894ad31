"""An index of sentences: what a search returns, which models and vectors are refused, and the commands."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_helpers import status
from search_helpers import EVERY_BACKEND, SENTENCES, CountingModel

from simcse_hf.cli.search import index_main, search_main
from simcse_hf.inference.encode import encode
from simcse_hf.search import Match, SentenceIndex, describe


@pytest.fixture
def table(tmp_path):
    """The sentences with a source, and a year that one row lacks."""
    rows = [{"text": text, "source": f"s{n % 3}", "year": 2000 + n % 2} for n, text in enumerate(SENTENCES)]
    rows[4]["year"] = None
    path = tmp_path / "table.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def by_hand(model, query, top_k=5, threshold=-2, rows=range(80)):
    scores = np.asarray(model.encode(SENTENCES), dtype=float) @ np.asarray(model.encode(query), dtype=float)
    order = sorted(rows, key=lambda i: -scores[i])
    return [(SENTENCES[i], scores[i]) for i in order if scores[i] >= threshold][:top_k]


def assert_same(results, expected):
    assert [sentence for sentence, _ in results] == [sentence for sentence, _ in expected]
    np.testing.assert_allclose([score for _, score in results], [score for _, score in expected], atol=1e-5)


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
    monkeypatch.setattr("simcse_hf.search.sentences._WINDOW", 9)  # several windows
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
    monkeypatch.setattr(model, "backend", "onnx")
    assert len(SentenceIndex.build(model, SENTENCES, vectors=[vectors])) == 80
    with pytest.raises(ValueError, match="not this model's for these sentences"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors[::-1]])


def test_the_commands_index_add_to_and_search_a_folder(model, checkpoint, tmp_path, capsys, monkeypatch):
    first, second = tmp_path / "a.txt", tmp_path / "b.csv"
    first.write_text("\n".join(SENTENCES[:50]))
    second.write_text("said,n\n" + "".join(f"{sentence},1\n" for sentence in SENTENCES[50:]))
    folder = str(tmp_path / "index")
    monkeypatch.chdir(checkpoint.parent)
    assert index_main(["--model", checkpoint.name, "--input", str(first), "--output", folder]) == 0
    assert describe(folder)["model"] == str(checkpoint), "an absolute path, for searches from any folder"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--add keeps the index as it was made"):
        index_main(["--add", "--backend", "hnsw", "--input", str(second), "--output", folder])
    assert index_main(["--add", "--input", str(second), "--column", "said", "--output", folder]) == 0
    assert "80 sentences" in capsys.readouterr().out
    assert search_main(["--index", folder, "--top_k", "2", "--threshold", "-1", "--json", "the cat", "dog"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["query"] for line in lines] == ["the cat", "dog"]
    for line in lines:
        results = [(result["sentence"], result["score"]) for result in line["results"]]
        assert_same(results, by_hand(model, line["query"], 2))
        assert all(SENTENCES[result["row"]] == result["sentence"] for result in line["results"])
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n\n"))
    assert search_main(["--index", folder, "--top_k", "1"]) == 0
    best, score = by_hand(model, "the cat", 1)[0]
    assert capsys.readouterr().out == f"the cat\n  {score:.4f}  {best}\n\n"


def test_the_commands_keep_columns_and_filter(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("simcse_hf.cli.search.load_encoder", lambda *_, **__: CountingModel())
    folder = str(tmp_path / "index")
    words = ["--model", "m", "--input", str(table), "--column", "text", "--keep", "source", "year", "--output", folder]
    assert index_main(words) == 0
    capsys.readouterr()
    search = ["--index", folder, SENTENCES[7], "--top_k", "4", "--filter", "source=s1", "--filter"]
    assert search_main([*search, "year=2001", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    expected = by_hand(CountingModel(), SENTENCES[7], 4, rows=[n for n in range(80) if n % 3 == 1 and n % 2])
    assert_same([(each["sentence"], each["score"]) for each in found], expected)
    assert found[0]["row"] == 7 and all(each["columns"] == {"source": "s1", "year": "2001"} for each in found)
    for condition, message in (("year", "'year' is not of the form COLUMN=VALUE"), ("source=s2", "a column twice")):
        assert status("search", *search, condition) == 2
        assert message in capsys.readouterr().err


def test_the_index_command_takes_shards_of_the_same_file_and_column_only(model, checkpoint, tmp_path):
    source, edited = tmp_path / "s.csv", tmp_path / "edited.csv"
    lines = ["n,text", *(f"{number},{sentence}" for number, sentence in enumerate(SENTENCES))]
    source.write_text("\n".join(lines))
    edited.write_text("\n".join([lines[0], lines[1], *lines[3:], lines[2]]))  # the first text is the same
    encode(model, source, tmp_path / "vectors", shard_size=30, format="parquet", column="text")
    encode(model, source, tmp_path / "several", columns=["text", "n"])
    encode(model, source, tmp_path / "codes", precision="ubinary", column="text")
    common = ["--model", str(checkpoint), "--output", str(tmp_path / "index"), "--overwrite"]
    assert index_main([*common, "--input", str(source), "--vectors", str(tmp_path / "vectors")]) == 0
    model.load_index(tmp_path / "index")
    assert_same(model.search("the cat"), by_hand(model, "the cat"))
    for path, folder, words, message in (
        (edited, "vectors", [], r"vectors holds the vectors of another file \(s\.csv\) than --input .*edited\.csv"),
        (source, "vectors", ["--column", "n"], "the vectors of column 'text', not 'n'"),
        (source, "several", [], r"several holds the vectors of several columns \(text, n\)"),
        (source, "codes", [], "codes holds ubinary codes; an index is made of float32 vectors"),
    ):
        with pytest.raises(ValueError, match=message):
            index_main([*common, "--input", str(path), "--vectors", str(tmp_path / folder), *words])


def test_escape_sequences_of_a_sentence_do_not_reach_the_terminal(model, tmp_path, capsys):
    sentence = "a cat \x1b[31msat\x07 on the mat"
    SentenceIndex.build(model, [sentence, "dog"]).save(tmp_path / "index")
    words = ["a cat sat on the mat", "--index", str(tmp_path / "index"), "--device", "cpu", "--top_k", "1"]
    assert search_main(words) == 0
    shown = capsys.readouterr().out
    assert "a cat  [31msat  on the mat" in shown and "\x1b" not in shown
    assert search_main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["sentence"] == sentence
