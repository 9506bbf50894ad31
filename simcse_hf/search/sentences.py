"""Sentences with an index of their vectors: built from a list or a file, searched by text, saved with their model's
name."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from tqdm.auto import tqdm

from ..data.texts import stream_texts
from .exact import ExactIndex
from .faiss_index import FaissIndex
from .interface import VectorIndex
from .qdrant_index import QdrantIndex

#: Who answers, and which options it has.
BACKENDS = {
    "exact": ("device",),
    "flat": (),
    "ivf": ("cells", "probes"),
    "hnsw": ("neighbors", "ef_construction", "ef_search"),
    "qdrant": ("url", "collection"),
}

_CLASSES = {"exact": ExactIndex, "flat": FaissIndex, "ivf": FaissIndex, "hnsw": FaissIndex, "qdrant": QdrantIndex}
_LAYOUT = 1  # of the folder
_INDEX = "index.json"
_SENTENCES = "sentences.arrow"
_WINDOW = 10_000
#: Its vector is the signature of a model: whatever changes a model's vectors changes this one.
_PROBE = "The quick brown fox jumps over the lazy dog, and nobody asked it to."
_SAME = 0.999  # cosine of two encodings of the probe; bfloat16 and float32 agree better than this

Results = list[tuple[str, float]]


class SentenceIndex:
    """Made by [`build`] or [`load`]; see the package's `docs/search.md`.

    Attributes:
        model: encodes sentences and queries; anything with `encode` as [`SimCSE.encode`].
        vectors: the [`VectorIndex`].
        backend: one of `BACKENDS`.
        truncate_dim: leading dimensions that are kept of the model's vectors; None: all.
    """

    def __init__(
        self, model, vectors: VectorIndex, sentences: pa.ChunkedArray, backend: str, truncate_dim: int | None
    ):
        self.model = model
        self.vectors = vectors
        self.backend = backend
        self.truncate_dim = truncate_dim
        self._sentences = sentences

    def __len__(self) -> int:
        return len(self._sentences)

    def __getitem__(self, position: int) -> str:
        """Return the sentence at a position of the index."""
        return self._sentences[position].as_py()

    @classmethod
    def build(
        cls,
        model,
        sentences: str | os.PathLike | Sequence[str],
        *,
        backend: str = "exact",
        column: str | None = None,
        truncate_dim: int | None = None,
        vectors: Iterable[np.ndarray] | None = None,
        show_progress: bool = False,
        **options,
    ) -> "SentenceIndex":
        """Encodes sentences and makes an index of them.

        Args:
            model: see the class.
            sentences: a sequence of them; or the path of a txt, csv, tsv, json, jsonl or parquet file (or one
                gzipped), which is streamed.
            backend: `"exact"`: every vector compared, in PyTorch; `"flat"`, `"ivf"`, `"hnsw"`: faiss; `"qdrant"`.
            column: of a file with several.
            truncate_dim: keep so many leading dimensions.
            vectors: of these sentences, (n, dim) arrays one after the other, where they were encoded before (see
                [`~encoding.shards.read_shards`]).
            show_progress: a progress bar.
            options: of the backend: [`ExactIndex`], [`FaissIndex`], [`QdrantIndex`].

        Raises:
            ValueError: no sentences, something that is not a text, an unreadable file, vectors that are not this
                model's or not as many as the sentences.
            ImportError: the backend's library is not installed; names the extra to install.
        """
        if backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
        _check_options(backend, options)
        probe = _probe(model, truncate_dim)
        kind = {"kind": backend} if _CLASSES[backend] is FaissIndex else {}
        made = _CLASSES[backend](len(probe), **kind, **options)
        index = cls(model, made, pa.chunked_array([], pa.large_string()), backend, truncate_dim)
        try:
            index.add(sentences, column=column, vectors=vectors, show_progress=show_progress)
            if not len(index):
                raise ValueError("there are no sentences to index")
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
        show_progress: bool = False,
    ) -> None:
        """Adds sentences behind those that are there; arguments and errors as in [`build`].

        Where a row far down a file is bad, the sentences before it have been added.
        """
        texts = _texts(sentences, column)
        pairs = self._encoded(texts) if vectors is None else self._given(texts, vectors)
        with tqdm(desc="Indexing", unit="sentence", disable=not show_progress) as bar:
            for window, their_vectors in pairs:
                self.vectors.add(their_vectors)
                chunks = [*self._sentences.chunks, pa.array(window, pa.large_string())]
                self._sentences = pa.chunked_array(chunks, pa.large_string())
                bar.update(len(window))

    def _encoded(self, texts: Iterator[str]) -> Iterator[tuple[list[str], np.ndarray]]:
        while window := list(islice(texts, _WINDOW)):
            yield window, self.model.encode(window, truncate_dim=self.truncate_dim, convert_to="numpy")

    def _given(self, texts: Iterator[str], vectors: Iterable[np.ndarray]) -> Iterator[tuple[list[str], np.ndarray]]:
        count = 0
        for part in vectors:
            part = np.asarray(part)
            if part.ndim != 2 or part.shape[1] != self.vectors.dim or part.dtype != np.float32:
                raise ValueError(
                    f"vectors must be float32 of {self.vectors.dim} dimensions, got {part.dtype} of shape {part.shape}"
                )
            window = list(islice(texts, len(part)))
            if len(window) < len(part):
                raise ValueError(f"there are more vectors than the {count + len(window)} sentences")
            part = _unit(part)
            if not count and len(part):
                first = self.model.encode(window[:1], truncate_dim=self.truncate_dim, convert_to="numpy")[0]
                if first @ part[0] < _SAME:
                    raise ValueError(
                        f"the vectors are not this model's: for {window[0]!r} their cosine is {first @ part[0]:.3f}"
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
        threshold: float | None = 0.6,
    ) -> Results | list[Results]:
        """The sentences most similar to each query.

        Args:
            queries: a text or several; or vectors of this model, (dim,) or (n, dim).
            top_k: how many sentences at most.
            threshold: the least cosine; None: any.

        Returns:
            For a text, up to `top_k` (sentence, cosine) in descending order; for several, a list of such lists.

        Raises:
            ValueError: vectors of other dimensions, a `top_k` below 1, a query that is no text.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        if isinstance(queries, (np.ndarray, torch.Tensor)):
            asked = np.asarray(torch.as_tensor(queries).float().cpu())
            single = asked.ndim == 1
            asked = np.atleast_2d(asked)
            if asked.ndim != 2 or asked.shape[1] != self.vectors.dim:
                raise ValueError(f"queries have {asked.shape[-1]} dimensions, the index has {self.vectors.dim}")
            asked = _unit(asked)
        else:
            single = isinstance(queries, str)
            texts = [queries] if single else list(queries)
            asked = self.model.encode(texts, truncate_dim=self.truncate_dim, convert_to="numpy")
        if not len(asked):
            return []
        scores, positions = self.vectors.search(asked, min(top_k, len(self)))
        results = [
            [
                (self._sentences[position].as_py(), score)
                for score, position in zip(its_scores, its_positions, strict=True)
                if position >= 0 and (threshold is None or score >= threshold)
            ]
            for its_scores, its_positions in zip(scores.tolist(), positions.tolist(), strict=True)
        ]
        return results[0] if single else results

    # --- folders -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the index to a folder, whole or not at all; an index that is there is replaced.

        Raises:
            ValueError: the folder holds something else, or cannot be written to.
        """
        folder = Path(folder).expanduser()
        if folder.exists() and not (folder / _INDEX).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} holds something else than an index: name a new folder.")
        partial = folder.with_name(f".{folder.name}.partial")
        replaced = folder.with_name(f".{folder.name}.replaced")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._write(partial)
            if folder.exists():
                shutil.rmtree(replaced, ignore_errors=True)
                folder.rename(replaced)
            partial.rename(folder)
        except (OSError, RuntimeError) as error:  # faiss raises the latter
            shutil.rmtree(partial, ignore_errors=True)
            if replaced.exists() and not folder.exists():
                replaced.rename(folder)
            raise ValueError(f"cannot write the index to {folder}: {error}") from error
        shutil.rmtree(replaced, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        self.vectors.save(folder)
        schema = pa.schema([("sentence", pa.large_string())])
        with pa.OSFile(str(folder / _SENTENCES), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for chunk in self._sentences.chunks:
                writer.write_batch(pa.record_batch([chunk], schema=schema))
        description = {
            "layout": _LAYOUT,
            "model": getattr(self.model, "name_or_path", None),
            "revision": getattr(self.model, "revision", None),
            "pooler": getattr(self.model, "pooler_type", None),
            "max_length": getattr(self.model, "max_length", None),
            "dim": self.vectors.dim,
            "truncate_dim": self.truncate_dim,
            "count": len(self),
            "backend": self.backend,
            "options": self.vectors.options(),
            "probe": _probe(self.model, self.truncate_dim).tolist(),
            "bytes": {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()},
        }
        (folder / _INDEX).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike, model, **options) -> "SentenceIndex":
        """Opens a saved index.

        Args:
            folder: where it was saved.
            model: the model it was built with; [`describe`] says which that was.
            options: of the backend, in place of those it was saved with (`ef_search`, `probes`, `device`).

        Raises:
            ValueError: no index there, a damaged one, or one of another model, pooler or dimension.
        """
        folder = Path(folder).expanduser()
        described = describe(folder)
        _check_options(described["backend"], options)
        _check_model(model, described, folder)
        for name, size in described["bytes"].items():
            found = (folder / name).stat().st_size if (folder / name).exists() else None
            if found != size:
                state = "missing" if found is None else f"{found} bytes long, not {size}"
                raise ValueError(f"{folder / name} is {state}: the index is damaged, build it again.")
        path = folder / _SENTENCES
        try:
            sentences = pa.ipc.open_file(pa.memory_map(str(path))).read_all()["sentence"]
        except (OSError, KeyError, pa.ArrowException) as error:
            raise ValueError(f"{path}: missing or damaged ({error}); build the index again.") from error
        vectors = _CLASSES[described["backend"]].load(folder, described["options"] | options)
        index = cls(model, vectors, sentences, described["backend"], described["truncate_dim"])
        if not len(vectors) == len(sentences) == described["count"] or vectors.dim != described["dim"]:
            index.close()
            raise ValueError(
                f"{folder}: {len(sentences)} sentences and {len(vectors)} vectors of {vectors.dim} dimensions, where "
                f"{described['count']} of {described['dim']} were saved; build the index again."
            )
        return index

    def close(self) -> None:
        """Gives back temporary files and connections of the backend."""
        self.vectors.close()


def describe(folder: str | os.PathLike) -> dict:
    """What a saved index is: `model`, `pooler`, `dim`, `count`, `backend`, ...

    Raises:
        ValueError: no index there, or a damaged one.
    """
    path = Path(folder).expanduser() / _INDEX
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        layout = described["layout"]
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: no {_INDEX}: not a folder that an index was saved in.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged ({error}); build the index again.") from error
    if layout != _LAYOUT:
        raise ValueError(f"{path}: layout {layout!r}, where this version reads {_LAYOUT}; build the index again.")
    return described


def _check_options(backend: str, options: dict) -> None:
    unknown = options.keys() - set(BACKENDS[backend])
    if unknown:
        offered = ", ".join(BACKENDS[backend]) or "none"
        raise ValueError(f"backend {backend!r} has no option {', '.join(sorted(unknown))}; its options: {offered}")


def _check_model(model, described: dict, folder: Path) -> None:
    built = f"{folder} was built with model {described['model']!r}, pooler {described['pooler']!r}"
    pooler = getattr(model, "pooler_type", None)
    if pooler != described["pooler"]:
        raise ValueError(f"{built}; the pooler given now is {pooler!r}. Load the model with that one.")
    probe, kept = _probe(model, described["truncate_dim"]), np.array(described["probe"], dtype=np.float32)
    if len(probe) != len(kept):
        raise ValueError(f"{built}, of {len(kept)} dimensions; the model given now has {len(probe)}.")
    if probe @ kept < _SAME:
        name = getattr(model, "name_or_path", None)
        raise ValueError(
            f"{built}; {name!r} is another model: it encodes the same sentence with a cosine of {probe @ kept:.4f}."
        )


def _probe(model, truncate_dim: int | None) -> np.ndarray:
    return np.asarray(model.encode([_PROBE], truncate_dim=truncate_dim, convert_to="numpy"))[0]


def _texts(sentences: str | os.PathLike | Sequence[str], column: str | None) -> Iterator[str]:
    if isinstance(sentences, (str, os.PathLike)):
        return (text for _, text in stream_texts(sentences, column))
    texts = list(sentences)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"sentence {position} is not a text but {type(text).__name__}: {text!r}")
    return iter(texts)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
