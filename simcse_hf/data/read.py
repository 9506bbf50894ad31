"""Load texts, and texts with labels: any source becomes one data set of cleaned rows."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    IterableDataset,
    Value,
    __version__,
    config,
    get_dataset_config_names,
    is_caching_enabled,
    load_dataset,
)
from datasets.fingerprint import Hasher
from transformers.utils import logging

from ..objectives.base import NEGATIVE, POSITIVE
from ..runtime.errors import DataError, SettingError, check_values
from ..runtime.files import StrPath, digest, read_json, write_atomically, write_json
from .columns import (
    ADVICE,
    JUDGEMENT,
    LABEL,
    SAMPLE_ROWS,
    class_columns,
    first_few,
    flatten,
    has_text,
    is_list,
    part_of,
    plain,
    quote,
    refuse_written_lists,
    resolve_columns,
)
from .table import SUFFIX, SUFFIXES, Row, RowCleaner, Table, open_rows, open_table

logger = logging.get_logger(__name__)

_COLON = re.compile(r":(?![^\[]*\])")  # the colon of `train[:10%]` belongs to the split

#: A part of every key of a cache: increase the number when the same texts give other rows than before. Another version
#: of datasets may write files that this one cannot read.
VERSION = f"8, datasets {__version__}"

#: Files, the name of a data set on the hub, rows in memory, or a data set or data frame.
TextSource: TypeAlias = StrPath | Iterable | Table
_BATCH_ROWS = 10_000
_MARKS = {"0", "1", "False", "True"}  # of a vector with a place for each class, some of which it repeats
_DROPPED = "dropped.json"  # what was left out of the rows of a cache
#: Fingerprints of data sets with the columns `sent0`, `sent1`, ... and no empty anchor or positive.
RESOLVED: set[str] = set()


def load_text_dataset(
    source: TextSource,
    *,
    split: str = "train",
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
    max_rows: int | None = None,
    cache_dir: str | Path | None = None,
    name: str | None = None,
) -> Dataset:
    """Load sentences, sentence pairs, or pairs with hard negatives.

    A file is read and checked once and cached as Arrow in `<cache_dir>/simcse_hf`. The cache and the fingerprint of
    the dataset depend on the bytes of the files and on the arguments only, so a second load is immediate, and a later
    `map` finds its own cache again. A row without an anchor or a positive is dropped, and a warning counts these.
    Text is kept as it is, including white space at its ends and the word "None".

    A positive or hard negative may be a list of texts, as in the JSON Lines files of sentence-transformers: each
    positive becomes a row of its own, and hard negatives become columns. A row may have fewer of them than others, and
    holds `None` instead.

    Rows that are already tokenized (`input_ids`) or grouped (`texts` and `relations`) stay as they are, and so does a
    dataset that was loaded before.

    Args:
        source (`str | Path | Iterable | Mapping | pandas.DataFrame | datasets.Dataset | datasets.DatasetDict`): One of

            - a path to a .txt, .csv, .tsv, .json, .jsonl or .parquet file, to one of these followed by .gz, or a list
              of such paths;
            - the name of a dataset on the Hugging Face hub, `name`, `name:split` or `name:config:split`;
            - a dataset or data frame in memory, or a dict of columns;
            - a list or another iterable of strings, of tuples or of dicts, such as an array or a generator. A list of
              strings is a list of paths if every string has one of the extensions above.

            A text may be missing as `None`, nan, pandas.NA or "".
        split (`str`, *optional*, defaults to `"train"`): Split of a `DatasetDict`, or of a hub dataset whose name does
            not say it. A hub dataset also takes a slice such as `"train[:10%]"`.
        columns (`Sequence[str]`, *optional*): The columns to take: anchor, positive, hard negatives. By default they
            are chosen by their names, see [`~data.columns.resolve_columns`]; the cells of a tuple by their position.
        expected_columns (`int`, *optional*): How many columns there must be: 1 for sentences, 2 for pairs, 2 + k for
            pairs with k hard negatives.
        max_rows (`int`, *optional*): Number of rows to stop after.
        cache_dir (`str | Path`, *optional*): Where files are cached. Defaults to the cache of `datasets`
            (`HF_DATASETS_CACHE`).
        name (`str`, *optional*): What messages call rows in memory. Defaults to what they are.

    Returns:
        `datasets.Dataset`: A dataset with the string columns `sent0`; `sent0, sent1`; or `sent0, sent1, sent2, ...`.

    Raises:
        DataFileNotFoundError: If a file does not exist. This is also a `ValueError`.
        DataError: If the input is malformed. The message names the file and the line or row.

    Examples:
        >>> from simcse_hf import load_text_dataset
        >>> load_text_dataset("sentences.txt")[0]
        {'sent0': 'In fall the old mariner found the steed at the port.'}
        >>> load_text_dataset([("A man eats.", "A person eats.")])[0]
        {'sent0': 'A man eats.', 'sent1': 'A person eats.'}
        >>> load_text_dataset("triplets.csv").column_names
        ['sent0', 'sent1', 'sent2']
    """
    check_values("an integer above 0", max_rows=max_rows)
    tables = open_source(source, split, name, cache_dir)
    dataset = tables[0].source
    if isinstance(dataset, Dataset):
        names = set(dataset.column_names)
        is_loaded = columns is None and dataset._fingerprint in RESOLVED and expected_columns in (None, len(names))
        if is_loaded or "input_ids" in names or {"texts", "relations"} <= names:
            return dataset if max_rows is None else dataset.select(range(min(max_rows, len(dataset))))
    # 1. What decides the rows, if they are cached: those in memory are not.
    cleaners = table_cleaners(tables, columns, expected_columns)
    content: list = []
    for file in [table.source for table in tables if isinstance(table.source, Path)]:
        content += [SUFFIX.findall(file.name.lower()), digest(file)]
    if isinstance(dataset, Dataset) and dataset.cache_files and is_caching_enabled():
        content = [dataset._fingerprint]

    # 2. Write the cleaned rows, if they are not there.
    if not content:
        sink = pa.BufferOutputStream()
        _write_rows(cleaners, sink, max_rows)
        dataset = Dataset.from_buffer(sink.getvalue())
    else:
        folder = Path(cache_dir or config.HF_DATASETS_CACHE).expanduser() / "simcse_hf"
        key = Hasher.hash([VERSION, max_rows, [cleaner.columns for cleaner in cleaners] + content])
        path = folder / key / "rows.arrow"  # `map` caches its results beside it
        dropped = path.with_name(_DROPPED)
        if not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with write_atomically(path) as temporary, pa.OSFile(str(temporary), "wb") as file:
                    _write_rows(cleaners, file, max_rows)
                    write_json(dropped, [[cleaner.kept, cleaner.counts, cleaner.places] for cleaner in cleaners])
            except OSError as error:
                raise DataError(
                    f"cannot write to the cache {folder}: {error}. Set HF_HOME, or cache_dir, to a folder that can be "
                    "written."
                ) from error
        dataset = Dataset.from_file(str(path))
        dataset._fingerprint = key  # the default depends on the time of the file
        for cleaner, found in zip(cleaners, read_json(dropped, kind=list), strict=True):
            cleaner.kept, counts, cleaner.places = found
            cleaner.counts = Counter(counts)
    for cleaner in cleaners:
        cleaner.log()
    RESOLVED.add(dataset._fingerprint)
    return dataset


def _write_rows(cleaners: Sequence[RowCleaner], sink: pa.NativeFile, max_rows: int | None) -> None:
    """Write the cleaned rows of all tables, one after the other."""
    schema = make_room(cleaners).arrow_schema
    kept = (row for cleaner in cleaners for rows in cleaner.read() for row in rows)
    rows = islice(kept, max_rows)
    with pa.ipc.new_stream(sink, schema) as stream:
        while batch := list(islice(rows, _BATCH_ROWS)):
            stream.write_batch(pa.record_batch(list(zip(*batch, strict=True)), schema))


def open_source(
    source: TextSource,
    split: str | None = "train",
    name: str | None = None,
    cache_dir: str | Path | None = None,
) -> list[Table]:
    """Open the tables of a source of rows, which are several for a list of files.

    Whatever rows are for, they are opened here. A missing cell is `None` afterwards: nan, NaT, pandas.NA, and -1 in a
    column of `ClassLabel`.

    Args:
        source (`Any`): See [`load_text_dataset`]. A table stays as it is.
        split (`str`, *optional*, defaults to `"train"`): The split, if the source does not say it; `None` refuses a
            `DatasetDict`.
        name (`str`, *optional*): What messages call rows in memory. Defaults to what they are.
        cache_dir (`str | Path`, *optional*): Where `datasets` caches what it loads from the hub.

    Returns:
        `list[Table]`: The tables.

    Raises:
        DataError: If the source cannot be read.
        SettingError: If it has no such split.
    """
    paths = find_paths(source)
    if paths is not None:
        return list(map(open_table, paths))
    if isinstance(source, Table):
        return [source]
    if isinstance(source, str):
        name = source
        source = load_from_hub(name, split or "train", cache_dir=cache_dir)
    elif isinstance(source, DatasetDict) and split is not None:
        if split not in source:
            raise SettingError(f"the DatasetDict has no split {split!r}; it has {', '.join(source)}.")
        source = source[split]
    if isinstance(source, Dataset):
        return [dataset_table(source, name or "the dataset")]
    if isinstance(source, IterableDataset):
        source = list(source.with_format(None))
    table = open_rows(source, name)
    if not {"input_ids", "relations"}.isdisjoint(table.columns):  # which stay as they are
        records = [dict(zip(table.columns, cells, strict=True)) for _, cells in table.rows(table.columns)]
        table = dataset_table(Dataset.from_list(records), table.name)
    return [table]


def open_one(source: TextSource, name: str | None, split: str | None = "train") -> Table:
    """Open the one table of a source whose rows are not read from several files; see [`open_source`]."""
    table, *further = open_source(source, split, name)
    if further:
        raise DataError(f"{table} and {further[0]}: such rows are read from one file. Write them into one.")
    return table


def find_paths(source: object) -> list[Path] | None:
    """Return the files that a source of text names, or `None` if it is a hub id or rows in memory."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source).expanduser()
        is_file = not isinstance(source, str) or SUFFIX.search(source) or path.exists()
        return [path] if is_file else None
    if not isinstance(source, (list, tuple)):
        return None

    def is_path(item: object) -> bool:
        return isinstance(item, Path) or (isinstance(item, str) and SUFFIX.search(item) is not None)

    if source and all(map(is_path, source)):
        return list(map(Path, source))
    for item in filter(is_path, source[:5]):
        if Path(item).exists():
            raise DataError(f"the list holds the file {item} among other things; its paths must end in {SUFFIXES}.")
    return None


