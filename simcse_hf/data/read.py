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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, NamedSplit, config, load_dataset
from datasets.fingerprint import Hasher
from transformers.utils import logging

from ..ops.errors import refuse
from ..ops.files import digest, read_json, write_json
from .cache import VERSION, cached_rows
from .columns import (
    LONGEST_TEXT,
    SAMPLE_ROWS,
    TOO_LONG,
    RowCleaner,
    check_text,
    mark_resolved,
    resolve_columns,
    resolve_dataset_columns,
    resolve_text_column,
    text_features,
)

if TYPE_CHECKING:
    import pandas as pd

logger = logging.get_logger(__name__)

SUFFIX = re.compile(r"\.(txt|csv|tsv|jsonl|json|parquet)(\.gz)?$", re.IGNORECASE)
SUFFIXES = ".txt, .csv, .tsv, .json, .jsonl, .parquet, or one of these followed by .gz"

#: A byte that is not in the encoding of its file, and the start of a file in UTF-16, as they are decoded.
_UNDECODED, _UTF_16 = re.compile("[\udc80-\udcff]"), ("\udcff\udcfe", "\udcfe\udcff")

_BATCH_ROWS = 10_000
_DROPPED = "dropped.json"  # what was left out of the rows of a cache
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?")

Row = tuple[int, Sequence[Any]]
Rows = Callable[[Sequence[str]], Iterator[Row]]


class DataFileNotFoundError(FileNotFoundError, ValueError):
    """A data file does not exist."""


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
        ValueError: If a byte is not in this encoding, with its line and offset, the file is not a complete gzip
            stream, or a line is longer than `LONGEST_TEXT`, unless the file is .json, where it may be the whole array.
    """
    kind = SUFFIX.search(path.name)
    limit = -1 if kind and kind[1].lower() == "json" else LONGEST_TEXT + 1
    offset = 0
    with open_binary(path) as stream:
        try:
            text = io.TextIOWrapper(stream, encoding=encoding, errors="surrogateescape", newline=newline)
            for number, line in enumerate(iter(partial(text.readline, limit), ""), 1):
                if wrong := _UNDECODED.search(line):
                    offset += len(line[: wrong.start()].encode(encoding, "surrogateescape"))
                    guess = "UTF-16" if number == 1 and line.startswith(_UTF_16) else "WINDOWS-1252"
                    raise ValueError(
                        f"{path}, line {number}: byte 0x{ord(wrong[0]) - 0xDC00:02x} at byte offset {offset} is not "
                        f"{encoding.upper()}. The text may be {guess}: convert it with `iconv -f {guess} -t UTF-8`."
                    )
                offset += len(line) if line.isascii() else len(line.encode(encoding))
                if "\0" in line:
                    raise ValueError(f"{path}, line {number}: a NUL byte; convert UTF-16 text with `iconv -t UTF-8`.")
                if len(line) == limit:
                    raise ValueError(f"{path}, line {number}: {TOO_LONG}")
                yield number, line.removeprefix("\ufeff") if number == 1 else line
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be read to its end: {error} Copy or download it again.") from None


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file, which may be gzipped, without their ends. Only line feeds end a line."""
    lines = decoded_lines(Path(path), encoding, newline="\n")
    return [line.removesuffix("\n").removesuffix("\r") for _, line in lines]


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """Rows of cells in named columns.

    Args:
        name (`str`): What messages call the table: the file's path, or a description of an object in memory.
        columns (`list[str]`): The names of the columns, in the table's own order.
        rows (`Callable`): Yields the line or row number, from 1, and the cells of the given columns for every row.
        format (`str`): `"txt"`, `"csv"` (also for tsv), `"json"` (also for jsonl), `"parquet"` or `"memory"`.
        unit (`str`, *optional*, defaults to `"line"`): What numbers of rows count, a `"line"` or a `"row"`.
        positional (`bool`, *optional*, defaults to `False`): Whether columns have no names but their positions.
        refuse_late_keys (`bool`, *optional*, defaults to `False`): Whether a key of a json file is refused that comes
            after the rows that name the columns. Where columns are chosen by name, it would be lost without a word.
    """

    name: str
    columns: list[str]
    rows: Rows
    format: str
    unit: str = "line"
    positional: bool = False
    refuse_late_keys: bool = False

    def __post_init__(self) -> None:
        if repeated := [name for name, count in Counter(self.columns).items() if count > 1]:
            raise ValueError(f"{self.name}: column name(s) {', '.join(map(repr, repeated))} occur more than once.")

    def sample(self) -> list[Sequence[Any]]:
        """Return the cells of the first rows, in all columns."""
        return [cells for _, cells in islice(self.rows(self.columns), SAMPLE_ROWS)]

    def at(self, number: int) -> str:
        """Return the place of a row for a message, such as `train.csv, line 7`."""
        return f"{self.name}, {self.unit} {number}"


