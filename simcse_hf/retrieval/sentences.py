"""An index of sentences: built from a list or a file, searched by text, and saved with the identity of its model."""

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy import ndarray
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.columns import check_text, holds_texts, list_texts, quote
from ..data.table import stream_texts
from ..runtime.encoders import Encoder, as_encoder
from ..runtime.errors import DataError, ModelError, NotFiniteError, SettingError, check_finite, check_values
from ..runtime.files import StrPath, digest, entries, lock, remove, write_atomically, write_json
from ..runtime.similarity import check_scores
from .description import (
    DATA,
    DESCRIPTION,
    PROBE,
    REBUILD,
    SAME,
    SAME_ROUNDED,
    Description,
    agreement,
    describe,
    embed_documents,
    identify,
)
from .exact import ExactIndex, comparable
from .faiss_index import NOT_FOUND, FaissIndex, new_index

logger = logging.get_logger(__name__)

_TOGETHER = 10_000  # sentences that are encoded together
_SENTENCE = "sentence"
#: Prefix of the kept columns, so that none can be taken for the sentences.
_KEPT = "column:"
_ROWS = "rows.parquet"
#: What a save removes: earlier data, and files of interrupted saves.
_OWN = re.compile(rf"{DATA.pattern}|\.({DATA.pattern}|index\.json)\.\d+\.partial")

