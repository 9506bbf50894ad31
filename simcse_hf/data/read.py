"""Read texts from files, the hub or memory, row by row with line numbers or as a data set of sent0, sent1, ...

Python's `csv` and `json` and pyarrow's parquet reader do the reading. pyarrow's reader of csv files takes a quote that
is not closed and text after a closing quote without a word, so it is not used.
"""

import csv
import gzip
import io
import json
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, NamedSplit, config, load_dataset
from datasets.fingerprint import Hasher
from transformers.utils import logging

from ..ops.files import digest, read_json_object, write_atomically, write_json
from .columns import (
    SAMPLE_ROWS,
    RowCleaner,
    check_column_count,
    check_encodable,
    mark_resolved,
    resolve_columns,
    resolve_dataset_columns,
    resolve_text_column,
    row_width,
    text_features,
)

if TYPE_CHECKING:
    import pandas as pd

logger = logging.get_logger(__name__)

SUFFIX = re.compile(r"\.(txt|csv|tsv|jsonl|json|parquet)(\.gz)?$", re.IGNORECASE)
SUFFIXES = ".txt, .csv, .tsv, .json, .jsonl, .parquet, or one of these followed by .gz"

_COUNTS = ("kept", "longer", "counts", "places")  # what the cache keeps of a `RowCleaner`
_LAYOUT = 3  # a part of the cache key: increase it when the same file gives other rows than before
_BATCH_ROWS = 10_000
_SHOWN_ITEMS = 5
_CELL_LIMIT = 2**27  # characters; the csv module's own limit of 131072 is below one long document
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?")

Row = tuple[int, Sequence[Any]]


class DataFileNotFoundError(FileNotFoundError, ValueError):
    """A data file does not exist."""


# --- lines -----------------------------------------------------------------------------------------------------------


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading, unpacked if its name ends in .gz."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else open(path, "rb")


def decoded_lines(path: Path, encoding: str = "utf-8", newline: str = "") -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line of a file, with its end but without a byte-order mark.

    Args:
        path (`Path`): The file, unpacked if its name ends in .gz.
        encoding (`str`, *optional*, defaults to `"utf-8"`): Its encoding.
        newline (`str`, *optional*, defaults to `""`): What ends a line, as for `open`. By default this is a line feed,
            a carriage return or both.

    Yields:
        `tuple[int, str]`: The number and the line.

    Raises:
        ValueError: If a byte is not in this encoding, with its line and offset, or the file is not a complete gzip
            stream.
    """
    with open_binary(path) as stream:
        try:
            for number, line in enumerate(io.TextIOWrapper(stream, encoding=encoding, newline=newline), 1):
                yield number, line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeDecodeError as error:
            wrong = error
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be read to its end: {error} Copy or download the file again.") from None
        else:
            return
    for number, offset, raw in raw_lines(path):  # once more, to say where it is wrong
        try:
            raw.decode(encoding)
        except UnicodeDecodeError as error:
            guess = "UTF-16" if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
            raise ValueError(
                f"{path}, line {number}: byte 0x{raw[error.start]:02x} at byte offset {offset + error.start} is not "
                f"{encoding.upper()}. The text may be {guess}: convert it with `iconv -f {guess} -t UTF-8` and use "
                "the result."
            ) from None
    raise ValueError(f"{path}: not {encoding} ({wrong}).")


def raw_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, from 1, the offset in bytes and the bytes of each line of a file, unpacked."""
    offset = 0
    with open_binary(path) as stream:
        try:
            for number, line in enumerate(chain.from_iterable(line.splitlines(True) for line in stream), 1):
                yield number, offset, line
                offset += len(line)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be read to its end: {error} Copy or download the file again.") from None


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file, which may be gzipped, without their ends. Only line feeds end a line."""
    lines = decoded_lines(Path(path), encoding, newline="\n")
    return [line.removesuffix("\n").removesuffix("\r") for _, line in lines]


# --- tables ----------------------------------------------------------------------------------------------------------


class Table(ABC):
    """Rows of cells in named columns.

    Args:
        name (`str` or `Path`): What messages call the table: the file's path, or a description of an object in memory.

    Attributes:
        format (`str`): `"txt"`, `"csv"` (also for tsv), `"json"` (also for jsonl), `"parquet"` or `"memory"`.
        unit (`str`): What numbers of rows count, from 1: `"line"` of the file or `"row"` of the table.
        columns (`list[str]`): The names of the columns, in the table's own order.
        positional (`bool`): Whether columns have no names of their own, so that their position says what they hold.
        refuse_late_keys (`bool`): Whether `rows` refuses a key of a json file that first appears after the rows that
            name the columns. Where columns are chosen by their names, it would be lost without a word.
    """

    format: str
    unit = "line"
    positional = False
    refuse_late_keys = False
    can_seek = False

    def __init__(self, name: str | Path, columns: Sequence[str]):
        self.name, self.columns = str(name), list(columns)
        repeated = sorted({column for column in self.columns if self.columns.count(column) > 1})
        if repeated:
            raise ValueError(f"{name}: column name(s) {', '.join(map(repr, repeated))} occur more than once.")

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the line or row number, from 1, and the cells of some columns for every row."""

    def sample(self) -> list[Sequence[Any]]:
        """Return the cells of the first rows, in all columns."""
        return [cells for _, cells in islice(self.rows(self.columns), SAMPLE_ROWS)]

    def at(self, number: int) -> str:
        """Return the place of a row for a message, such as `train.csv, line 7`."""
        return f"{self.name}, {self.unit} {number}"


