"""The examples for PostgreSQL and Qdrant: they fill a database from shards, and find what exact search finds."""

import runpy
from pathlib import Path

import pytest
from cli_helpers import save_model
from evaluation_helpers import write
from retrieval_helpers import SENTENCES

from simcse_hf import SentenceIndex, SimCSE, encode

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    """A folder with a model, a file of texts with their sources, and shards of its vectors."""
    base = tmp_path_factory.mktemp("databases")
    model = SimCSE(save_model(base / "model", tokenizer), device="cpu")
    lines = ["text,source", *(f"{text},{'news' if n % 3 else 'web'}" for n, text in enumerate(SENTENCES))]
    write(base / "docs.csv", lines)
    write(base / "other.csv", lines[:1] + lines[2:])
    encode(model, base / "docs.csv", base / "vectors", shard_size=30, column="text")
    return base


def check(example, client, base):
    """Fill a database, and compare its answers with those of exact search among the same texts."""
    model = SimCSE(base / "model", device="cpu")
    with pytest.raises(SystemExit, match="made from another file than"):
        example["fill"](client, base / "vectors", base / "other.csv", ["source"])
    example["fill"](client, base / "vectors", base / "docs.csv", ["source"])
    index = SentenceIndex.build(model, base / "docs.csv", column="text", keep=["source"])
    for query, columns in (
        ("the cat sat", {}),
        ("a red house", {"source": "web"}),
        ("dog", {"source": "none"}),
    ):
        found = example["find"](client, model, query, columns, 7)
        expected = index.search(query, top_k=7, filters=columns)
        rows = [(match.row + 2, match.sentence, match.columns) for match in expected]  # the first line is the header
        assert [(row, text, kept) for row, text, kept, _ in found] == rows
        scores = [match.score for match in expected]
        assert [score for *_, score in found] == pytest.approx(scores, abs=1e-5)


def test_postgresql_finds_what_exact_search_finds(postgres, base):
    import psycopg
    from pgvector.psycopg import register_vector

    example = runpy.run_path(str(EXAMPLES / "search_pgvector.py"))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        check(example, connection, base)


def test_qdrant_finds_what_exact_search_finds(base):
    qdrant_client = pytest.importorskip("qdrant_client")
    example = runpy.run_path(str(EXAMPLES / "search_qdrant.py"))
    client = qdrant_client.QdrantClient(":memory:")
    check(example, client, base)
    client.close()
