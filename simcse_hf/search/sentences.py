"""An index of sentences: built from a list or a file, searched by text, and saved with the name of its model."""

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy import ndarray
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.columns import list_texts
from ..data.table import stream_texts
from ..ops.errors import NotFiniteError, check_finite
from ..ops.files import (
    StrPath,
    digest,
    entries,
    full_name,
    hold,
    read_json,
    remove,
    write_atomically,
    write_json,
)
from .exact import ExactIndex, comparable
from .faiss_index import FaissIndex, new_index

logger = logging.get_logger(__name__)

_WINDOW = 10_000  # sentences that are encoded together
PROBE = "The quick brown fox jumps over the lazy dog, and nobody asked it to."
#: Least cosine of two embeddings of one text by one model; bfloat16 and float32 agree better than this.
SAME = 0.999
#: The same for an exported graph and a text in a batch: int8 rounds activations by the range of the whole batch.
_SAME_EXPORTED = 0.98
_SENTENCE = "sentence"
#: Prefix of the kept columns, so that none can be taken for the sentences.
_KEPT = "column:"

_DESCRIPTION = "index.json"
_ROWS = "rows.parquet"
#: A save writes a new data folder, so the old one is whole until the description names the new one.
_DATA = re.compile(r"data-[0-9a-f]{16}")
#: What a save may remove: an interrupted one leaves some of them.
_OWN = re.compile(rf"{_DATA.pattern}|\.({_DATA.pattern}|index\.json)\.\d+\.partial")
#: The attribute of a model behind each of these entries, and its value for a model that has none.
_SETTINGS = {
    "revision": ("revision", None),
    "pooler": ("pooler_type", None),
    "max_length": ("max_length", None),
    "long_texts": ("long_texts", "cut"),
    "model_backend": ("backend", "torch"),
    "similarity": ("similarity_fn_name", "cosine"),
}
_DAMAGED = "Build the index again."

Texts = StrPath | Sequence[str]


class _Pair(NamedTuple):
    sentence: str
    score: float


class Match(_Pair):
    """A sentence that a search found, and its similarity: `sentence, score = match`.

    Attributes:
        sentence (`str`): The sentence.
        score (`float`): Its similarity to the query, by the model's own measure; often the cosine.
        row (`int`): The number of the sentence in the index, from 0: its place in the list, or among the texts of the
            file, that the index was built from.
        columns (`dict[str, str]`): The kept columns of its row.
    """

    row: int
    columns: dict[str, str]


Results = list[Match]
#: Rows of a sentence and its kept columns, and the embeddings of the sentences.
_Part = tuple[list[list[str]], ndarray]


