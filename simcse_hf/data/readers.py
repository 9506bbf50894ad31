"""Training text from files, the hub or memory, as a `datasets.Dataset` of the columns sent0, sent1, sent2, ..."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Features, NamedSplit, Value, config, load_dataset
from datasets.fingerprint import Hasher
from datasets.table import MemoryMappedTable
from transformers.utils import logging

from .columns import output_columns, resolve_columns
from .files import SUFFIX, SUFFIXES, DelimitedFile, MemoryTable, TextTable, open_table

logger = logging.get_logger(__name__)

_LAYOUT = 1  # of the cached files; part of their key
_BATCH_ROWS = 10_000
_SHOWN_ROWS = 5
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?")


@dataclass
class _Report:
    """What became of the rows of one table; kept beside the cached rows, so that a second load says it again."""

    rows: int = 0
    blank_lines: int = 0
    dropped: int = 0
    first_dropped: list[int] = field(default_factory=list)

    def drop(self, number: int) -> None:
        self.dropped += 1
        if len(self.first_dropped) < _SHOWN_ROWS:
            self.first_dropped.append(number)

    def log(self, name: str, unit: str) -> None:
        if self.blank_lines:
            logger.info("%s: skipped %d blank line(s).", name, self.blank_lines)
        if self.dropped:
            where = ", ".join(map(str, self.first_dropped)) + (", ..." if self.dropped > _SHOWN_ROWS else "")
            total = self.rows + self.dropped
            logger.warning(
                "%s: dropped %d of %d rows for an empty cell: %s %s.", name, self.dropped, total, unit, where
            )


def load_text_dataset(
    source: str | Path | Sequence[Any] | Dataset | DatasetDict,
    *,
    split: str = "train",
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
    delimiter: str | None = None,
    max_rows: int | None = None,
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Loads sentences, sentence pairs, or pairs with hard negatives.

    Files are read once, checked, and written as Arrow to `<cache_dir>/simcse_hf/<fingerprint>`; the result is
    memory-mapped from there. Its fingerprint depends on the content and format of the files and on the arguments only,
    so that a later `map` finds its own cache again. A row with an empty cell is dropped, and a warning counts these; a
    text with white space at its ends, or the word "None", is kept as it is.

    Args:
        source: One of
            - a path to a .txt, .csv, .tsv, .json, .jsonl or .parquet file, or to one of these with .gz behind it, or a
              list of such paths;
            - a dataset on the Hugging Face hub, `name` or `name:config`;
            - a `datasets.Dataset`, or a `DatasetDict`;
            - a list of strings, of tuples or of dicts.
            A list of strings is a list of paths when every string has one of the file extensions above.
        split: Split of a hub dataset or a `DatasetDict`; any slice that `datasets` knows, such as "train[:10%]".
        columns: The columns to take, in the order anchor, positive, hard negatives. By default they are found by name
            or, failing that, by position: see `resolve_columns`.
        expected_columns: How many columns there must be: 1 unsupervised, 2 pairs, 2 + k with k hard negatives.
        delimiter: Cell separator of csv and tsv files, by default a comma and a tab.
        max_rows: Stop after so many rows.
        cache_dir: Where files are cached; by default the cache of `datasets` (`HF_DATASETS_CACHE`).

    Returns:
        A dataset with the string columns `sent0`; `sent0, sent1`; or `sent0, sent1, sent2, ...`.

    Raises:
        DataFileNotFoundError: A file does not exist (also a ValueError).
        ValueError: Bad input; the message names the file and the line or row.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, got {max_rows}.")
    wanted = {"columns": columns, "expected_columns": expected_columns}
    if isinstance(source, DatasetDict):
        if split not in source:
            raise ValueError(f"the DatasetDict has no split {split!r}; it has {', '.join(source)}.")
        source = source[split]
    if isinstance(source, Dataset):
        return _from_dataset(source, "the dataset", max_rows=max_rows, **wanted)
    if not isinstance(source, (str, Path, list, tuple)):
        raise ValueError(f"source must be a path, a hub id, a list or a Dataset, got {type(source).__name__}.")
    paths = _paths(source)
    if paths:
        return _from_files(paths, delimiter=delimiter, max_rows=max_rows, cache_dir=cache_dir, **wanted)
    if isinstance(source, str):
        return _from_dataset(_from_hub(source, split, cache_dir), source, max_rows=max_rows, **wanted)
    return _from_memory(source, max_rows=max_rows, **wanted)


def _paths(source: str | Path | Sequence[Any]) -> list[Path] | None:
    """The files that `source` names, or None where it is a hub id or a list of rows."""
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        is_id = isinstance(source, str) and _HUB_ID.fullmatch(source) and not SUFFIX.search(source)
        return None if is_id and not path.exists() else [path]
    if source and all(isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item)) for item in source):
        return [Path(item).expanduser() for item in source]
    for item in source[:_SHOWN_ROWS]:
        if isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item) and Path(item).exists()):
            raise ValueError(
                f"the list holds the file {item} among other things; the paths in it must end in {SUFFIXES}."
            )
    return None


def _from_files(
    paths: list[Path],
    *,
    columns: Sequence[str] | None,
    expected_columns: int | None,
    delimiter: str | None,
    max_rows: int | None,
    cache_dir: str | Path | None,
) -> Dataset:
    tables = [open_table(path, delimiter) for path in paths]
    chosen = _resolve(tables, columns, expected_columns)
    fingerprint = Hasher.hash([_LAYOUT, [_identity(path) for path in paths], chosen, delimiter, max_rows])
    folder = Path(cache_dir or config.HF_DATASETS_CACHE).expanduser() / "simcse_hf" / fingerprint
    if not folder.is_dir():
        _write(folder, tables, chosen, max_rows)
    reports = [_Report(**report) for report in json.loads((folder / "report.json").read_text())]
    for table, report in zip(tables, reports, strict=False):  # fewer reports where max_rows stopped the reading
        report.log(table.name, table.unit)
    return Dataset(
        MemoryMappedTable.from_file(str(folder / "data.arrow")), split=NamedSplit("train"), fingerprint=fingerprint
    )


def _identity(path: Path) -> tuple[str, str]:
    """What decides the rows of a file: how it is read, and its bytes; not its place."""
    with open(path, "rb") as stream:
        return SUFFIX.search(path.name)[0].lower(), file_digest(stream, "blake2b").hexdigest()


def _write(folder: Path, tables: list[TextTable], chosen: list[list[str]], max_rows: int | None) -> None:
    """Writes the rows under another name first: what stands at `folder` is complete, also with several processes."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    except OSError as error:
        raise ValueError(f"cannot write to the cache {folder.parent}: {error}; pass another cache_dir.") from error
    try:
        reports: list[_Report] = []
        with pa.OSFile(str(partial / "data.arrow"), "wb") as sink:
            with pa.ipc.new_stream(sink, _schema(len(chosen[0]))) as writer:
                for batch in _batches(tables, chosen, max_rows, reports):
                    writer.write_batch(batch)
        (partial / "report.json").write_text(json.dumps([asdict(report) for report in reports]))
        try:
            os.rename(partial, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first with the same rows
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _from_memory(
    rows: Sequence[Any], *, columns: Sequence[str] | None, expected_columns: int | None, max_rows: int | None
) -> Dataset:
    tables: list[TextTable] = [MemoryTable(rows)]
    chosen = _resolve(tables, columns, expected_columns)
    reports: list[_Report] = []
    batches = list(_batches(tables, chosen, max_rows, reports))
    reports[0].log(tables[0].name, tables[0].unit)
    return Dataset(pa.Table.from_batches(batches, _schema(len(chosen[0]))), split=NamedSplit("train"))


def _from_hub(source: str, split: str, cache_dir: str | Path | None) -> Dataset:
    name, _, configuration = source.partition(":")
    try:
        return load_dataset(name, configuration or None, split=split, cache_dir=cache_dir and str(cache_dir))
    except Exception as error:  # of many kinds, by what went wrong with the network, the name or the data
        raise ValueError(
            f"{source!r} is no file here, and could not be loaded from the hub as a dataset either: "
            f"{type(error).__name__}: {error}"
        ) from error


def _from_dataset(
    dataset: Dataset,
    name: str,
    *,
    columns: Sequence[str] | None,
    expected_columns: int | None,
    max_rows: int | None,
) -> Dataset:
    if len(dataset) == 0:
        raise ValueError(f"{name}: there are no rows.")
    dataset = dataset.with_format(None)
    found = dataset.column_names
    head = dataset[:100]
    sample = list(zip(*(head[column] for column in found), strict=True))
    chosen = resolve_columns(found, name=name, sample=sample, columns=columns, expected_columns=expected_columns)
    for column in chosen:
        if dataset.features[column] not in (Value("string"), Value("large_string")):
            raise ValueError(f"{name}: column {column!r} holds {dataset.features[column]}, not strings.")
    outputs = output_columns(len(chosen))
    dataset = dataset.select_columns(chosen).rename_columns(dict(zip(chosen, outputs, strict=True)))
    kept, report = _rows_with_text(dataset)
    if not report.rows:
        raise ValueError(f"{name}: every one of the {report.dropped} rows has an empty cell.")
    report.log(name, "row")
    if report.dropped:
        dataset = dataset.select(kept)
    if max_rows is not None and max_rows < len(dataset):
        dataset = dataset.select(range(max_rows))
    features = Features({column: Value("string") for column in outputs})
    return dataset if dataset.features == features else dataset.cast(features)


def _rows_with_text(dataset: Dataset) -> tuple[np.ndarray, _Report]:
    masks = []
    for batch in dataset.with_format("arrow").iter(_BATCH_ROWS):
        lengths = [pc.utf8_length(pc.utf8_trim_whitespace(column)) for column in batch.columns]
        masks.append(np.all([pc.fill_null(length, 0).to_numpy() > 0 for length in lengths], axis=0))
    full = np.concatenate(masks)
    empty = np.flatnonzero(~full) + 1
    report = _Report(int(full.sum()), dropped=len(empty), first_dropped=empty[:_SHOWN_ROWS].tolist())
    return np.flatnonzero(full), report


def _resolve(tables: list[TextTable], columns: Sequence[str] | None, expected_columns: int | None) -> list[list[str]]:
    chosen = []
    for table in tables:
        _warn_of_missing_header(table)
        sample = table.sample()
        if not sample:
            only = "only the header" if isinstance(table, DelimitedFile) else "only blank lines, if any"
            raise ValueError(f"{table.name}: there are no rows, {only}.")
        names = resolve_columns(
            table.columns, name=table.name, sample=sample, columns=columns, expected_columns=expected_columns
        )
        if chosen and len(names) != len(chosen[0]):
            raise ValueError(
                f"{tables[0].name} has {len(chosen[0])} text column(s) ({', '.join(chosen[0])}), but {table.name} has "
                f"{len(names)} ({', '.join(names)}); files loaded together must have the same number."
            )
        chosen.append(names)
    return chosen


def _warn_of_missing_header(table: TextTable) -> None:
    if not isinstance(table, DelimitedFile):
        return
    sentences = [name for name in table.columns if len(name.split()) > 4 or re.search(r"\w[.!?]\W*$", name)]
    if sentences:
        logger.warning(
            "%s: the first line is taken as the header, but %r looks like a sentence. If the file has no header, add "
            "one (such as sent0,sent1,hard_neg), or its first row is lost.",
            table.name,
            sentences[0],
        )


def _schema(count: int) -> pa.Schema:
    return Features({column: Value("string") for column in output_columns(count)}).arrow_schema


def _batches(
    tables: list[TextTable], chosen: list[list[str]], max_rows: int | None, reports: list[_Report]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches, and fills `reports` with one report for each table that it came to."""
    schema = _schema(len(chosen[0]))
    left = max_rows if max_rows is not None else float("inf")
    for table, names in zip(tables, chosen, strict=True):
        report = _Report()
        reports.append(report)
        batch: list[Sequence[str]] = []
        for number, cells in table.rows(names):
            if _has_text(cells, names, table, number):
                batch.append(cells)
                report.rows += 1
            else:
                report.drop(number)
            if len(batch) == _BATCH_ROWS:
                yield _record_batch(batch, schema)
                batch = []
            if report.rows == left:
                break
        if batch:
            yield _record_batch(batch, schema)
        report.blank_lines = table.blank_lines
        if report.rows == 0:
            raise ValueError(
                f"{table.name}: every one of the {report.dropped} row(s) has an empty cell in {', '.join(names)}."
            )
        left -= report.rows
        if left == 0:
            return


def _has_text(cells: Sequence[Any], names: Sequence[str], table: TextTable, number: int) -> bool:
    full = True
    for name, cell in zip(names, cells, strict=True):
        if cell is None:
            full = False
        elif not isinstance(cell, str):
            raise ValueError(f"{table.at(number)}, column {name!r}: expected a string, got {cell!r}.")
        elif not cell or cell.isspace():
            full = False
    return full


def _record_batch(rows: list[Sequence[str]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array(cells, pa.string()) for cells in zip(*rows, strict=True)], schema=schema)
