"""A file of any format as a table of rows, each with its number in the file, and the rows of texts that it gives."""

import csv
import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import Dataset as TorchDataset
from transformers.utils import logging

from ..runtime.errors import DataError
from ..runtime.files import StrPath
from .columns import (
    LIKE_SENTENCE,
    LONGEST_TEXT,
    SAMPLE_ROWS,
    TOO_LONG,
    check_columns,
    check_text,
    find_parts,
    first_few,
    flatten,
    has_text,
    is_list,
    is_plain,
    plain,
    quote,
    resolve_columns,
)

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.get_logger(__name__)

#: The number of a line or row, from 1, and its cells.
Row = tuple[int, Sequence]

#: How Python decodes a byte that is not in the encoding of its file.
_UNDECODED = re.compile("[\udc80-\udcff]")
#: The first characters of files that are not text, and what the message advises if their name says otherwise.
_NO_LINES = {
    "\x1f\udc8b": "gzip: its name must end in .gz",
    "PK\x03\x04": "zip, as those of Excel are: save its table as .csv",
    "PAR1": "parquet: its name must end in .parquet",
}
_NAME_COLUMNS = "name the columns to take with --columns or load_text_dataset(..., columns=[...])"


def decoded_lines(path: Path, encoding: str = "utf-8", newline: str = "") -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line of a file; see [`checked_lines`].

    Args:
        path (`Path`): The file, unpacked if its name ends in .gz. A line of a .json file may be as long as the file.
        encoding (`str`, *optional*, defaults to `"utf-8"`): Its encoding.
        newline (`str`, *optional*, defaults to `""`): What ends a line, as for `open`. By default this is a line feed,
            a carriage return or both.

    Yields:
        `tuple[int, str]`: The number and the line.

    Raises:
        DataError: As [`checked_lines`], or if the file is not a complete gzip stream.
    """
    is_json = path.name.lower().removesuffix(".gz").endswith(".json")
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rt", encoding=encoding, errors="surrogateescape", newline=newline) as file:
        try:
            yield from checked_lines(file, str(path), -1 if is_json else LONGEST_TEXT + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read to its end: {error}. Copy or download it again.") from None


def checked_lines(stream: TextIO, name: str, limit: int = LONGEST_TEXT + 1) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line, with its end but without a byte-order mark.

    Args:
        stream (`TextIO`): The lines. Bytes that cannot be decoded are surrogate escapes.
        name (`str`): What messages call them.
        limit (`int`, *optional*): The length at which a line is too long, or -1.

    Yields:
        `tuple[int, str]`: The number and the line.

    Raises:
        DataError: If a byte could not be decoded, or a line holds a NUL byte or is too long, with the line.
    """
    for number, line in enumerate(iter(partial(stream.readline, limit), ""), 1):
        if number == 1:
            line = line.removeprefix("\ufeff")
            for start, advice in _NO_LINES.items():
                if line.startswith(start):
                    raise DataError(f"{name}: this is a file of {advice}.")
        problem = None
        wrong = None if line.isascii() else _UNDECODED.search(line)
        if wrong:
            likely = "UTF-16" if line.startswith(("\udcff\udcfe", "\udcfe\udcff")) else "WINDOWS-1252"
            place = f"byte 0x{ord(wrong[0]) - 0xDC00:02x} at character {wrong.start() + 1}"
            advice = f"The text may be {likely}: convert it with `iconv -f {likely} -t UTF-8`."
            problem = f"{place} is not {stream.encoding.upper()}. {advice}"
        elif "\0" in line:
            problem = "a NUL byte; convert UTF-16 text with `iconv -t UTF-8`."
        elif len(line) == limit:
            problem = TOO_LONG
        if problem:
            raise DataError(f"{name}, line {number}: {problem}")
        yield number, line


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file, which may be gzipped, without their ends. Only line feeds end a line."""
    lines = decoded_lines(Path(path), encoding, newline="\n")
    return [line.removesuffix("\n").removesuffix("\r") for _, line in lines]


def csv_records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each record of a csv or tsv file, the header included, with the number of its first line.

    Blank lines are left out. A text may have line breaks, but a quote that was not meant to open a cell makes one row
    of all lines up to the next quote. So the first row of several lines is reported by a warning.

    Args:
        path (`Path`): The file.
        delimiter (`str`): The character between cells.

    Yields:
        `tuple[int, list[str]]`: The line number, from 1, and the cells.

    Raises:
        DataError: If a quote is misplaced or not closed, or the bytes are wrong. The message names the line.
    """
    csv.field_size_limit(max(LONGEST_TEXT, csv.field_size_limit()))  # csv's own 131072 is below one long document
    lines = (line for _, line in decoded_lines(path))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    is_reported = False
    try:
        for cells in reader:
            if reader.line_num > number:
                place = f"{path}, line {number}"
                quoted = f"{place}: a cell that opens with a double quote runs on to line {reader.line_num}"
                # An unescaped quote at the start of a tsv cell takes the lines up to the next quote without an error.
                if delimiter == "\t" and any("\n" in cell and "\t" in cell for cell in cells):
                    raise DataError(f"{quoted}. Quote the cell and double its quotes, or use .jsonl.")
                if not is_reported:
                    logger.warning_once(
                        f"{quoted}, so these lines are one row, and other rows may be longer than a line too. If the "
                        "texts have no line breaks, a quote is not closed: double one that belongs to a text, and "
                        "quote its cell."
                    )
                is_reported = True
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {number}: not valid csv: {error}. A quote inside a quoted cell must be doubled, and a cell "
            "with a line break quoted; or use .jsonl."
        ) from None


