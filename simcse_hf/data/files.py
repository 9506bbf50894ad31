"""Read a file of texts row by row, with line numbers."""

import csv
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers.utils import logging

from .lines import decoded_lines, read_bytes

logger = logging.get_logger(__name__)

SUFFIX = re.compile(r"\.(txt|csv|tsv|jsonl|json|parquet)(\.gz)?$", re.IGNORECASE)
SUFFIXES = ".txt, .csv, .tsv, .json, .jsonl, .parquet, or one of these followed by .gz"

_BATCH_ROWS = 10_000
_CELL_LIMIT = 2**27  # characters; the csv module's own limit of 131072 is below one long document
#: The rows that a table's columns are judged by.
SAMPLE_ROWS = 100

Row = tuple[int, Sequence[Any]]


class DataFileNotFoundError(FileNotFoundError, ValueError):
    """A data file does not exist."""


class TextTable(ABC):
    """A table with named columns, read row by row.

    Args:
        name (`str`): What messages call the table: the file's path, or a description of an object in memory.

    Attributes:
        unit (`str`): What numbers of rows count, from 1: `"line"` of the file or `"row"` of the table.
        columns (`list[str]`): The names of the columns, in the table's own order.
        positional (`bool`): Whether columns have no names of their own, so that their position says what they hold.
        blank_lines (`int`): Blank lines that the latest pass of `rows` has skipped.
    """

    unit = "line"
    positional = False

    def __init__(self, name: str):
        self.name = name
        self.columns: list[str] = []
        self.blank_lines = 0

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the line or row number, from 1, and the cells of some columns for every row.

        Args:
            columns (`Sequence[str]`): The columns.

        Yields:
            `tuple[int, Sequence[Any]]`: The number and the cells.
        """

    def sample(self) -> list[Sequence[Any]]:
        """Return the cells of the first rows, in all columns."""
        return [cells for _, cells in islice(self.rows(self.columns), SAMPLE_ROWS)]

    def at(self, number: int) -> str:
        """Return the place of a row for a message, such as `train.csv, line 7`."""
        return f"{self.name}, {self.unit} {number}"


def open_table(path: str | Path, delimiter: str | None = None) -> TextTable:
    """Open a file by its extension and read the names of its columns.

    A txt file has the one column `text`. The first row of a csv or tsv file is its header. A json file is an array of
    objects, or has one object on each line; the keys of its first 100 objects are its columns.

    Args:
        path (`str | Path`): A file whose name ends in .txt, .csv, .tsv, .json, .jsonl or .parquet, or in one of
            these followed by .gz.
        delimiter (`str`, *optional*): Cell separator of a csv or tsv file. Defaults to a comma or a tab.

    Returns:
        `TextTable`: The table.

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


class LinesFile(TextTable):
    """A txt file with one sentence on each line. Blank lines are skipped; white space within a line is kept.

    Args:
        path (`Path`): The file.
    """

    def __init__(self, path: Path):
        super().__init__(str(path))
        self.columns = ["text"]

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the number and the cells of each row; see [`TextTable.rows`]."""
        self.blank_lines = 0
        for number, line in decoded_lines(Path(self.name)):
            line = line.removesuffix("\n").removesuffix("\r")
            if line.strip():
                yield number, (line,)
            else:
                self.blank_lines += 1


class DelimitedFile(TextTable):
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
        self._has_long_rows = False
        header = next(self._records(), None)
        if header is None:
            raise ValueError(f"{path}: the file holds no header and no rows, only blank lines.")
        self.columns = [cell.strip() for cell in header[1]]
        _check_unique(self.columns, str(path))
        self._check_delimiter()

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the number and the cells of each row; see [`TextTable.rows`]."""
        self.blank_lines = 0
        indices = [self.columns.index(column) for column in columns]
        width = len(self.columns)
        for number, cells in islice(self._records(), 1, None):
            if len(cells) != width:
                raise ValueError(
                    f"{self.at(number)}: {len(cells)} cells where the header has {width} ({', '.join(self.columns)}). "
                    f"Put double quotes around a cell that contains the delimiter {self.delimiter!r}."
                )
            yield number, [cells[index] for index in indices]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(
            (line for _, line in decoded_lines(Path(self.name))), delimiter=self.delimiter, strict=True
        )
        limit = csv.field_size_limit()
        while True:
            number = reader.line_num + 1
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
            # An unescaped quote at the start of a tsv cell swallows the lines up to the next quote without an error.
            if self.delimiter == "\t" and any("\n" in cell and "\t" in cell for cell in cells):
                raise ValueError(
                    f"{self.at(number)}: a cell that opens with a double quote runs on to line {reader.line_num}. "
                    "Write such a quote as a quoted cell with the quote doubled, or use .jsonl."
                )
            if not self._has_long_rows and reader.line_num > number:
                self._has_long_rows = True
                logger.warning_once(
                    f"{self.at(number)}: a quoted cell runs on to line {reader.line_num}, so these lines are one row, "
                    "and other rows may be longer than a line too. If the texts have no line breaks, a double quote "
                    "is not closed: double a quote that belongs to a text, and put quotes around its cell."
                )
            if cells:
                yield number, cells
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


