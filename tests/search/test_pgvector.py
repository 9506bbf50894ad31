"""The backend pgvector on a real PostgreSQL server: exactness, filters, interruptions, and what errors say."""

import json
import threading

import numpy as np
import pyarrow as pa
import pytest
from test_search_backends import DIM, numpy_search, unit_vectors
from test_search_folder import CountingModel

import simcse_hf.search.pgvector_index as module
from simcse_hf.cli.search import index_main, search_main
from simcse_hf.search import SentenceIndex, postgres
from simcse_hf.search.interface import Selection
from simcse_hf.search.pgvector_index import PgvectorIndex

SENTENCES = [f"sentence number {number}" for number in range(60)]


@pytest.fixture
def options(postgres):
    return {"url": postgres.url, "collection": postgres.name()}


@pytest.fixture
def table(options, tmp_path):
    """A file of sentences with two more columns."""
    path = tmp_path / "table.csv"
    lines = [f"{text},{'even' if n % 2 == 0 else 'odd'},{n % 5}" for n, text in enumerate(SENTENCES)]
    path.write_text("text,parity,rest\n" + "\n".join(lines) + "\n")
    return path


def rows_of(postgres, options):
    return postgres.execute(f'SELECT position, sentence, attributes FROM "{options["collection"]}" ORDER BY position')


# --- searching ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-6), ("float16", 2e-3), ("binary", 2e-3)])
@pytest.mark.parametrize("has_graph", [False, True])
def test_finds_what_numpy_finds(options, precision, tolerance, has_graph, tmp_path):
    vectors, queries = unit_vectors(400), unit_vectors(10, seed=1)
    index = PgvectorIndex(DIM, **options, precision=precision, ef_search=400)
    index.add(vectors[:150])
    index.add(vectors[150:])
    if has_graph:
        index.save(tmp_path)
    scores, positions = index.search(queries, 7)
    expected_scores, expected = numpy_search(vectors, queries, 7)
    np.testing.assert_allclose(scores, expected_scores, atol=tolerance)
    assert np.mean(positions == expected) > 0.9 if tolerance > 1e-6 else (positions == expected).all()
    assert list(tmp_path.iterdir()) == []
    index.close()


def test_the_graph_is_used(options, postgres, tmp_path):
    index = PgvectorIndex(DIM, **options, precision="binary")
    index.add(unit_vectors(2000))
    index.save(tmp_path)
    statement, values = index._search_statement(unit_vectors(1)[0], 5, None)
    from psycopg.sql import SQL

    plan = index._server.with_retries(lambda c: c.execute(SQL("EXPLAIN ") + statement, values).fetchall())
    assert f"{options['collection']}_graph" in str(plan)
    index.close()


@pytest.mark.parametrize("precision", ["float32", "binary"])
def test_a_filter_that_few_sentences_pass_still_finds_all_of_them(options, precision, tmp_path):
    """The graph alone would look at `ef_search` neighbours and find none of the three."""
    vectors, query = unit_vectors(1000), unit_vectors(1, seed=1)
    last = np.argsort(vectors @ query[0])[:3]
    rare = np.zeros(1000, dtype=bool)
    rare[last] = True
    cells = pa.array(["rare" if chosen else "common" for chosen in rare], pa.large_string())
    rows = pa.record_batch([cells, cells], names=["sentence", "column:kind"])
    index = PgvectorIndex(DIM, **options, precision=precision, ef_search=10)
    index.add(vectors, rows)
    index.save(tmp_path)
    scores, positions = index.search(query, 3, Selection({"kind": "rare"}, np.sort(last)))
    assert sorted(positions[0]) == sorted(last)
    index.close()


def test_other_programs_can_query_the_table(options, postgres, table):
    SentenceIndex.build(CountingModel(), table, backend="pgvector", keep=["parity", "rest"], **options).close()
    assert rows_of(postgres, options)[3] == (3, SENTENCES[3], {"parity": "odd", "rest": "3"})


# --- interruptions -----------------------------------------------------------------------------------------------