@dataclass
class Table:
    """Rows of cells in named columns.

    Args:
        name (`str`): What messages call the table: the file's path, or a description of an object in memory.
        columns (`list[str]`): The names of the columns, in the table's own order.
        rows (`Callable`): Yields the line or row number, from 1, and the cells of the given columns for every row.
        unit (`str`): What numbers of rows count, a `"line"` or a `"row"`.
        source (`Path | datasets.Dataset`, *optional*): The file or the dataset, if it is one.
        refuse_late_keys (`bool`, *optional*, defaults to `True`): Whether to refuse an object with a key that the
            first rows, which name the columns, do not have, and which would be ignored.
    """

    name: str
    columns: list[str]
    rows: Callable[[Sequence[str]], Iterator[Row]]
    unit: str
    source: "Path | Dataset | None" = None
    refuse_late_keys: bool = True

    def __str__(self) -> str:
        return self.name

    def sample(self) -> list[Sequence]:
        """Return the cells of the first rows, in all columns."""
        return [cells for _, cells in islice(self.rows(self.columns), SAMPLE_ROWS)]

    def at(self, number: int) -> str:
        """Return the place of a row for a message, such as `train.csv, line 7`."""
        return f"{self.name}, {self.unit} {number}"

    def check_keys(self, number: int, keys: Iterable[str]) -> None:
        """Refuse an object with a key that is not among the columns, which the first rows name."""
        for key in keys:
            if key not in self.columns:
                raise DataError(
                    f"{self.at(number)}: the key {key!r} does not occur in the first {SAMPLE_ROWS} rows, whose keys "
                    f"are the columns. Add it to the first row (null is no text), or {_NAME_COLUMNS}."
                )

    def parts(self, parts: Sequence[str]) -> Iterator[tuple[str, Sequence]]:
        """Yield the place of each row, for messages, and its cells in the columns that [`find_parts`] finds."""
        columns = find_parts(self.columns, parts, self.name)
        for number, cells in self.rows(list(columns.values())):
            yield self.at(number), cells


def is_column(cells: object) -> bool:
    """Say whether a value of a dict holds the cells of a column, as a list, an array, a tensor or a series."""
    if hasattr(cells, "column_names"):  # a split of a `DatasetDict`
        return False
    is_array = hasattr(cells, "tolist") or hasattr(cells, "to_list")
    return is_array or (isinstance(cells, Sequence) and not isinstance(cells, str))