def load_from_hub(source: str, split: str, **options: object) -> Any:
    """Load a split of a dataset of the hub.

    Args:
        source (`str`): `name`, `name:split` or `name:config:split`. `name:word` is a configuration if the dataset has
            one of this name.
        split (`str`): The split, if `source` does not say it.
        options (`Any`): Further arguments of `datasets.load_dataset`.

    Returns:
        `datasets.Dataset` or `datasets.IterableDataset`: The rows.

    Raises:
        DataError: If the dataset cannot be loaded.
    """
    name, *words = _COLON.split(source)
    configuration = None
    try:
        if len(words) > 1:
            configuration, split = words
        elif words and words[0] in get_dataset_config_names(name):
            configuration = words[0]
        elif words:
            split = words[0]
        return load_dataset(name, configuration, split=split, **options)
    except Exception as error:  # its type depends on what is wrong: the network, the name or the data
        raise DataError(
            f"{source!r} is no file here, and could not be loaded from the hub: {type(error).__name__}: {error}"
        ) from error


def table_cleaners(
    tables: Sequence[Table],
    columns: Sequence[str] | None,
    expected_columns: int | None = None,
) -> list[RowCleaner]:
    """Choose the columns of each table, as [`~data.columns.resolve_columns`] does, and log which plays which part.

    Args:
        tables (`Sequence[Table]`): The tables.
        columns (`Sequence[str]`, *optional*): The columns to take.
        expected_columns (`int`, *optional*): How many columns there must be.

    Returns:
        `list[RowCleaner]`: One for each table; see [`make_room`].

    Raises:
        DataError: If a table has no rows, its columns are unclear or not `expected_columns`, or two tables have
            different numbers of columns.
    """
    cleaners: list[RowCleaner] = []
    for table in tables:
        table.refuse_late_keys = columns is None
        sample = table.sample()
        if not sample:
            raise DataError(f"{table.name}: there are no rows, only a header or blank lines.")
        chosen = resolve_columns(table.columns, name=table.name, sample=sample, columns=columns)
        for column in chosen:
            place = table.columns.index(column)
            refuse_written_lists([row[place] for row in sample if row[place]], f"{table}, column {column!r}")
        if expected_columns not in (None, len(chosen)):
            hint = " `simcse-hf train sup` reads pairs and triplets." if expected_columns == 1 else ""
            raise DataError(
                f"{table.name}: {len(chosen)} text column(s) ({quote(chosen)}) where {expected_columns} must be. "
                f"{ADVICE}; the columns are {quote(table.columns)}.{hint}"
            )
        first = cleaners[0] if cleaners else None
        if first and len(chosen) != len(first.columns):
            raise DataError(
                f"{table.name} has {len(chosen)} text column(s) ({quote(chosen)}), but {first.table.name} has "
                f"{len(first.columns)} ({quote(first.columns)}). Files loaded together must have as many."
            )
        ignored = [column for column in table.columns if column not in chosen]
        judgements = [column for column in ignored if JUDGEMENT.fullmatch(column)]
        message = f"{table.name}: the sentences are in column {chosen[0]!r}"
        if len(chosen) > 1:
            message = f"{table.name}: anchor {chosen[0]!r}, positive {chosen[1]!r}"
        if len(chosen) > 2:
            message += f", hard negatives {quote(chosen[2:])}"
        message += f"; ignored {quote(ignored)}." if ignored else "."
        parts = {part_of(column) for column in chosen[:3]}  # fewer if only the order tells columns apart
        if columns is None and len(parts) < len(chosen[:3]):
            logger.warning(f"{message} Their names do not say so, and their order was taken: {ADVICE}.")
        elif len(chosen) > 1 and judgements:
            advice = (
                "Every row counts as a positive pair, whatever its label or score says; `simcse-hf build-nli` turns "
                "labelled pairs into triplets."
            )
            places = [table.columns.index(column) for column in judgements]
            if any(is_list(row[place]) for row in sample for place in places):
                learns = "`--objective distill --objective_options loss=kl` learns from them"
                advice = f"The scores of the candidates are not used; {learns}."
            logger.warning(f"{message} {advice}")
        elif class_columns(table.columns, sample, columns):
            logger.warning(f"{message} Their labels are not used; `--objective class_labels` learns from them.")
        else:
            logger.info(message)
        cleaners.append(RowCleaner(table, chosen, len(chosen)))
    return cleaners