def test_nothing_is_lost_when_the_server_is_killed_and_restarted(options, postgres, table, tmp_path):
    model = CountingModel()
    index = SentenceIndex.build(model, table, backend="pgvector", keep=["parity"], **options)
    index.save(tmp_path / "index")
    before = rows_of(postgres, options)
    expected = index.search(SENTENCES[7], top_k=60)
    postgres.kill()
    postgres.start()
    assert rows_of(postgres, options) == before and len(before) == 60
    # The open index connects again, and so does one that is loaded from its folder.
    assert index.search(SENTENCES[7], top_k=60) == expected
    loaded = SentenceIndex.load(tmp_path / "index", model)
    assert loaded.search(SENTENCES[7], top_k=60) == expected
    for each in (index, loaded):
        each.close()


def test_an_upload_survives_the_server_being_killed_in_the_middle(options, postgres, monkeypatch):
    """The connection is made again, and the batch whose commit was in doubt is stored once."""
    monkeypatch.setattr(module, "_BATCH", 50)
    vectors = unit_vectors(500)
    index = PgvectorIndex(DIM, **options)
    copy, calls = index._copy, []

    def killing(connection, part, records):
        copy(connection, part, records)
        calls.append(len(part))
        if len(calls) == 4:  # after the commit, before this process has counted the batch
            postgres.kill()
            threading.Timer(0.2, postgres.start).start()
            connection.execute("SELECT 1")

    monkeypatch.setattr(index, "_copy", killing)
    index.add(vectors)
    assert len(calls) == 11 and len(index) == 500
    assert [row[0] for row in rows_of(postgres, options)] == list(range(500))
    np.testing.assert_array_equal(index.search(vectors[:20], 1)[1][:, 0], np.arange(20))
    index.close()


def test_an_interrupted_build_is_resumed_without_encoding_again(options, postgres, table, monkeypatch):
    import simcse_hf.search.sentences as sentences

    monkeypatch.setattr(sentences, "_WINDOW", 16)
    build = {"backend": "pgvector", "keep": ["parity"], **options}
    encoded = []

    class Model(CountingModel):
        def encode(self, texts, **settings):
            encoded.extend(texts)
            if len(encoded) > 40 and not self.lasts:
                raise KeyboardInterrupt
            return super().encode(texts, **settings)

    model = Model()
    model.lasts = False
    with pytest.raises(KeyboardInterrupt):
        SentenceIndex.build(model, table, **build)
    assert len(rows_of(postgres, options)) == 32
    model.lasts = True
    with pytest.raises(ValueError, match="already: continue an interrupted build with"):
        SentenceIndex.build(model, table, **build)
    encoded.clear()
    for resumed in (True, True):  # the second one finds everything stored
        index = SentenceIndex.build(model, table, resume=resumed, **build)
        assert len(index) == 60 and index[59] == SENTENCES[59]
        index.close()
    assert [row[:2] for row in rows_of(postgres, options)] == list(enumerate(SENTENCES))
    assert len(encoded) == 28 + 2  # those that were missing, and the probe of each build


def test_a_build_of_other_sentences_is_not_resumed(options, table):
    SentenceIndex.build(CountingModel(), SENTENCES[:20], backend="pgvector", **options).close()
    for others, message in (
        ([*SENTENCES[:10], "another", *SENTENCES[11:30]], "row 10 of table .* and the input has .'another'"),
        (SENTENCES[:12], "has stored 20 embeddings, and there are 12 sentences"),
    ):
        with pytest.raises(ValueError, match=message):
            SentenceIndex.build(CountingModel(), others, backend="pgvector", resume=True, **options)
    with pytest.raises(ValueError, match="row 0 of table"):
        SentenceIndex.build(CountingModel(), table, keep=["parity"], backend="pgvector", resume=True, **options)
    with pytest.raises(ValueError, match=r"are vector\(8\) and not halfvec\(8\)"):
        SentenceIndex.build(
            CountingModel(), SENTENCES, backend="pgvector", resume=True, precision="float16", **options
        )
    with pytest.raises(ValueError, match="'exact' has no option resume"):
        SentenceIndex.build(CountingModel(), SENTENCES, resume=True)