def open_rows(source: Any, name: str | None = None) -> Table:
    """Open rows in memory: a data frame, a dict of columns, or texts or rows in a list or another iterable.

    Args:
        source (`Any`): The rows.
        name (`str`, *optional*): What messages call them. Defaults to what they are.

    Returns:
        [`Table`]: The table.

    Raises:
        DataError: If they are none of these, or columns have different lengths or the same name.
    """
    columns = None
    if hasattr(source, "columns") and hasattr(source, "items"):  # a data frame of pandas
        columns = list(source.items())
    elif hasattr(source, "columns") and hasattr(source, "__arrow_c_stream__"):  # of polars, pyarrow and others
        frame = pa.table(source)
        columns = list(zip(frame.column_names, map(pa.ChunkedArray.to_pylist, frame.columns), strict=True))
    if columns is not None:
        source = dict(columns)
        if len(source) < len(columns):
            raise DataError(f"{name or 'the data frame'}: a column name occurs more than once.")
    if isinstance(source, Mapping) and all(map(is_column, source.values())):
        cells = {str(column): list(values) for column, values in source.items()}
        lengths = {column: len(values) for column, values in cells.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"{name or 'the columns'}: the numbers of cells differ: {lengths}. Give all columns as many cells; "
                "None is a missing text."
            )
        source = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    if not isinstance(source, Iterable) or isinstance(source, (Mapping, set, frozenset, bytes, TorchDataset)):
        raise DataError(
            f"{name or 'the source'} is a {type(source).__name__}: pass the name of a file or of a data set on the "
            "hub, a datasets.Dataset, such as data['train'] of a DatasetDict, a data frame, a dict of columns, texts "
            "or rows in a list or another iterable, or, for training, a datasets.IterableDataset."
        )
    rows = [row._asdict() if hasattr(row, "_asdict") else row for row in source]  # of named tuples
    return open_records(name or f"list of {len(rows)} rows", lambda: enumerate(rows, 1), "row")


def open_records(name: str, values: Callable[[], Iterable[tuple[int, Any]]], unit: str) -> Table:
    """Open numbered rows that are objects, texts, or arrays of equal length, whose cells are named by their places."""
    first = next(filter(None, (plain(value) for _, value in values())), None)
    if first is None:
        raise DataError(f"{name}: there are no rows.")
    form = 'every row must be an object such as {"sent0": "..."}, an array as long as the first, or a text'

    def records() -> Iterator[tuple[int, Mapping]]:
        for number, value in values():
            value = plain(value)
            if isinstance(first, str):
                value = {"text": value}
            elif is_list(first) and is_list(value) and len(value) == len(first):
                value = {f"sent{place}": cell for place, cell in enumerate(value)}
            elif is_list(first) or not isinstance(value, Mapping):
                raise DataError(f"{table.at(number)}: {form}; got {value!r:.100}.")
            yield number, value

    def rows(chosen: Sequence[str]) -> Iterator[Row]:
        for number, record in records():
            if table.refuse_late_keys:
                table.check_keys(number, record)
            yield number, plain([record.get(column) for column in chosen])

    table = Table(name, [], rows, unit)
    sample = [record for _, record in islice(records(), SAMPLE_ROWS)]
    table.columns = list(dict.fromkeys(chain.from_iterable(sample)))
    return table


class DataFileNotFoundError(FileNotFoundError, DataError):
    """A data file does not exist."""


