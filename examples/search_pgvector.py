r"""Search the shards that `simcse-hf encode` wrote in PostgreSQL, with other columns of the file as a filter.

pip install 'psycopg[binary]' pgvector       # and a server with pgvector 0.8 or later
simcse-hf encode --model MODEL --input docs.csv --column text --prompt_name document --output vectors
python examples/search_pgvector.py postgresql://me@db.example/search fill vectors docs.csv --keep source year
python examples/search_pgvector.py postgresql://me@db.example/search find MODEL "A query" --filter source=news
"""

import argparse
from itertools import islice

import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector
from psycopg.types.json import Jsonb

from simcse_hf import SimCSE
from simcse_hf.data.table import stream_texts
from simcse_hf.encoding.files import read_manifest, read_shards
from simcse_hf.runtime.files import digest

COPY = "COPY sentences (row, text, columns, vector) FROM STDIN WITH (FORMAT BINARY)"
# Cosine distance; with a filter, the walk over the graph goes on until enough rows pass it.
FIND = """SELECT row, text, columns, 1 - (vector <=> %(query)s) FROM sentences WHERE columns @> %(filter)s
          ORDER BY vector <=> %(query)s LIMIT %(top_k)s"""


def fill(connection: psycopg.Connection, folder: str, source: str, keep: list[str]) -> None:
    """Copy texts, columns and vectors into a new table, all or none, and build a graph over the vectors."""
    manifest = read_manifest(folder)
    if manifest["input"]["blake2b"] != digest(source):
        raise SystemExit(f"{folder} was made from another file than {source}: encode it again.")
    rows = stream_texts(source, manifest["settings"]["column"], keep)
    with connection.transaction(), connection.cursor() as cursor:
        for number, shard in enumerate(read_shards(folder)):
            if number == 0:
                cursor.execute(
                    "CREATE TABLE sentences (row bigint PRIMARY KEY, text text, columns jsonb, "
                    f"vector vector({shard.shape[1]}))"
                )
            with cursor.copy(COPY) as copy:
                copy.set_types(["int8", "text", "jsonb", "vector"])
                for vector, (row, text, *cells) in zip(shard, islice(rows, len(shard)), strict=True):
                    if text.strip():
                        copy.write_row([row, text, Jsonb(dict(zip(keep, cells, strict=True))), Vector(vector)])
        cursor.execute("CREATE INDEX ON sentences USING hnsw (vector vector_cosine_ops)")
        cursor.execute("CREATE INDEX ON sentences USING gin (columns)")


def find(connection: psycopg.Connection, model: SimCSE, query: str, columns: dict[str, str], top_k: int = 5) -> list:
    """Return rows, texts, columns and cosines of the nearest texts whose columns hold these values."""
    connection.execute("SET hnsw.iterative_scan = strict_order")
    values = {"query": Vector(model.encode_query(query, convert_to_numpy=True)), "filter": Jsonb(columns)}
    return connection.execute(FIND, values | {"top_k": top_k}).fetchall()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the database; its password comes from PGPASSWORD or ~/.pgpass")
    parser.add_argument("action", choices=("fill", "find"))
    parser.add_argument("names", nargs=2, help="fill: folder of the shards, and file; find: model, and query")
    parser.add_argument("--keep", nargs="*", default=[], help="fill: columns of the file to store")
    parser.add_argument("--filter", nargs="*", default=[], metavar="COLUMN=VALUE", help="find: values of columns")
    arguments = parser.parse_args()
    with psycopg.connect(arguments.url, autocommit=True) as database:
        database.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(database)
        if arguments.action == "fill":
            fill(database, *arguments.names, arguments.keep)
        else:
            conditions = dict(condition.split("=", 1) for condition in arguments.filter)
            for result in find(database, SimCSE(arguments.names[0]), arguments.names[1], conditions):
                print(*result, sep="\t")