def test_an_addition_that_was_never_saved_is_ignored_and_then_replaced(options, postgres, tmp_path):
    model, folder = CountingModel(), tmp_path / "index"
    index = SentenceIndex.build(model, SENTENCES[:20], backend="pgvector", **options)
    index.save(folder)
    index.add(SENTENCES[40:])  # the process ends before it saves
    index.close()
    loaded = SentenceIndex.load(folder, model)
    assert len(loaded) == 20
    assert {text for text, _ in loaded.search(SENTENCES[50], top_k=60)} == set(SENTENCES[:20])
    loaded.add(SENTENCES[20:30])
    loaded.save(folder)
    loaded.close()
    assert [row[1] for row in rows_of(postgres, options)] == SENTENCES[:30]


def test_two_processes_do_not_write_to_one_table(options):
    first = PgvectorIndex(DIM, **options)
    first.add(unit_vectors(5))
    second = PgvectorIndex(DIM, **options, resume=True)
    with pytest.raises(ValueError, match="another process is writing to this table. Run the command again"):
        second.add(unit_vectors(5))
    first.close()
    second.add(unit_vectors(5))
    assert len(second) == 10
    second.close()


# --- servers and errors --------------------------------------------------------------------------------------------


def test_a_password_is_neither_saved_nor_shown(options, postgres, tmp_path):
    url = postgres.url.replace("postgres@", "postgres:hunter22@")
    index = SentenceIndex.build(CountingModel(), SENTENCES, backend="pgvector", **options | {"url": url})
    index.save(tmp_path / "index")
    index.close()
    saved = (tmp_path / "index" / "index.json").read_text()
    assert "hunter22" not in saved and json.loads(saved)["options"]["url"] == postgres.url
    with pytest.raises(ValueError) as error:
        PgvectorIndex(DIM, url="postgresql://me:hunter22@127.0.0.1:9/base")
    assert "hunter22" not in str(error.value) and "me@127.0.0.1:9/base: cannot connect" in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/base?password=x",
        "postgresql://host/base?hostaddr=10.0.0.1",
        "postgresql://host/base?service=other",
        "postgresql://one,two/base",
        "postgresql://host/base?host=/tmp",
        "postgresql:///base",
        "postgresql:///base?host=evil.example",
        "postgresql://host",
        "mysql://host/base",
    ],
)
def test_urls_that_hide_their_server_or_hold_a_secret_are_refused(url):
    pytest.importorskip("psycopg", reason="the extra `pgvector` is not installed")
    with pytest.raises(ValueError, match="is not the URL of a"):
        PgvectorIndex(DIM, url=url)


