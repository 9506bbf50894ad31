"""Load a data set of sentences, pairs or triplets from files, the hub or memory."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from datasets import Dataset, DatasetDict, NamedSplit, config
from datasets.fingerprint import Hasher
from transformers.utils import logging

from ..ops.errors import refuse
from ..ops.files import digest, read_json, write_json
from .cache import VERSION, cached_rows
from .columns import resolve_columns
from .dataset_columns import mark_resolved, resolve_dataset_columns, text_features
from .hub_dataset import is_hub_name, load_from_hub
from .lines import SUFFIX, SUFFIXES
from .open_table import open_table
from .row_cleaner import RowCleaner
from .table import Table, open_records

if TYPE_CHECKING:
    import pandas as pd

logger = logging.get_logger(__name__)

_BATCH_ROWS = 10_000
_DROPPED = "dropped.json"  # what was left out of the rows of a cache


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
            - the name of a dataset on the Hugging Face hub, `name`, `name:split` or `name:config:split`;
            - a dataset or data frame in memory;
            - a list of strings, of tuples or of dicts. A list of strings is a list of paths if every string has one of
              the extensions above.
        split (`str`, *optional*, defaults to `"train"`): Split of a `DatasetDict`, or of a hub dataset whose name does
            not say it. A hub dataset also takes a slice such as `"train[:10%]"`.
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
        is_file = isinstance(source, Path) or path.exists() or SUFFIX.search(source) or not is_hub_name(source)
        return [path] if is_file else None
    if source and all(isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item)) for item in source):
        return [Path(item).expanduser() for item in source]
    for item in source[:5]:
        if isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item) and Path(item).exists()):
            raise ValueError(f"the list holds the file {item} among other things; its paths must end in {SUFFIXES}.")
    return None


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
