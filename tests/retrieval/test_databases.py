"""The examples for PostgreSQL and Qdrant: they fill a database from shards, and find what exact search finds."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny_config
from retrieval_helpers import SENTENCES

from simcse_hf import AutoModelForCL, SentenceIndex, SimCSE
from simcse_hf.encoding.files import encode

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    """A folder with a model, a file of texts with their sources, and shards of its vectors."""
    base = tmp_path_factory.mktemp("databases")
    AutoModelForCL.from_config(tiny_config(), pooler_type="avg").save_pretrained(base / "model")
    tokenizer.save_pretrained(base / "model")
    lines = [
        "text,source",
        *(f"{text},{'news' if n % 3 else 'web'}" for n, text in enumerate(SENTENCES)),
    ]
    (base / "docs.csv").write_text("\n".join(lines))
    (base / "other.csv").write_text("\n".join(lines[:1] + lines[2:]))
    encode(
        SimCSE(base / "model", device="cpu"),
        base / "docs.csv",
        base / "vectors",
        shard_size=30,
        column="text",
    )
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
        assert [(row, text, kept) for row, text, kept, _ in found] == [
            (match.row + 2, match.sentence, match.columns)
            for match in expected  # the first line is the header
        ]
        np.testing.assert_allclose(
            [score for *_, score in found],
            [match.score for match in expected],
            atol=1e-5,
        )


def test_postgresql_finds_what_exact_search_finds(postgres, base):
    import psycopg
    from pgvector.psycopg import register_vector

    example = runpy.run_path(str(EXAMPLES / "search_pgvector.py"))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        check(example, connection, base)


def test_qdrant_finds_what_exact_search_finds(base):
    qdrant_client = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    example = runpy.run_path(str(EXAMPLES / "search_qdrant.py"))
    client = qdrant_client.QdrantClient(":memory:")
    check(example, client, base)
    client.close()
