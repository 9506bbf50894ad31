"""Scored pairs of sentences: the one reader for training, dev sets and tasks."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy import ndarray
from scipy.cluster.hierarchy import DisjointSet
from transformers.utils import logging

from .columns import SCORE, check_text, find_parts, has_text, quote
from .read import RESOLVED, apply_transform, dataset_table, load_from_hub, table_cleaners
from .table import csv_records, open_table, read_lines

logger = logging.get_logger(__name__)

TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
_PARTS = ("score", "sentence1", "sentence2")


@dataclass
class ScoredPairs:
    """Sentence pairs with a gold similarity.

    Args:
        name (`str`): Name of the set in tables and results.
        sentences1 (`list[str]`): First sentences.
        sentences2 (`list[str]`): Second sentences.
        scores (`list[float]`): Gold similarities on any scale.
    """

    name: str
    sentences1: list[str]
    sentences2: list[str]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def texts(self) -> list[str]:
        """The sentences of both sides, which may repeat."""
        return [*self.sentences1, *self.sentences2]

    @property
    def groups(self) -> ndarray:
        """The group of each pair, of shape `(n,)`; pairs that share a sentence are in one group."""
        return connected_groups(list(zip(self.sentences1, self.sentences2, strict=True)))

    def joined(self) -> "ScoredPairs":
        """Return the pairs with the tokens of each sentence joined by single spaces, as SentEval encodes them."""
        first, second = ([" ".join(text.split()) for text in side] for side in (self.sentences1, self.sentences2))
        return replace(self, sentences1=first, sentences2=second)

    def to_dataset(self) -> Dataset:
        """Return the pairs as training reads them: the columns `sent0`, `sent1` and `score`."""
        return Dataset.from_dict({"sent0": self.sentences1, "sent1": self.sentences2, SCORE: self.scores})


def connected_groups(memberships: Sequence[Sequence[str]]) -> ndarray:
    """Find the groups of units that share texts, directly or through other units.

    Args:
        memberships (`Sequence[Sequence[str]]`): The texts of each unit. With `[["a", "b"], ["c"], ["b"]]`, the first
            and the last unit form a group.

    Returns:
        `numpy.ndarray`: The group of each unit, of shape `(n,)`.
    """
    units = DisjointSet(range(len(memberships)))
    first_units: dict = {}
    for unit, texts in enumerate(memberships):
        for text in texts:
            units.merge(unit, first_units.setdefault(text, unit))
    numbers: dict = {}
    groups = [numbers.setdefault(units[unit], len(numbers)) for unit in units]
    return np.array(groups, dtype=np.int32)


def read_scored_pairs(source: str | os.PathLike[str], name: str | None = None) -> ScoredPairs:
    """Read the scored sentence pairs of one file, which may be gzipped, or of a data set of the hub.

    A csv, tsv, jsonl or parquet table has the columns `sentence1`, `sentence2` and `score`, or the other names of
    [`~data.columns.PART_NAMES`], which cover the STS data sets of the hub. Cells of csv and tsv are quoted as pandas
    and `csv.writer` quote them, and text is kept as it is. A tsv whose quotation marks cannot be meant so, such as
    GLUE's, is read with a warning as if they were part of the text.

    SentEval's files are read as SentEval does: quotation marks are part of the text, and runs of white space become
    one space. They are txt files (SICK), or tab-separated without a header: either `sts-{train,dev,test}.csv`, with
    the score in column 5 and the texts in columns 6 and 7, or lines of score, sentence 1 and sentence 2.

    Rows with a blank score are skipped.

    Args:
        source (`str | os.PathLike`): The file. A string that is neither a file nor ends like a table is the name of a
            hub data set: `name` (its test split), `name:split` or `name:config:split`.
        name (`str`, *optional*): Name of the set. Defaults to the stem of the file name, or to the data set's name.

    Returns:
        [`ScoredPairs`]: At least one pair, in the order of the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a row is malformed, a score is not a finite number, a text is empty, the bytes are not UTF-8,
            the columns are unknown, or there is no scored pair. The message names the file and the line, from 1.
    """
    path = Path(source)
    unpacked = Path(path.name.removesuffix(".gz"))
    if isinstance(source, str) and unpacked.suffix not in TABLE_SUFFIXES and not path.exists():
        return load_hub_pairs(source, "test", name or source.partition(":")[0])
    name = name or unpacked.stem
    if unpacked.suffix.lower() in (".jsonl", ".json", ".parquet"):
        table = open_table(path)
        table.refuse_late_keys = True  # rows with other names for their columns would count as rows without a score
        return collect_pairs(name, str(path), table.parts(_PARTS))

    lines = enumerate(read_lines(path), start=1)
    unquoted = [(number, line.split("\t")) for number, line in lines if line.strip()]
    header = unquoted[0][1] if unquoted else []
    has_tabs = len(header) > 1
    if has_tabs and (unpacked.suffix == ".txt" or not _find_places(header)):
        return _collect_cells(name, path, unquoted).joined()
    try:
        records = list(csv_records(path, "\t" if has_tabs else ","))
    except ValueError as error:
        if not has_tabs:
            raise
        logger.warning(f"{error} Until then, all quotation marks in this file are read as part of the text.")
        records = unquoted
    return _collect_cells(name, path, records)


def _find_places(header: Sequence[str]) -> list[int]:
    """Return the places of the score and the sentences in a header; an empty list unless it names them all."""
    names = [cell.strip('"') for cell in header]
    places = [names.index(column) for column in find_parts(names, _PARTS).values()]
    return places if len(places) == len(_PARTS) else []


def _collect_cells(name: str, path: Path, records: list[tuple[int, list[str]]]) -> ScoredPairs:
    """Collect the pairs of a file, from the columns that its header names or those of the two layouts without one."""
    header = records[0][1] if records else []
    width = len(header)
    places = _find_places(header)
    if places:
        records = records[1:]
    elif width == 3:
        places = [0, 1, 2]
    elif width >= 7:  # genre, file, year, id, score, sentence1, sentence2, and sometimes sources
        places = [4, 5, 6]
        width = 7
        records = [(line, cells[:width]) for line, cells in records]
    elif records:
        raise ValueError(
            f"{path}, line 1: expected the columns sentence1, sentence2 and score, or without a header the STS-B "
            "layout (score in column 5 and texts in 6 and 7, tab-separated) or score, text, text (tab-separated), got "
            f"{header}."
        )
    rows = []
    for line, cells in records:
        where = f"{path}, line {line}"
        if len(cells) != width:
            raise ValueError(f"{where}: {len(cells)} columns instead of {width}.")
        rows.append((where, [cells[place] for place in places]))
    return collect_pairs(name, str(path), rows)


def load_hub_pairs(dataset: str, split: str, name: str, revision: str | None = None) -> ScoredPairs:
    """Load the scored pairs of a split of a hub data set.

    Args:
        dataset (`str`): Name of the data set, see [`~data.read.load_from_hub`], or a local folder with the
            layout of one.
        split (`str`): The split, if `dataset` does not say it.
        name (`str`): Name of the set in tables and results.
        revision (`str`, *optional*): Commit of the data set. Defaults to the newest.

    Returns:
        [`ScoredPairs`]: At least one pair.

    Raises:
        ValueError: If the columns or rows are not scored pairs. The message names data set, split and row.
    """
    rows = load_from_hub(dataset, split, revision=revision)
    table = dataset_table(rows, f"{dataset}, split {rows.split}")
    return collect_pairs(name, table.name, table.parts(_PARTS))


def collect_pairs(name: str, where: str, rows: Iterable[tuple[str, Sequence[Any]]]) -> ScoredPairs:
    """Collect and check the rows that have a score.

    Args:
        name (`str`): Name of the set in tables and results.
        where (`str`): What messages call all rows.
        rows (`Iterable[tuple[str, Sequence[Any]]]`): Place of each row; score and two sentences.

    Returns:
        [`ScoredPairs`]: At least one pair.

    Raises:
        ValueError: If a sentence is empty or a score is not a finite number, with its place, or no row has a score.
    """
    pairs = ScoredPairs(name, [], [], [])
    scores = []
    for place, (score, *sentences) in rows:
        if score is None or score != score or not str(score).strip():  # NaN is not itself
            continue
        scores.append((place, score))
        for sentence, column in zip(sentences, (pairs.sentences1, pairs.sentences2), strict=True):
            column.append(check_text(sentence, place))
            if not has_text(sentence):
                raise ValueError(f"{place}: a sentence is empty. Remove the row, or leave its score blank.")
    if not scores:
        raise ValueError(f"{where}: no scored sentence pair here. Either there is no row, or every score is blank.")
    pairs.scores = parse_scores(scores, where)
    return pairs


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
    if "input_ids" in columns or (SCORE in columns and dataset._fingerprint in RESOLVED):
        return dataset
    if SCORE not in columns:
        raise ValueError(
            f"{name}: there is no column {SCORE!r}, and the objective learns from the scores of pairs. Name the "
            f"columns sentence1, sentence2 and score; the columns are {quote(columns)}."
        )
    table = dataset_table(dataset, name)
    given = ((table.at(number), score) for number, (score,) in table.rows([SCORE]))
    values = parse_scores(given, name)
    table.columns.remove(SCORE)
    [cleaner] = table_cleaners([table], None, expected_columns=2)
    texts = []
    scores = []
    for pairs, score in zip(cleaner.read(), values, strict=True):
        texts += pairs
        scores += [score] * len(pairs)
    cleaner.log()
    first, second = zip(*texts, strict=True)
    resolved = Dataset.from_dict({"sent0": first, "sent1": second, SCORE: scores})
    RESOLVED.add(resolved._fingerprint)
    return resolved


def parse_scores(cells: Iterable[tuple[str, Any]], name: str) -> list[float]:
    """Return scores as finite floats.

    A warning says how many are -1 among others that are not negative, because that often means that there is none.

    Args:
        cells (`Iterable[tuple[str, Any]]`): The place of each score, for the message, and its cell.
        name (`str`): What messages call all of them.

    Returns:
        `list[float]`: The scores.

    Raises:
        ValueError: If one is not a finite number. The message names its place.
    """
    scores = []
    for place, cell in cells:
        try:
            score = float(cell)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if not math.isfinite(score):
            raise ValueError(f"{place}: the score {cell!r} is not a finite number. Correct it, or remove the row.")
        scores.append(score)
    missing = scores.count(-1)
    if missing and missing == sum(score < 0 for score in scores):
        logger.warning(
            f"{name}: {missing} of {len(scores)} scores are -1, which counts as the lowest score. If it means that "
            "there is none, remove these rows."
        )
    return scores