class JsonFile(TextTable):
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
        first = next((value for _, value in self._values()), None)
        self.positional = isinstance(first, list)
        self.columns = list(dict.fromkeys(key for _, record in islice(self._objects(), SAMPLE_ROWS) for key in record))
        if not self.columns:
            raise ValueError(f"{path}: the file holds no rows.")

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the number and the cells of each row; see [`TextTable.rows`]."""
        known = set(self.columns)
        for number, record in self._objects():
            if self.refuse_late_keys and not record.keys() <= known:
                raise ValueError(
                    f"{self.at(number)}: the key {min(record.keys() - known)!r} does not occur in the first "
                    f"{SAMPLE_ROWS} rows, from whose keys the columns are chosen. Add the key to the first row (null "
                    "stands for no text), or name the columns to take with --columns (columns=[...])."
                )
            yield number, [record.get(column) for column in columns]

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

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        self.blank_lines = 0
        for number, record in self._values():
            if self.positional and isinstance(record, list):
                record = {str(index): cell for index, cell in enumerate(record)}
            if not isinstance(record, dict):
                raise ValueError(
                    f'{self.at(number)}: expected an object such as {{"sent0": "..."}}, got {type(record).__name__}.'
                )
            yield number, record

    def _values(self) -> Iterator[tuple[int, Any]]:
        if self._array is not None:
            yield from enumerate(self._array, 1)
            return
        for number, line in decoded_lines(Path(self.name)):
            if not line.strip():
                self.blank_lines += 1
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:  # also for 4,300 digits in a row, and for deep nesting
                raise ValueError(
                    f"{self.at(number)}: not valid JSON: {getattr(error, 'msg', error)}. The file must hold one "
                    "object per line, or one array of objects."
                ) from None


class ParquetFile(TextTable):
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
        if path.suffix.lower() == ".gz":  # parquet is read from its end, so it is unpacked into memory
            source = pa.BufferReader(read_bytes(path))
        try:
            self._file = pq.ParquetFile(source)
            self.columns = self._file.schema_arrow.names
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise ValueError(f"{path}: not a readable parquet file: {error}. Write or download it again.") from None
        _check_unique(self.columns, str(path))

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the number and the cells of each row; see [`TextTable.rows`]."""
        number = 0
        for batch in self._batches(columns):
            for cells in zip(*batch, strict=True):
                number += 1
                yield number, cells
        if number != self._file.metadata.num_rows:
            raise ValueError(
                f"{self.name}: holds {number} rows where its metadata says {self._file.metadata.num_rows}. Write or "
                "download it again."
            )

    def _batches(self, columns: Sequence[str]) -> Iterator[list[list[Any]]]:
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, columns=list(columns)):
                yield [batch.column(column).to_pylist() for column in columns]
        except (OSError, ValueError, OverflowError, pa.ArrowException) as error:  # of damaged pages, or of odd dates
            raise ValueError(f"{self.name}: cannot be read to its end: {error}. Write or download it again.") from None


def _check_unique(columns: Sequence[str], name: str) -> None:
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise ValueError(f"{name}: column name(s) {', '.join(map(repr, repeated))} occur more than once.")