class LinesFile(Table):
    """A txt file with one sentence on each line. Blank lines are skipped; white space within a line is kept."""

    format = "txt"

    def __init__(self, path: Path):
        super().__init__(path, ["text"])

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the line number and the line of every row."""
        for number, line in decoded_lines(Path(self.name)):
            if line.strip():
                yield number, (line.removesuffix("\n").removesuffix("\r"),)


class DelimitedFile(Table):
    """A csv or tsv file with a header, quoted as RFC 4180 says. Blank lines are skipped.

    The first quoted cell that spans lines is reported by a warning: a text may have line breaks, but an opening quote
    that belongs to a text swallows the lines up to the next quote.
    """

    format = "csv"

    def __init__(self, path: Path, delimiter: str):
        if len(delimiter) != 1:
            raise ValueError(f"{path}: delimiter must be one character, got {delimiter!r}.")
        self.delimiter = delimiter
        header = next(csv_records(path, delimiter), None)
        if header is None:
            raise ValueError(f"{path}: the file holds no header and no rows, only blank lines.")
        super().__init__(path, [cell.strip() for cell in header[1]])
        for other in {"\t", ",", ";", "|"} - {delimiter} if len(self.columns) == 1 else ():
            names = self.columns[0].split(other)
            if len(names) > 1 and all(re.fullmatch(r"\w+", cell) for cell in names):
                raise ValueError(
                    f"{path}: with the delimiter {delimiter!r} the header is the one column {self.columns[0]!r}. Pass "
                    f"delimiter={other!r}, or rename the column if it is one."
                )

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the line number and the cells of some columns for every row."""
        indices = [self.columns.index(column) for column in columns]
        width = len(self.columns)
        for number, cells in islice(csv_records(Path(self.name), self.delimiter), 1, None):
            if len(cells) != width:
                raise ValueError(
                    f"{self.at(number)}: {len(cells)} cells where the header has {width} ({', '.join(self.columns)}). "
                    f"Put double quotes around a cell that contains the delimiter {self.delimiter!r}."
                )
            yield number, [cells[index] for index in indices]