def open_table(path: str | os.PathLike[str]) -> Table:
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
    refuse(
        {
            f"{path}: is a directory. Name the files in it instead.": path.is_dir(),
            f"{path}: unknown extension {path.suffix!r}. The name must end in {SUFFIXES}.": suffix is None,
            f"{path}: the file is empty.": path.stat().st_size == 0,
        }
    )
    extension = cast(re.Match[str], suffix)[1].lower()
    if extension == "txt":

        def rows(_: Sequence[str]) -> Iterator[Row]:
            lines = ((number, line) for number, line in decoded_lines(path) if line.strip())
            return ((number, (line.removesuffix("\n").removesuffix("\r"),)) for number, line in lines)

        return Table(str(path), ["text"], rows, "txt")
    if extension in ("csv", "tsv"):
        return _open_csv(path, "\t" if extension == "tsv" else ",")
    return _open_parquet(path) if extension == "parquet" else _open_json(path)


def _open_csv(path: Path, delimiter: str) -> Table:
    _, header = next(csv_records(path, delimiter), (1, []))
    names = [cell.strip() for cell in header]
    is_other = len(names) == 1 and re.fullmatch(r"\w+([\t,;|]\w+)+", names[0])
    refuse(
        {
            f"{path}: the file holds no header and no rows, only blank lines.": not names,
            f"{path}: the header is the one column {''.join(map(repr, names))}. Separate the cells of a .csv file by "
            "commas and those of a .tsv file by tabs, or rename the column if it is one.": is_other,
        }
    )

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        indices = [names.index(column) for column in columns]
        for number, cells in islice(csv_records(path, delimiter), 1, None):
            if len(cells) != len(names):
                raise ValueError(
                    f"{path}, line {number}: {len(cells)} cells where the header has {len(names)} "
                    f"({', '.join(names)}). Put double quotes around a cell that contains the delimiter {delimiter!r}."
                )
            yield number, [cells[index] for index in indices]

    return Table(str(path), names, rows, "csv")


_long_rows: set[Path] = set()  # files whose first row of several lines was reported