def open_table(path: StrPath) -> Table:
    """Open a file by its extension and read the names of its columns.

    A txt file has the one column `text`; blank lines are left out, and white space in a line is kept. The first row of
    a csv or tsv file is its header, and cells are quoted as RFC 4180 says. A json file is an array of objects, arrays
    or texts, or has one of these on each line; the keys of its first 100 objects are its columns.

    Args:
        path (`str` or `os.PathLike`): A file whose name ends in .txt, .csv, .tsv, .json, .jsonl or .parquet, or in one
            of these followed by .gz.

    Returns:
        [`Table`]: The table.

    Raises:
        DataFileNotFoundError: If the file does not exist. This is also a `ValueError`.
        DataError: If the extension is unknown, the file is a directory, empty, a broken gzip stream or not UTF-8, or
            its header or first row is malformed. Reading its rows raises the same for later rows.
    """
    path = Path(path).expanduser()
    # 1. Refuse what is no file of a known format.
    if not path.exists():
        raise DataFileNotFoundError(f"{path}: no such file.")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder. Name the files in it instead.")
    suffix = SUFFIX.search(path.name)
    if suffix is None:
        raise DataError(f"{path}: unknown extension {path.suffix!r}. The name must end in {SUFFIXES}.")
    if not path.stat().st_size:
        raise DataError(f"{path}: the file is empty.")

    # 2. Open it by its format.
    table = READERS[suffix[1].lower()](path)
    repeated = [column for column, count in Counter(table.columns).items() if count > 1]
    if repeated:
        raise DataError(f"{path}: column name(s) {quote(repeated)} occur more than once.")
    table.source = path
    return table