def make_room(cleaners: Sequence[RowCleaner], max_rows: int | None = None) -> Features:
    """Give all cleaners room for the longest list of hard negatives.

    Args:
        cleaners (`Sequence[RowCleaner]`): The cleaners, whose `width` is set. A table without lists of negatives in
            its first rows is not read further.
        max_rows (`int`, *optional*): Number of rows of each table to read.

    Returns:
        `Features`: Those of rows of texts: `sent0` (the anchor), `sent1` (its positive), `sent2`, ... (negatives).
    """
    width = 0
    for cleaner in cleaners:
        width = max(width, cleaner.width)
        has_lists = False
        for place, (_, cells) in enumerate(islice(cleaner.table.rows(cleaner.columns), max_rows)):
            if place == SAMPLE_ROWS and not has_lists:
                break
            if any(map(is_list, cells[2:])):
                has_lists = True
                width = max(width, 2 + sum(map(has_text, flatten(cells[2:]))))
    for cleaner in cleaners:
        cleaner.width = width
    return Features({f"sent{index}": Value("string") for index in range(width)})


def dataset_table(dataset: Dataset, name: str) -> Table:
    """Return the rows of a dataset as a table, with what `set_transform` makes of them."""
    names = dataset.column_names
    # Token ids without a mask may be drawn whenever a row is read.
    if dataset.format["type"] == "custom" and ("input_ids" not in names or "attention_mask" in names):
        logger.warning(
            "The transform of a dataset is applied once, before training: what it draws stays the same in all epochs."
        )
        dataset = dataset.map(lambda rows: rows, batched=True, remove_columns=names, load_from_cache_file=False)
        dataset = dataset.with_format(None)
    plainly = dataset.with_format(None)
    classes = [column for column, feature in dataset.features.items() if isinstance(feature, ClassLabel)]

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        for batch in plainly.select_columns(list(columns)).iter(1000):
            for column in set(batch) & set(classes):
                batch[column] = [None if cell == -1 else cell for cell in batch[column]]
            for cells in zip(*batch.values(), strict=True):
                number += 1
                yield number, plain(cells)

    return Table(name, dataset.column_names, rows, "row", dataset)