def csv_records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line, and the cells, of each record of a csv or tsv file, the header included.

    Args:
        path (`Path`): The file.
        delimiter (`str`): The character between cells.

    Yields:
        `tuple[int, list[str]]`: The line number, from 1, and the cells. Blank lines are skipped.

    Raises:
        ValueError: If a quote is misplaced or not closed, or the bytes are wrong. The message names the line.
    """
    reader = csv.reader((line for _, line in decoded_lines(path)), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        limit = csv.field_size_limit(_CELL_LIMIT)  # the limit is global, so it is restored after each record
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {number}: not valid csv: {error}. A double quote inside a quoted cell must be doubled, "
                "a line break inside a cell needs quotes around the cell; .jsonl has neither rule."
            ) from None
        finally:
            csv.field_size_limit(limit)
        last = reader.line_num
        # An unescaped quote at the start of a tsv cell swallows the lines up to the next quote without an error.
        if delimiter == "\t" and any("\n" in cell and "\t" in cell for cell in cells):
            raise ValueError(
                f"{path}, line {number}: a cell that opens with a double quote runs on to line {last}. Write such a "
                "quote as a quoted cell with the quote doubled, or use .jsonl."
            )
        if last > number and path not in _long_rows:
            _long_rows.add(path)
            logger.warning(
                f"{path}, line {number}: a quoted cell runs on to line {last}, so these lines are one row, and other "
                "rows may be longer than a line too. If the texts have no line breaks, a double quote is not closed: "
                "double a quote that belongs to a text, and put quotes around its cell."
            )
        if cells:
            yield number, cells


_long_rows: set[Path] = set()  # files whose first row of several lines was reported


class JsonFile(Table):
    """A json file: an array of rows, or one row on each line (JSON Lines). A row is an object or an array of texts."""

    format = "json"

    def __init__(self, path: Path):
        self._array = _read_array(path)
        self.unit = "line" if self._array is None else "row"
        self.name = str(path)
        self.positional = isinstance(next((value for _, value in self._values()), None), list)
        columns = list(dict.fromkeys(key for _, record in islice(self._objects(), SAMPLE_ROWS) for key in record))
        if not columns:
            raise ValueError(f"{path}: the file holds no rows.")
        super().__init__(path, columns)

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the line or row number and the cells of some columns for every row; a missing key gives `None`."""
        known = set(self.columns)
        for number, record in self._objects():
            if self.refuse_late_keys and not record.keys() <= known:
                raise ValueError(
                    f"{self.at(number)}: the key {min(record.keys() - known)!r} does not occur in the first "
                    f"{SAMPLE_ROWS} rows, from whose keys the columns are chosen. Add the key to the first row (null "
                    "stands for no text), or name the columns to take with --columns (columns=[...])."
                )
            yield number, [record.get(column) for column in columns]

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, record in self._values():
            if self.positional and isinstance(record, list):
                record = {str(index): cell for index, cell in enumerate(record)}
            if not isinstance(record, dict):
                kind = type(record).__name__
                raise ValueError(f'{self.at(number)}: expected an object such as {{"sent0": "..."}}, got {kind}.')
            yield number, record

    def _values(self) -> Iterator[tuple[int, Any]]:
        if self._array is not None:
            yield from enumerate(self._array, 1)
            return
        for number, line in decoded_lines(Path(self.name)):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:  # also for 4,300 digits in a row, and for deep nesting
                    raise ValueError(
                        f"{self.at(number)}: not valid JSON: {getattr(error, 'msg', error)}. The file must hold one "
                        "object per line, or one array of objects."
                    ) from None


def _read_array(path: Path) -> list[Any] | None:
    """Return the rows of a file that is one json array, or `None` if it has one row on each line."""
    lines = (line for _, line in decoded_lines(path) if line.strip())
    first = next(lines, "").lstrip()
    # An array that closes on the first line is a row of a JSON Lines file if another line follows.
    if not first.startswith("[") or (first.rstrip().endswith("]") and any(lines)):
        return None
    text = "".join(line for _, line in decoded_lines(path))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line, reason = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise ValueError(f"{path}, line {line}: not valid JSON: {reason}.") from None