class SentenceIndex:
    """Sentences with an index of their embeddings, created by [`SentenceIndex.build`] or [`SentenceIndex.load`].

    Sentences are encoded by the model's `encode_document` and queries by its `encode_query`, with their prompts if
    the model has any.

    Attributes:
        model (`SimCSE`): The model; any object with an `encode` like [`SimCSE.encode`] will do.
        vectors (`ExactIndex` or `FaissIndex`): The embeddings.
        rows (`pa.Table`): The sentences and the columns kept beside them.
        backend (`str`): `"exact"`, or what [`FaissIndex`] was built from.
        similarity (`str`): What ranks the sentences: the model's own similarity.
        kept (`list[str]`): The names of the kept columns.
        truncate_dim (`int`, *optional*): How many leading dimensions of the model's embeddings are used.
    """

    def __init__(
        self,
        model: Any,
        vectors: ExactIndex | FaissIndex,
        rows: pa.Table,
        truncate_dim: int | None,
    ) -> None:
        self.model = model
        self.vectors = vectors
        self.rows = rows
        self.backend = vectors.backend
        self.similarity = _similarity_of(model)
        self.kept = [name.removeprefix(_KEPT) for name in rows.column_names[1:]]
        self.truncate_dim = truncate_dim
        self._saved: dict[Path, str] = {}  # folders with this index, and the data folder in each

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> str:
        """Return a sentence by its number."""
        return str(self.rows[_SENTENCE][row])

    @classmethod
    def build(
        cls,
        model: Any,
        sentences: Texts,
        *,
        backend: str = "exact",
        parameters: str | None = None,
        keep: Sequence[str] = (),
        truncate_dim: int | None = None,
        column: str | None = None,
        vectors: Iterable[ndarray] | None = None,
        show_progress_bar: bool = False,
    ) -> "SentenceIndex":
        """Encode sentences and index them.

        Args:
            model (`SimCSE`): The model.
            sentences (`str`, `os.PathLike` or `Sequence[str]`): The sentences; or the path of a txt, csv, tsv, json,
                jsonl or parquet file (or one of these gzipped), which is streamed.
            backend (`str`, *optional*, defaults to `"exact"`): `"exact"` compares every embedding. `"hnsw"`, `"ivf"`
                and descriptions for faiss's `index_factory` such as `"IVF4096,SQ8"` are faiss, see [`FaissIndex`].
            parameters (`str`, *optional*): Parameters of a faiss index, such as `"efSearch=256"`.
            keep (`Sequence[str]`, *optional*, defaults to `()`): Other columns of the file to keep. Searches return
                them, and can be filtered by them.
            truncate_dim (`int`, *optional*): Use only the leading dimensions.
            column (`str`, *optional*): The column of sentences, if the file has several columns.
            vectors (`Iterable[np.ndarray]`, *optional*): Embeddings of these sentences that were computed before, as
                arrays of shape `(n, dim)` one after the other (see `inference.shards.read_shards`).
            show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar.

        Returns:
            `SentenceIndex`: The index.

        Raises:
            ValueError: If there are no sentences, one is not a text, the file is unreadable, the backend or a
                parameter is unknown, or the embeddings are not this model's or not as many as the sentences.
            ImportError: If faiss is needed and not installed.
        """
        probe = _encode_documents(model, [PROBE], truncate_dim)[0]
        empty = new_index(len(probe), backend, _similarity_of(model))
        if parameters is not None:
            empty.set_parameters(parameters)
        names = [_SENTENCE, *(_KEPT + name for name in keep)]
        schema = pa.schema([(name, pa.large_string()) for name in names])
        index = cls(model, empty, schema.empty_table(), truncate_dim)
        index.add(sentences, column=column, vectors=vectors, show_progress_bar=show_progress_bar)
        if not len(index):
            raise ValueError("there are no sentences to index: give at least one")
        return index

    def add(
        self,
        sentences: Texts,
        *,
        column: str | None = None,
        vectors: Iterable[ndarray] | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        """Append sentences, window by window; arguments and errors as in [`SentenceIndex.build`]."""
        total = None
        if isinstance(sentences, (str, os.PathLike)):
            rows = (row for _, *row in stream_texts(sentences, column, self.kept))
        else:
            if self.kept:
                raise ValueError(f"the index keeps the columns {', '.join(self.kept)}, so sentences come from a file.")
            rows = ([text] for text in list_texts(sentences))
            total = len(sentences)
        parts = self._encode(rows) if vectors is None else self._compare(rows, vectors)
        with tqdm(total=total, desc="Indexing", unit=" sentences", disable=not show_progress_bar) as bar:
            for part, embeddings in parts:
                check_finite(embeddings, "sentence {} of the index", first=len(self))
                added = pa.table([*zip(*part, strict=True)], schema=self.rows.schema)
                self.vectors.add(embeddings)
                self.rows = pa.concat_tables([self.rows, added])
                bar.update(len(part))

    def _encode(self, rows: Iterator[list[str]]) -> Iterator[_Part]:
        """Yield rows with their embeddings."""
        while part := list(islice(rows, _WINDOW)):
            try:
                yield part, _encode_documents(self.model, [row[0] for row in part], self.truncate_dim)
            except NotFiniteError as error:
                place = len(self) + error.position
                raise NotFiniteError(f"sentence {place} of the index", place) from None

    def _compare(self, rows: Iterator[list[str]], vectors: Iterable[ndarray]) -> Iterator[_Part]:
        """Yield rows with the embeddings that were given for them, one of each part of which is compared."""
        count = 0
        draw = np.random.default_rng(0)
        least = SAME if getattr(self.model, "backend", "torch") == "torch" else _SAME_EXPORTED
        for embeddings in vectors:
            if embeddings.shape[1:] != (self.vectors.dim,):
                raise ValueError(f"vectors must have {self.vectors.dim} dimensions, got shape {embeddings.shape}")
            part = list(islice(rows, len(embeddings)))
            if len(part) < len(embeddings):
                raise ValueError(f"there are more vectors than the {count + len(part)} sentences")
            if not part:
                continue
            embeddings = comparable(embeddings, self.similarity)
            place = int(draw.integers(len(part)))
            text = part[place][0]
            cosine = _agreement(_encode_documents(self.model, [text], self.truncate_dim)[0], embeddings[place])
            if not cosine >= least:  # also where it is NaN
                raise ValueError(
                    f"the vectors are not this model's for these sentences: for sentence {count + place}, "
                    f"{text!r:.80}, their cosine is {cosine:.3f}. Encode the sentences with this model, and with its "
                    "prompt for documents if it has one."
                )
            count += len(part)
            yield part, embeddings
        if next(rows, None) is not None:
            raise ValueError(f"there are more sentences than the {count} vectors")

    def search(
        self,
        queries: str | Sequence[str] | ndarray | torch.Tensor,
        *,
        top_k: int = 5,
        threshold: float | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Find the sentences that are most similar to each query.

        Args:
            queries (`str`, `Sequence[str]`, `np.ndarray` or `torch.Tensor`): One text or several; or embeddings of
                this model, of shape `(dim,)` or `(queries, dim)` and of any length.
            top_k (`int`, *optional*, defaults to `5`): The most sentences to return.
            threshold (`float`, *optional*): Leave out sentences with a smaller score. If no sentence reaches it, a
                warning names the best score. By default nothing is left out.
            filters (`Mapping[str, str]`, *optional*): Look only among the sentences whose kept columns hold these
                values, written as text.

        Returns:
            `list[Match]` or `list[list[Match]]`: For one query, up to `top_k` sentences with their similarities in
            descending order; for several, a list of such lists.

        Raises:
            ValueError: If a query is not a text or has other dimensions than the index, `top_k` is below 1,
                `threshold` is no possible cosine, or a column of `filters` was not kept.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        self.check_threshold(threshold)

        # 1. The embeddings of the queries.
        single = isinstance(queries, str)
        if isinstance(queries, (ndarray, torch.Tensor)):
            embeddings = torch.as_tensor(queries).float().cpu().numpy()
            single = embeddings.ndim == 1
            embeddings = np.atleast_2d(embeddings)
            if embeddings.shape[1:] != (self.vectors.dim,):
                raise ValueError(f"queries have {embeddings.shape[-1]} dimensions, the index has {self.vectors.dim}")
        else:
            encode = getattr(self.model, "encode_query", self.model.encode)
            embeddings = encode(list_texts(queries), truncate_dim=self.truncate_dim, convert_to_numpy=True)
        check_finite(embeddings, "query {}")
        embeddings = comparable(embeddings, self.similarity)

        # 2. The rows whose kept columns pass the filters.
        among = None
        if filters:
            among = np.ones(len(self), dtype=bool)
            for name, value in filters.items():
                if name not in self.kept:
                    kept = ", ".join(map(repr, self.kept)) or "none"
                    raise ValueError(
                        f"filter: the index keeps no column {name!r} (kept: {kept}): build it with --keep."
                    )
                among &= pc.equal(self.rows[_KEPT + name], str(value)).to_numpy()
        top_k = min(top_k, len(self) if among is None else int(among.sum()))
        if not top_k:
            logger.warning(f"no sentence passes the filter {filters}.")

        # 3. The nearest of them.
        results: list[Results] = [[] for _ in embeddings]
        if top_k and results:
            scores, rows = self.vectors.search(embeddings, top_k, among)
            for number, result in enumerate(results):
                for row, score in zip(rows[number].tolist(), scores[number].tolist(), strict=True):
                    # faiss gives -1 where it finds fewer.
                    if row >= 0 and (threshold is None or score >= threshold):
                        sentence, *cells = (column[row].as_py() for column in self.rows.columns)
                        match = Match(sentence, score)
                        match.row = row
                        match.columns = dict(zip(self.kept, cells, strict=True))
                        result.append(match)
            empty = [number for number, result in enumerate(results) if not result]
            if threshold is not None and empty:
                logger.warning(
                    f"{len(empty)} of {len(results)} queries found no sentence with a {self.similarity} of at least "
                    f"{threshold}: their best score is {scores[empty].max():.4f}. Lower the threshold to see more."
                )
        return results[0] if single else results

    def check_threshold(self, threshold: float | None) -> None:
        """Raise a `ValueError` if no score can be compared with a threshold: NaN, or a cosine beyond 1."""
        most = 1 if self.similarity == "cosine" else np.inf
        if threshold is not None and not -most <= threshold <= most:
            raise ValueError(f"threshold must be a {self.similarity}, between {-most} and {most}, got {threshold}")

    def save(self, folder: StrPath) -> None:
        """Write the index to a folder, completely or not at all; an index in the folder is replaced.

        The new data lies in a folder of its own, and the index changes in the moment in which the new `index.json`
        takes the place of the old one.

        Args:
            folder (`str` or `os.PathLike`): A new or empty folder, or that of an index.

        Raises:
            ValueError: If the folder holds anything else or cannot be written to, or if another process is writing
                the index there, or has changed it since this one was loaded.
        """
        check_target(folder)
        model = self.model
        name = str(getattr(model, "name_or_path", type(model).__name__))
        description = {
            "model": full_name(name) or name,
            **{entry: getattr(model, *attribute) for entry, attribute in _SETTINGS.items()},
            "document_prompt": getattr(model, "prompts", {}).get("document"),
            "backend": self.backend,
            "truncate_dim": self.truncate_dim,
            "count": len(self),
            "probe": _encode_documents(model, [PROBE], self.truncate_dim)[0].tolist(),
        }
        target = Path(folder).expanduser().resolve()
        data = f"data-{secrets.token_hex(8)}"
        try:
            with hold(target):
                saved = None
                if (target / _DESCRIPTION).exists():
                    saved = describe(target)["data"]
                if self._saved.get(target, saved) != saved:
                    raise ValueError(f"{folder}: another process has changed this index since it was loaded: reload.")
                with write_atomically(target / data) as temporary:
                    temporary.mkdir()
                    self.vectors.save(temporary)
                    pq.write_table(self.rows, temporary / _ROWS)
                    digests = {path.name: digest(path) for path in sorted(temporary.iterdir())}
                write_json(target / _DESCRIPTION, {**description, "data": data, "digests": digests})
                for path in target.iterdir():  # the data that was replaced, and what killed processes have left
                    if path.name != data and _OWN.fullmatch(path.name):
                        remove(path)
        except (OSError, RuntimeError) as error:  # faiss raises the latter
            raise ValueError(f"cannot write the index to {folder}, which is as it was: {error}. Make room.") from error
        self._saved[target] = data

    @classmethod
    def load(cls, folder: StrPath, model: Any, *, parameters: str | None = None) -> "SentenceIndex":
        """Open a saved index.

        Args:
            folder (`str` or `os.PathLike`): The folder that it was saved in.
            model (`SimCSE`): The model that the index was built with; [`describe`] names it.
            parameters (`str`, *optional*): Parameters of a faiss index that replace the saved ones.

        Returns:
            `SentenceIndex`: The index.

        Raises:
            ValueError: If there is no index, it is damaged, or it was built with another model, pooler or dimension.
        """
        folder = Path(folder).expanduser().resolve()
        described = describe(folder)
        _check_model(model, described, folder)
        data = folder / described["data"]
        try:
            for name, saved in described["digests"].items():
                if digest(data / Path(name).name) != saved:
                    raise ValueError(f"{data / name} is damaged (its digest is not the saved one).")
            rows = pq.ParquetFile(data / _ROWS).read()
            similarity = described.get("similarity", "cosine")
            vectors = new_index(len(described["probe"]), described["backend"], similarity)
            vectors.load(data)
        except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
            if describe(folder)["data"] != described["data"]:  # another process has just replaced it
                return cls.load(folder, model, parameters=parameters)
            raise ValueError(f"{folder} cannot be read: {error} {_DAMAGED}") from error
        if not len(vectors) == len(rows) == described["count"]:
            raise ValueError(f"{data} holds {len(rows)} sentences and {len(vectors)} embeddings. {_DAMAGED}")
        if parameters is not None:
            vectors.set_parameters(parameters)
        index = cls(model, vectors, rows, described["truncate_dim"])
        index._saved[folder] = described["data"]
        return index


def describe(folder: StrPath) -> dict[str, Any]:
    """Read the description of a saved index.

    Args:
        folder (`str` or `os.PathLike`): The folder that it was saved in.

    Returns:
        `dict[str, Any]`: `model`, `pooler`, `backend`, `count` and more.

    Raises:
        ValueError: If there is no index, or its description is damaged.
    """
    path = Path(folder).expanduser() / _DESCRIPTION
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{folder}: no {_DESCRIPTION}, so it is not a folder that an index was saved in.")
    described = read_json(path, _DAMAGED)
    match described:
        case {
            "model": str(),
            "revision": str() | None,
            "pooler": str() | None,
            "max_length": int() | None,
            "document_prompt": str() | None,
            "backend": str(),
            "truncate_dim": int() | None,
            "count": int(),
            "probe": [*probe],
            "data": str(data),
            "digests": {},
        } if {type(value) for value in probe} == {float} and _DATA.fullmatch(data):  # it must stay in the folder
            return described
    raise ValueError(f"{path}: damaged (an entry is missing or holds another kind of value). {_DAMAGED}")


def check_target(folder: StrPath) -> None:
    """Raise a `ValueError` unless an index can be saved here: in a new or empty folder, or over an index of ours.

    Args:
        folder (`str` or `os.PathLike`): The folder.

    Raises:
        ValueError: If the folder holds anything else.
    """
    path = Path(folder).expanduser()
    try:
        if (path / _DESCRIPTION).exists():
            describe(path)
            return
        for each in entries(path):
            if not _DATA.fullmatch(each.name):
                raise ValueError(f"{each.name} is there.")
    except (ValueError, OSError) as error:
        raise ValueError(f"{folder} holds something else than an index: name a new folder. ({error})") from error


def _check_model(model: Any, described: dict[str, Any], folder: Path) -> None:
    """Refuse a model that does not give the embeddings of a saved index."""
    for name in ("long_texts", "max_length", "similarity"):
        attribute, default = _SETTINGS[name]
        saved = described.get(name, default)  # 0.3 wrote neither the first nor the last
        now = getattr(model, attribute, saved)
        if now != saved:
            raise ValueError(
                f"{folder} was built with {name} {saved!r}, and the model has {now!r}: load it with {name}={saved!r}."
            )
    probe = _encode_documents(model, [PROBE], described["truncate_dim"])[0]
    expected = np.array(described["probe"], dtype=np.float32)
    if len(probe) != len(expected):
        problem = f"embeddings of {len(probe)} dimensions instead of {len(expected)}"
    else:
        cosine = _agreement(probe, expected)
        if cosine >= SAME:  # it may be NaN
            return
        problem = f"another embedding for a fixed sentence (cosine {cosine:.4f})"
    raise ValueError(
        f"{folder} was built with model {described['model']!r} and pooler_type {described['pooler']!r}; "
        f"{getattr(model, 'name_or_path', None)!r} with pooler_type {getattr(model, 'pooler_type', None)!r} gives "
        f"{problem}: load it with the model, pooler, prompt and max_length of the index."
    )


def _encode_documents(model: Any, texts: Sequence[str], truncate_dim: int | None) -> ndarray:
    """Encode texts as the model encodes documents, with its prompt for them if it has one."""
    encode = getattr(model, "encode_document", model.encode)
    embeddings = np.asarray(encode(texts, truncate_dim=truncate_dim, convert_to_numpy=True))
    return comparable(embeddings, _similarity_of(model))


def _similarity_of(model: Any) -> str:
    return getattr(model, "similarity_fn_name", "cosine")


def _agreement(x: ndarray, y: ndarray) -> float:
    """Return the cosine of two unit embeddings, and of others what falls as fast with their relative distance."""
    distance = np.square(x - y).sum()
    size = np.square(y).sum()
    return float(1 - distance / (2 * size))
