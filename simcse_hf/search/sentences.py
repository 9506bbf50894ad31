"""An index of sentences: built from a list or a file, searched by text, and saved with the name of its model."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.read import list_texts, stream_rows
from ..ops.finite import NotFiniteError, check_finite
from .backends import BACKENDS, CLASSES, check_options, create
from .folder import data_folder, describe, write_index
from .interface import VectorIndex
from .probe import SAME, check_model, encode_documents, probe_embedding
from .rows import SentenceRows
from .server_url import check_saved_url

logger = logging.get_logger(__name__)

_WINDOW = 10_000  # sentences that are encoded together
Results = list[tuple[str, float]]
Row = list[str]  # a sentence, followed by its kept columns


class SentenceIndex:
    """Sentences with an index of their embeddings, created by [`SentenceIndex.build`] or [`SentenceIndex.load`].

    Sentences are encoded by the model's `encode_document` and queries by its `encode_query`, with their prompts if
    the model has any.

    Attributes:
        model (`SimCSE`): The model; any object with an `encode` like [`SimCSE.encode`] will do.
        vectors (`VectorIndex`): The embeddings.
        rows (`SentenceRows`): The sentences and the columns kept beside them.
        backend (`str`): One of `BACKENDS`.
        truncate_dim (`int`, *optional*): How many leading dimensions of the model's embeddings are used.
    """

    def __init__(
        self, model: Any, vectors: VectorIndex, rows: SentenceRows, backend: str, truncate_dim: int | None
    ) -> None:
        self.model = model
        self.vectors = vectors
        self.backend = backend
        self.truncate_dim = truncate_dim
        self.rows = rows
        self._saved: tuple[Path, str] | None = None  # the folder and the data folder in it that hold this index

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> str:
        """Return the sentence at a position of the index."""
        return self.rows[position]

    @classmethod
    def build(
        cls,
        model: Any,
        sentences: str | os.PathLike | Sequence[str],
        *,
        backend: str = "exact",
        column: str | None = None,
        keep: Sequence[str] = (),
        truncate_dim: int | None = None,
        vectors: Iterable[np.ndarray] | None = None,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> "SentenceIndex":
        """Encode sentences and index them.

        Args:
            model (`SimCSE`): The model.
            sentences (`str`, `os.PathLike` or `Sequence[str]`): The sentences; or the path of a txt, csv, tsv, json,
                jsonl or parquet file (or one of these gzipped), which is streamed.
            backend (`str`, *optional*, defaults to `"exact"`): `"exact"` compares every embedding, in PyTorch;
                `"flat"`, `"ivf"`, `"hnsw"` and `"ivf_disk"` are faiss, `"qdrant"` is Qdrant and `"pgvector"` is
                PostgreSQL.
            column (`str`, *optional*): The column of sentences, if the file has several columns.
            keep (`Sequence[str]`, *optional*, defaults to `()`): Other columns of the file to keep, so that searches
                can be filtered by them.
            truncate_dim (`int`, *optional*): Use only the leading dimensions.
            vectors (`Iterable[np.ndarray]`, *optional*): Embeddings of these sentences that were computed before, as
                arrays of shape `(n, dim)` one after the other (see `inference.shards.read_shards`).
            show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar.
            **options (`Any`): Options of the backend, see [`ExactIndex`], [`FaissIndex`], [`DiskIndex`],
                [`QdrantIndex`] and [`PgvectorIndex`]. With the option `resume`, sentences that an interrupted build
                has stored are compared with those given and not encoded again.

        Returns:
            `SentenceIndex`: The index.

        Raises:
            ValueError: If there are no sentences, one is not a text, the file is unreadable, or the embeddings are
                not this model's or not as many as the sentences.
            ImportError: If the backend's library is not installed.
        """
        check_options(backend, options)
        rows = SentenceRows(_kept_columns(sentences, keep))
        dim = len(probe_embedding(model, truncate_dim))
        index = cls(model, create(backend, dim, options), rows, backend, truncate_dim)
        try:
            index.add(sentences, column=column, vectors=vectors, show_progress_bar=show_progress_bar)
            if not len(index):
                raise ValueError("there are no sentences to index: give at least one")
        except BaseException:
            index.close()
            raise
        return index

    def add(
        self,
        sentences: str | os.PathLike | Sequence[str],
        *,
        column: str | None = None,
        vectors: Iterable[np.ndarray] | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        """Append sentences, window by window; arguments and errors as in [`SentenceIndex.build`]."""
        # If a row far down a file is invalid, the sentences of the windows before it have been added.
        _kept_columns(sentences, self.rows.kept)
        texts = _rows(sentences, column, self.rows.kept)
        windows = self._encode_windows(texts) if vectors is None else self._pair_with(texts, vectors)
        with tqdm(desc="Indexing", unit="sentence", disable=not show_progress_bar) as bar:
            for window, embeddings in windows:
                rows = self.rows.batch(window)
                stored = min(len(self.vectors) - len(self), len(window))  # by an interrupted run
                if stored:
                    self.vectors.check_stored(len(self), rows.slice(0, stored))
                if embeddings is not None:
                    check_finite(embeddings, "sentence {} of the index", first=len(self))
                    self.vectors.add(embeddings[stored:], rows.slice(stored))
                self.rows.append(rows)
                bar.update(len(window))
        if len(self.vectors) != len(self):
            raise ValueError(
                f"an interrupted run has stored {len(self.vectors)} embeddings, and there are {len(self)} sentences, "
                "so it was a build of others. Build the index under another name, or from the sentences of that run."
            )

    def _encode_windows(self, texts: Iterator[Row]) -> Iterator[tuple[list[Row], np.ndarray | None]]:
        """Yield rows with their embeddings, or with none if an interrupted run has stored these."""
        while (stored := len(self.vectors) - len(self)) > 0 and (window := list(islice(texts, min(stored, _WINDOW)))):
            yield window, None
        while window := list(islice(texts, _WINDOW)):
            try:
                yield window, encode_documents(self.model, [text for text, *_ in window], self.truncate_dim)
            except NotFiniteError as error:
                raise NotFiniteError(f"sentence {len(self) + error.position} of the index", error.position) from None

    def _pair_with(
        self, texts: Iterator[Row], vectors: Iterable[np.ndarray]
    ) -> Iterator[tuple[list[Row], np.ndarray]]:
        count = 0
        for part in vectors:
            part = np.asarray(part)
            if part.ndim != 2 or part.shape[1] != self.vectors.dim or part.dtype != np.float32:
                wanted = f"float32 with {self.vectors.dim} dimensions"
                raise ValueError(f"vectors must be {wanted}, got {part.dtype} of shape {part.shape}")
            window = list(islice(texts, len(part)))
            if len(window) < len(part):
                raise ValueError(f"there are more vectors than the {count + len(window)} sentences")
            part = _unit(part)
            if not count and len(part):
                first = encode_documents(self.model, [window[0][0]], self.truncate_dim)[0]
                if not (cosine := first @ part[0]) >= SAME:
                    raise ValueError(
                        f"the vectors are not this model's: for {window[0][0]!r} their cosine is {cosine:.3f}. "
                        "Encode the sentences with this model, and with its prompt for documents if it has one."
                    )
            count += len(part)
            yield window, part
        if next(texts, None) is not None:
            raise ValueError(f"there are more sentences than the {count} vectors")

    def search(
        self,
        queries: str | Sequence[str] | np.ndarray | torch.Tensor,
        *,
        top_k: int = 5,
        threshold: float | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> Results | list[Results]:
        """Find the sentences that are most similar to each query.

        Args:
            queries (`str`, `Sequence[str]`, `np.ndarray` or `torch.Tensor`): One text or several; or embeddings of
                this model, of shape `(dim,)` or `(queries, dim)` and of any length.
            top_k (`int`, *optional*, defaults to `5`): The most sentences to return.
            threshold (`float`, *optional*): Leave out sentences with a smaller cosine. If no sentence reaches it, a
                warning names the best score. By default nothing is left out.
            filters (`Mapping[str, str]`, *optional*): Look only among the sentences whose kept columns hold these
                values, written as text.

        Returns:
            `list`: For one text, up to `top_k` pairs of sentence and cosine, in descending order; for several, a list
            of such lists.

        Raises:
            ValueError: If a query is not a text or has other dimensions than the index, `top_k` is below 1,
                `threshold` is not a cosine, or a column of `filters` was not kept.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        if threshold is not None and not -1 <= threshold <= 1:
            raise ValueError(f"threshold must be a cosine, between -1 and 1, got {threshold}")
        embeddings, single = self._encode_queries(queries)
        if not len(embeddings):
            return []
        among = self.rows.select(filters) if filters else None
        top_k = min(top_k, len(self) if among is None else len(among.positions))
        if not top_k:
            logger.warning(f"no sentence passes the filter {filters}.")
            nothing: list[Results] = [[] for _ in embeddings]
            return nothing[0] if single else nothing
        scores, positions = self.vectors.search(embeddings, top_k, among)
        if np.isnan(scores).any():
            raise ValueError("the index holds embeddings that are not finite (NaN): build it again.")
        results = [
            [
                (self.rows[position], score)
                for score, position in zip(row_scores, row_positions, strict=True)
                if position >= 0 and (threshold is None or score >= threshold)
            ]
            for row_scores, row_positions in zip(scores.tolist(), positions.tolist(), strict=True)
        ]
        empty = [row for row, result in enumerate(results) if not result]
        if threshold is not None and empty:
            logger.warning(
                f"{len(empty)} of {len(results)} queries found no sentence with a cosine of at least {threshold}: "
                f"their best score is {scores[empty].max():.4f}. Lower the threshold to see more."
            )
        return results[0] if single else results

    def _encode_queries(self, queries: str | Sequence[str] | np.ndarray | torch.Tensor) -> tuple[np.ndarray, bool]:
        """Return unit embeddings of shape `(queries, dim)`, and whether there was a single query."""
        if isinstance(queries, (np.ndarray, torch.Tensor)):
            embeddings = np.asarray(torch.as_tensor(queries).float().cpu())
            single = embeddings.ndim == 1
            embeddings = np.atleast_2d(embeddings)
            if embeddings.ndim != 2 or embeddings.shape[1] != self.vectors.dim:
                raise ValueError(f"queries have {embeddings.shape[-1]} dimensions, the index has {self.vectors.dim}")
            embeddings = _unit(embeddings)
        else:
            single = isinstance(queries, str)
            texts = [queries] if isinstance(queries, str) else list(queries)
            encode = getattr(self.model, "encode_query", self.model.encode)
            embeddings = encode(texts, truncate_dim=self.truncate_dim, convert_to_numpy=True)
        check_finite(embeddings, "query {}")
        return embeddings, single

    def save(self, folder: str | os.PathLike) -> None:
        """Write the index to a folder, completely or not at all; an index in the folder is replaced.

        Only files of the replaced index are removed. Other files in the folder stay.

        Args:
            folder (`str` or `os.PathLike`): A new or empty folder, or that of an index.

        Raises:
            ValueError: If the folder holds anything else or cannot be written to, or if another process is changing
                the index there, or has changed it since this one was loaded.
        """
        resolved = Path(folder).expanduser().resolve()
        replaces = self._saved[1] if self._saved is not None and self._saved[0] == resolved else None
        self._saved = resolved, write_index(folder, self._write, replaces)

    def _write(self, folder: Path) -> dict[str, Any]:
        """Write the data files, and return the description of the index."""
        self.vectors.save(folder)
        self.rows.save(folder)
        name = getattr(self.model, "name_or_path", None)
        return {
            # The path of a local model is absolute, so that the index can be searched from any folder.
            "model": str(Path(name).resolve()) if name is not None and Path(name).is_dir() else name,
            "revision": getattr(self.model, "revision", None),
            "pooler": getattr(self.model, "pooler_type", None),
            "max_length": getattr(self.model, "max_length", None),
            "document_prompt": getattr(self.model, "prompts", {}).get("document"),
            "dim": self.vectors.dim,
            "truncate_dim": self.truncate_dim,
            "count": len(self),
            "backend": self.backend,
            "options": self.vectors.options(),
            "probe": probe_embedding(self.model, self.truncate_dim).tolist(),
        }

    @classmethod
    def load(cls, folder: str | os.PathLike, model: Any, **options: Any) -> "SentenceIndex":
        """Open a saved index.

        Args:
            folder (`str` or `os.PathLike`): The folder that it was saved in.
            model (`SimCSE`): The model that the index was built with; [`describe`] names it.
            **options (`Any`): Options of the backend that replace the saved ones (`ef_search`, `probes`, `device`).

        Returns:
            `SentenceIndex`: The index.

        Raises:
            ValueError: If there is no index, it is damaged, or it was built with another model, pooler or dimension.
        """
        folder = Path(folder).expanduser()
        described = describe(folder)
        try:
            return cls._load(folder, described, model, options)
        except ValueError:
            newer = describe(folder)
            if newer["data"] == described["data"]:
                raise
            return cls._load(folder, newer, model, options)  # another process has just replaced it

    @classmethod
    def _load(cls, folder: Path, described: dict[str, Any], model: Any, options: dict[str, Any]) -> "SentenceIndex":
        if described["backend"] not in BACKENDS:
            raise ValueError(f"{folder} has the unknown backend {described['backend']!r}; build the index again.")
        check_options(described["backend"], options)
        check_saved_url(described["options"].get("url"), folder, options)
        check_model(model, described, folder)
        data = data_folder(folder, described)
        rows = SentenceRows.load(data)
        try:
            vectors = CLASSES[described["backend"]].load(data, described["options"] | options)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            if str(data) in str(error):  # it names the damaged file
                raise
            raise ValueError(f"{folder} has damaged options ({error}); build the index again.") from error
        index = cls(model, vectors, rows, described["backend"], described["truncate_dim"])
        index._saved = folder.resolve(), described["data"]
        vectors.keep_first(described["count"])
        if not len(vectors) == len(rows) == described["count"] or vectors.dim != described["dim"]:
            index.close()
            saved = f"{described['count']} of size {described['dim']} were saved; build the index again."
            raise ValueError(f"{folder} holds {len(rows)} sentences and {len(vectors)} embeddings, but {saved}")
        return index

    def close(self) -> None:
        """Release temporary files and connections of the backend."""
        self.vectors.close()


def _kept_columns(sentences: str | os.PathLike | Sequence[str], keep: Sequence[str]) -> Sequence[str]:
    if keep and not isinstance(sentences, (str, os.PathLike)):
        raise ValueError(
            f"the index keeps the columns {', '.join(keep)}, so sentences come from a file that has them."
        )
    return keep


def _rows(sentences: str | os.PathLike | Sequence[str], column: str | None, keep: Sequence[str]) -> Iterator[Row]:
    if isinstance(sentences, (str, os.PathLike)):
        return (row for _, row in stream_rows(sentences, column, keep))
    return ([text] for text in list_texts(sentences))


def _unit(embeddings: np.ndarray) -> np.ndarray:
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(min=1e-12)