class ParquetFile(Table):
    """A parquet file, read in batches. Only the requested columns are read."""

    format, unit = "parquet", "row"

    def __init__(self, path: Path):
        source: Any = path
        try:
            if path.suffix.lower() == ".gz":  # parquet is read from its end, so it is unpacked into memory
                with open_binary(path) as stream:
                    source = pa.BufferReader(stream.read())
            self._file = pq.ParquetFile(source)
            columns = self._file.schema_arrow.names
        except (EOFError, OSError, UnicodeDecodeError, zlib.error, pa.ArrowException) as error:
            raise ValueError(f"{path}: not a readable parquet file: {error}. Write or download it again.") from None
        super().__init__(path, columns)

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the row number and the cells of some columns for every row."""
        number, advice = 0, "Write or download it again."
        batches = self._file.iter_batches(_BATCH_ROWS, columns=list(columns))
        while True:
            try:
                batch = next(batches, None)
                cells = [] if batch is None else [batch.column(column).to_pylist() for column in columns]
            except (OSError, ValueError, OverflowError, pa.ArrowException) as error:  # of damaged pages or odd dates
                raise ValueError(f"{self.name}: cannot be read to its end: {error}. {advice}") from None
            if batch is None:
                break
            yield from enumerate(zip(*cells, strict=True), number + 1)
            number += len(batch)
        if number != self._file.metadata.num_rows:
            raise ValueError(
                f"{self.name}: holds {number} rows where its metadata says {self._file.metadata.num_rows}. {advice}"
            )


class MemoryTable(Table):
    """A list of sentences, of tuples or of dicts."""

    format, unit = "memory", "row"

    def __init__(self, rows: Sequence[Any]):
        if not rows:
            raise ValueError("the list of rows is empty.")
        self._rows, first, name = rows, rows[0], f"list of {len(rows)} rows"
        if not isinstance(first, (str, dict, tuple, list)) or not first:
            raise ValueError(f"{name}, row 1: expected a string, tuple or dict, got {first!r}.")
        self.positional = isinstance(first, (tuple, list))
        if isinstance(first, dict):
            columns = list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row))
        else:
            columns = ["text"] if isinstance(first, str) else [str(index) for index in range(len(first))]
        super().__init__(name, columns)

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the row number and the cells of some columns for every row."""
        first = self._rows[0]
        indices = [self.columns.index(column) for column in columns]
        for number, row in enumerate(self._rows, 1):
            if isinstance(first, str):
                yield number, (row,)
            elif isinstance(row, dict) and isinstance(first, dict):
                yield number, [row.get(column) for column in columns]
            elif isinstance(row, (tuple, list)) and len(row) == len(self.columns):
                yield number, [row[index] for index in indices]
            else:
                raise ValueError(f"{self.at(number)}: {row!r} does not have the {len(self.columns)} cells of row 1.")


def open_table(path: str | os.PathLike[str], delimiter: str | None = None) -> Table:
    """Open a file by its extension and read the names of its columns.

    A txt file has the one column `text`. The first row of a csv or tsv file is its header. A json file is an array of
    objects, or has one object on each line; the keys of its first 100 objects are its columns.

    Args:
        path (`str` or `os.PathLike`): A file whose name ends in .txt, .csv, .tsv, .json, .jsonl or .parquet, or in one
            of these followed by .gz.
        delimiter (`str`, *optional*): Cell separator of a csv or tsv file. Defaults to a comma or a tab.

    Returns:
        [`Table`]: The table.

    Raises:
        DataFileNotFoundError: If the file does not exist. This is also a `ValueError`.
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
    if extension in ("csv", "tsv"):
        return DelimitedFile(path, delimiter or {"csv": ",", "tsv": "\t"}[extension])
    if delimiter is not None:
        raise ValueError(f"{path}: a delimiter ({delimiter!r}) applies to csv and tsv files only.")
    return {"txt": LinesFile, "parquet": ParquetFile}.get(extension, JsonFile)(path)


# --- texts -----------------------------------------------------------------------------------------------------------


def text_column(path: str | os.PathLike[str], column: str | None = None) -> tuple[Table, str]:
    """Open a file and choose its column of texts; see [`open_table`] and [`~data.columns.resolve_text_column`]."""
    table = open_table(path)
    table.refuse_late_keys = column is None
    return table, resolve_text_column(table.columns, table.name, column)


def stream_texts(path: str | os.PathLike[str], column: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file one by one.

    Blank lines of a txt file are skipped. An empty cell of a table is a text like any other, so that embeddings stay
    aligned with the rows of the table.

    Args:
        path (`str | os.PathLike`): The file; see [`open_table`].
        column (`str`, *optional*): The column. Defaults to the only one, or to the one named `sent0`, `text` or
            `sentence`.

    Yields:
        `tuple[int, str]`: The line or row number, from 1, and the text.

    Raises:
        ValueError: If the file cannot be read, its column is unclear, or a cell holds no text. The message names the
            line or row.
    """
    for number, (text,) in stream_rows(path, column):
        yield number, text


