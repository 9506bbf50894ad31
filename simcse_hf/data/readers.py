"""Load training text from files, the hub or memory as a `datasets.Dataset` with columns sent0, sent1, sent2, ..."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
from datasets import (
    Dataset,
    DatasetDict,
    Features,
    NamedSplit,
    Value,
    config,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from transformers.utils import logging

from ..ops.files import digest, write_atomically
from .builder import TextBuilder
from .columns import check_column_count, output_columns, resolve_columns, resolve_dataset_columns
from .files import SUFFIX, SUFFIXES, DelimitedFile, JsonFile, open_table
from .memory import MemoryTable
from .rows import RowReport, clean_rows, row_width
from .table import TextTable

logger = logging.get_logger(__name__)

_LAYOUT = 2  # a part of the cache key: increase it when the same file gives other rows than before
_BATCH_ROWS = 10_000
_SHOWN_ITEMS = 5
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?")


def load_text_dataset(
    source: str | Path | Sequence[Any] | pd.DataFrame | Dataset | DatasetDict,
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
    if isinstance(source, DatasetDict):
        if split not in source:
            raise ValueError(f"the DatasetDict has no split {split!r}; it has {', '.join(source)}.")
        source = source[split]
    name = "the dataset"
    if isinstance(source, pd.DataFrame):
        source, name = _from_pandas(source), "the data frame"
    elif not isinstance(source, (str, Path, list, tuple, Dataset)):
        raise ValueError(
            f"source must be a path, a hub id, a list, a DataFrame or a Dataset, got {type(source).__name__}."
        )
    paths = None if isinstance(source, Dataset) else find_paths(source)
    if paths is None and isinstance(source, str):
        source, name = load_from_hub(source, split, cache_dir), source
    if isinstance(source, Dataset):
        dataset = resolve_dataset_columns(source, columns, name=name, expected_columns=expected_columns)
        return dataset if max_rows is None else dataset.select(range(min(max_rows, len(dataset))))
    tables = [open_table(path, delimiter) for path in paths] if paths else [MemoryTable(cast(Sequence[Any], source))]
    resolved, width = resolve_tables(tables, columns, expected_columns)
    if not paths:
        reports: list[RowReport] = []
        batches = list(_arrow_tables(tables, resolved, width, max_rows, reports))
        _log(tables, reports)
        return Dataset(pa.concat_tables(batches), split=NamedSplit("train"))
    key = Hasher.hash([_LAYOUT, [_identify(path) for path in paths], resolved, width, delimiter, max_rows])
    return _cached_rows(tables, resolved, width, max_rows, Path(cache_dir or config.HF_DATASETS_CACHE), key)


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


def _from_pandas(frame: pd.DataFrame) -> Dataset:
    try:
        return Dataset.from_pandas(frame, preserve_index=False)
    except (TypeError, ValueError) as error:  # pyarrow's errors are among these
        raise ValueError(f"the data frame has a column of mixed types: {error}. Convert it to strings.") from error


def load_from_hub(source: str, split: str, cache_dir: str | Path | None = None, *, streaming: bool = False) -> Any:
    """Load a dataset of the hub.

    Args:
        source (`str`): `name` or `name:config`.
        split (`str`): The split.
        cache_dir (`str | Path`, *optional*): Where the dataset is cached.
        streaming (`bool`, *optional*, defaults to `False`): Whether to read it as it is used, without caching it.

    Returns:
        `datasets.Dataset` or `datasets.IterableDataset`: The dataset.

    Raises:
        ValueError: If it cannot be loaded.
    """
    name, _, configuration = source.partition(":")
    try:
        options = {"streaming": True} if streaming else {"cache_dir": cache_dir and str(cache_dir)}
        return load_dataset(name, configuration or None, split=split, **options)
    except Exception as error:  # its type depends on what is wrong: the network, the name or the data
        raise ValueError(
            f"{source!r} is no file here, and could not be loaded from the hub as a dataset either: "
            f"{type(error).__name__}: {error}"
        ) from error


def resolve_tables(
    tables: Sequence[TextTable], columns: Sequence[str] | None, expected_columns: int | None
) -> tuple[list[list[str]], int]:
    """Resolve the columns of each table and count the texts of a row, which must be the same in all of them.

    Args:
        tables (`Sequence[TextTable]`): The tables.
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
        if isinstance(table, JsonFile):
            table.refuse_late_keys = columns is None
        sample = table.sample()
        if not sample:
            rest = "only the header" if isinstance(table, DelimitedFile) else "only blank lines, if any"
            raise ValueError(f"{table.name}: there are no rows, {rest}.")
        names = resolve_columns(
            table.columns,
            name=table.name,
            sample=sample,
            columns=table.columns if table.positional and columns is None else columns,
            expected_columns=expected_columns,
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


def _identify(path: Path) -> tuple[str, str]:
    """Identify the rows of a file by its format and its bytes, wherever it stands."""
    suffix = SUFFIX.search(path.name)
    return suffix[0].lower() if suffix else "", digest(path)


def text_features(width: int) -> Features:
    """Return the features of rows of `width` texts."""
    return Features({column: Value("string") for column in output_columns(width)})


def _arrow_tables(
    tables: Sequence[TextTable],
    resolved: Sequence[Sequence[str]],
    width: int,
    max_rows: int | None,
    reports: list[RowReport],
) -> Iterator[pa.Table]:
    """Yield the rows of all tables in batches, and append a report for each table that is read."""
    schema = text_features(width).arrow_schema
    rows_left = max_rows
    for table, columns in zip(tables, resolved, strict=True):
        report = RowReport()
        reports.append(report)
        rows = clean_rows(table, columns, width, report, rows_left)
        while batch := list(islice(rows, _BATCH_ROWS)):
            yield pa.table([pa.array(cells, pa.string()) for cells in zip(*batch, strict=True)], schema=schema)
        if rows_left is not None:
            rows_left -= report.rows
            if not rows_left:
                return


def _cached_rows(
    tables: Sequence[TextTable],
    resolved: Sequence[Sequence[str]],
    width: int,
    max_rows: int | None,
    cache_dir: Path,
    key: str,
) -> Dataset:
    """Build the dataset, or take it from the cache. Its reports stand beside it, so that every load logs them."""
    cache_dir = cache_dir.expanduser() / "simcse_hf"
    report_file = cache_dir / f"{key}.json"

    def arrow_tables() -> Iterator[pa.Table]:
        reports: list[RowReport] = []
        yield from _arrow_tables(tables, resolved, width, max_rows, reports)
        with write_atomically(report_file) as temporary:
            temporary.write_text(json.dumps([asdict(report) for report in reports]))

    try:
        builder = TextBuilder(arrow_tables, cache_dir=str(cache_dir), features=text_features(width), hash=key)
        builder.download_and_prepare()
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError):  # it names the file and the line
            raise error.__cause__ from None
        raise
    except OSError as error:
        raise ValueError(f"cannot write to the cache {cache_dir}: {error}. Pass another cache_dir.") from error
    _log(tables, [RowReport(**report) for report in json.loads(report_file.read_text())])
    return builder.as_dataset(split="train")


def _log(tables: Sequence[TextTable], reports: Sequence[RowReport]) -> None:
    for table, report in zip(
        tables, reports, strict=False
    ):  # there are fewer reports where max_rows ended the reading
        report.log(table.name, table.unit)
