"""Search in a table of a PostgreSQL server with the extension pgvector."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .interface import Selection, VectorIndex
from .postgres import PostgresServer

if TYPE_CHECKING:
    from psycopg import Connection

#: The column's type, and the largest embedding that pgvector can put into an HNSW graph.
PRECISIONS = {"float32": ("vector", 2000), "float16": ("halfvec", 4000), "binary": ("halfvec", 16000)}
_BATCH = 10_000  # embeddings of one transaction
_MOST_CANDIDATES = 1000  # pgvector's limit of hnsw.ef_search
_LONGEST_NAME = 40  # leaves room for the names of the table's indexes within PostgreSQL's 63 bytes


class PgvectorIndex(VectorIndex):
    """Search a table by an HNSW graph, with filters by the columns that were kept.

    The table has the columns `position`, `sentence`, `attributes` (a JSON object of the kept columns) and `embedding`,
    so other programs can query it too. Embeddings are stored as they are added, in transactions of 10,000. A build
    that is interrupted is continued with `resume`, and a lost connection is made again. [`PgvectorIndex.save`] builds
    the graph (Malkov and Yashunin, 2016), because building it after the upload is faster; before that, and for
    queries of which the graph finds too few results, the server compares every embedding.

    Args:
        dim (`int`): Embedding size.
        url (`str`, *optional*): URL of the server and database, `postgresql://user@host:port/database`. It is
            required. Its password, or that in `PGPASSWORD` or `~/.pgpass`, is never saved, and to another machine it
            is never sent in clear.
        collection (`str`, *optional*, defaults to `"sentences"`): Name of the table.
        precision (`str`, *optional*, defaults to `"float32"`): `"float32"`; `"float16"`, half of the bytes; or
            `"binary"`, a graph over the signs of the embeddings, whose `ef_search` best are ranked again by the
            embeddings in float16.
        neighbors (`int`, *optional*, defaults to `16`): Edges of an embedding in the graph.
        ef_construction (`int`, *optional*, defaults to `64`): Candidates while the graph is built.
        ef_search (`int`, *optional*, defaults to `100`): Candidates of a search, at most 1,000.
        resume (`bool`, *optional*, defaults to `False`): Continue a table that an interrupted build has left.

    Raises:
        ValueError: If an option is invalid, or the server does not answer, refuses, lacks pgvector 0.8, or has a
            table of this name already.
        ImportError: If psycopg or pgvector's client is not installed.
    """

    def __init__(
        self,
        dim: int,
        url: str | None = None,
        collection: str = "sentences",
        precision: str = "float32",
        *,
        neighbors: int = 16,
        ef_construction: int = 64,
        ef_search: int = 100,
        resume: bool = False,
    ) -> None:
        self.dim = dim
        graph = {"neighbors": neighbors, "ef_construction": ef_construction, "ef_search": ef_search}
        self._set_options(url, collection, precision, **graph)
        largest = PRECISIONS[precision][1]
        if dim > largest:
            raise ValueError(
                f"embeddings of size {dim} are too large for pgvector's graph with precision {precision!r} (at most "
                f"{largest}): choose precision float16 or binary, or a smaller truncate_dim."
            )
        try:
            self._create_or_resume(resume)
        except BaseException:
            self.close()
            raise

    def _set_options(
        self, url: str | None, collection: str, precision: str, *, neighbors: int, ef_construction: int, ef_search: int
    ) -> None:
        if url is None:
            raise ValueError("pgvector needs the URL of its server: --url postgresql://user@host:port/database")
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)} for pgvector, got {precision!r}")
        if not collection or len(collection.encode()) > _LONGEST_NAME or "\0" in collection:
            raise ValueError(f"collection must be a table name of 1 to {_LONGEST_NAME} bytes, got {collection!r}")
        self.neighbors, self.ef_construction, self.ef_search = neighbors, ef_construction, ef_search
        for name, least, most, value in (
            ("neighbors", 2, 100, neighbors),
            ("ef_construction", 4, 1000, ef_construction),
            ("ef_search", 1, _MOST_CANDIDATES, ef_search),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} must be between {least} and {most} for pgvector, got {value}")
        if self.ef_construction < 2 * self.neighbors:
            raise ValueError(
                f"ef_construction must be at least twice neighbors for pgvector, got {self.ef_construction} and "
                f"{self.neighbors}"
            )
        self.collection, self.precision = collection, precision
        self._count = 0
        self._has_more = False  # whether an interrupted addition has left embeddings after those of this index
        self._server = PostgresServer(url)

    # --- the table -------------------------------------------------------------------------------------------------

    def _create_or_resume(self, resume: bool) -> None:
        stored = self._stored_type()
        if stored is None:
            create = "CREATE TABLE {table} (position bigint PRIMARY KEY, sentence text, "
            create += f"attributes jsonb NOT NULL, embedding {self._type} NOT NULL)"
            self._server.with_retries(lambda connection: connection.execute(self._sql(create)))
        elif not resume:
            raise ValueError(
                f"{self._server} has a table {self.collection!r} already: continue an interrupted build with "
                "--resume, choose another name with --collection, or drop the table there."
            )
        elif stored != self._type:
            raise ValueError(
                f"{self._server}: the embeddings of table {self.collection!r} are {stored} and not {self._type}, so "
                "another build has made it. Choose another name with --collection, or drop the table there."
            )
        self._count = self._stored_count()

    @property
    def _kind(self) -> str:
        return PRECISIONS[self.precision][0]

    @property
    def _type(self) -> str:
        return f"{self._kind}({self.dim})"

    def _stored_type(self) -> str | None:
        """Return the type of the table's embeddings, such as `vector(384)`; `None` without the table."""
        query = self._sql(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass({name}) AND attname = 'embedding' AND NOT attisdropped"
        )
        exists = self._sql("SELECT 1 WHERE to_regclass({name}) IS NOT NULL")
        row, found = self._server.with_retries(
            lambda connection: (connection.execute(query).fetchone(), connection.execute(exists).fetchone())
        )
        if found is not None and row is None:
            raise ValueError(
                f"{self._server}: table {self.collection!r} has no column of embeddings, so it is not an index. "
                "Choose another name with --collection."
            )
        return None if row is None else str(row[0])

    def _stored_count(self) -> int:
        query = self._sql("SELECT count(*), coalesce(max(position) + 1, 0) FROM {table}")
        ((count, end),) = self._server.with_retries(lambda connection: connection.execute(query).fetchall())
        if count != end:
            raise ValueError(
                f"{self._server}: table {self.collection!r} holds {count} of the embeddings 0 to {end - 1}, so others "
                "were deleted. Drop the table and build the index again."
            )
        return int(count)

    def _sql(self, text: str) -> Any:
        """Compose a statement that names the table, as `{table}` or as the string `{name}`, and its indexes."""
        from psycopg.sql import SQL, Identifier, Literal

        names = {key: Identifier(f"{self.collection}_{key}") for key in ("graph", "filters")}
        quoted = '"' + self.collection.replace('"', '""') + '"'
        return SQL(text).format(table=Identifier(self.collection), name=Literal(quoted), **names)

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that open this table; the URL comes without its password."""
        names = ("collection", "precision", "neighbors", "ef_construction", "ef_search")
        return {"url": str(self._server), **{name: getattr(self, name) for name in names}}

    def __len__(self) -> int:
        return self._count

    # --- writing ---------------------------------------------------------------------------------------------------

    def add(self, vectors: np.ndarray, rows: pa.RecordBatch | None = None) -> None:
        """Append embeddings, in transactions that leave the table whole whatever happens to the server."""
        for start in range(0, len(vectors), _BATCH):
            part = vectors[start : start + _BATCH]
            records = _records(None if rows is None else rows.slice(start, len(part)), len(part), self._count)
            self._server.with_retries(lambda connection: self._copy(connection, part, records), writes=self._sql)  # noqa: B023
            self._count += len(part)
            self._has_more = False

    def _copy(self, connection: "Connection", vectors: np.ndarray, records: list[tuple[str | None, Any]]) -> None:
        """Store a batch after the embeddings that this index counts.

        Later rows are removed first. They are those of an addition that was never saved, or of this very batch, if
        the connection was lost while the server committed it.
        """
        from pgvector import HalfVector, Vector

        convert = Vector if self._kind == "vector" else HalfVector
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute(self._sql("DELETE FROM {table} WHERE position >= %s"), [self._count])
            columns = "{table} (position, sentence, attributes, embedding)"
            with cursor.copy(self._sql(f"COPY {columns} FROM STDIN (FORMAT BINARY)")) as copy:
                copy.set_types(["int8", "text", "jsonb", self._kind])
                for position, (vector, record) in enumerate(zip(vectors, records, strict=True), self._count):
                    copy.write_row((position, *record, convert(vector)))

    def check_stored(self, first: int, rows: pa.RecordBatch) -> None:
        """Compare rows with those of the table."""
        query = self._sql("SELECT sentence, attributes FROM {table} WHERE position >= %s ORDER BY position LIMIT %s")
        for start in range(0, len(rows), _BATCH):
            part = rows.slice(start, _BATCH)
            expected = _records(part, len(part), first + start)
            arguments = [first + start, len(part)]
            stored = self._server.with_retries(lambda connection: connection.execute(query, arguments).fetchall())  # noqa: B023
            for position, (row, (sentence, attributes)) in enumerate(
                zip(stored, expected, strict=True), first + start
            ):
                if row != (sentence, attributes.obj):
                    raise ValueError(
                        f"{self._server}: row {position} of table {self.collection!r} is {row!r}, and the input has "
                        f"{(sentence, attributes.obj)!r}, so another build has made the table. Resume with the same "
                        "input and --keep, or choose another name with --collection."
                    )

    def keep_first(self, count: int) -> None:
        """Ignore later rows; the next addition removes them."""
        if count < self._count:
            self._count, self._has_more = count, True

    def save(self, folder: Path) -> None:
        """Build the graph and the index for filters on the server, if they are missing. The folder gets no file."""
        embedding = f"embedding {self._kind}_ip_ops"
        if self.precision == "binary":
            embedding = f"(binary_quantize(embedding)::bit({self.dim})) bit_hamming_ops"
        graph = f"WITH (m = {self.neighbors}, ef_construction = {self.ef_construction})"
        for statement in (
            f"CREATE INDEX IF NOT EXISTS {{graph}} ON {{table}} USING hnsw ({embedding}) {graph}",
            "CREATE INDEX IF NOT EXISTS {filters} ON {table} USING gin (attributes jsonb_path_ops)",
            "ANALYZE {table}",
        ):
            self._server.with_retries(lambda connection: connection.execute(self._sql(statement)))  # noqa: B023

    # --- reading ---------------------------------------------------------------------------------------------------

    def search(self, queries: np.ndarray, top_k: int, among: Selection | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Send the queries to the server, which also applies the filters."""
        scores = np.full((len(queries), top_k), -np.inf, dtype=np.float32)
        positions = np.full((len(queries), top_k), -1, dtype=np.int64)
        for row, query in enumerate(queries):
            found = self._server.with_retries(lambda connection: self._find(connection, query, top_k, among))  # noqa: B023
            for rank, (position, score) in enumerate(found):
                scores[row, rank], positions[row, rank] = score, position
        return scores, positions

    def _find(
        self, connection: "Connection", query: np.ndarray, top_k: int, among: Selection | None
    ) -> list[tuple[int, float]]:
        """Search the graph, and the whole table if that finds too few, for example because of a filter."""
        statement, values = self._search_statement(query, top_k, among)
        with connection.transaction():
            candidates = min(max(self.ef_search, top_k), _MOST_CANDIDATES)
            connection.execute(f"SET LOCAL hnsw.ef_search = {candidates}")
            connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            found = connection.execute(statement, values).fetchall()
            if len(found) < top_k:
                connection.execute("SET LOCAL enable_indexscan = off")
                found = connection.execute(statement, values).fetchall()
        return list(islice(found, top_k))

    def _search_statement(self, query: np.ndarray, top_k: int, among: Selection | None) -> tuple[Any, dict[str, Any]]:
        from pgvector import HalfVector, Vector
        from psycopg.types.json import Jsonb

        vector = Vector(query) if self._kind == "vector" else HalfVector(query)
        values: dict[str, Any] = {"query": vector, "top_k": top_k, "candidates": max(self.ef_search, top_k)}
        conditions = []
        if self._has_more:
            conditions.append("position < %(count)s")
            values["count"] = self._count
        if among is not None:
            conditions.append("attributes @> %(filters)s")
            values["filters"] = Jsonb(among.filters)
        where = "WHERE " + " AND ".join(conditions) if conditions else ""
        distance = f"embedding <#> %(query)s::{self._type}"
        table = f"{{table}} {where}"
        if self.precision == "binary":
            bits = f"bit({self.dim})"
            order = f"binary_quantize(embedding)::{bits} <~> binary_quantize(%(query)s::{self._type})::{bits}"
            table = f"(SELECT position, embedding FROM {table} ORDER BY {order} LIMIT %(candidates)s) AS candidates"
        text = f"SELECT position, -({distance}) FROM {table} ORDER BY {distance} LIMIT %(top_k)s"
        return self._sql(text), values

    @classmethod
    def load(cls, folder: Path, options: dict[str, Any]) -> "PgvectorIndex":
        """Open the table on the server."""
        index = cls.__new__(cls)
        index._set_options(**options)
        try:
            stored = index._stored_type()
            if stored is None:
                raise ValueError(f"{index._server} has no table {index.collection!r}; build the index again.")
            index.dim = int(stored.rpartition("(")[2].rstrip(")"))
            if stored != index._type:
                raise ValueError(
                    f"{index._server}: the embeddings of table {index.collection!r} are {stored} and not "
                    f"{index._type}, so another build has made it; build the index again under another name."
                )
            index._count = index._stored_count()
        except BaseException:
            index.close()
            raise
        return index

    def close(self) -> None:
        """Close the connection."""
        self._server.close()


def _records(rows: pa.RecordBatch | None, count: int, first: int) -> list[tuple[str | None, Any]]:
    """Return the sentence and the attributes of each row as PostgreSQL stores them."""
    from psycopg.types.json import Jsonb

    if rows is None:
        return [(None, Jsonb({}))] * count
    names = [name.partition(":")[2] for name in rows.schema.names[1:]]
    records: list[tuple[str | None, Any]] = []
    for sentence, *cells in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        if any("\0" in cell for cell in (sentence, *cells)):
            raise ValueError(
                f"sentence {first + len(records)} of the index or a kept column of it holds a NUL character, which "
                "PostgreSQL cannot store: remove the character from the input."
            )
        records.append((sentence, Jsonb(dict(zip(names, cells, strict=True)))))
    return records