def stream_rows(
    path: str | os.PathLike[str], column: str | None = None, keep: Sequence[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield the texts of a file with the cells of other columns, as [`stream_texts`] yields the texts alone.

    Args:
        path (`str | os.PathLike`): The file; see [`open_table`].
        column (`str`, *optional*): The column of texts; see [`stream_texts`].
        keep (`Sequence[str]`, *optional*, defaults to `()`): The other columns. Their cells are written as text; a
            missing value is an empty text.

    Yields:
        `tuple[int, list[str]]`: The line or row number, from 1; and the text, followed by the other cells.

    Raises:
        ValueError: If the file cannot be read, has no such columns, or a cell holds no text. The message names the
            line or row.
    """
    table, column = text_column(path, column)
    if wrong := [name for name in keep if name not in table.columns or name == column]:
        others = ", ".join(repr(name) for name in table.columns if name != column) or "none"
        raise ValueError(
            f"{table.name}: no column {wrong[0]!r} to keep beside {column!r}; the other columns: {others}."
        )
    for number, (text, *cells) in table.rows([column, *keep]):
        if not isinstance(text, str):
            raise ValueError(
                f"{table.at(number)}, column {column!r}: expected a text, got {text!r}. Fill or drop such rows first."
            )
        row = [text, *("" if cell is None else str(cell) for cell in cells)]
        for cell in row:
            check_encodable(cell, partial(table.at, number))
        yield number, row


def list_texts(texts: str | Sequence[str]) -> list[str]:
    """Return one text or several as a list.

    Args:
        texts (`str` or `Sequence[str]`): The texts.

    Returns:
        `list[str]`: The texts.

    Raises:
        ValueError: If an item is not a text, or holds half of a surrogate pair. The message names its position.
    """
    items = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(items):
        if not isinstance(text, str):
            raise ValueError(f"sentence {position} is not a text but {type(text).__name__}: {text!r}")
        check_encodable(text, partial("sentence {}".format, position))
    return items


class Place(NamedTuple):
    """The number of a row and, for what was recorded earlier, its offset in bytes."""

    number: int
    offset: int = 0


def placed_texts(table: Table, column: str, start: Place | None = None) -> Generator[tuple[Place, str]]:
    """Yield the texts of a column with their places, from some place on."""
    for number, (text,) in stream_rows(table.name, column):
        if start is None or number >= start.number:
            yield Place(number), text


# --- data sets -------------------------------------------------------------------------------------------------------


def load_text_dataset(
    source: "str | Path | Sequence[Any] | pd.DataFrame | Dataset | DatasetDict",
    *,
    split: str = "train",
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
    delimiter: str | None = None,
    max_rows: int | None = None,
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Load sentences, sentence pairs, or pairs with hard negatives.

    A file is read and checked once and cached as Arrow in `<cache_dir>/simcse_hf`. The cache and the fingerprint of
    the dataset depend on the bytes of the files and on the arguments only, so a second load is immediate, and a later
    `map` finds its own cache again. A row with an empty cell is dropped, and a warning counts these. Text is kept as
    it is, including white space at its ends and the word "None".

    A positive or hard negative may be a list of texts, as in the JSON Lines files of sentence-transformers: each
    positive becomes a row of its own, and hard negatives become columns.

    Args:
        source (`str | Path | Sequence | pandas.DataFrame | datasets.Dataset | datasets.DatasetDict`): One of

            - a path to a .txt, .csv, .tsv, .json, .jsonl or .parquet file, to one of these followed by .gz, or a list
              of such paths;
            - the name of a dataset on the Hugging Face hub, `name` or `name:config`;
            - a dataset or data frame in memory;
            - a list of strings, of tuples or of dicts. A list of strings is a list of paths if every string has one of
              the extensions above.
        split (`str`, *optional*, defaults to `"train"`): Split of a hub dataset or `DatasetDict`. A hub dataset also
            takes a slice such as `"train[:10%]"`.
        columns (`Sequence[str]`, *optional*): The columns to take: anchor, positive, hard negatives. By default they
            are chosen by their names, see [`~data.columns.resolve_columns`]; the cells of a tuple by their position.
        expected_columns (`int`, *optional*): How many columns there must be: 1 for sentences, 2 for pairs, 2 + k for
            pairs with k hard negatives.
        delimiter (`str`, *optional*): Cell separator of csv and tsv files. Defaults to a comma or a tab.
        max_rows (`int`, *optional*): Stop after so many rows.
        cache_dir (`str | Path`, *optional*): Where files are cached. Defaults to the cache of `datasets`
            (`HF_DATASETS_CACHE`).

    Returns:
        `datasets.Dataset`: A dataset with the string columns `sent0`; `sent0, sent1`; or `sent0, sent1, sent2, ...`.

    Raises:
        DataFileNotFoundError: If a file does not exist. This is also a `ValueError`.
        ValueError: If the input is malformed. The message names the file and the line or row.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, got {max_rows}.")
    name = "the dataset"
    if isinstance(source, DatasetDict):
        if split not in source:
            raise ValueError(f"the DatasetDict has no split {split!r}; it has {', '.join(source)}.")
        source = source[split]
    elif hasattr(source, "iloc"):  # a data frame
        name = "the data frame"
        try:
            source = Dataset.from_pandas(source, preserve_index=False)
        except (TypeError, ValueError) as error:  # pyarrow's errors are among these
            raise ValueError(f"{name} has a column of mixed types: {error}. Convert it to strings.") from error
    elif not isinstance(source, (str, Path, list, tuple, Dataset)):
        kind = type(source).__name__
        raise ValueError(f"source must be a path, a hub id, a list, a DataFrame or a Dataset, got {kind}.")
    paths = None if isinstance(source, Dataset) else find_paths(cast(Any, source))
    if paths is None and isinstance(source, str):
        source, name = load_from_hub(source, split, cache_dir=cache_dir and str(cache_dir)), source
    if isinstance(source, Dataset):
        dataset = resolve_dataset_columns(source, columns, name=name, expected_columns=expected_columns)
        return dataset if max_rows is None else mark_resolved(dataset.select(range(min(max_rows, len(dataset)))))
    tables = [open_table(path, delimiter) for path in paths] if paths else [MemoryTable(cast(Sequence[Any], source))]
    resolved, width = resolve_tables(tables, columns, expected_columns)
    cleaners = [RowCleaner(t.name, c, width, t.unit) for t, c in zip(tables, resolved, strict=True)]
    batches = _arrow_batches(tables, cleaners, max_rows)
    if paths:
        formats = [SUFFIX.search(path.name)[0].lower() for path in paths]  # type: ignore[index]  # open_table did it
        key = Hasher.hash([_LAYOUT, formats, [*map(digest, paths)], resolved, width, delimiter, max_rows])
        dataset = _cached(batches, cleaners, Path(cache_dir or config.HF_DATASETS_CACHE).expanduser(), key)
    else:
        dataset = Dataset(pa.Table.from_batches(list(batches)), split=NamedSplit("train"))
    for cleaner in cleaners:
        cleaner.log()
    return mark_resolved(dataset)


def find_paths(source: str | Path | Sequence[Any]) -> list[Path] | None:
    """Find the files that a source of text names.

    Args:
        source (`str | Path | Sequence`): What `load_text_dataset` takes.

    Returns:
        `list[Path]`, *optional*: The files, or `None` if the source is a hub id or a list of rows.

    Raises:
        ValueError: If a list holds files among other things.
    """
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        is_id = isinstance(source, str) and _HUB_ID.fullmatch(source) and not SUFFIX.search(source)
        return None if is_id and not path.exists() else [path]
    if source and all(isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item)) for item in source):
        return [Path(item).expanduser() for item in source]
    for item in source[:_SHOWN_ITEMS]:
        if isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item) and Path(item).exists()):
            raise ValueError(
                f"the list holds the file {item} among other things; the paths in it must end in {SUFFIXES}."
            )
    return None


def load_from_hub(source: str, split: str, **options: Any) -> Any:
    """Load a dataset of the hub: `name` or `name:config`. The options are those of `datasets.load_dataset`."""
    name, _, configuration = source.partition(":")
    try:
        return load_dataset(name, configuration or None, split=split, **options)
    except Exception as error:  # its type depends on what is wrong: the network, the name or the data
        raise ValueError(
            f"{source!r} is no file here, and could not be loaded from the hub as a dataset either: "
            f"{type(error).__name__}: {error}"
        ) from error


def resolve_tables(
    tables: Sequence[Table], columns: Sequence[str] | None, expected_columns: int | None
) -> tuple[list[list[str]], int]:
    """Resolve the columns of each table and count the texts of a row, which must be the same in all of them.

    Args:
        tables (`Sequence[Table]`): The tables.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`~data.columns.resolve_columns`].
        expected_columns (`int`, *optional*): How many columns there must be.

    Returns:
        `tuple[list[list[str]], int]`: The columns of each table, and the number of texts in a row.

    Raises:
        ValueError: If a table has no rows, its columns are unclear, or two tables differ in width.
    """
    resolved: list[list[str]] = []
    widths: list[int] = []
    for table in tables:
        _warn_of_missing_header(table)
        table.refuse_late_keys = columns is None
        sample = table.sample()
        if not sample:
            rest = "only the header" if table.format == "csv" else "only blank lines, if any"
            raise ValueError(f"{table.name}: there are no rows, {rest}.")
        requested = table.columns if table.positional and columns is None else columns
        names = resolve_columns(
            table.columns, name=table.name, sample=sample, columns=requested, expected_columns=expected_columns
        )
        width = row_width([row[table.columns.index(name)] for name in names] for row in sample)
        check_column_count(width, expected_columns, names, table.name, table.columns)
        if widths and width != widths[0]:
            raise ValueError(
                f"{tables[0].name} has {widths[0]} text column(s) ({', '.join(resolved[0])}), but {table.name} has "
                f"{width} ({', '.join(names)}). Files loaded together must have the same number."
            )
        resolved.append(names)
        widths.append(width)
    return resolved, widths[0]


def _warn_of_missing_header(table: Table) -> None:
    sentences = [name for name in table.columns if len(name.split()) > 4 or re.search(r"\w[.!?]\W*$", name)]
    if table.format == "csv" and sentences:
        logger.warning(
            "%s: the first line is taken as the header, but %r looks like a sentence. If the file has no header, add "
            "one (such as sent0,sent1,hard_neg), or its first row is lost.",
            table.name,
            sentences[0],
        )


def _arrow_batches(
    tables: Sequence[Table], cleaners: Sequence[RowCleaner], max_rows: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all tables in batches."""
    schema = text_features(cleaners[0].width).arrow_schema

    def all_rows() -> Iterator[list[str]]:
        for table, cleaner in zip(tables, cleaners, strict=True):
            yield from cleaner.clean_all(table.rows(cleaner.columns))

    rows = islice(all_rows(), max_rows)
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield pa.record_batch([pa.array(cells, pa.string()) for cells in zip(*batch, strict=True)], schema=schema)


def _cached(batches: Iterable[pa.RecordBatch], cleaners: Sequence[RowCleaner], cache_dir: Path, key: str) -> Dataset:
    """Write a dataset to the cache, or take it from there. What was left out stands beside it for later loads."""
    file = cache_dir / "simcse_hf" / f"{key}.arrow"
    counts = file.with_suffix(".json")
    schema = text_features(cleaners[0].width).arrow_schema
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not (file.exists() and counts.exists()):
            with write_atomically(file) as temporary:
                with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
                    for batch in batches:
                        stream.write_batch(batch)
                saved = [{name: getattr(cleaner, name) for name in _COUNTS} for cleaner in cleaners]
                write_json(counts, {"files": saved})
        dataset = Dataset.from_file(str(file), split=NamedSplit("train"))
    except OSError as error:
        raise ValueError(f"cannot write to the cache {cache_dir}: {error}. Pass another cache_dir.") from error
    for cleaner, saved_counts in zip(cleaners, read_json_object(counts, "files")["files"], strict=True):
        vars(cleaner).update(saved_counts)
    dataset._fingerprint = key  # the default depends on the time of the file
    return dataset