def _lines(path: Path, _: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the number and the one cell of each line that is not blank."""
    for number, line in decoded_lines(path):
        if line.strip():
            yield number, (line.removesuffix("\n").removesuffix("\r"),)


def _open_txt(path: Path) -> Table:
    """Open a file of one text on each line."""
    table = Table(str(path), ["text"], partial(_lines, path), "line")
    texts = [text for _, (text,) in islice(_lines(path), SAMPLE_ROWS)]
    if len(texts) > 1 and all("\t" in text for text in texts):
        logger.warning_once(
            f"{path}: each line has a tab, and is read as one text. If tabs divide columns, name the file .tsv, with "
            "the names of the columns (such as sent0, sent1, hard_neg) in its first line."
        )
    return table


def open_csv(path: Path, delimiter: str) -> Table:
    """Open a file of cells between delimiters, whose first row is its header."""
    _, header = next(csv_records(path, delimiter), (1, []))
    names = [cell.strip() for cell in header]
    if not names:
        raise DataError(f"{path}: the file holds no header and no rows, only blank lines.")
    sentences = list(filter(LIKE_SENTENCE.search, names))
    if sentences:
        logger.warning_once(
            f"{path}: the first line is taken as the header, but {sentences[0]!r} looks like a sentence. If the file "
            "has no header, add one (such as sent0,sent1,hard_neg), or its first row is lost."
        )
    if len(names) == 1 and re.fullmatch(r"\w+([\t,;|]\w+)+", names[0]):
        raise DataError(
            f"{path}: the header is one column, {names[0]!r}. Separate the cells of a .csv file by commas, those of a "
            ".tsv file by tabs, or rename the column."
        )

    return Table(str(path), names, partial(_csv_rows, path, delimiter), "line")


def _csv_rows(path: Path, delimiter: str, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the line number of each row below the header, and its cells in the given columns."""
    records = csv_records(path, delimiter)
    _, header = next(records)
    names = [cell.strip() for cell in header]
    indices = [names.index(column) for column in columns]
    for number, cells in records:
        if len(cells) != len(names):
            raise DataError(
                f"{path}, line {number}: {len(cells)} cells where the header has {len(names)} "
                f"({', '.join(names)}). Put double quotes around a cell that contains {delimiter!r}."
            )
        if cells == header:
            raise DataError(f"{path}, line {number}: this line repeats the header. Remove it.")
        yield number, [cells[index] for index in indices]


def _open_json(path: Path) -> Table:
    """Open a json file that is one array of rows, or has one row on each line (JSON Lines)."""

    def parse(number: int, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:  # also for 4,300 digits in a row, and for deep nesting
            number += getattr(error, "lineno", 1) - 1
            raise DataError(
                f"{path}, line {number}: not valid JSON: {getattr(error, 'msg', error)}. The file must hold one "
                "object on each line, or one array of objects."
            ) from None

    lines = _lines(path)
    _, (first,) = next(lines, (1, ("",)))
    first = first.strip()
    # An array that closes on the first line is a row of a JSON Lines file if another line follows.
    is_row = first.endswith("]") and next(lines, None) is not None
    if first.startswith("[") and not is_row:
        array = parse(1, "".join(line for _, line in decoded_lines(path)))
        return open_records(str(path), lambda: enumerate(array, 1), "row")

    def values() -> Iterator[tuple[int, Any]]:
        for number, (line,) in _lines(path):
            yield number, parse(number, line)

    return open_records(str(path), values, "line")


def _open_parquet(path: Path) -> Table:
    @contextmanager
    def readable() -> Iterator[None]:
        try:
            yield
        # Damaged pages and odd dates are among these errors.
        except (EOFError, OSError, ValueError, OverflowError, zlib.error, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read to its end: {error}. Copy or download it again.") from None

    with readable():
        # Parquet is read from its end, so it is unpacked into memory.
        source: Path | pa.BufferReader = path
        if path.suffix.lower() == ".gz":
            source = pa.BufferReader(gzip.decompress(path.read_bytes()))
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        with readable():
            for batch in file.iter_batches(10_000, columns=list(columns)):
                cells = [batch.column(column).to_pylist() for column in columns]
                yield from enumerate(map(plain, zip(*cells, strict=True)), number + 1)
                number += len(batch)
            if number != file.metadata.num_rows:
                raise DataError(f"it holds {number} rows where its metadata says {file.metadata.num_rows}")

    return Table(str(path), names, rows, "row")


#: What opens a file, by its extension. The bytes of a text format come from [`decoded_lines`], also of a gzipped file.
READERS: dict[str, Callable[[Path], Table]] = {
    "txt": _open_txt,
    "csv": partial(open_csv, delimiter=","),
    "tsv": partial(open_csv, delimiter="\t"),
    "json": _open_json,
    "jsonl": _open_json,
    "parquet": _open_parquet,
}
SUFFIX = re.compile(rf"\.({'|'.join(READERS)})(\.gz)?$", re.IGNORECASE)
SUFFIXES = f"{', '.join(f'.{format}' for format in READERS)}, or one of these followed by .gz"


_NOTES = {
    "dropped": "dropped for an empty cell",
    "empty": "with an empty text in a list, which is left out",
    "fewer": "with fewer hard negatives than others",
    "longer": "with more hard negatives than are taken",
}


@dataclass
class RowCleaner:
    """Turn the rows of a table into rows of texts, and count what is left out.

    Args:
        table (`Table`): The table.
        columns (`Sequence[str]`): The columns of the cells: anchor, positive, hard negatives.
        width (`int`): Texts in each row.

    Attributes:
        kept (`int`): Rows of texts that were kept.
        counts (`Counter[str]`): Rows that were `dropped` for an empty cell, that had `empty` texts in lists, and that
            have `fewer` or `longer` lists of hard negatives.
        places (`dict[str, list[int]]`): The numbers of the first of these rows.
    """

    table: Table
    columns: Sequence[str]
    width: int
    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[int]] = field(default_factory=dict)

    def clean(self, number: int, cells: Sequence) -> list[list[str | None]]:
        """Return the rows of texts that a row gives: one for each positive that it lists, and none if it lacks a text.

        Hard negatives that are lists are joined. A row may have fewer than others, and ends in `None` then. With
        `width` 4, the cells `q`, `[p1, p2]` and `[n1]` give the rows `q, p1, n1, None` and `q, p2, n1, None`.

        Args:
            number (`int`): The line or row number.
            cells (`Sequence[Any]`): The cells of `columns`.

        Returns:
            `list[list[str | None]]`: Rows of `width` texts.

        Raises:
            ValueError: If a cell holds no string, or half of a surrogate pair. The message names the line or row.
        """
        for place, cell in enumerate(cells):
            texts = cell if place and is_list(cell) else [cell]
            for text in texts:
                if text is not None and not is_plain(text):
                    check_text(text, f"{self.table.at(number)}, column {self.columns[place]!r}")
        if len(cells) == self.width and all(map(has_text, cells)):
            self.kept += 1
            return [list(cells)]
        positives = list(filter(has_text, flatten(cells[1:2])))
        negatives = list(filter(has_text, flatten(cells[2:])))
        room = self.width - 2
        found = {
            "empty": not all(map(has_text, flatten(filter(is_list, cells)))),
            "fewer": len(negatives) < room,
            "longer": len(negatives) > room,
        }
        if not has_text(cells[0]) or not positives:
            positives = []
            found = {"dropped": True}
        for what, is_found in found.items():
            if is_found:
                self.counts[what] += 1
                places = self.places.setdefault(what, [])
                if len(places) <= 5:  # one more than is shown
                    places.append(number)
        self.kept += len(positives)
        filled = (negatives + [None] * room)[:room]
        return [[cells[0], positive, *filled] for positive in positives]

    def read(self, max_rows: int | None = None) -> Iterator[list[list[str | None]]]:
        """Yield the rows of texts that each row of the table gives.

        Args:
            max_rows (`int`, *optional*): Rows of the table to stop after.

        Yields:
            `list[list[str | None]]`: See [`clean`].

        Raises:
            DataError: If a row is malformed, or none gives a row of texts.
        """
        for number, cells in islice(self.table.rows(self.columns), max_rows):
            yield self.clean(number, cells)
        if not self.kept:
            columns = " or ".join(map(repr, self.columns))
            raise DataError(
                f"{self.table.name}: each of the {self.counts['dropped']} row(s) has an empty cell in {columns}. Fill "
                "the cells, or name other columns."
            )

    def log(self, so_far: str = "") -> None:
        """Log what was dropped and left out."""
        rows = self.kept + self.counts["dropped"]
        for what, message in _NOTES.items():
            if self.counts[what]:
                logger.warning(
                    f"{self.table.name}{so_far}: {self.counts[what]} of {rows} rows {message}: "
                    f"{self.table.unit} {first_few(self.places[what])}."
                )


def text_column(source: Any, column: str | None = None, keep: Sequence[str] = ()) -> tuple[Table, str]:
    """Open a file, or rows in memory, and choose the column of texts.

    Args:
        source (`str`, `os.PathLike` or `Any`): The file, see [`open_table`]; or rows, see [`open_rows`].
        column (`str`, *optional*): The column. By default [`resolve_columns`] chooses it by its name.
        keep (`Sequence[str]`, *optional*, defaults to `()`): Other columns that there must be.

    Returns:
        `tuple[Table, str]`: The table and the name of the column.

    Raises:
        DataError: If the file cannot be read, a column is missing, or there are several that may be meant.
    """
    table = open_table(source) if isinstance(source, (str, os.PathLike)) else open_rows(source)
    table.refuse_late_keys = column is None
    if column is None:
        column, *others = resolve_columns(table.columns, name=table.name, sample=table.sample())
        if others:
            raise DataError(
                f"{table.name}: which of the columns {quote(table.columns)} holds the texts? Name it (--column)."
            )
    check_columns([column, *keep], table.columns, table.name)
    return table, column


def stream_texts(source: Any, column: str | None = None, keep: Sequence[str] = ()) -> Iterator[tuple]:
    """Yield the texts of a file or of rows in memory one by one, each with its place and the cells of other columns.

    Blank lines of a txt file are skipped. An empty cell of a table is a text like any other, so that embeddings stay
    aligned with the rows of the table.

    Args:
        source (`str`, `os.PathLike` or `Any`): The file or the rows; see [`text_column`].
        column (`str`, *optional*): The column of texts. By default [`resolve_columns`] chooses it by its name.
        keep (`Sequence[str]`, *optional*, defaults to `()`): The other columns. Their cells are written as text; a
            missing value is an empty text.

    Yields:
        `tuple`: The line or row number, from 1, the text, and the other cells.

    Raises:
        ValueError: If the file cannot be read, its columns are unclear, or a cell holds no text. The message names the
            line or row.
    """
    table, column = text_column(source, column, keep)
    for number, (text, *cells) in table.rows([column, *keep]):
        if not is_plain(text):
            check_text(text, f"{table.at(number)}, column {column!r}")
        others = ["" if cell is None else check_text(str(cell), table.at(number)) for cell in cells]
        yield number, text, *others
