"""Read a file of texts row by row, with line numbers."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers.utils import logging

from .lines import FIRST, Place, decoded_lines, placed_lines, read_bytes
from .table import SAMPLE_ROWS, FileTable

logger = logging.get_logger(__name__)

SUFFIX = re.compile(r"\.(txt|csv|tsv|jsonl|json|parquet)(\.gz)?$", re.IGNORECASE)
SUFFIXES = ".txt, .csv, .tsv, .json, .jsonl, .parquet, or one of these followed by .gz"

_BATCH_ROWS = 10_000
_CELL_LIMIT = 2**27  # characters; the csv module's own limit of 131072 is below one long document


class DataFileNotFoundError(FileNotFoundError, ValueError):
    """A data file does not exist."""


def open_table(path: str | Path, delimiter: str | None = None) -> FileTable:
    """Open a file by its extension and read the names of its columns.

    A txt file has the one column `text`. The first row of a csv or tsv file is its header. A json file is an array of
    objects, or has one object on each line; the keys of its first 100 objects are its columns.

    Args:
        path (`str | Path`): A file whose name ends in .txt, .csv, .tsv, .json, .jsonl or .parquet, or in one of
            these followed by .gz.
        delimiter (`str`, *optional*): Cell separator of a csv or tsv file. Defaults to a comma or a tab.

    Returns:
        `FileTable`: The table.

    Raises:
        DataFileNotFoundError: If the file does not exist.
        ValueError: If the extension is unknown, the file is a directory, empty, a broken gzip stream or not UTF-8, or
            its header or first row is malformed.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataFileNotFoundError(f"{path}: no such file.")
    if path.is_dir():
        raise ValueError(f"{path}: is a directory. Name the files in it instead.")
    suffix = SUFFIX.search(path.name)
    if suffix is None:
        raise ValueError(f"{path}: unknown extension {path.suffix!r}. The name must end in {SUFFIXES}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty.")
    extension = suffix[1].lower()
    if delimiter is not None and extension not in ("csv", "tsv"):
        raise ValueError(f"{path}: a delimiter ({delimiter!r}) applies to csv and tsv files only.")
    if extension == "txt":
        return LinesFile(path)
    if extension in ("csv", "tsv"):
        return DelimitedFile(path, delimiter or {"csv": ",", "tsv": "\t"}[extension])
    if extension == "parquet":
        return ParquetFile(path)
    return JsonFile(path)


class LinesFile(FileTable):
    """A txt file with one sentence on each line. Blank lines are skipped; white space within a line is kept.

    Args:
        path (`Path`): The file.
    """

    def __init__(self, path: Path):
        super().__init__(str(path))
        self.columns = ["text"]
        self.can_seek = not _is_gzipped(path)

    def placed_rows(self, columns: Sequence[str], start: Place = FIRST) -> Iterator[tuple[Place, Sequence[Any]]]:
        """Yield the place and the cells of each row; see [`FileTable.placed_rows`]."""
        self.blank_lines = 0
        for place, line in placed_lines(Path(self.name), start):
            line = line.removesuffix("\n").removesuffix("\r")
            if line.strip():
                yield place, (line,)
            else:
                self.blank_lines += 1