Texts = StrPath | Iterable[str]
Queries = str | Iterable[str] | ndarray | torch.Tensor


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

    Examples:
        >>> from simcse_hf import Match, SimCSE
        >>> model = SimCSE("outputs/my-model", device="cpu")
        >>> model.build_index(["The chef cooked the soup.", "The old mariner found the horse."])
        >>> match = model.search("The chef cooked the soup.")[0]
        >>> isinstance(match, Match), match.sentence, match.row
        (True, 'The chef cooked the soup.', 0)
    """

    row: int
    columns: dict[str, str]


Matches = list[Match]
#: Rows of a sentence and its kept columns, and the embeddings of the sentences.
_Part = tuple[list[list[str]], ndarray]


class SentenceIndex:
    """Sentences with an index of their embeddings, created by [`SentenceIndex.build`] or [`SentenceIndex.load`].

    Sentences are encoded by the model's `encode_document` and queries by its `encode_query`, with their prompts if
    the model has any. A model that has changed since the index was built is refused.

    Attributes:
        model (`SimCSE`): The model; any object with an `encode` like [`SimCSE.encode`] will do.
        vectors (`ExactIndex` or `FaissIndex`): The embeddings.
        rows (`pa.Table`): The sentences and the columns kept beside them.
        description (`Description`): The identity of the model and the other settings of the index.
        backend (`str`): `"exact"`, or what [`FaissIndex`] was built from.
        similarity (`str`): What ranks the sentences: the model's own similarity.
        kept (`list[str]`): The names of the kept columns.
        truncate_dim (`int`, *optional*): How many leading dimensions of the model's embeddings are used.

    Examples:
        >>> from simcse_hf import SimCSE
        >>> from simcse_hf import SentenceIndex
        >>> model = SimCSE("outputs/my-model", device="cpu")
        >>> index = SentenceIndex.build(model, ["The chef cooked the soup.", "The old mariner found the horse."])
        >>> index.add(["The weary drummer lost the lute."])
        >>> index.search("The tired percussionist lost the lute.", top_k=1)[0].row
        2
        >>> index.save("my-index")
        >>> len(SentenceIndex.load("my-index", model))
        3
    """

    def __init__(
        self,
        model: Encoder,
        vectors: ExactIndex | FaissIndex,
        rows: pa.Table,
        description: Description,
    ) -> None:
        self.model: Any = model
        self._encoder = as_encoder(model)
        self.vectors = vectors
        self.rows = rows
        self.description = description
        self.backend = vectors.backend
        self.similarity = description.model.similarity
        self.kept = [name.removeprefix(_KEPT) for name in rows.column_names[1:]]
        self.truncate_dim = description.truncate_dim
        self._checked = identify(self._encoder, description.model)
        self._saved: dict[Path, str] = {}  # folders with this index, and the data folder in each
        self._lock = RLock()  # whoever adds, replaces, deletes, searches or saves holds it

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock: a copy, in this process or another, has its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of another index, with a lock of its own."""
        self.__dict__.update(state, _lock=RLock())

    def __len__(self) -> int:
        rows = self.rows  # which another thread may replace
        return len(rows) - rows[_SENTENCE].null_count  # a deleted sentence is null

    def __getitem__(self, row: int) -> str:
        """Return a sentence by its number."""
        return self._match(row, 0).sentence

    @classmethod
    def build(
        cls,
        model: Encoder,
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
            sentences (`str`, `os.PathLike` or `Iterable[str]`): The sentences; or the path of a txt, csv, tsv, json,
                jsonl or parquet file (or one of these gzipped), which is streamed.
            backend (`str`, *optional*, defaults to `"exact"`): `"exact"` compares every embedding. `"hnsw"`, `"ivf"`
                and descriptions for faiss's `index_factory` such as `"IVF4096,SQ8"` are faiss, see [`FaissIndex`].
            parameters (`str`, *optional*): Parameters of a faiss index, such as `"efSearch=256"`.
            keep (`Sequence[str]`, *optional*, defaults to `()`): Other columns of the file to keep. Searches return
                them, and can be filtered by them.
            truncate_dim (`int`, *optional*): Use only the leading dimensions.
            column (`str`, *optional*): The column of sentences, if the file has several columns.
            vectors (`Iterable[np.ndarray]`, *optional*): Embeddings of these sentences that were computed before, as
                arrays of shape `(n, dim)` one after the other (see `encoding.files.read_shards`).
            show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar.

        Returns:
            `SentenceIndex`: The index.

        Raises:
            DataError: If there are no sentences, one is not a text, the file is unreadable, the backend or a
                parameter is unknown, or the embeddings are not this model's or not as many as the sentences.
            ImportError: If faiss is needed and not installed.
        """
        encoder = as_encoder(model)
        probe = embed_documents(encoder, [PROBE], truncate_dim)[0]
        empty = new_index(len(probe), backend, encoder.similarity)
        if parameters is not None:
            empty.set_parameters(parameters)
        description = Description(identify(encoder), probe.tolist(), truncate_dim, backend)
        names = [_SENTENCE, *(_KEPT + name for name in keep)]
        schema = pa.schema([(name, pa.large_string()) for name in names])
        index = cls(model, empty, schema.empty_table(), description)
        index.add(sentences, column=column, vectors=vectors, show_progress_bar=show_progress_bar)
        if not len(index):
            raise DataError("there are no sentences to index: give at least one")
        return index

    def add(
        self,
        sentences: Texts,
        *,
        replace: str | None = None,
        column: str | None = None,
        vectors: Iterable[ndarray] | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        """Append all sentences or, after an error, none; other arguments and errors as in [`SentenceIndex.build`].

        Args:
            sentences (`str`, `os.PathLike` or `Iterable[str]`): The sentences, or their file.
            replace (`str`, *optional*): A kept column, such as an id. Sentences that hold the value of a new one there
                are deleted (an upsert); an empty value replaces none.
            column (`str`, *optional*): The column of sentences, if the file has several.
            vectors (`Iterable[np.ndarray]`, *optional*): Their embeddings.
            show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar.

        Raises:
            DataError: If the column was not kept, two new sentences have one value there, or sentences come from no
                file although the index keeps columns.
        """
        self._check_model()
        self._check_documents()
        if replace:
            self._column(replace)
        rows: Iterator[list[str]]
        total = None
        if isinstance(sentences, (str, os.PathLike)) or hasattr(sentences, "columns"):
            rows = (row for _, *row in stream_texts(sentences, column, self.kept))
        elif self.kept:
            kept = ", ".join(self.kept)
            raise DataError(f"the index keeps the columns {kept}, so sentences come from a file or a data frame.")
        else:
            texts = list_texts(sentences)
            rows = ([text] for text in texts)
            total = len(texts)
        parts = self._encode(rows) if vectors is None else self._compare(rows, vectors)
        added = []
        count = 0
        with tqdm(total=total, desc="Indexing", unit=" sentences", disable=not show_progress_bar) as bar:
            for part, embeddings in parts:
                first = len(self.rows) + count
                check_finite(embeddings, lambda number: f"sentence {first + number} of the index")  # noqa: B023
                added.append((pa.table([*zip(*part, strict=True)], schema=self.rows.schema), embeddings))
                count += len(part)
                bar.update(len(part))
        new: Counter[str] = Counter()
        for table, _ in added if replace else ():
            new.update(filter(None, table[_KEPT + str(replace)].to_pylist()))
        repeated = [value for value, times in new.items() if times > 1]
        if repeated:
            raise DataError(
                f"{sentences}: several rows have {repeated[0]!r} in the column {replace!r}, by which they replace "
                "others: keep one of them."
            )
        with self._lock:
            before = self._column(replace).to_pylist() if replace else []
            for table, embeddings in added:
                self.vectors.add(embeddings)
                self.rows = pa.concat_tables([self.rows, table])
            if replace:
                self.delete(row for row, value in enumerate(before) if value in new)

    def delete(self, rows: Iterable[int] = (), *, filters: Mapping[str, str] | None = None) -> None:
        """Delete sentences. The numbers of all others stay.

        Texts and columns are gone. Embeddings stay until the index is built again, but no search finds them.

        Args:
            rows (`Iterable[int]`, *optional*): The numbers of the sentences.
            filters (`Mapping[str, str]`, *optional*): Delete also what a search with these filters would look among.

        Raises:
            DataError: If there is no sentence of such a number or with these values, or a column was not kept.
        """
        with self._lock:
            kept = ~self._select(filters) if filters else np.ones(len(self.rows), dtype=bool)
            if filters and kept.all():
                raise DataError(f"there is no sentence with {filters} to delete.")
            for row in rows:
                kept[self._match(row, 0).row] = False
            columns = [pc.if_else(pa.array(kept), column, None) for column in self.rows.columns]
            self.rows = pa.table(columns, schema=self.rows.schema)

    def _encode(self, rows: Iterator[list[str]]) -> Iterator[_Part]:
        """Yield rows with their embeddings."""
        count = 0
        while part := list(islice(rows, _TOGETHER)):
            try:
                yield part, embed_documents(self._encoder, [row[0] for row in part], self.truncate_dim)
            except NotFiniteError as error:
                place = len(self.rows) + count + error.position
                raise NotFiniteError(f"sentence {place} of the index", place) from None
            count += len(part)

    def _compare(self, rows: Iterator[list[str]], vectors: Iterable[ndarray]) -> Iterator[_Part]:
        """Yield rows with the embeddings that were given for them, one of each part of which is compared."""
        count = 0
        draw = np.random.default_rng(0)
        least = SAME if self.description.model.backend == "torch" else SAME_ROUNDED
        for embeddings in vectors:
            self._check_given(embeddings, "vectors")
            part = list(islice(rows, len(embeddings)))
            if len(part) < len(embeddings):
                raise DataError(f"there are more vectors than the {count + len(part)} sentences")
            if not part:
                continue
            embeddings = comparable(embeddings, self.similarity)
            place = draw.integers(len(part))
            text = part[place][0]
            cosine = agreement(embed_documents(self._encoder, [text], self.truncate_dim)[0], embeddings[place])
            if not cosine >= least:  # also where it is NaN
                raise DataError(
                    f"the vectors are not this model's for these sentences: their cosine is {cosine:.3f} for sentence "
                    f"{count + place}, {text!r:.80}. Encode them with this model and its prompt for documents."
                )
            count += len(part)
            yield part, embeddings
        if next(rows, None) is not None:
            raise DataError(f"there are more sentences than the {count} vectors")

    def _check_given(self, embeddings: ndarray | torch.Tensor, name: str) -> None:
        """Refuse given embeddings that are codes or have another shape than `(n, dim)`."""
        dim = self.vectors.dim
        if "float" not in str(embeddings.dtype) or embeddings.shape[1:] != (dim,):
            raise DataError(
                f"{name} are {embeddings.dtype} of shape {tuple(embeddings.shape)}: give embeddings of floats (no "
                f"codes) with {dim} dimensions"
            )

    def _check_model(self) -> None:
        """Refuse a model that has changed since the index was built or loaded."""
        now = identify(self._encoder, self.description.model)
        if now != self._checked:
            self.description.check_model(self._encoder, "the index")
            self._checked = now

    def _check_documents(self) -> None:
        """Refuse to encode documents with a student, which has learned to encode queries."""
        if self.description.is_of_teacher(self._encoder):
            teacher = self.description.model.name_or_path
            raise ModelError(f"a student only searches the index of its teacher: encode documents with {teacher}")

    def neighbors(
        self,
        row: int,
        *,
        top_k: int = 5,
        threshold: float | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> Matches:
        """Find the sentences that are most similar to a sentence of the index, without that one.

        Args:
            row (`int`): Its number.
            top_k (`int`, *optional*, defaults to `5`): The most sentences to return.
            threshold (`float`, *optional*): As in [`SentenceIndex.search`].
            filters (`Mapping[str, str]`, *optional*): As in [`SentenceIndex.search`].

        Returns:
            `list[Match]`: The sentences with their similarities, in descending order.
        """
        check_values("an integer above 0", top_k=top_k)
        self._check_documents()
        embedding = embed_documents(self._encoder, [self[row]], self.truncate_dim)[0]
        found = self.search(embedding, top_k=top_k + 1, threshold=threshold, filters=filters)
        return [match for match in found if match.row != row][:top_k]

    def search(
        self,
        queries: Queries,
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
            ValueError: If the model has changed since the index was built, a query is neither a text nor an embedding
                of the index's dimensions, `top_k` is below 1, `threshold` is no possible cosine, or a column of
                `filters` was not kept.
        """
        # 1. Refuse what cannot be searched.
        check_values("an integer above 0", top_k=top_k)
        check_scores(self.similarity, threshold=threshold)
        self._check_model()

        # 2. Select rows, and find the nearest of them.
        if isinstance(queries, (ndarray, torch.Tensor)) and not holds_texts(queries):
            is_single = queries.ndim == 1
            queries = queries[None] if is_single else queries
            self._check_given(queries, "queries")
            embeddings = torch.as_tensor(queries).float().cpu().numpy()
        else:
            is_single = isinstance(queries, str)
            embeddings = self._encoder.embed(list_texts(queries), "query", truncate_dim=self.truncate_dim)
        embeddings = comparable(embeddings, self.similarity)
        check_finite(embeddings, "query {}".format)
        results: list[Matches] = [[] for _ in embeddings]
        with self._lock:
            among = self._select(filters or {}) if filters or len(self) < len(self.rows) else None
            top_k = min(int(top_k), len(self) if among is None else int(among.sum()))
            if not top_k:
                logger.warning(f"no sentence passes the filter {filters or {}}.")
                return results[0] if is_single else results
            scores, rows = self.vectors.search(embeddings, top_k, among)
            least = -np.inf if threshold is None else threshold
            best = []
            missed = 0
            for result, *found in zip(results, rows.tolist(), scores.tolist(), strict=True):
                matches = [(row, score) for row, score in zip(*found, strict=True) if row != NOT_FOUND][:top_k]
                missed += len(matches) < top_k
                result += [self._match(row, score) for row, score in matches if score >= least]
                if matches and not result:
                    best.append(matches[0][1])

        # 3. Say which queries found nothing, or less than there is.
        if best:
            logger.warning(
                f"{len(best)} of {len(results)} queries found no sentence with a {self.similarity} of at least "
                f"{threshold}: their best score is {max(best):.4f}. Lower the threshold to see more."
            )
        if missed:
            logger.warning(
                f"{self.backend} found fewer than {top_k} sentences for {missed} of {len(results)} queries, although "
                "there are as many: let it look further with parameters such as efSearch=512."
            )
        return results[0] if is_single else results

    def _select(self, filters: Mapping[str, str]) -> ndarray:
        """Return whether each row is there and its kept columns hold these values, of shape `(len(self.rows),)`."""
        among = self.rows[_SENTENCE].is_valid()
        for name, value in filters.items():
            wanted = check_text(str(value), f"filter {name}")
            among = pc.and_(among, pc.equal(self._column(name), wanted).fill_null(False))
        return among.to_numpy()

    def _column(self, name: str) -> pa.ChunkedArray:
        """Return a kept column."""
        if name not in self.kept:
            kept = quote(self.kept) or "none"
            raise SettingError(f"the index keeps no column {name!r} (kept: {kept}): build it with --keep.")
        return self.rows[_KEPT + name]

    def _match(self, row: int, score: float) -> Match:
        check_values(range(len(self.rows)), row=row)
        sentence, *cells = (column[row].as_py() for column in self.rows.columns)
        if sentence is None:
            raise DataError(f"sentence {row} of the index was deleted.")
        match = Match(sentence, score)
        match.row = row
        match.columns = dict(zip(self.kept, cells, strict=True))
        return match

    def save(self, folder: StrPath) -> None:
        """Write the index to a folder, completely or not at all; an index in the folder is replaced.

        The new data gets a folder of its own. The index is replaced when the new `index.json` takes its place.

        Args:
            folder (`str` or `os.PathLike`): A new or empty folder, or that of an index.

        Raises:
            DataError: If the model has changed since the index was built, the folder holds anything else or cannot be
                written to, or another process is writing the index or has changed it since this one was loaded.
        """
        check_target(folder)
        self._check_model()
        target = Path(folder).expanduser().resolve()
        data = f"data-{secrets.token_hex(8)}"
        try:
            with self._lock, lock(target):
                found = check_target(target)
                saved = found.data if found else None
                if self._saved.get(target, saved) != saved:
                    raise DataError(
                        f"{folder}: another process has changed this index since it was loaded: load it again, and "
                        "repeat the change."
                    )
                with write_atomically(target / data) as temporary:
                    temporary.mkdir()
                    self.vectors.save(temporary)
                    pq.write_table(self.rows, temporary / _ROWS)
                    digests = {path.name: digest(path) for path in sorted(temporary.iterdir())}
                self.description = replace(self.description, count=len(self), data=data, digests=digests)
                write_json(target / DESCRIPTION, asdict(self.description))
                for path in target.iterdir():  # earlier data, and files of interrupted saves
                    if path.name != data and _OWN.fullmatch(path.name):
                        remove(path)
        except (OSError, RuntimeError) as error:  # faiss raises the latter
            raise DataError(f"cannot write the index; {folder} is unchanged: {error}. Free disk space.") from error
        self._saved[target] = data

    @classmethod
    def load(cls, folder: StrPath, model: Encoder, *, parameters: str | None = None) -> "SentenceIndex":
        """Open a saved index.

        Args:
            folder (`str` or `os.PathLike`): The folder that it was saved in.
            model (`SimCSE`): The model that the index was built with; [`describe`] names it.
            parameters (`str`, *optional*): Parameters of a faiss index that replace the saved ones.

        Returns:
            `SentenceIndex`: The index.

        Raises:
            DataError: If there is no index, it is damaged, or it was built with another model or other settings.
        """
        folder = Path(folder).expanduser().resolve()
        described = describe(folder)
        described.check_model(as_encoder(model), str(folder))
        data = folder / described.data
        try:
            for name, saved in described.digests.items():
                if digest(data / Path(name).name) != saved:
                    raise DataError(f"{data / name} is damaged (its digest is not the saved one).")
            rows = pq.ParquetFile(data / _ROWS).read()
            vectors = new_index(len(described.probe), described.backend, described.model.similarity)
            vectors.load(data)
            index = cls(model, vectors, rows, described)
            if len(vectors) != len(rows) or len(index) != described.count:
                raise DataError(f"{data} holds {len(index)} sentences and {len(vectors)} embeddings.")
        except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
            if describe(folder).data != described.data:  # another process has just replaced it
                return cls.load(folder, model, parameters=parameters)
            raise DataError(f"{folder} cannot be read: {error} {REBUILD}") from error
        if parameters is not None:
            vectors.set_parameters(parameters)
        index._saved[folder] = described.data
        return index


def check_target(folder: StrPath) -> Description | None:
    """Raise a `ValueError` unless an index can be saved here: in a new or empty folder, or over an index of ours.

    Args:
        folder (`str` or `os.PathLike`): The folder.

    Returns:
        `Description`, *optional*: The index that it holds.

    Raises:
        SettingError: If the folder holds anything else.
    """
    path = Path(folder).expanduser()
    described = path / DESCRIPTION
    try:
        if described.is_symlink():
            raise SettingError(f"{DESCRIPTION} is a link.")
        if described.exists():
            return describe(path)
        for each in entries(path):
            if not DATA.fullmatch(each.name):
                raise SettingError(f"{each.name} is there.")
    except (ValueError, OSError) as error:
        raise SettingError(f"{folder} holds something else than an index: name a new folder. ({error})") from error
    return None
