"""Load texts: files, lists, data sets and names on the hub become one data set of cleaned rows, cached on disk."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import (
    Dataset,
    DatasetDict,
    Features,
    NamedSplit,
    Value,
    __version__,
    concatenate_datasets,
    config,
    get_dataset_config_names,
    is_caching_enabled,
    load_dataset,
)
from datasets.fingerprint import Hasher
from filelock import FileLock
from transformers.utils import logging

from ..ops.files import digest, folder_problem, read_json, write_atomically, write_json, write_manifest
from .columns import SAMPLE_ROWS, SCORE, RowCleaner, is_list, looks_like_sentence, quote, resolve_columns
from .table import SUFFIX, SUFFIXES, Row, Table, open_records, open_table

logger = logging.get_logger(__name__)

_WORD = r":[\w.+-]+(?:\[[^\]]*\])?"
#: What may be the name of a dataset of the hub.
_NAME = re.compile(rf"\w[\w.-]*(?:/\w[\w.-]*)?(?:{_WORD}){{0,2}}")
_COLON = re.compile(r":(?![^\[]*\])")  # the colon of `train[:10%]` belongs to the split

#: A part of every key of a cache: increase the number when the same texts give other rows than before. Another version
#: of datasets may write files that this one cannot read.
VERSION = f"8, datasets {__version__}"

_BATCH_ROWS = 10_000
_DROPPED = "dropped.json"  # what was left out of the rows of a cache
_resolved: set[str] = set()  # fingerprints of data sets that need not be read again


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
    if not isinstance(source, Dataset):
        options: dict = {"columns": columns, "expected_columns": expected_columns, "max_rows": max_rows}
        paths = find_paths(source)
        if paths is not None:
            tables = [open_table(path) for path in paths]
            kinds = [str(SUFFIX.findall(path.name.lower())) for path in paths]
            digests = [digest(path) for path in paths]
            return dataset_of_tables(tables, kinds + digests, cache_dir=cache_dir, **options)
        if not isinstance(source, str):
            table = open_records(f"list of {len(source)} rows", lambda: enumerate(source, 1), "memory", "row")
            return dataset_of_tables([table], **options)
        name = source
        source = load_from_hub(source, split, cache_dir=cache_dir and str(cache_dir))
    dataset = resolve_dataset_columns(source, columns, name=name, expected_columns=expected_columns)
    if max_rows is None or max_rows >= len(dataset):
        return dataset
    return mark_resolved(dataset.select(range(max_rows)))


def find_paths(source: str | Path | Sequence) -> list[Path] | None:
    """Return the files that a source of text names, or `None` if it is a hub id or a list of rows."""
    if isinstance(source, (str, Path)):
        path = Path(source).expanduser()
        may_be_hub_id = _NAME.fullmatch(str(source))
        if _is_path(source) or path.exists() or not may_be_hub_id:
            return [path]
        return None
    if source and all(_is_path(item) for item in source):
        return [Path(item).expanduser() for item in source]
    for item in source[:5]:
        if _is_path(item) and Path(item).exists():
            raise ValueError(f"the list holds the file {item} among other things; its paths must end in {SUFFIXES}.")
    return None


def _is_path(item: Any) -> bool:
    if isinstance(item, str):
        return SUFFIX.search(item) is not None
    return isinstance(item, Path)


def load_from_hub(source: str, split: str, **options: Any) -> Any:
    """Load a split of a dataset of the hub.

    Args:
        source (`str`): `name`, `name:split` or `name:config:split`. `name:word` is a configuration if the dataset has
            one of this name.
        split (`str`): The split, if `source` does not say it.
        options (`Any`): Further arguments of `datasets.load_dataset`.

    Returns:
        `datasets.Dataset` or `datasets.IterableDataset`: The rows.

    Raises:
        ValueError: If the dataset cannot be loaded.
    """
    name, *words = _COLON.split(source)
    configuration = None
    try:
        if len(words) == 2:
            configuration, split = words
        elif words and words[0] in get_dataset_config_names(name):
            configuration = words[0]
        elif words:
            split = words[0]
        return load_dataset(name, configuration, split=split, **options)
    except Exception as error:  # its type depends on what is wrong: the network, the name or the data
        raise ValueError(
            f"{source!r} is no file here, and could not be loaded from the hub as a dataset either: "
            f"{type(error).__name__}: {error}"
        ) from error


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
        content (`Sequence[str]`, *optional*, defaults to `()`): What tells their content from any other, such as
            digests of the files. Without it, the dataset is kept in memory and not cached.
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

    def batches(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows = islice(_clean_rows(tables, cleaners), max_rows)
        while batch := list(islice(rows, _BATCH_ROWS)):
            texts = zip(*batch, strict=True)
            cells = [pa.array(column, pa.string()) for column in texts]
            yield pa.record_batch(cells, schema=schema)

    def write(folder: Path) -> None:
        schema = text_features(make_room(tables, cleaners)).arrow_schema
        with pa.OSFile(str(folder / "rows.arrow"), "wb") as sink:
            with pa.ipc.new_stream(sink, schema) as stream:
                for batch in batches(schema):
                    stream.write_batch(batch)
        found = [[cleaner.kept, cleaner.counts, cleaner.places] for cleaner in cleaners]
        write_json(folder / _DROPPED, found)

    if content:
        folder = Path(cache_dir or config.HF_DATASETS_CACHE).expanduser() / "simcse_hf"
        chosen = [cleaner.columns for cleaner in cleaners]
        key = Hasher.hash([VERSION, content, max_rows, *chosen])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            dataset, made = cached_rows(folder, key, write)
        except OSError as error:
            raise ValueError(f"cannot write to the cache {folder}: {error}. Pass another cache_dir.") from error
        dropped = read_json(made / _DROPPED)
        for cleaner, found in zip(cleaners, dropped, strict=True):
            kept, counts, places = found
            cleaner.kept = kept
            cleaner.counts = Counter(counts)
            cleaner.places = places
    else:
        schema = text_features(make_room(tables, cleaners)).arrow_schema
        table = pa.Table.from_batches(batches(schema), schema)
        dataset = Dataset(table, split=NamedSplit("train"))
    for cleaner in cleaners:
        cleaner.log()
    return mark_resolved(dataset)


def table_cleaners(
    tables: Sequence[Table],
    columns: Sequence[str] | None,
    expected_columns: int | None = None,
) -> list[RowCleaner]:
    """Resolve the columns of each table, as [`~data.columns.resolve_columns`] does, to rows of the same width.

    Args:
        tables (`Sequence[Table]`): The tables.
        columns (`Sequence[str]`, *optional*): The columns to take.
        expected_columns (`int`, *optional*): How many columns there must be.

    Returns:
        `list[RowCleaner]`: One for each table, with room for the longest list of hard negatives of its first rows.

    Raises:
        ValueError: If a table has no rows, its columns are unclear, or two tables have different numbers of columns.
    """
    cleaners: list[RowCleaner] = []
    for table in tables:
        if table.format == "csv":
            sentences = [column for column in table.columns if looks_like_sentence(column)]
            if sentences:
                logger.warning(
                    f"{table.name}: the first line is taken as the header, but {sentences[0]!r} looks like a "
                    "sentence. If the file has no header, add one (such as sent0,sent1,hard_neg), or its first row is "
                    "lost."
                )
        table.refuse_late_keys = columns is None
        sample = table.sample()
        if not sample:
            raise ValueError(f"{table.name}: there are no rows, only a header or blank lines.")
        requested = columns
        if columns is None and table.positional:
            requested = table.columns
        chosen = resolve_columns(
            table.columns, name=table.name, sample=sample, columns=requested, expected_columns=expected_columns
        )
        cleaner = RowCleaner(table.name, chosen, table.unit)
        negatives = [table.columns.index(column) for column in chosen[2:]]
        for cells in sample:
            if any(is_list(cells[place]) for place in negatives):
                cleaner.has_lists = True
        cleaners.append(cleaner)
        first = cleaners[0]
        if len(chosen) != len(first.columns):
            raise ValueError(
                f"{first.name} has {len(first.columns)} text column(s) ({', '.join(first.columns)}), but {table.name} "
                f"has {len(chosen)} ({', '.join(chosen)}). Files loaded together must have the same number."
            )
    make_room(tables, cleaners, SAMPLE_ROWS)
    return cleaners


def make_room(tables: Sequence[Table], cleaners: Sequence[RowCleaner], max_rows: int | None = None) -> int:
    """Make room for the longest list of hard negatives of all rows, or of the first ones.

    Args:
        tables (`Sequence[Table]`): The tables. One without lists of negatives in its first rows is not read.
        cleaners (`Sequence[RowCleaner]`): The cleaner of each table, whose `width` is set.
        max_rows (`int`, *optional*): Number of rows of each table to stop after.

    Returns:
        `int`: The number of texts in each row.
    """
    for table, cleaner in zip(tables, cleaners, strict=True):
        if cleaner.has_lists:
            for _, cells in islice(table.rows(cleaner.columns), max_rows):
                cleaner.widen(cells)
    width = max(cleaner.width for cleaner in cleaners)
    for cleaner in cleaners:
        cleaner.width = width
    return width


def _clean_rows(tables: Sequence[Table], cleaners: Sequence[RowCleaner]) -> Iterator[list[str | None]]:
    for table, cleaner in zip(tables, cleaners, strict=True):
        yield from cleaner.clean_all(table.rows(cleaner.columns))


def text_features(width: int) -> Features:
    """Return the features of rows of texts: `sent0` (the anchor), `sent1` (its positive), `sent2`, ... (negatives)."""
    return Features({f"sent{index}": Value("string") for index in range(width)})


def cached_rows(folder: Path, key: str, make: Callable[[Path], Any]) -> tuple[Dataset, Path]:
    """Make rows, or take them from the cache if they are as they were written.

    Each cache is a folder with digests of its files. One that is damaged is made again.

    Args:
        folder (`Path`): The folder of all caches.
        key (`str`): Hash of what decides the rows, which becomes their fingerprint.
        make (`Callable`): Writes the rows into the folder that it is given, to one or several `.arrow` files.

    Returns:
        `tuple[datasets.Dataset, Path]`: The rows and the folder in which they are cached.
    """
    cache = folder / key
    if folder_problem(cache):
        with FileLock(folder / f"{key}.lock"):  # another process may be making them
            if problem := folder_problem(cache):
                if cache.exists():
                    logger.warning(f"{cache}: the cached rows are made again, because {problem}.")
                with write_atomically(cache) as temporary:
                    temporary.mkdir()
                    make(temporary)
                    write_manifest(temporary)
    parts = []
    for file in sorted(cache.glob("*.arrow")):
        part = Dataset.from_file(str(file), split=NamedSplit("train"))
        parts.append(part)
    rows = concatenate_datasets(parts)
    rows._fingerprint = key  # the default depends on the time of the file
    return rows, cache


def cached_map(dataset: Dataset, function: Callable, key: list, **options: Any) -> Dataset:
    """Map batches of rows as [`datasets.Dataset.map`] does, or take an earlier result that is as it was written.

    Args:
        dataset (`datasets.Dataset`): The rows. The result is cached beside their file; rows in memory have none.
        function (`Callable`): What to call with a batch.
        key (`list`): What decides the result beside the rows.
        options (`Any`): Further arguments of `map`.

    Returns:
        `datasets.Dataset`: The result.
    """
    fingerprint = Hasher.hash([VERSION, dataset._fingerprint, *key])
    options |= {"batched": True, "new_fingerprint": fingerprint}
    files = dataset.cache_files if is_caching_enabled() else []
    if not files:
        return dataset.map(function, **options)

    def make(folder: Path) -> None:
        dataset.map(function, cache_file_name=str(folder / "rows.arrow"), **options)

    folder = Path(files[0]["filename"]).parent
    mapped, _ = cached_rows(folder, fingerprint, make)
    return mapped


def resolve_dataset_columns(
    dataset: Dataset,
    columns: Sequence[str] | None = None,
    *,
    name: str = "the dataset",
    expected_columns: int | None = None,
) -> Dataset:
    """Select the text columns of a dataset and name them `sent0`, `sent1`, `sent2`, ... in the order of their parts.

    A dataset that is already tokenized (`input_ids`) or grouped (`texts` and `relations`) is returned as it is, and so
    is one that was resolved before. Rows with an empty cell are dropped with a warning. A cell may hold a list: each
    positive of a list becomes a row of its own, and negatives of a list become columns. A row may have fewer negatives
    than others; its last columns are empty then.

    Args:
        dataset (`datasets.Dataset`): The dataset.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.
        expected_columns (`int`, *optional*): How many texts a row must have; see [`resolve_columns`].

    Returns:
        `datasets.Dataset`: The dataset with string columns only.

    Raises:
        ValueError: If the dataset has no rows, its columns are unclear or hold no strings, or every row has an empty
            cell.
    """
    if "input_ids" not in dataset.column_names:
        dataset = apply_transform(dataset)
    column_names = set(dataset.column_names)
    if "input_ids" in column_names or {"texts", "relations"} <= column_names:
        return dataset
    if columns is None and is_resolved(dataset) and expected_columns in (None, len(column_names)):
        return dataset
    is_on_disk = dataset.cache_files and is_caching_enabled()
    content = [dataset._fingerprint] if is_on_disk else []
    table = dataset_table(dataset, name)
    return dataset_of_tables([table], content, columns=columns, expected_columns=expected_columns)


def mark_resolved(dataset: Dataset) -> Dataset:
    """Remember that a dataset has the columns `sent0`, `sent1`, ... and no empty anchor or positive, and return it."""
    _resolved.add(dataset._fingerprint)
    return dataset


def is_resolved(dataset: Dataset) -> bool:
    """Say whether [`mark_resolved`] remembers a dataset."""
    return dataset._fingerprint in _resolved


def apply_transform(dataset: Dataset) -> Dataset:
    """Return the rows that a dataset shows, which `set_transform` may have changed."""
    if dataset.format["type"] != "custom":
        return dataset
    logger.warning(
        "The transform of a dataset is applied once, before training: what it draws stays the same in all epochs."
    )
    names = dataset.column_names
    shown = dataset.map(lambda rows: rows, batched=True, remove_columns=names, load_from_cache_file=False)
    return shown.with_format(None)


def dataset_table(dataset: Dataset, name: str) -> Table:
    """Return the rows of a dataset as a table."""
    dataset = apply_transform(dataset).with_format(None)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        selected = dataset.select_columns(list(columns))
        for batch in selected.iter(1000):
            for cells in zip(*batch.values(), strict=True):
                number += 1
                yield number, cells

    return Table(name, dataset.column_names, rows, "memory", "row")


def resolve_scored_pairs(dataset: Dataset, name: str = "the dataset") -> Dataset:
    """Select the two text columns and the score of a dataset.

    A dataset that is already tokenized (`input_ids`) is returned as it is. Rows with an empty text are dropped with a
    warning.

    Args:
        dataset (`datasets.Dataset`): A dataset with the column `score` and two columns of texts, such as `sentence1`
            and `sentence2`; see [`resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.

    Returns:
        `datasets.Dataset`: The columns `sent0`, `sent1` and `score`, a float.

    Raises:
        ValueError: If the column `score` is missing, a score is not a finite number, or the text columns are unclear.
    """
    dataset = apply_transform(dataset)
    columns = dataset.column_names
    if "input_ids" in columns or (SCORE in columns and is_resolved(dataset)):
        return dataset
    if SCORE not in columns:
        raise ValueError(
            f"{name}: there is no column {SCORE!r}, and the objective learns from the scores of pairs. Name the "
            f"columns sentence1, sentence2 and score; the columns are {quote(columns)}."
        )
    table = dataset_table(dataset.remove_columns(SCORE), name)
    [cleaner] = table_cleaners([table], None, expected_columns=2)
    texts = []
    scores = []
    values = dataset.with_format(None)[SCORE]
    rows = table.rows(cleaner.columns)
    for (number, cells), value in zip(rows, values, strict=True):
        score = parse_score(value, table.at(number), "Correct or remove the row")
        pairs = cleaner.clean(number, cells)
        texts += pairs
        scores += [score] * len(pairs)
    cleaner.check_any()
    cleaner.log()
    check_scores(scores, name)
    first, second = zip(*texts, strict=True)
    resolved = Dataset.from_dict({"sent0": first, "sent1": second, SCORE: scores})
    return mark_resolved(resolved)


def check_scores(scores: Sequence[float], name: str) -> None:
    """Warn of scores of -1 among others that are not negative, because they often mean that there is none."""
    missing = list(scores).count(-1)
    negative = sum(score < 0 for score in scores)
    if missing and missing == negative:
        logger.warning(
            f"{name}: {missing} of {len(scores)} scores are -1, which counts as the lowest score. If it means that "
            "there is none, remove these rows."
        )


def parse_score(value: Any, where: str, advice: str = "Correct it, or leave it blank to skip the row") -> float:
    """Return a score as a finite float.

    Args:
        value (`Any`): The cell.
        where (`str`): Its place, for the message.
        advice (`str`, *optional*): The last sentence of the message, without its full stop.

    Returns:
        `float`: The score.

    Raises:
        ValueError: If it is not a finite number.
    """
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(f"{where}: the score {value!r} is not a finite number. {advice}.")
    return score
