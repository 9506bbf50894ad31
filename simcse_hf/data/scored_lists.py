"""Queries with candidates and a score of each, such as those of a reranker, in FlagEmbedding's form or in columns."""

import math
from collections.abc import Iterator, Sequence

from datasets import Dataset

from ..objectives.base import NEGATIVE, POSITIVE
from .columns import SCORE, check_text, flatten, quote, resolve_columns
from .read import TextSource, open_source
from .table import Table

#: Names of the columns of scores: those of the positives and of the negatives, or those of all candidates in order.
SCORE_COLUMNS = (("pos_scores", "neg_scores"), ("scores",), ("label",), ("score",))


def read_scored_lists(
    source: TextSource, *, columns: Sequence[str] | None = None, max_rows: int | None = None, name: str | None = None
) -> Dataset:
    """Read queries, their positives and negatives, and a score of each. A dataset of this form stays as it is.

    [`~data.columns.resolve_columns`] finds the columns of the texts. The scores are in `pos_scores` and `neg_scores`,
    or in one of `scores`, `label` and `score`, as a list in the order of the candidates. Each positive becomes a row
    of its own, with all negatives.

    Args:
        source (`Any`): See [`load_text_dataset`].
        columns (`Sequence[str]`, *optional*): The columns of the query, positives and negatives.
        max_rows (`int`, *optional*): Number of rows to read.
        name (`str`, *optional*): What messages call rows in memory.

    Returns:
        `datasets.Dataset`: The columns `texts`, the query with its candidates, `relations` of these, 0 for the
            positive and 2 for a negative, and `score`, a list.

    Raises:
        ValueError: If there are no columns of scores, or a row lacks a text, a candidate or a finite score.
    """
    [table, *further] = open_source(source, name=name)
    if further:
        raise ValueError(f"{table} and {further[0]}: lists with scores are read from one file. Write them into one.")
    if isinstance(table.source, Dataset) and {"texts", "relations", SCORE} <= set(table.columns):
        return table.source
    rows: list[dict[str, list]] = []
    for row in _rows_of_lists(table, columns):
        if len(rows) == max_rows:
            break
        rows.append(row)
    return Dataset.from_list(rows)


def _rows_of_lists(table: Table, columns: Sequence[str] | None) -> Iterator[dict[str, list]]:
    """Yield a row for each positive."""
    score_columns = _score_columns(table)
    text_columns = resolve_columns(table.columns, name=table.name, sample=table.sample(), columns=columns)
    for number, cells in table.rows([*text_columns, *score_columns]):
        where = table.at(number)
        query, *candidates = cells[: len(text_columns)]
        positives = flatten(candidates[:1])
        negatives = flatten(candidates[1:])
        lists = [flatten([cell]) for cell in cells[len(text_columns) :]]
        _check_counts([len(scores) for scores in lists], len(positives), len(negatives), where, score_columns)
        scores = flatten(lists)

        scored_positives = list(zip(positives, scores[: len(positives)], strict=True))
        scored_negatives = list(zip(negatives, scores[len(positives) :], strict=True))
        # A table has as many columns as its longest row: the cells that a row does not need are empty.
        scored_negatives = [candidate for candidate in scored_negatives if candidate != (None, None)]
        if not scored_positives or not scored_negatives:
            raise ValueError(f"{where}: a query needs a positive and at least one negative. Remove the row.")

        _check_text(query, where)
        for text, score in scored_positives + scored_negatives:
            _check_text(text, where)
            _check_score(score, text, where)
        for positive in scored_positives:
            scored = [positive, *scored_negatives]
            yield {
                "texts": [query, *(text for text, _ in scored)],
                "relations": [POSITIVE] + [NEGATIVE] * len(scored_negatives),
                SCORE: [float(score) for _, score in scored],
            }


def _score_columns(table: Table) -> list[str]:
    """Return the names of the score columns, spelled as in the table."""
    own = {column.strip().lower(): column for column in table.columns}
    for names in SCORE_COLUMNS:
        if own.keys() >= set(names):
            return [own[name] for name in names]
    raise ValueError(
        f"{table.name}: no scores of candidates; the columns are {quote(table.columns)}. "
        "Add pos_scores and neg_scores, or scores."
    )


def _check_counts(found: list[int], positives: int, negatives: int, where: str, columns: list[str]) -> None:
    """Check that each candidate has a score: in one column for all, or in one for positives and one for negatives."""
    wanted = [positives, negatives] if len(columns) == 2 else [positives + negatives]
    if found != wanted:
        raise ValueError(
            f"{where}: {' and '.join(map(str, found))} scores in {quote(columns)} for {positives} positives and "
            f"{negatives} negatives: give each candidate one."
        )


def _check_text(text: object, where: str) -> None:
    if not check_text(text, where).strip():
        raise ValueError(f"{where}: a text is empty. Fill or remove it with its score.")


def _check_score(score: object, text: str, where: str) -> None:
    if not isinstance(score, (int, float)) or isinstance(score, bool) or not math.isfinite(score):
        raise ValueError(f"{where}: the score of {text!r:.60} must be a finite number, got {score!r}.")
