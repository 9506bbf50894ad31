"""Search with Qdrant: embedded in this process, or on a server."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .exact import read_vectors, write_vectors
from .interface import Selection, VectorIndex
from .server_url import QDRANT_KEY, is_postgres, is_this_machine, split_url, without_password

PRECISIONS = ("float32", "int8", "binary")
_FILE = "vectors.npy"
_BATCH = 256
#: The most sentences that a filter may select: their numbers travel with each query.
_MOST_SELECTED = 100_000
#: Quantised codes that are rescored with the full embeddings, as a multiple of `top_k`.
_OVERSAMPLING = 4.0


class QdrantIndex(VectorIndex):
    """Search a collection of a Qdrant server, or of Qdrant's embedded local mode.

    The embedded collection lives in memory and is saved as an npy file, because the folder of Qdrant's own local mode
    holds pickles, which we do not read. Qdrant recommends its local mode for up to about 20,000 embeddings. A server
    stores embeddings as they are added, so a saved index holds only the server's URL and the sentences. The server's
    key comes from the environment variable `QDRANT_API_KEY` and is never saved. It is sent over https, or to this
    machine, and never to a URL that only the folder of an index names (see [`server_url.check_saved_url`]).

    Args:
        dim (`int`): Embedding size.
        url (`str`, *optional*): URL of a server. The default is the embedded mode.
        collection (`str`, *optional*, defaults to `"sentences"`): Name of the collection.
        precision (`str`, *optional*, defaults to `"float32"`): What a server keeps in its memory: the embeddings, or
            with `"int8"` or `"binary"` only their codes (a quarter or 1/32 of the bytes). The embeddings then stay on
            the server's disk and rescore the best codes. The embedded mode compares the embeddings in any case.

    Raises:
        ValueError: If the precision is unknown, the URL is not one of a server, the key would be sent in clear, or the
            server has a collection of this name already, or does not answer.
        ImportError: If qdrant-client is not installed.
    """

    def __init__(
        self, dim: int, url: str | None = None, collection: str = "sentences", precision: str = "float32"
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)} for Qdrant, got {precision!r}")
        self._connect(url, collection, precision)
        models = _qdrant().models
        if self._request("collection_exists", collection):
            raise ValueError(
                f"{url} has a collection {collection!r} already: choose another name, or delete it there."
            )
        codes: Any = None
        if precision == "int8":
            int8 = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
            codes = models.ScalarQuantization(scalar=int8)
        elif precision == "binary":
            codes = models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True))
        params = models.VectorParams(size=dim, distance=models.Distance.DOT, on_disk=codes is not None)
        self._request("create_collection", collection, vectors_config=params, quantization_config=codes)
        self.dim = dim
        self._count = 0

    def _connect(self, url: str | None, collection: str, precision: str = "float32") -> None:
        self.url, self.collection, self.precision = url, collection, precision
        client = _qdrant().QdrantClient
        if url is None:
            self._client = client(":memory:")
            return
        if is_postgres(url):
            shown = without_password(url)
            raise ValueError(f"{shown!r} is not the URL of a Qdrant server: write it as https://host:port.")
        parts, key = split_url(url), os.environ.get(QDRANT_KEY)
        if key is not None and parts.scheme != "https" and not is_this_machine(parts):
            raise ValueError(
                f"{QDRANT_KEY} would be sent to {url} in clear: use an https:// URL, or unset {QDRANT_KEY} if the "
                "server needs no key."
            )
        self._client = client(url=url, api_key=key, check_compatibility=False)

    def _request(self, request: str, *arguments: Any, **named: Any) -> Any:
        from qdrant_client.http.exceptions import ApiException

        try:
            return getattr(self._client, request)(*arguments, **named)
        except ApiException as error:
            raise ValueError(
                f"the Qdrant server at {self.url} refused or failed a request ({request}): {error}"
            ) from error

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that open this collection."""
        return {"url": self.url, "collection": self.collection, "precision": self.precision}

    def __len__(self) -> int:
        return self._count

    def add(self, vectors: np.ndarray, rows: pa.RecordBatch | None = None) -> None:
        """Append embeddings to the collection."""
        models = _qdrant().models
        for start in range(0, len(vectors), _BATCH):
            batch = np.asarray(vectors[start : start + _BATCH], dtype=np.float32)
            ids = list(range(self._count, self._count + len(batch)))
            self._request("upsert", self.collection, points=models.Batch(ids=ids, vectors=batch.tolist()), wait=True)
            self._count += len(batch)

    def search(self, queries: np.ndarray, top_k: int, among: Selection | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Send the queries to the collection, with the numbers of the sentences that a filter selects."""
        models = _qdrant().models
        settings: dict[str, Any] = {}
        if among is not None:
            if len(among.positions) > _MOST_SELECTED:
                raise ValueError(
                    f"filter {among.filters}: it selects {len(among.positions)} sentences, and a query to Qdrant can "
                    f"name {_MOST_SELECTED}. Filter by a rarer value, or build the index with the backend pgvector."
                )
            numbers = models.HasIdCondition(has_id=among.positions.tolist())
            settings["filter"] = models.Filter(must=[numbers])
        if self.precision != "float32":
            rescore = models.QuantizationSearchParams(rescore=True, oversampling=_OVERSAMPLING)
            settings["params"] = models.SearchParams(quantization=rescore)
        requests = [models.QueryRequest(query=query.tolist(), limit=top_k, **settings) for query in queries]
        scores = np.full((len(queries), top_k), -np.inf, dtype=np.float32)
        positions = np.full((len(queries), top_k), -1, dtype=np.int64)
        for start in range(0, len(requests), _BATCH):
            answers = self._request("query_batch_points", self.collection, requests[start : start + _BATCH])
            for row, answer in enumerate(answers, start):
                for rank, point in enumerate(answer.points):
                    scores[row, rank], positions[row, rank] = point.score, point.id
        return scores, positions

    def save(self, folder: Path) -> None:
        """Write the embeddings of an embedded collection; those on a server stay there."""
        if self.url is None:
            write_vectors(folder / _FILE, self._stored(), len(self), self.dim)

    def _stored(self) -> Iterator[np.ndarray]:
        for start in range(0, self._count, _BATCH):
            ids = list(range(start, min(start + _BATCH, self._count)))
            points = self._request("retrieve", self.collection, ids, with_payload=False, with_vectors=True)
            yield np.array([point.vector for point in sorted(points, key=lambda point: point.id)], dtype=np.float32)

    @classmethod
    def load(cls, folder: Path, options: dict[str, Any]) -> "QdrantIndex":
        """Open the collection on the server, or rebuild the embedded one from its file."""
        if options["url"] is None:
            vectors = read_vectors(folder / _FILE)
            index = cls(vectors.shape[1], **options)
            index.add(vectors)
            return index
        index = cls.__new__(cls)
        index._connect(**options)
        if not index._request("collection_exists", index.collection):
            raise ValueError(f"{index.url} has no collection {index.collection!r}; build the index again.")
        index.dim = index._request("get_collection", index.collection).config.params.vectors.size
        index._count = index._request("count", index.collection, exact=True).count
        return index

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _qdrant() -> Any:
    try:
        import qdrant_client.models  # older releases do not import it themselves
    except ImportError as error:
        raise ImportError("this index needs qdrant-client: run pip install 'simcse-hf[qdrant]'") from error
    return qdrant_client