def test_a_server_elsewhere_that_only_the_folder_names_is_not_connected_to(options, tmp_path, monkeypatch):
    folder = tmp_path / "index"
    SentenceIndex.build(CountingModel(), SENTENCES, backend="pgvector", **options).save(folder)
    described = json.loads((folder / "index.json").read_text())
    monkeypatch.delenv("PGPASSWORD", raising=False)
    SentenceIndex.load(folder, CountingModel()).close()
    monkeypatch.setenv("PGPASSWORD", "secret")
    with pytest.raises(ValueError, match="the password in PGPASSWORD. If you trust it, name it yourself: --url"):
        SentenceIndex.load(folder, CountingModel())
    monkeypatch.delenv("PGPASSWORD")
    described["options"]["url"] = "postgresql://evil.example/base"
    (folder / "index.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="names the PostgreSQL server postgresql://evil.example/base"):
        SentenceIndex.load(folder, CountingModel())


def test_a_password_is_not_sent_in_clear_to_another_machine():
    pytest.importorskip("psycopg", reason="the extra `pgvector` is not installed")
    for url, clear in (
        ("postgresql://db.example/base", False),
        ("postgresql://db.example/base?sslmode=require", True),
        ("postgresql://localhost/base", True),
    ):
        assert ("require_auth" not in postgres.PostgresServer(url)._settings) == clear


def test_a_user_without_rights_is_told_what_to_ask_for(options, postgres):
    postgres.execute("CREATE EXTENSION IF NOT EXISTS vector")
    postgres.execute("CREATE ROLE reader LOGIN")
    try:
        with pytest.raises(
            ValueError, match="refused this user a request .*permission denied for schema public.*GRANT"
        ):
            PgvectorIndex(DIM, **options | {"url": postgres.url.replace("postgres@", "reader@")})
    finally:
        postgres.execute("DROP ROLE reader")


def test_a_server_without_pgvector_is_named(options, monkeypatch):
    """The statement names an extension that this server does not have, as `vector` on a server without it."""
    install = postgres.PostgresServer._prepare

    def prepare(self, connection):
        connection.execute("CREATE EXTENSION IF NOT EXISTS no_such_vector")
        install(self, connection)

    monkeypatch.setattr(postgres.PostgresServer, "_prepare", prepare)
    with pytest.raises(ValueError, match="does not have the extension pgvector .*install it on the server"):
        PgvectorIndex(DIM, **options)


@pytest.mark.parametrize(
    "dim, settings, message",
    [
        (3072, {}, "size 3072 are too large .*precision float16 or binary"),
        (8, {"precision": "int8"}, "precision must be one of float32, float16, binary for pgvector"),
        (8, {"collection": "x" * 41}, "table name of 1 to 40 bytes"),
        (8, {"ef_search": 1001}, "ef_search must be between 1 and 1000"),
        (8, {"neighbors": 50}, "ef_construction must be at least twice neighbors"),
        (8, {"url": None}, "needs the URL of its server: --url"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_sent(dim, settings, message):
    pytest.importorskip("psycopg", reason="the extra `pgvector` is not installed")
    with pytest.raises(ValueError, match=message):
        PgvectorIndex(dim, **{"url": "postgresql://127.0.0.1:9/base"} | settings)


def test_a_server_that_stays_away_is_named_and_the_stored_rows_are_kept(options, postgres, monkeypatch):
    monkeypatch.setattr("simcse_hf.search.postgres._PAUSES", (0.01, 0.01))
    index = PgvectorIndex(DIM, **options)
    index.add(unit_vectors(5))
    postgres.kill()
    try:
        with pytest.raises(ValueError, match="connection was lost and could not be made again .*kept.*--resume"):
            index.add(unit_vectors(5))
    finally:
        postgres.start()
    assert len(PgvectorIndex(DIM, **options, resume=True)) == 5


def test_a_text_that_postgresql_cannot_store_is_named(options):
    with pytest.raises(ValueError, match="sentence 1 of the index .* NUL character"):
        SentenceIndex.build(CountingModel(), ["fine", "not\0fine"], backend="pgvector", **options)


def test_rows_that_were_deleted_on_the_server_are_noticed(options, postgres, tmp_path):
    SentenceIndex.build(CountingModel(), SENTENCES, backend="pgvector", **options).save(tmp_path / "index")
    postgres.execute(f'DELETE FROM "{options["collection"]}" WHERE position = 5')
    with pytest.raises(ValueError, match="holds 59 of the embeddings 0 to 59"):
        SentenceIndex.load(tmp_path / "index", CountingModel())
    postgres.execute(f'DROP TABLE "{options["collection"]}"')
    with pytest.raises(ValueError, match="has no table"):
        SentenceIndex.load(tmp_path / "index", CountingModel())


def test_the_commands_build_resume_add_to_and_search_a_table(options, postgres, table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("simcse_hf.cli.search.load_encoder", lambda *_, **__: CountingModel())
    folder = str(tmp_path / "index")
    words = ["--input", str(table), "--column", "text", "--output", folder, "--quiet"]
    build = [*words, "--model", "m", "--backend", "pgvector", "--precision", "float16", "--keep", "parity"]
    build += ["--url", options["url"], "--collection", options["collection"]]
    assert index_main(build) == 0
    with pytest.raises(ValueError, match="--resume"):
        index_main([*build, "--overwrite"])
    assert index_main([*build, "--overwrite", "--resume"]) == 0
    assert index_main([*words, "--add"]) == 0
    assert len(rows_of(postgres, options)) == 120
    capsys.readouterr()
    assert search_main(["--index", folder, SENTENCES[7], "--filter", "parity=odd", "--top_k", "4", "--json"]) == 0
    found = [result["sentence"] for result in json.loads(capsys.readouterr().out)["results"]]
    assert found[:2] == [SENTENCES[7]] * 2 and all(int(text.split()[-1]) % 2 for text in found)