def load_class_rows(
    source: TextSource,
    *,
    columns: Sequence[str] | None = None,
    max_rows: int | None = None,
    name: str | None = None,
    label_separator: str | None = None,
) -> Dataset:
    """Load texts with class labels, or anchors with several positives. A dataset of this form stays as it is.

    The columns are one of texts and one of labels (`label`, `labels`, `category`, `class` or `intent`); or anchors,
    positives and optionally hard negatives, named as in [`~data.columns.resolve_columns`]. Cells may be lists: a text
    may have several labels. One without any is left out.

    Args:
        source (`Any`): See [`load_text_dataset`].
        columns (`Sequence[str]`, *optional*): The column of texts; or anchor, positives, hard negatives.
        max_rows (`int`, *optional*): Number of rows to read.
        name (`str`, *optional*): What messages call rows in memory. Defaults to what they are.
        label_separator (`str`, *optional*): What stands between several labels in a cell.

    Returns:
        `datasets.Dataset`: The columns `sent0` and `label`, an integer, or a list of them where a text has several; or
            `texts`, the anchor with its positives and hard negatives, and `relations`, 0 for a positive and 2 for a
            hard negative. Labels of one text, and texts without another label, are left out, with a warning.

    Raises:
        DataError: If the source cannot be read, its columns are unclear, or fewer than two classes have two texts.
    """
    table = open_one(source, name)
    if isinstance(table.source, Dataset):
        own = set(table.columns)
        if {"texts", "relations"} <= own or (table.source._fingerprint in RESOLVED and LABEL in own):
            return table.source
    # 1. Anchors with their positives and hard negatives.
    chosen = class_columns(table.columns, table.sample(), columns)
    if chosen is None:
        [cleaner] = table_cleaners([table], columns)
        if len(cleaner.columns) < 2:
            raise DataError(
                f"{table.name}: a row holds one text and no class label. Add a column 'label', or positives in a "
                f"column 'positives'; the columns are {quote(table.columns)}."
            )
        make_room([cleaner])
        groups = []
        relations = []
        for rows in cleaner.read(max_rows):  # one for each positive
            if rows:
                anchor, _, *others = rows[0]
                positives = [row[1] for row in rows]
                negatives = list(filter(None, others))
                groups.append([anchor, *positives, *negatives])
                relations.append([POSITIVE] * len(positives) + [NEGATIVE] * len(negatives))
        cleaner.log()
        return Dataset.from_dict({"texts": groups, "relations": relations})

    # 2. Texts with the names of their classes.
    unlabelled: list[int] = []

    def named(columns: Sequence[str]) -> Iterator[Row]:
        for number, (text, cell) in table.rows(columns):
            names = names_of_classes(cell, table.at(number), label_separator)
            if names or not (is_list(cell) or label_separator):
                yield number, (text, names)
            else:
                unlabelled.append(number)

    cleaner = RowCleaner(replace(table, rows=named), chosen, width=2)
    found: list = []
    for labelled in filter(None, cleaner.read(max_rows)):  # a row for each label of a text
        found.append((labelled[0][0], [label for _, label in labelled]))
    cleaner.kept = len(found)
    cleaner.log()
    if unlabelled:
        logger.warning(
            f"{table.name}: {len(unlabelled)} texts have no label and are left out: {table.unit} "
            f"{first_few(unlabelled)}."
        )
    counts = Counter(chain.from_iterable(names for _, names in found))
    classes = sorted(label for label, count in counts.items() if count > 1)
    counted = (
        f"{table.name}: {len(found)} texts in column {chosen[0]!r}, {len(counts)} classes in column {chosen[1]!r}"
    )
    logger.info(f"{counted}.")
    if len(classes) < 2:
        raise DataError(
            f"{counted}. At least two classes must have two texts or more, and {len(classes)} of these have as many: "
            f"check the column {chosen[1]!r}, or add texts of other classes."
        )
    alone = list(map(repr, sorted(counts.keys() - classes)))
    if alone:
        logger.warning(
            f"{counted}, of which {len(alone)} have one text. It has no positive and is left out: {first_few(alone)}"
        )

    # 3. Their numbers.
    numbers = {label: number for number, label in enumerate(classes)}
    texts = []
    labels: list = []
    for text, names in found:
        known = [numbers[label] for label in names if label in numbers]
        if known:
            texts.append(text)
            labels.append(known)
    if max(map(len, labels)) == 1:
        labels = list(chain.from_iterable(labels))
    dataset = Dataset.from_dict({"sent0": texts, LABEL: labels})
    RESOLVED.add(dataset._fingerprint)
    return dataset


