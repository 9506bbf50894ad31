"""A data set of texts from tables: their columns are chosen, their rows are cleaned, and the result is cached."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, Features, NamedSplit, Value, config
from datasets.fingerprint import Hasher
from transformers.utils import logging

from ..ops.files import read_json, write_json
from .cache import VERSION, cached_rows
from .columns import SAMPLE_ROWS, looks_like_sentence, resolve_columns
from .row_cleaner import RowCleaner
from .table import Table
from .texts import is_list

logger = logging.get_logger(__name__)

_BATCH_ROWS = 10_000
_DROPPED = "dropped.json"  # what was left out of the rows of a cache
_resolved: set[str] = set()  # fingerprints of data sets that need not be read again


def text_features(width: int) -> Features:
    """Return the features of rows of texts: `sent0` (the anchor), `sent1` (its positive), `sent2`, ... (negatives)."""
    return Features({f"sent{index}": Value("string") for index in range(width)})


def mark_resolved(dataset: Dataset) -> Dataset:
    """Remember that a dataset has the columns `sent0`, `sent1`, ... and no empty anchor or positive, and return it."""
    _resolved.add(dataset._fingerprint)
    return dataset


def is_resolved(dataset: Dataset) -> bool:
    """Say whether [`mark_resolved`] remembers a dataset."""
    return dataset._fingerprint in _resolved


def dataset_of_tables(
    tables: Sequence[Table],
    content: Sequence[str] = (),
    *,
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
    max_rows: int | None = None,
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Make a dataset of the rows of tables, one after the other, and log what is left out.

    Args:
        tables (`Sequence[Table]`): The tables.
        content (`Sequence[str]`, *optional*, defaults to `()`): What stands for their content. Without it, the
            dataset is kept in memory; otherwise it is cached.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`~data.columns.resolve_columns`].
        expected_columns (`int`, *optional*): How many columns there must be.
        max_rows (`int`, *optional*): Number of rows to stop after.
        cache_dir (`str | Path`, *optional*): Where the dataset is cached. Defaults to the cache of `datasets`.

    Returns:
        `datasets.Dataset`: The string columns `sent0`, `sent1`, ...

    Raises:
        ValueError: If columns are unclear, a row is malformed, every row lacks a text, or the cache cannot be written.
    """
    cleaners = table_cleaners(tables, columns, expected_columns)
    width = cleaners[0].width
    schema = text_features(width).arrow_schema

    def batches() -> Iterator[pa.RecordBatch]:
        rows = islice(_clean_rows(tables, cleaners), max_rows)
        while batch := list(islice(rows, _BATCH_ROWS)):
            cells = [pa.array(column, pa.string()) for column in zip(*batch, strict=True)]
            yield pa.record_batch(cells, schema=schema)

    def write(folder: Path) -> None:
        with pa.OSFile(str(folder / "rows.arrow"), "wb") as sink:
            with pa.ipc.new_stream(sink, schema) as stream:
                for batch in batches():
                    stream.write_batch(batch)
        found = [[cleaner.kept, cleaner.counts, cleaner.places] for cleaner in cleaners]
        write_json(folder / _DROPPED, found)

    if content:
        folder = Path(cache_dir or config.HF_DATASETS_CACHE).expanduser() / "simcse_hf"
        chosen = [cleaner.columns for cleaner in cleaners]
        key = Hasher.hash([VERSION, content, width, max_rows, *chosen])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            dataset, made = cached_rows(folder, key, write)
        except OSError as error:
            raise ValueError(f"cannot write to the cache {folder}: {error}. Pass another cache_dir.") from error
        for cleaner, (kept, counts, places) in zip(cleaners, read_json(made / _DROPPED), strict=True):
            cleaner.kept = kept
            cleaner.counts = Counter(counts)
            cleaner.places = places
    else:
        table = pa.Table.from_batches(batches(), schema)
        dataset = Dataset(table, split=NamedSplit("train"))
    for cleaner in cleaners:
        cleaner.log()
    return mark_resolved(dataset)


def table_cleaners(
    tables: Sequence[Table],
    columns: Sequence[str] | None,
    expected_columns: int | None = None,
    reads_all: bool = True,
) -> list[RowCleaner]:
    """Resolve the columns of each table, as [`~data.columns.resolve_columns`] does, to rows of the same width.

    Args:
        tables (`Sequence[Table]`): The tables.
        columns (`Sequence[str]`, *optional*): The columns to take.
        expected_columns (`int`, *optional*): How many columns there must be.
        reads_all (`bool`, *optional*, defaults to `True`): Whether all rows are read for their longest list of hard
            negatives, if the first rows have lists. Otherwise it is that of the first rows.

    Returns:
        `list[RowCleaner]`: One for each table.

    Raises:
        ValueError: If a table has no rows, its columns are unclear, or two tables have different numbers of columns.
    """
    cleaners: list[RowCleaner] = []
    for table in tables:
        sentences = list(filter(looks_like_sentence, table.columns))
        if table.format == "csv" and sentences:
            logger.warning(
                f"{table.name}: the first line is taken as the header, but {sentences[0]!r} looks like a sentence. If "
                "the file has no header, add one (such as sent0,sent1,hard_neg), or its first row is lost."
            )
        table.refuse_late_keys = columns is None
        sample = table.sample()
        if not sample:
            raise ValueError(f"{table.name}: there are no rows, only a header or blank lines.")
        requested = table.columns if table.positional and columns is None else columns
        chosen = resolve_columns(
            table.columns, name=table.name, sample=sample, columns=requested, expected_columns=expected_columns
        )
        cleaner = RowCleaner(table.name, chosen, table.unit)
        if any(is_list(cell) for cells in sample for cell in cells):
            rows = table.rows(chosen)
            cleaner.widen(cells for _, cells in (rows if reads_all else islice(rows, SAMPLE_ROWS)))
        cleaners.append(cleaner)
        first = cleaners[0]
        if len(chosen) != len(first.columns):
            raise ValueError(
                f"{first.name} has {len(first.columns)} text column(s) ({', '.join(first.columns)}), but {table.name} "
                f"has {len(chosen)} ({', '.join(chosen)}). Files loaded together must have the same number."
            )
    width = max(cleaner.width for cleaner in cleaners)
    for cleaner in cleaners:
        cleaner.width = width
    return cleaners


def _clean_rows(tables: Sequence[Table], cleaners: Sequence[RowCleaner]) -> Iterator[list[str | None]]:
    for table, cleaner in zip(tables, cleaners, strict=True):
        yield from cleaner.clean_all(table.rows(cleaner.columns))
