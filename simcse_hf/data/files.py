"""A text table in a file (txt, csv, tsv, json, jsonl, parquet, gz of each) or a list, row by row with line numbers."""

import csv
import gzip
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

SUFFIX = re.compile(r"\.(txt|csv|tsv|jsonl|json|parquet)(\.gz)?$", re.IGNORECASE)
SUFFIXES = ".txt, .csv, .tsv, .json, .jsonl, .parquet, or one of these followed by .gz"

_BATCH_ROWS = 10_000
_CELL_LIMIT = 2**27  # characters; the csv module's own limit of 131072 is below one long document
_UTF8_BOM = b"\xef\xbb\xbf"
_SAMPLE_ROWS = 100

Row = tuple[int, Sequence[Any]]


class DataFileNotFoundError(FileNotFoundError, ValueError):
    """A named data file does not exist."""


class TextTable(ABC):
    """Named columns and an iterator over their rows.

    Attributes:
        name: What messages call the table: the file's path, or a description of an object in memory.
        unit: What row numbers count: "line" of the file or "row" of the table, both from 1.
        columns: Column names in the table's own order.
        blank_lines: Blank lines skipped by the latest pass of `rows`.
    """

    unit = "line"

    def __init__(self, name: str):
        self.name = name
        self.columns: list[str] = []
        self.blank_lines = 0

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yields (1-based line or row number, the cells of `columns`) for every row."""

    def sample(self) -> list[Sequence[Any]]:
        """The cells of the first 100 rows, all columns."""
        return [cells for _, cells in islice(self.rows(self.columns), _SAMPLE_ROWS)]

    def at(self, number: int) -> str:
        """The place `number` for a message: `path, line 7`."""
        return f"{self.name}, {self.unit} {number}"


def open_table(path: str | Path, delimiter: str | None = None) -> TextTable:
    """Opens a file by its extension and reads its column names.

    Args:
        path: A file whose name ends in one of .txt, .csv, .tsv, .json, .jsonl, .parquet, or in one of these and .gz.
        delimiter: Cell separator of a csv or tsv file; by default a comma for csv and a tab for tsv.

    Returns:
        The table. A txt file has the one column `text`; the first row of a csv or tsv file is its header; a json file
        is either an array of objects or one object per line, and its first 100 objects name the columns.

    Raises:
        DataFileNotFoundError: The file does not exist.
        ValueError: Unknown extension, directory, empty file, broken gzip stream, text that is not UTF-8 (with line
            and byte offset), or a malformed header or first row.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataFileNotFoundError(f"{path}: no such file.")
    if path.is_dir():
        raise ValueError(f"{path}: is a directory; name the files in it instead.")
    suffix = SUFFIX.search(path.name)
    if suffix is None:
        raise ValueError(f"{path}: unknown extension {path.suffix!r}; the name must end in {SUFFIXES}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty.")
    kind = suffix[1].lower()
    if delimiter is not None and kind not in ("csv", "tsv"):
        raise ValueError(f"{path}: a delimiter ({delimiter!r}) applies to csv and tsv files only.")
    if kind == "txt":
        return LinesFile(path)
    if kind in ("csv", "tsv"):
        return DelimitedFile(path, delimiter or {"csv": ",", "tsv": "\t"}[kind])
    if kind == "parquet":
        return ParquetFile(path)
    return JsonFile(path)


class LinesFile(TextTable):
    """A txt file: one sentence per line, kept as it is but for the line end; blank lines are skipped."""

    def __init__(self, path: Path):
        super().__init__(str(path))
        self.columns = ["text"]

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        self.blank_lines = 0
        for number, line in _decoded_lines(Path(self.name)):
            line = line.removesuffix("\n").removesuffix("\r")
            if line.strip():
                yield number, (line,)
            else:
                self.blank_lines += 1


class DelimitedFile(TextTable):
    """A csv or tsv file with a header line, quoted by the rules of RFC 4180; blank lines are skipped."""

    def __init__(self, path: Path, delimiter: str):
        super().__init__(str(path))
        if len(delimiter) != 1:
            raise ValueError(f"{path}: delimiter must be one character, got {delimiter!r}.")
        self.delimiter = delimiter
        header = next(self._records(), None)
        if header is None:
            raise ValueError(f"{path}: the file holds no header and no rows, only blank lines.")
        self.columns = [cell.strip() for cell in header[1]]
        _check_unique(self.columns, str(path))
        self._check_delimiter()

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        self.blank_lines = 0
        chosen = [self.columns.index(column) for column in columns]
        width = len(self.columns)
        for number, cells in islice(self._records(), 1, None):
            if len(cells) != width:
                raise ValueError(
                    f"{self.at(number)}: {len(cells)} cells where the header has {width} ({', '.join(self.columns)}). "
                    f"Put double quotes around a cell that contains the delimiter {self.delimiter!r}."
                )
            yield number, [cells[index] for index in chosen]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(
            (line for _, line in _decoded_lines(Path(self.name))), delimiter=self.delimiter, strict=True
        )
        limit = csv.field_size_limit()
        while True:
            number = reader.line_num + 1
            csv.field_size_limit(_CELL_LIMIT)  # a setting of the whole process, so put back after each record
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
            # A raw quote at the start of a tsv cell swallows the lines up to the next quote without an error.
            if self.delimiter == "\t" and any("\n" in cell and "\t" in cell for cell in cells):
                raise ValueError(
                    f"{self.at(number)}: a cell that opens with a double quote runs on to line {reader.line_num}. "
                    "Write such a quote as a quoted cell with the quote doubled, or use .jsonl."
                )
            if cells:
                yield number, cells
            else:
                self.blank_lines += 1

    def _check_delimiter(self) -> None:
        if len(self.columns) > 1:
            return
        for other in {"\t", ",", ";", "|"} - {self.delimiter}:
            names = self.columns[0].split(other)
            if len(names) > 1 and all(re.fullmatch(r"\w+", cell) for cell in names):
                raise ValueError(
                    f"{self.name}: with the delimiter {self.delimiter!r} the header is the one column "
                    f"{self.columns[0]!r}; pass delimiter={other!r}, or rename the column if it is one."
                )


