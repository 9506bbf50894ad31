"""Filters: every backend looks only among the sentences whose kept columns hold the given values."""

import json

import numpy as np
import pytest
from test_search_folder import CountingModel

from simcse_hf.cli.search import index_main, search_main
from simcse_hf.search import SentenceIndex

SENTENCES = [f"sentence number {number}" for number in range(90)]
QUERY = "sentence number 7"
LOCAL = ["exact", "flat", "ivf", "hnsw", "ivf_disk", "qdrant"]
LIBRARY = {"flat": "faiss", "ivf": "faiss", "hnsw": "faiss", "ivf_disk": "faiss", "qdrant": "qdrant_client"}
OPTIONS = {"ivf": {"cells": 3, "probes": 3}, "ivf_disk": {"cells": 3, "probes": 3}}


@pytest.fixture
def table(tmp_path):
    """Sentences with a source, and a year that a few rows lack."""
    lines = [
        json.dumps({"text": text, "source": f"s{n % 3}", "year": 2000 + n % 2}) for n, text in enumerate(SENTENCES)
    ]
    lines[4] = json.dumps({"text": SENTENCES[4], "source": "s1", "year": None})
    path = tmp_path / "table.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def build(request, table):
    def create(backend, **settings):
        if backend == "pgvector":
            postgres = request.getfixturevalue("postgres")
            settings |= {"url": postgres.url, "collection": postgres.name()}
        elif backend in LIBRARY:
            pytest.importorskip(LIBRARY[backend], reason=f"the library of {backend} is not installed")
        settings = OPTIONS.get(backend, {}) | settings
        return SentenceIndex.build(
            CountingModel(), table, column="text", keep=["source", "year"], backend=backend, **settings
        )

    return create


def expected(numbers, top_k):
    model = CountingModel()
    scores = model.encode(SENTENCES).astype(np.float64) @ model.encode(QUERY)
    best = sorted(numbers, key=lambda number: -scores[number])[:top_k]
    return [SENTENCES[number] for number in best]


@pytest.mark.parametrize("backend", [*LOCAL, "pgvector"])
def test_a_filter_leaves_exactly_the_sentences_with_its_values(backend, build, tmp_path):
    index = build(backend)
    index.save(tmp_path / "index")
    loaded = SentenceIndex.load(tmp_path / "index", CountingModel())
    cases = [
        ({"source": "s2"}, [n for n in range(90) if n % 3 == 2]),
        ({"source": "s1", "year": "2001"}, [n for n in range(90) if n % 3 == 1 and n % 2]),
        ({"year": ""}, [4]),
    ]
    for each in (index, loaded):
        for filters, numbers in cases:
            for top_k in (3, 90):
                found = [text for text, _ in each.search(QUERY, top_k=top_k, filters=filters)]
                if backend == "ivf_disk":  # whose codes may rank close neighbours in another order
                    assert len(found) == min(top_k, len(numbers)) and set(found) <= set(expected(numbers, 90))
                else:
                    assert found == expected(numbers, top_k)
        assert each.search(QUERY, filters={"source": "elsewhere"}) == []
        assert each.search([QUERY, QUERY], filters={"source": "elsewhere"}) == [[], []]
        each.close()


def test_exact_search_with_a_filter_holds_over_many_chunks_and_parts(build, monkeypatch):
    import simcse_hf.search.exact as exact

    monkeypatch.setattr(exact, "_CHUNK", 8)
    index = build("exact")
    numbers = [n for n in range(90) if n % 3 == 0]
    assert [text for text, _ in index.search(QUERY, top_k=30, filters={"source": "s0"})] == expected(numbers, 30)


def test_an_index_grows_only_from_files_with_its_kept_columns(build, tmp_path):
    index = build("exact")
    more = tmp_path / "more.csv"
    more.write_text("text,source,year\nsentence number 7,new,1999\n")
    index.add(more)
    assert index.search(QUERY, filters={"year": "1999"})[0][0] == QUERY
    with pytest.raises(ValueError, match="the index keeps the columns source, year"):
        index.add(["a sentence"])
    more.write_text("text,source\nsentence number 7,new\n")
    with pytest.raises(ValueError, match="no column 'year' to keep beside 'text'; the other columns: 'source'"):
        index.add(more)


def test_columns_that_were_not_kept_are_named(build, table):
    with pytest.raises(ValueError, match=r"no column 'color'; the columns kept .*: 'source', 'year'.*--keep"):
        build("exact").search(QUERY, filters={"color": "red"})
    with pytest.raises(ValueError, match="no column 'text' to keep"):
        SentenceIndex.build(CountingModel(), table, column="text", keep=["text"])
    with pytest.raises(ValueError, match="sentences come from a file"):
        SentenceIndex.build(CountingModel(), SENTENCES, keep=["source"])


def test_a_filter_too_broad_for_a_qdrant_query_is_refused(build, monkeypatch):
    import simcse_hf.search.qdrant_index as module

    monkeypatch.setattr(module, "_MOST_SELECTED", 10)
    index = build("qdrant")
    with pytest.raises(ValueError, match="it selects 30 sentences, and a query to Qdrant can name 10.*pgvector"):
        index.search(QUERY, filters={"source": "s2"})


def test_sentences_beyond_the_memory_limit_are_kept_in_a_mapped_file(build, tmp_path, monkeypatch):
    import simcse_hf.search.rows as rows
    import simcse_hf.search.sentences as sentences

    whole = build("exact")
    monkeypatch.setattr(rows, "_MEMORY_BYTES", 500)
    monkeypatch.setattr(sentences, "_WINDOW", 7)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    index = build("exact")
    assert not list(tmp_path.glob("simcse-sentences-*")) and index.rows._in_memory < 4
    index.save(tmp_path / "index")
    for each in (index, SentenceIndex.load(tmp_path / "index", CountingModel())):
        assert [each[n] for n in range(90)] == SENTENCES
        assert each.search(QUERY, filters={"source": "s1"}) == whole.search(QUERY, filters={"source": "s1"})


def test_the_commands_keep_columns_and_filter(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("simcse_hf.cli.search.load_encoder", lambda *_, **__: CountingModel())
    folder = str(tmp_path / "index")
    words = ["--model", "m", "--input", str(table), "--column", "text", "--keep", "source", "year", "--output", folder]
    assert index_main(words) == 0
    capsys.readouterr()
    search = ["--index", folder, QUERY, "--json", "--top_k", "4", "--filter", "source=s1", "--filter", "year=2001"]
    assert search_main(search) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    numbers = [n for n in range(90) if n % 3 == 1 and n % 2]
    assert [result["sentence"] for result in found] == expected(numbers, 4)
    with pytest.raises(SystemExit):
        search_main(["--index", folder, QUERY, "--filter", "source"])
    assert "--filter: 'source' is not of the form COLUMN=VALUE" in capsys.readouterr().err