def is_labelled(source: str, columns: Sequence[str] | None = None) -> bool:
    """Say whether the rows of a file or of a dataset on the hub hold one text and its class label."""
    try:
        [table, *_] = open_source(source)
        return class_columns(table.columns, table.sample(), columns) is not None
    except ValueError:  # reported when the rows are loaded
        return False


def names_of_classes(cell: object, where: str, separator: str | None) -> list[str]:
    """Return the names of the classes in a cell, each once: a list, or a text with a separator between them.

    Args:
        cell (`object`): The cell; several labels are a list.
        where (`str`): The place of the row, for messages.
        separator (`str`, *optional*): What stands between several labels in a text.

    Returns:
        `list[str]`: The names without white space around them, in their order; none for an empty cell.

    Raises:
        DataError: If a label is neither a name nor a number, a list is written as a text, or three labels and more are
            zeros and ones.
    """
    refuse_written_lists([cell], where)
    labels = cell if is_list(cell) else [cell]
    if separator and isinstance(cell, str):
        labels = cell.split(separator)
    names = [name_of_class(label, where) for label in labels]
    if len(names) > 2 and set(names) <= _MARKS:
        raise DataError(
            f"{where}: {cell!r:.100} holds a mark for each class. List the text's own classes, such as [2, 5]."
        )
    return list(dict.fromkeys(filter(None, names)))


def name_of_class(label: object, where: str) -> str:
    """Return the name of a class, empty for a missing label; refuse what is no name or number."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)  # a column of pandas with missing labels holds floats
    if label is not None and not isinstance(label, (str, int, float)):
        raise DataError(f"{where}: the label {label!r} is neither a name nor a number. Write one, or a list of them.")
    return "" if label is None else str(label).strip()