def csv_records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line, and the cells, of each record of a csv or tsv file, the header included.

    Blank lines are skipped. The first quoted cell that spans lines is reported by a warning: a text may have line
    breaks, but an opening quote that belongs to a text swallows the lines up to the next quote.

    Args:
        path (`Path`): The file.
        delimiter (`str`): The character between cells.

    Yields:
        `tuple[int, list[str]]`: The line number, from 1, and the cells.

    Raises:
        ValueError: If a quote is misplaced or not closed, or the bytes are wrong. The message names the line.
    """
    csv.field_size_limit(max(LONGEST_TEXT, csv.field_size_limit()))  # csv's own 131072 is below one long document
    reader = csv.reader((line for _, line in decoded_lines(path)), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {number}: not valid csv: {error}. A double quote inside a quoted cell must be doubled, "
                "a line break inside a cell needs quotes around the cell; .jsonl has neither rule."
            ) from None
        quoted = f"{path}, line {number}: a cell that opens with a double quote runs on to line {reader.line_num}"
        # An unescaped quote at the start of a tsv cell swallows the lines up to the next quote without an error.
        if delimiter == "\t" and any("\n" in cell and "\t" in cell for cell in cells):
            raise ValueError(f"{quoted}. Write such a quote as a quoted cell with the quote doubled, or use .jsonl.")
        if reader.line_num > number and path not in _long_rows:
            _long_rows.add(path)
            logger.warning(
                f"{quoted}, so these lines are one row, and other rows may be longer than a line too. If the texts "
                "have no line breaks, a quote is not closed: double one that belongs to a text, and quote its cell."
            )
        if cells:
            yield number, cells


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


def open_records(name: str, values: Callable[[], Iterable[tuple[int, Any]]], format: str, unit: str) -> Table:
    """Open rows that are objects, arrays of equal length or, in memory, texts."""
    nothing: Any = object()
    first = next((value for _, value in values()), nothing)
    kind: Any = list if isinstance(first, tuple) else type(first)
    if first is nothing:
        raise ValueError(f"{name}: the {'list of rows is empty' if format == 'memory' else 'file holds no rows'}.")

    def records() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, value in values():
            if isinstance(value, dict) and kind is dict:
                yield number, value
            elif isinstance(value, (list, tuple)) and kind is list and len(value) == len(first):
                yield number, {str(index): cell for index, cell in enumerate(value)}
            elif kind is str and format == "memory":
                yield number, {"text": value}
            else:
                raise ValueError(
                    f'{name}, {unit} {number}: expected an object such as {{"sent0": "..."}}, an array'
                    f"{'' if kind is not list else f' of {len(first)} cells as before'}, or in a list a text; got "
                    f"{value!r:.100}."
                )

    columns = list(dict.fromkeys(key for _, record in islice(records(), SAMPLE_ROWS) for key in record))

    def rows(chosen: Sequence[str]) -> Iterator[Row]:
        known = set(columns)
        for number, record in records():
            if table.refuse_late_keys and not record.keys() <= known:
                raise ValueError(
                    f"{name}, {unit} {number}: the key {min(record.keys() - known)!r} does not occur in the first "
                    f"{SAMPLE_ROWS} rows, whose keys are the columns. Add it to the first row (null is no text), or "
                    "name the columns to take with --columns or load_text_dataset(..., columns=[...])."
                )
            yield number, [record.get(column) for column in chosen]

    table = Table(name, columns, rows, format, unit, kind is list)
    return table


def _open_parquet(path: Path) -> Table:
    advice = "Write or download it again."
    try:
        # Parquet is read from its end, so it is unpacked into memory.
        source: Any = pa.BufferReader(gzip.decompress(path.read_bytes())) if path.suffix.lower() == ".gz" else path
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names
    except (EOFError, OSError, UnicodeDecodeError, zlib.error, pa.ArrowException) as error:
        raise ValueError(f"{path}: not a readable parquet file: {error}. {advice}") from None

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        batches, number = file.iter_batches(_BATCH_ROWS, columns=list(columns)), 0
        while True:
            try:
                batch = next(batches, None)
                cells = [] if batch is None else [batch.column(column).to_pylist() for column in columns]
            except (OSError, ValueError, OverflowError, pa.ArrowException) as error:  # damaged pages or odd dates
                raise ValueError(f"{path}: cannot be read to its end: {error}. {advice}") from None
            if batch is None:
                break
            yield from enumerate(zip(*cells, strict=True), number + 1)
            number += len(batch)
        if number != (expected := file.metadata.num_rows):
            raise ValueError(f"{path}: holds {number} rows where its metadata says {expected}. {advice}")

    return Table(str(path), names, rows, "parquet", "row")


def text_column(path: str | os.PathLike[str], column: str | None = None) -> tuple[Table, str]:
    """Open a file and choose its column of texts; see [`open_table`] and [`~data.columns.resolve_text_column`]."""
    table = open_table(path)
    table.refuse_late_keys = column is None
    return table, resolve_text_column(table.columns, table.name, column)


def stream_texts(path: str | os.PathLike[str], column: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the line or row number, from 1, and the text of every row of a file; see [`stream_rows`]."""
    for number, (text,) in stream_rows(path, column):
        yield number, text


