"""Load a data set of sentences, pairs or triplets from files, the hub or memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from ..ops.files import digest
from .dataset_columns import resolve_dataset_columns
from .hub_dataset import is_hub_name, load_from_hub
from .lines import SUFFIX, SUFFIXES
from .open_table import open_table
from .table import open_records
from .table_dataset import dataset_of_tables, mark_resolved


def load_text_dataset(
    source: Any,
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
    `map` finds its own cache again. A row without an anchor or a positive is dropped, and a warning counts these.
    Text is kept as it is, including white space at its ends and the word "None".

    A positive or hard negative may be a list of texts, as in the JSON Lines files of sentence-transformers: each
    positive becomes a row of its own, and hard negatives become columns. A row may have fewer of them than others, and
    holds `None` instead.

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
        max_rows (`int`, *optional*): Number of rows to stop after.
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
    options: dict = {"columns": columns, "expected_columns": expected_columns}
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
    paths = None if isinstance(source, Dataset) else find_paths(source)
    if paths is None and isinstance(source, str):
        name = source
        source = load_from_hub(source, split, cache_dir=cache_dir and str(cache_dir))
    if isinstance(source, Dataset):
        dataset = resolve_dataset_columns(source, name=name, **options)
        if max_rows is None or max_rows >= len(dataset):
            return dataset
        return mark_resolved(dataset.select(range(max_rows)))
    options |= {"max_rows": max_rows, "cache_dir": cache_dir}
    if paths is None:
        table = open_records(f"list of {len(source)} rows", lambda: enumerate(source, 1), "memory", "row")
        return dataset_of_tables([table], **options)
    tables = [open_table(path) for path in paths]
    kinds = [str(SUFFIX.findall(path.name.lower())) for path in paths]
    return dataset_of_tables(tables, [*kinds, *map(digest, paths)], **options)


def find_paths(source: str | Path | Sequence) -> list[Path] | None:
    """Return the files that a source of text names, or `None` if it is a hub id or a list of rows."""
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        if _is_path(source) or path.exists() or not is_hub_name(str(source)):
            return [path]
        return None
    if source and all(_is_path(item) for item in source):
        return [Path(item).expanduser() for item in source]
    for item in source[:5]:
        if _is_path(item) and Path(item).exists():
            raise ValueError(f"the list holds the file {item} among other things; its paths must end in {SUFFIXES}.")
    return None


def _is_path(item: Any) -> bool:
    return isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item) is not None)