class DelimitedFile(FileTable):
    """A csv or tsv file with a header, quoted as RFC 4180 says. Blank lines are skipped.

    The first quoted cell that spans lines is reported by a warning: a text may have line breaks, but an opening quote
    that belongs to a text swallows the lines up to the next quote.

    Args:
        path (`Path`): The file.
        delimiter (`str`): The character between cells.

    Raises:
        ValueError: If the delimiter is not one character, or the header is missing or malformed.
    """

    def __init__(self, path: Path, delimiter: str):
        super().__init__(str(path))
        if len(delimiter) != 1:
            raise ValueError(f"{path}: delimiter must be one character, got {delimiter!r}.")
        self.delimiter = delimiter
        self.can_seek = not _is_gzipped(path)
        self._has_long_rows = False
        header = next(self._records(), None)
        if header is None:
            raise ValueError(f"{path}: the file holds no header and no rows, only blank lines.")
        self.columns = [cell.strip() for cell in header[1]]
        _check_unique(self.columns, str(path))
        self._check_delimiter()

    def placed_rows(self, columns: Sequence[str], start: Place = FIRST) -> Iterator[tuple[Place, Sequence[Any]]]:
        """Yield the place and the cells of each row; see [`FileTable.placed_rows`]."""
        self.blank_lines = 0
        indices = [self.columns.index(column) for column in columns]
        width = len(self.columns)
        for place, cells in islice(self._records(start), 1 if start == FIRST else 0, None):
            if len(cells) != width:
                raise ValueError(
                    f"{self.at(place.number)}: {len(cells)} cells where the header has {width} "
                    f"({', '.join(self.columns)}). Put double quotes around a cell that contains the delimiter "
                    f"{self.delimiter!r}."
                )
            yield place, [cells[index] for index in indices]

    def _records(self, start: Place = FIRST) -> Iterator[tuple[Place, list[str]]]:
        place, is_first_line = start, True

        def lines() -> Iterator[str]:
            nonlocal place, is_first_line
            for line_place, line in placed_lines(Path(self.name), start):
                if is_first_line:  # of a record, which may have several lines
                    place, is_first_line = line_place, False
                yield line

        reader = csv.reader(lines(), delimiter=self.delimiter, strict=True)
        limit = csv.field_size_limit()
        while True:
            is_first_line = True
            number = start.number + reader.line_num
            csv.field_size_limit(_CELL_LIMIT)  # the limit is global, so it is restored after each record
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ValueError(
                    f"{self.at(number)}: not valid csv: {error}. A double quote inside a quoted cell must be doubled, "
                    "a line break inside a cell needs quotes around the cell; .jsonl has neither rule."
                ) from None
            finally:
                csv.field_size_limit(limit)
            last_line = start.number - 1 + reader.line_num
            # An unescaped quote at the start of a tsv cell swallows the lines up to the next quote without an error.
            if self.delimiter == "\t" and any("\n" in cell and "\t" in cell for cell in cells):
                raise ValueError(
                    f"{self.at(number)}: a cell that opens with a double quote runs on to line {last_line}. "
                    "Write such a quote as a quoted cell with the quote doubled, or use .jsonl."
                )
            if not self._has_long_rows and last_line > number:
                self._has_long_rows = True
                logger.warning_once(
                    f"{self.at(number)}: a quoted cell runs on to line {last_line}, so these lines are one row, "
                    "and other rows may be longer than a line too. If the texts have no line breaks, a double quote "
                    "is not closed: double a quote that belongs to a text, and put quotes around its cell."
                )
            if cells:
                yield place, cells
            else:
                self.blank_lines += 1

    def _check_delimiter(self) -> None:
        if len(self.columns) > 1:
            return
        for delimiter in {"\t", ",", ";", "|"} - {self.delimiter}:
            names = self.columns[0].split(delimiter)
            if len(names) > 1 and all(re.fullmatch(r"\w+", cell) for cell in names):
                raise ValueError(
                    f"{self.name}: with the delimiter {self.delimiter!r} the header is the one column "
                    f"{self.columns[0]!r}. Pass delimiter={delimiter!r}, or rename the column if it is one."
                )


