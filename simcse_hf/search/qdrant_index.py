"""Search with Qdrant: embedded in this process, or on a server."""

import os
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np

from .exact import read_vectors, write_vectors
from .interface import VectorIndex

_FILE = "vectors.npy"
_BATCH = 256
_KEY = "QDRANT_API_KEY"


class QdrantIndex(VectorIndex):
    """Search a collection of a Qdrant server, or of Qdrant's embedded local mode.

    The embedded collection lives in memory and is saved as an npy file, because the folder of Qdrant's own local mode
    holds pickles, which we do not read. Qdrant recommends its local mode for up to about 20,000 embeddings. A server
    stores embeddings as they are added, so a saved index holds only the server's URL and the sentences. The server's
    key comes from the environment variable `QDRANT_API_KEY` and is never saved. It is sent over https, or to this
    machine, and never to a URL that only the folder of an index names (see [`check_saved_url`]).

    Args:
        dim (`int`): Embedding size.
        url (`str`, *optional*): URL of a server. The default is the embedded mode.
        collection (`str`, *optional*, defaults to `"sentences"`): Name of the collection.

    Raises:
        ValueError: If the URL is not one of a server, the key would be sent in clear, or the server has a collection
            of this name already, or does not answer.
        ImportError: If qdrant-client is not installed.
    """

    def __init__(self, dim: int, url: str | None = None, collection: str = "sentences") -> None:
        self._connect(url, collection)
        models = _qdrant().models
        if self._request("collection_exists", collection):
            raise ValueError(
                f"{url} has a collection {collection!r} already: choose another name, or delete it there."
            )
        params = models.VectorParams(size=dim, distance=models.Distance.DOT)
        self._request("create_collection", collection, vectors_config=params)
        self.dim = dim
        self._count = 0

    def _connect(self, url: str | None, collection: str) -> None:
        self.url, self.collection = url, collection
        client = _qdrant().QdrantClient
        if url is None:
            self._client = client(":memory:")
            return
        parts, key = _split(url), os.environ.get(_KEY)
        if key is not None and parts.scheme != "https" and not _is_this_machine(parts):
            raise ValueError(
                f"{_KEY} would be sent to {url} in clear: use an https:// URL, or unset {_KEY} if the server needs no "
                "key."
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
        return {"url": self.url, "collection": self.collection}

    def __len__(self) -> int:
        return self._count

    def add(self, vectors: np.ndarray) -> None:
        """Append embeddings to the collection."""
        models = _qdrant().models
        for start in range(0, len(vectors), _BATCH):
            batch = np.asarray(vectors[start : start + _BATCH], dtype=np.float32)
            ids = list(range(self._count, self._count + len(batch)))
            self._request("upsert", self.collection, points=models.Batch(ids=ids, vectors=batch.tolist()), wait=True)
            self._count += len(batch)

    def search(self, queries: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """Send the queries to the collection."""
        models = _qdrant().models
        requests = [models.QueryRequest(query=query.tolist(), limit=top_k) for query in queries]
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
        import qdrant_client
    except ImportError as error:
        raise ImportError("this index needs qdrant-client: run pip install 'simcse-hf[qdrant]'") from error
    return qdrant_client


def check_saved_url(url: Any, folder: Path, options: Mapping[str, Any]) -> None:
    """Refuse to connect to a server only because the folder of an index names it.

    A folder may come from someone else, and whoever is connected to sees the queries and the key. A server on this
    machine needs no such care, unless there is a key.

    Args:
        url (`Any`): The URL in the folder's description; `None` without a server.
        folder (`Path`): The folder.
        options (`Mapping[str, Any]`): The caller's options. Their `url` is one that the caller trusts.

    Raises:
        ValueError: If the caller has to name the URL, or it is not one of a server.
    """
    if url is None or options.get("url") is not None:
        return
    if not isinstance(url, str):
        raise ValueError(f"{folder} names {url!r} as its server, which is no URL; build the index again.")
    if os.environ.get(_KEY) is not None or not _is_this_machine(_split(url)):
        raise ValueError(
            f"{folder} names the Qdrant server {url}, which would see your queries and the key in {_KEY}. If "
            f"you trust it, name it yourself: --url {url} (in Python, the option url)."
        )


def _split(url: str) -> SplitResult:
    """Split a URL of the form scheme://host:port/path; other forms may name another host than the one they show."""
    try:
        parts = urlsplit(url)
        plain = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    except (ValueError, AttributeError):
        plain = False
    if not plain or any(character in url for character in "\\ \t\r\n"):
        raise ValueError(f"{url!r} is not the URL of a server: write it as https://host:port.")
    return parts


def _is_this_machine(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