class JsonFile(TextTable):
    """A json file: an array of objects, or one object per line (JSON Lines)."""

    def __init__(self, path: Path):
        super().__init__(str(path))
        self._array = self._read_array()
        self.unit = "line" if self._array is None else "row"
        self.columns = _keys(record for _, record in islice(self._objects(), _SAMPLE_ROWS))
        if not self.columns:
            raise ValueError(f"{path}: the file holds no rows.")

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        for number, record in self._objects():
            yield number, [record.get(column) for column in columns]

    def _read_array(self) -> list[Any] | None:
        lines = _decoded_lines(Path(self.name))
        first = next((line for _, line in lines if line.strip()), "")
        if not first.lstrip().startswith("["):
            return None
        text = "".join(line for _, line in _decoded_lines(Path(self.name)))
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{self.name}, line {error.lineno}: not valid JSON: {error.msg}.") from None

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        self.blank_lines = 0
        for number, record in self._values():
            if not isinstance(record, dict):
                raise ValueError(
                    f'{self.at(number)}: expected an object such as {{"sent0": "..."}}, got {type(record).__name__}.'
                )
            yield number, record

    def _values(self) -> Iterator[tuple[int, Any]]:
        if self._array is not None:
            yield from enumerate(self._array, 1)
            return
        for number, line in _decoded_lines(Path(self.name)):
            if not line.strip():
                self.blank_lines += 1
                continue
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{self.at(number)}: not valid JSON: {error.msg}. The file must hold one object per line, or one "
                    "array of objects."
                ) from None


class ParquetFile(TextTable):
    """A parquet file, read in batches and only the columns asked for."""

    unit = "row"

    def __init__(self, path: Path):
        super().__init__(str(path))
        source: Any = path
        if path.suffix.lower() == ".gz":  # parquet is read from its end, which a gzip stream cannot reach
            with _open_binary(path) as stream:
                source = pa.BufferReader(_read(stream, path))
        try:
            self._file = pq.ParquetFile(source)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path}: not a readable parquet file: {error}") from None
        self.columns = self._file.schema_arrow.names
        _check_unique(self.columns, str(path))

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        for batch in self._file.iter_batches(_BATCH_ROWS, columns=list(columns)):
            for cells in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                number += 1
                yield number, cells


class MemoryTable(TextTable):
    """A list of sentences, of tuples or of dicts in memory."""

    unit = "row"

    def __init__(self, rows: Sequence[Any]):
        super().__init__(f"list of {len(rows)} rows")
        if not rows:
            raise ValueError("the list of rows is empty.")
        first = rows[0]
        if not isinstance(first, (str, dict, tuple, list)) or not first:
            raise ValueError(f"{self.at(1)}: expected a string, tuple or dict, got {first!r}.")
        self._rows = rows
        if isinstance(first, str):
            self.columns = ["text"]
        elif isinstance(first, dict):
            self.columns = _keys(row for row in rows[:_SAMPLE_ROWS] if isinstance(row, dict))
        else:
            self.columns = [str(index) for index in range(len(first))]

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        first = self._rows[0]
        chosen = [self.columns.index(column) for column in columns]
        for number, row in enumerate(self._rows, 1):
            if isinstance(first, str):
                yield number, (row,)
            elif isinstance(row, dict) and isinstance(first, dict):
                yield number, [row.get(column) for column in columns]
            elif isinstance(row, (tuple, list)) and len(row) == len(self.columns):
                yield number, [row[index] for index in chosen]
            else:
                raise ValueError(f"{self.at(number)}: {row!r} does not have the {len(self.columns)} cells of row 1.")


def _keys(records: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for record in records for key in record))


def _check_unique(columns: Sequence[str], name: str) -> None:
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise ValueError(f"{name}: column name(s) {', '.join(map(repr, twice))} occur more than once.")


def _open_binary(path: Path) -> BinaryIO:
    if path.suffix.lower() == ".gz":
        return BufferedReader(gzip.open(path, "rb"), 2**20)  # gzip's own line iterator is several times slower
    return open(path, "rb")


def _read(stream: BinaryIO, path: Path) -> bytes:
    try:
        return stream.read()
    except (EOFError, OSError, zlib.error) as error:
        raise _broken_gzip(path, error) from None


def _broken_gzip(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: cannot be read to its end: {error} Copy or download the file again.")


def _decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (1-based number, line with its end) of a UTF-8 file, with or without a byte-order mark."""
    offset = 0
    with _open_binary(path) as stream:
        lines = enumerate(stream, 1)
        while True:
            try:
                number, raw = next(lines)
            except StopIteration:
                return
            except (EOFError, OSError, zlib.error) as error:
                raise _broken_gzip(path, error) from None
            try:
                yield number, raw.removeprefix(_UTF8_BOM).decode() if number == 1 else raw.decode()
            except UnicodeDecodeError as error:
                # The position that the error carries counts from behind the byte-order mark.
                start = error.start + len(_UTF8_BOM) * (number == 1 and raw.startswith(_UTF8_BOM))
                encoding = "UTF-16" if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
                raise ValueError(
                    f"{path}, line {number}: byte 0x{raw[start]:02x} at byte offset {offset + start} "
                    f"is not UTF-8. The text may be {encoding}: convert it with "
                    f"`iconv -f {encoding} -t UTF-8` and use the result."
                ) from None
            offset += len(raw)