class JsonFile(FileTable):
    """A json file: an array of rows, or one row on each line (JSON Lines).

    A row is an object or an array of texts.

    Args:
        path (`Path`): The file.

    Attributes:
        refuse_late_keys (`bool`): Whether `rows` raises an error for a key that first appears after the rows that name
            the columns. Where columns are chosen by their names, such a column would be lost without a word.

    Raises:
        ValueError: If the file holds no rows or its first rows are malformed.
    """

    refuse_late_keys = False

    def __init__(self, path: Path):
        super().__init__(str(path))
        self._array = self._read_array()
        self.unit = "line" if self._array is None else "row"
        self.can_seek = self._array is None and not _is_gzipped(path)
        first = next((value for _, value in self._values()), None)
        self.positional = isinstance(first, list)
        self.columns = list(dict.fromkeys(key for _, record in islice(self._objects(), SAMPLE_ROWS) for key in record))
        if not self.columns:
            raise ValueError(f"{path}: the file holds no rows.")

    def placed_rows(self, columns: Sequence[str], start: Place = FIRST) -> Iterator[tuple[Place, Sequence[Any]]]:
        """Yield the place and the cells of each row; see [`FileTable.placed_rows`]."""
        known = set(self.columns)
        for place, record in self._objects(start):
            if self.refuse_late_keys and not record.keys() <= known:
                raise ValueError(
                    f"{self.at(place.number)}: the key {min(record.keys() - known)!r} does not occur in the first "
                    f"{SAMPLE_ROWS} rows, from whose keys the columns are chosen. Add the key to the first row (null "
                    "stands for no text), or name the columns to take with --columns (columns=[...])."
                )
            yield place, [record.get(column) for column in columns]

    def _read_array(self) -> list[Any] | None:
        lines = (line for _, line in decoded_lines(Path(self.name)) if line.strip())
        first = next(lines, "").lstrip()
        # An array that closes on the first line is a row of a JSON Lines file if another line follows.
        if not first.startswith("[") or (first.rstrip().endswith("]") and any(lines)):
            return None
        text = "".join(line for _, line in decoded_lines(Path(self.name)))
        try:
            values: list[Any] = json.loads(text)
        except (ValueError, RecursionError) as error:
            line, reason = getattr(error, "lineno", 1), getattr(error, "msg", error)
            raise ValueError(f"{self.name}, line {line}: not valid JSON: {reason}.") from None
        return values

    def _objects(self, start: Place = FIRST) -> Iterator[tuple[Place, dict[str, Any]]]:
        self.blank_lines = 0
        for place, record in self._values(start):
            if self.positional and isinstance(record, list):
                record = {str(index): cell for index, cell in enumerate(record)}
            if not isinstance(record, dict):
                raise ValueError(
                    f'{self.at(place.number)}: expected an object such as {{"sent0": "..."}}, got '
                    f"{type(record).__name__}."
                )
            yield place, record

    def _values(self, start: Place = FIRST) -> Iterator[tuple[Place, Any]]:
        if self._array is not None:
            rows = enumerate(islice(self._array, start.number - 1, None), start.number)
            yield from ((Place(number, 0), row) for number, row in rows)
            return
        for place, line in placed_lines(Path(self.name), start):
            if not line.strip():
                self.blank_lines += 1
                continue
            try:
                yield place, json.loads(line)
            except (ValueError, RecursionError) as error:  # also for 4,300 digits in a row, and for deep nesting
                raise ValueError(
                    f"{self.at(place.number)}: not valid JSON: {getattr(error, 'msg', error)}. The file must hold one "
                    "object per line, or one array of objects."
                ) from None


class ParquetFile(FileTable):
    """A parquet file, read in batches. Only the requested columns are read.

    Args:
        path (`Path`): The file.

    Raises:
        ValueError: If the file is not a parquet file, or names a column twice.
    """

    unit = "row"

    def __init__(self, path: Path):
        super().__init__(str(path))
        source: Any = path
        if _is_gzipped(path):  # parquet is read from its end, so it is unpacked into memory
            source = pa.BufferReader(read_bytes(path))
        try:
            self._file = pq.ParquetFile(source)
            self.columns = self._file.schema_arrow.names
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise ValueError(f"{path}: not a readable parquet file: {error}. Write or download it again.") from None
        _check_unique(self.columns, str(path))

    def placed_rows(self, columns: Sequence[str], start: Place = FIRST) -> Iterator[tuple[Place, Sequence[Any]]]:
        """Yield the place and the cells of each row; see [`FileTable.placed_rows`]."""
        metadata = self._file.metadata
        group, number = 0, 0  # the row group that holds the start, and the number of rows before it
        while group < metadata.num_row_groups and number + metadata.row_group(group).num_rows < start.number:
            number, group = number + metadata.row_group(group).num_rows, group + 1
        for batch in self._batches(columns, group):
            for cells in zip(*batch, strict=True):
                number += 1
                if number >= start.number:
                    yield Place(number, 0), cells
        if number != metadata.num_rows:
            raise ValueError(
                f"{self.name}: holds {number} rows where its metadata says {metadata.num_rows}. Write or "
                "download it again."
            )

    def _batches(self, columns: Sequence[str], first_group: int) -> Iterator[list[list[Any]]]:
        groups = list(range(first_group, self._file.metadata.num_row_groups)) if first_group else None
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(columns)):
                yield [batch.column(column).to_pylist() for column in columns]
        except (OSError, ValueError, OverflowError, pa.ArrowException) as error:  # of damaged pages, or of odd dates
            raise ValueError(f"{self.name}: cannot be read to its end: {error}. Write or download it again.") from None


def _is_gzipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _check_unique(columns: Sequence[str], name: str) -> None:
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise ValueError(f"{name}: column name(s) {', '.join(map(repr, repeated))} occur more than once.")