def stream_rows(
    path: str | os.PathLike[str], column: str | None = None, keep: Sequence[str] = ()
) -> Iterator[tuple[int, list[str]]]:
    """Yield the texts of a file one by one, with the cells of other columns.

    Blank lines of a txt file are skipped. An empty cell of a table is a text like any other, so that embeddings stay
    aligned with the rows of the table.

    Args:
        path (`str | os.PathLike`): The file; see [`open_table`].
        column (`str`, *optional*): The column of texts. Defaults to the only one, or to the one named `sent0`, `text`
            or `sentence`.
        keep (`Sequence[str]`, *optional*, defaults to `()`): The other columns. Their cells are written as text; a
            missing value is an empty text.

    Yields:
        `tuple[int, list[str]]`: The line or row number, from 1; and the text, followed by the other cells.

    Raises:
        ValueError: If the file cannot be read, its columns are unclear, or a cell holds no text. The message names the
            line or row.
    """
    table, column = text_column(path, column)
    others = [name for name in table.columns if name != column]
    wrong = ", ".join(repr(name) for name in keep if name not in others)
    listed = ", ".join(map(repr, others)) or "none"
    refuse({f"{table.name}: no column {wrong} to keep beside {column!r}; the other columns: {listed}.": wrong})
    for number, (text, *cells) in table.rows([column, *keep]):
        where = f"{table.name}, {table.unit} {number}"
        kept = (check_text("" if cell is None else str(cell), where) for cell in cells)
        yield number, [check_text(text, f"{where}, column {column!r}"), *kept]


def list_texts(texts: str | Sequence[str]) -> list[str]:
    """Return one text or several as a list, or raise a `ValueError` that names the position of what is no text."""
    items = [texts] if isinstance(texts, str) else list(texts)
    return [check_text(text, f"sentence {position}") for position, text in enumerate(items)]


# --- data sets -------------------------------------------------------------------------------------------------------


