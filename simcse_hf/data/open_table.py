"""Open a file of texts by its extension: txt, csv, tsv, json, jsonl or parquet, packed or not.

Python's `csv` and `json` and pyarrow's parquet reader do the reading. pyarrow's reader of csv files takes a quote that
is not closed and text after a closing quote without a word, so it is not used.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .csv_records import csv_records
from .lines import SUFFIX, SUFFIXES, decoded_lines
from .table import Row, Table, open_records

_BATCH_ROWS = 10_000


class DataFileNotFoundError(FileNotFoundError, ValueError):
    """A data file does not exist."""


def open_table(path: str | os.PathLike) -> Table:
    """Open a file by its extension and read the names of its columns.

    A txt file has the one column `text`; blank lines are skipped, and white space within a line is kept. The first row
    of a csv or tsv file is its header, and cells are quoted as RFC 4180 says. A json file is an array of objects or of
    arrays, or has one of these on each line; the keys of its first 100 objects are its columns.

    Args:
        path (`str` or `os.PathLike`): A file whose name ends in .txt, .csv, .tsv, .json, .jsonl or .parquet, or in one
            of these followed by .gz.

    Returns:
        [`Table`]: The table.

    Raises:
        DataFileNotFoundError: If the file does not exist. This is also a `ValueError`.
        ValueError: If the extension is unknown, the file is a directory, empty, a broken gzip stream or not UTF-8, or
            its header or first row is malformed. Reading its rows raises the same for later rows.
    """
    path = Path(path).expanduser()
    suffix = SUFFIX.search(path.name)
    if not path.exists():
        raise DataFileNotFoundError(f"{path}: no such file.")
    if path.is_dir():
        raise ValueError(f"{path}: is a directory. Name the files in it instead.")
    if suffix is None:
        raise ValueError(f"{path}: unknown extension {path.suffix!r}. The name must end in {SUFFIXES}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty.")
    openers: dict[str, Callable[[Path], Table]] = {
        "txt": _open_txt,
        "csv": partial(_open_csv, delimiter=","),
        "tsv": partial(_open_csv, delimiter="\t"),
        "json": _open_json,
        "jsonl": _open_json,
        "parquet": _open_parquet,
    }
    return openers[suffix[1].lower()](path)


def _open_txt(path: Path) -> Table:
    def rows(_: Sequence[str]) -> Iterator[Row]:
        for number, line in decoded_lines(path):
            if line.strip():
                yield number, (line.removesuffix("\n").removesuffix("\r"),)

    return Table(str(path), ["text"], rows, "txt")


def _open_csv(path: Path, delimiter: str) -> Table:
    _, header = next(csv_records(path, delimiter), (1, []))
    names = [cell.strip() for cell in header]
    if not names:
        raise ValueError(f"{path}: the file holds no header and no rows, only blank lines.")
    if len(names) == 1 and re.fullmatch(r"\w+([\t,;|]\w+)+", names[0]):
        raise ValueError(
            f"{path}: the header is one column, {names[0]!r}. Separate the cells of a .csv file by commas and those "
            "of a .tsv file by tabs, or rename the column if it is one."
        )

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        indices = [names.index(column) for column in columns]
        for number, cells in islice(csv_records(path, delimiter), 1, None):
            if len(cells) != len(names):
                raise ValueError(
                    f"{path}, line {number}: {len(cells)} cells where the header has {len(names)} "
                    f"({', '.join(names)}). Put double quotes around a cell that contains the delimiter {delimiter!r}."
                )
            if cells == header:
                raise ValueError(f"{path}, line {number}: the header is repeated, and is no text. Remove the line.")
            yield number, [cells[index] for index in indices]

    return Table(str(path), names, rows, "csv")


def _open_json(path: Path) -> Table:
    """Open a json file that is one array of rows, or has one row on each line (JSON Lines)."""
    lines = (line for _, line in decoded_lines(path) if line.strip())
    first = next(lines, "").lstrip()
    # An array that closes on the first line is a row of a JSON Lines file if another line follows.
    if first.startswith("[") and not (first.rstrip().endswith("]") and any(lines)):
        array = _parse(f"{path}, line {{}}", "".join(line for _, line in decoded_lines(path)))
        return open_records(str(path), lambda: enumerate(array, 1), "json", "row")

    def values() -> Iterator[tuple[int, Any]]:
        for number, line in decoded_lines(path):
            if line.strip():
                yield number, _parse(f"{path}, line {number}", line)

    return open_records(str(path), values, "json", "line")


def _parse(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also for 4,300 digits in a row, and for deep nesting
        where = where.format(getattr(error, "lineno", 1))
        raise ValueError(
            f"{where}: not valid JSON: {getattr(error, 'msg', error)}. The file must hold one object per line, or one "
            "array of objects."
        ) from None


def _open_parquet(path: Path) -> Table:
    advice = "Write or download it again."
    try:
        # Parquet is read from its end, so it is unpacked into memory.
        source: Any = path
        if path.suffix.lower() == ".gz":
            source = pa.BufferReader(gzip.decompress(path.read_bytes()))
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names
    except (EOFError, OSError, UnicodeDecodeError, zlib.error, pa.ArrowException) as error:
        raise ValueError(f"{path}: not a readable parquet file: {error}. {advice}") from None

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        try:
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns)):
                cells = [batch.column(column).to_pylist() for column in columns]
                yield from enumerate(zip(*cells, strict=True), number + 1)
                number += len(batch)
        except (OSError, ValueError, OverflowError, pa.ArrowException) as error:  # damaged pages or odd dates
            raise ValueError(f"{path}: cannot be read to its end: {error}. {advice}") from None
        expected = file.metadata.num_rows
        if number != expected:
            raise ValueError(f"{path}: holds {number} rows where its metadata says {expected}. {advice}")

    return Table(str(path), names, rows, "parquet", "row")
