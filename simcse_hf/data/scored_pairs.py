"""Scored pairs of sentences, for training, dev sets and tasks, and queries with scored candidates."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy import ndarray
from scipy.cluster.hierarchy import DisjointSet
from transformers.utils import logging

from ..objectives.base import NEGATIVE, POSITIVE
from ..runtime.errors import DataError
from .columns import LABEL, SCORE, check_text, find_parts, first_few, flatten, has_text, quote, resolve_columns
from .read import TextSource, find_paths, open_one, open_source, table_cleaners
from .table import SUFFIX, Table, open_csv, open_table, read_lines

logger = logging.get_logger(__name__)

#: Formats whose separator and quotation marks are found in the file, because dev sets are written in many ways.
_OF_LINES = (".txt", ".csv", ".tsv")
_PARTS = ("score", "sentence1", "sentence2")
#: Names of the columns of scores: those of the positives and of the negatives, or those of all candidates in order.
_SCORE_COLUMNS = (("pos_scores", "neg_scores"), ("scores",), ("label",), ("score",))


@dataclass
class ScoredPairs:
    """Sentence pairs with a gold similarity.

    Args:
        name (`str`): Name of the set in tables and results.
        sentences1 (`list[str]`): First sentences.
        sentences2 (`list[str]`): Second sentences.
        scores (`list[float]`): Gold similarities on any scale.

    Examples:
        >>> from simcse_hf import ScoredPairs
        >>> pairs = ScoredPairs("my-pairs", ["A man sings."], ["Somebody sings."], [4.2])
        >>> len(pairs), list(pairs.rows())
        (1, [('A man sings.', 'Somebody sings.', 4.2)])
    """

    name: str
    sentences1: list[str]
    sentences2: list[str]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self) -> Iterator[tuple[str, str, float]]:
        """Return the two sentences and the score of each pair."""
        return zip(self.sentences1, self.sentences2, self.scores, strict=True)

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


def read_scored_pairs(
    source: TextSource | ScoredPairs, name: str | None = None, drop_empty: bool = False
) -> ScoredPairs:
    """Read the scored sentence pairs of a file, which may be gzipped, of a data set of the hub, or of rows in memory.

    A table has the columns `sentence1`, `sentence2` and `score`, or the other names of [`~data.columns.PART_NAMES`],
    which cover the STS data sets of the hub; beside a `score`, the sentences may also be named as those of pairs are,
    see [`~data.columns.resolve_columns`]. Cells of csv and tsv are quoted as pandas and `csv.writer` quote them, and
    text is kept as it is. A tsv whose quotation marks cannot be meant so, such as GLUE's, is read with a warning as if
    they were part of the text.

    SentEval's files are read as SentEval does: quotation marks are part of the text, and runs of white space become
    one space. They are txt files (SICK), or tab-separated without a header: either `sts-{train,dev,test}.csv`, with
    the score in column 5 and the texts in columns 6 and 7, or lines of score, sentence 1 and sentence 2.

    Rows with a missing score (`None`, nan, pandas.NA or blank) are left out.

    Args:
        source (`str`, `os.PathLike` or `Any`): The file, or rows in memory as in [`load_text_dataset`]. A string that
            is neither a file nor ends like a table is the name of a hub data set: `name` (its test split),
            `name:split` or `name:config:split`. Pairs that were read stay as they are.
        name (`str`, *optional*): Name of the set. Defaults to the stem of the file name, or to the data set's name.
        drop_empty (`bool`, *optional*, defaults to `False`): Leave out rows with an empty text, with a warning, as
            training does; an evaluation refuses them.

    Returns:
        [`ScoredPairs`]: At least one pair, in the order of the source.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a row is malformed, a score is not a finite number, a text is empty, the bytes are not UTF-8,
            the columns are unknown, or there is no scored pair. The message names the file and the line, from 1.
    """
    if isinstance(source, ScoredPairs):
        return source
    paths = find_paths(source)
    if paths is None or len(paths) > 1:
        tables = open_source(source, "test", name)
        where = ", ".join(map(str, tables))
        rows: Iterator = chain.from_iterable(map(_scored_rows, tables))
        return collect_pairs(name or where.partition(":")[0], where, rows, drop_empty)
    [path] = paths
    unpacked = Path(path.name.removesuffix(".gz"))
    name = name or unpacked.stem
    if SUFFIX.search(path.name) and unpacked.suffix.lower() not in _OF_LINES:
        return collect_pairs(name, str(path), _scored_rows(open_table(path)), drop_empty)
    lines = enumerate(read_lines(path), start=1)
    cells = [(number, line.split("\t")) for number, line in lines if line.strip()]
    header = [cell.strip('"') for cell in cells[0][1]] if cells else []
    has_tabs = len(header) > 1
    if has_tabs and (unpacked.suffix == ".txt" or not find_parts(header, ["score"])):
        return collect_pairs(name, str(path), _unquoted_rows(path, header, cells), drop_empty).joined()
    try:
        rows = iter(list(_scored_rows(open_csv(path, "\t" if has_tabs else ","))))
    except ValueError as error:
        if not has_tabs:
            raise
        logger.warning(f"{error} Until then, all quotation marks in this file are read as part of the text.")
        rows = _unquoted_rows(path, header, cells)
    return collect_pairs(name, str(path), rows, drop_empty)


def _scored_rows(table: Table) -> Iterator[tuple[str, Sequence]]:
    """Yield the place of each row of a table with its score and its two sentences."""
    score = find_parts(table.columns, ["score"], table.name)["score"]
    if len(find_parts(table.columns, _PARTS)) == len(_PARTS) or score.strip().lower() == LABEL:
        yield from table.parts(_PARTS)
        return
    texts = replace(table, columns=[column for column in table.columns if column != score])
    [cleaner] = table_cleaners([texts], None, expected_columns=2)
    for number, cells in table.rows([score, *cleaner.columns]):
        yield table.at(number), cells


def _unquoted_rows(
    path: Path, header: list[str], lines: list[tuple[int, list[str]]]
) -> Iterator[tuple[str, Sequence]]:
    """Yield the place, score and texts of each line, by a header or by the places of the layouts without one."""
    width = len(header)
    places = [header.index(column) for column in find_parts(header, _PARTS).values()]
    if len(places) == len(_PARTS):
        lines = lines[1:]
    elif width == 3:
        places = [0, 1, 2]
    elif width >= 7:  # genre, file, year, id, score, sentence1, sentence2, and sometimes sources
        places = [4, 5, 6]
        width = 7
        lines = [(number, cells[:width]) for number, cells in lines]
    else:
        raise DataError(
            f"{path}, line 1: expected the columns sentence1, sentence2 and score, or without a header the STS-B "
            f"layout (score in column 5 and texts in 6 and 7) or score, text, text, got {header}."
        )
    for number, cells in lines:
        if len(cells) != width:
            raise DataError(f"{path}, line {number}: {len(cells)} columns instead of {width}.")
        yield f"{path}, line {number}", [cells[place] for place in places]


def collect_pairs(
    name: str, where: str, rows: Iterable[tuple[str, Sequence[Any]]], drop_empty: bool = False
) -> ScoredPairs:
    """Collect and check the rows that have a score.

    Args:
        name (`str`): Name of the set in tables and results.
        where (`str`): What messages call all rows.
        rows (`Iterable[tuple[str, Sequence[Any]]]`): Place of each row; score and two sentences.
        drop_empty (`bool`, *optional*, defaults to `False`): Leave out rows with an empty text.

    Returns:
        [`ScoredPairs`]: At least one pair.

    Raises:
        DataError: If a sentence is empty or a score is not a finite number, with its place, or no row has a score.
    """
    pairs = ScoredPairs(name, [], [], [])
    dropped = []
    for place, (score, *sentences) in rows:
        if score is None or not str(score).strip():
            continue
        for sentence in sentences:
            if sentence is not None or not drop_empty:
                check_text(sentence, place)
        if all(map(has_text, sentences)):
            pairs.sentences1.append(sentences[0])
            pairs.sentences2.append(sentences[1])
            pairs.scores.append(finite_score(score, place))
        elif drop_empty:
            dropped.append(place)
        else:
            raise DataError(f"{place}: a sentence is empty. Remove the row, or leave its score blank.")
    total = len(pairs)
    if dropped:
        logger.warning(
            f"{where}: {len(dropped)} of {len(dropped) + total} rows dropped for an empty cell: {first_few(dropped)}."
        )
    if not total:
        raise DataError(f"{where}: no scored sentence pair here. Either there is no row, or every score is blank.")
    # A score of -1 among others that are not negative often means that there is none.
    missing = pairs.scores.count(-1)
    if missing and missing == sum(score < 0 for score in pairs.scores):
        logger.warning(
            f"{where}: {missing} of {total} scores are -1, which counts as the lowest score. If it means that "
            "there is none, remove these rows."
        )
    return pairs


def finite_score(cell: Any, place: str) -> float:
    """Return a score, or raise a `ValueError` if it is no finite number."""
    try:
        score = float(cell)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{place}: the score {cell!r} is not a finite number. Correct it, or remove the row.")
    return score


def read_scored_lists(source: TextSource, columns: Sequence[str] | None = None, name: str | None = None) -> Dataset:
    """Read queries, their positives and negatives, and a score of each. A dataset of this form stays as it is.

    The scores are those of a reranker, for example, in FlagEmbedding's form or in columns.
    [`~data.columns.resolve_columns`] finds the columns of the texts. The scores are in `pos_scores` and `neg_scores`,
    or in one of `scores`, `label` and `score`, as a list in the order of the candidates. Each positive becomes a row
    of its own, with all negatives.

    Args:
        source (`Any`): See [`load_text_dataset`].
        columns (`Sequence[str]`, *optional*): The columns of the query, positives and negatives.
        name (`str`, *optional*): What messages call rows in memory.

    Returns:
        `datasets.Dataset`: The columns `texts`, the query with its candidates, `relations` of these, 0 for the
            positive and 2 for a negative, and `score`, a list.

    Raises:
        DataError: If there are no columns of scores, or a row lacks a text, a candidate or a finite score.
    """
    table = open_one(source, name)
    if isinstance(table.source, Dataset) and {"texts", "relations", SCORE} <= set(table.columns):
        return table.source
    # 1. The columns, spelled as in the table.
    own = {column.strip().lower(): column for column in table.columns}
    known = [names for names in _SCORE_COLUMNS if own.keys() >= set(names)]
    if not known:
        raise DataError(
            f"{table.name}: no scores of candidates; the columns are {quote(table.columns)}. Add pos_scores and "
            "neg_scores, or scores."
        )
    score_columns = [own[name] for name in known[0]]
    text_columns = resolve_columns(table.columns, name=table.name, sample=table.sample(), columns=columns)
    width = len(text_columns)

    # 2. A row for each positive.
    rows: list[dict[str, list]] = []
    for number, cells in table.rows([*text_columns, *score_columns]):
        where = table.at(number)
        positives = flatten(cells[1:2])
        candidates = positives + flatten(cells[2:width])
        counts = [len(flatten([cell])) for cell in cells[width:]]
        wanted = [len(positives), len(candidates) - len(positives)]
        if counts != wanted and counts != [len(candidates)]:
            raise DataError(
                f"{where}: {' and '.join(map(str, counts))} scores in {quote(score_columns)} for {wanted[0]} "
                f"positives and {wanted[1]} negatives: give each candidate one."
            )
        scored = list(zip(candidates, flatten(cells[width:]), strict=True))
        # A table has as many columns as its longest row: the cells that a row does not need are empty.
        negatives = [candidate for candidate in scored[len(positives) :] if candidate != (None, None)]
        if not positives or not negatives:
            raise DataError(f"{where}: a query needs a positive and at least one negative. Remove the row.")
        for positive in scored[: len(positives)]:
            texts, scores = zip(positive, *negatives, strict=True)
            for text in (cells[0], *texts):
                if not check_text(text, where).strip():
                    raise DataError(f"{where}: a text is empty. Fill or remove it with its score.")
            rows.append(
                {
                    "texts": [cells[0], *texts],
                    "relations": [POSITIVE] + [NEGATIVE] * len(negatives),
                    SCORE: [finite_score(score, where) for score in scores],
                }
            )
    return Dataset.from_list(rows)