def load_text_dataset(
    source: "str | Path | Sequence[Any] | pd.DataFrame | Dataset | DatasetDict",
    *,
    split: str = "train",
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
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
        max_rows (`int`, *optional*): Stop after so many rows.
        cache_dir (`str | Path`, *optional*): Where files are cached. Defaults to the cache of `datasets`
            (`HF_DATASETS_CACHE`).

    Returns:
        `datasets.Dataset`: A dataset with the string columns `sent0`; `sent0, sent1`; or `sent0, sent1, sent2, ...`.

    Raises:
        DataFileNotFoundError: If a file does not exist. This is also a `ValueError`.
        ValueError: If the input is malformed. The message names the file and the line or row.
    """
    refuse({f"max_rows must be at least 1, got {max_rows}.": max_rows is not None and max_rows < 1})
    name = "the dataset"
    if isinstance(source, DatasetDict):
        refuse({f"the DatasetDict has no split {split!r}; it has {', '.join(source)}.": split not in source})
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
    items = cast(Sequence[Any], source)
    memory = f"list of {len(items)} rows" if paths is None else ""
    tables = (
        [open_table(path) for path in paths]
        if paths
        else [open_records(memory, lambda: enumerate(items, 1), "memory", "row")]
    )
    cleaners = table_cleaners(tables, columns, expected_columns)
    rows = (row for t, c in zip(tables, cleaners, strict=True) for row in c.clean_all(t.rows(c.columns)))
    batches = _arrow_batches(islice(rows, max_rows), cleaners[0].width)
    if paths:
        kinds = [SUFFIX.findall(path.name.lower()) for path in paths]
        columns_key = [cleaner.columns for cleaner in cleaners]
        key = Hasher.hash([VERSION, kinds, [*map(digest, paths)], cleaners[0].width, max_rows, *columns_key])
        dataset = _cached(batches, cleaners, Path(cache_dir or config.HF_DATASETS_CACHE).expanduser(), key)
    else:
        dataset = Dataset(pa.Table.from_batches(list(batches)), split=NamedSplit("train"))
    for cleaner in cleaners:
        cleaner.log()
    return mark_resolved(dataset)


def find_paths(source: str | Path | Sequence[Any]) -> list[Path] | None:
    """Return the files that a source of text names, or `None` if it is a hub id or a list of rows."""
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        is_id = isinstance(source, str) and _HUB_ID.fullmatch(source) and not SUFFIX.search(source)
        return None if is_id and not path.exists() else [path]
    if source and all(isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item)) for item in source):
        return [Path(item).expanduser() for item in source]
    for item in source[:5]:
        if isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item) and Path(item).exists()):
            raise ValueError(f"the list holds the file {item} among other things; its paths must end in {SUFFIXES}.")
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


def table_cleaners(
    tables: Sequence[Table], columns: Sequence[str] | None, expected_columns: int | None
) -> list[RowCleaner]:
    """Resolve the columns of each table, as [`~data.columns.resolve_columns`] does, to rows of the same width."""
    cleaners: list[RowCleaner] = []
    for table in tables:
        sentences = [name for name in table.columns if len(name.split()) > 4 or re.search(r"\w[.!?]\W*$", name)]
        if table.format == "csv" and sentences:
            logger.warning(
                f"{table.name}: the first line is taken as the header, but {sentences[0]!r} looks like a sentence. If "
                "the file has no header, add one (such as sent0,sent1,hard_neg), or its first row is lost."
            )
        table.refuse_late_keys = columns is None
        sample = table.sample()
        refuse({f"{table.name}: there are no rows, only a header or blank lines.": not sample})
        requested = table.columns if table.positional and columns is None else columns
        chosen, width = resolve_columns(
            table.columns, name=table.name, sample=sample, columns=requested, expected_columns=expected_columns
        )
        cleaners.append(RowCleaner(table.name, chosen, width, table.unit))
        first = cleaners[0]
        refuse(
            {
                f"{first.name} has {first.width} text column(s) ({', '.join(first.columns)}), but {table.name} has "
                f"{width} ({', '.join(chosen)}). Files loaded together must have the same number.": width
                != first.width
            }
        )
    return cleaners


def _arrow_batches(rows: Iterator[list[str]], width: int) -> Iterator[pa.RecordBatch]:
    schema = text_features(width).arrow_schema
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield pa.record_batch([pa.array(cells, pa.string()) for cells in zip(*batch, strict=True)], schema=schema)


def _cached(batches: Iterable[pa.RecordBatch], cleaners: Sequence[RowCleaner], cache_dir: Path, key: str) -> Dataset:
    """Write a dataset to the cache, or take it from there. What was left out stands beside it for later loads."""
    schema = text_features(cleaners[0].width).arrow_schema

    def make(folder: Path) -> None:
        with pa.OSFile(str(folder / "rows.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        write_json(folder / _DROPPED, [[cleaner.counts, cleaner.places] for cleaner in cleaners])

    try:
        (cache_dir / "simcse_hf").mkdir(parents=True, exist_ok=True)
        dataset, folder = cached_rows(cache_dir / "simcse_hf", key, make)
    except OSError as error:
        raise ValueError(f"cannot write to the cache {cache_dir}: {error}. Pass another cache_dir.") from error
    for cleaner, (counts, places) in zip(cleaners, read_json(folder / _DROPPED), strict=True):
        cleaner.counts, cleaner.places = Counter(counts), places
    return dataset
