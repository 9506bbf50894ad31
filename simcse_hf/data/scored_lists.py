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

    The texts are in the columns of [`~data.columns.resolve_columns`], and the scores in `pos_scores` and `neg_scores`,
    or in `scores`, `label` or `score` as a list in the order of the candidates. Each positive becomes a row of its own
    with all negatives.

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
    for row in _rows(table, columns):
        if len(rows) == max_rows:
            break
        rows.append(row)
    return Dataset.from_list(rows)


def _rows(table: Table, columns: Sequence[str] | None) -> Iterator[dict[str, list]]:
    """Yield a row for each positive."""
    own = {column.strip().lower(): column for column in table.columns}
    named = next((names for names in SCORE_COLUMNS if own.keys() >= set(names)), ())
    if not named:
        found = f"the columns are {quote(table.columns)}"
        raise ValueError(f"{table.name}: no scores of candidates; {found}. Add pos_scores and neg_scores, or scores.")
    chosen = resolve_columns(table.columns, name=table.name, sample=table.sample(), columns=columns)
    for number, cells in table.rows([*chosen, *(own[name] for name in named)]):
        where = table.at(number)
        query, *candidates = cells[: len(chosen)]
        positives, negatives = flatten(candidates[:1]), flatten(candidates[1:])
        given = [flatten([cell]) for cell in cells[len(chosen) :]]
        wanted = [len(positives), len(negatives)] if len(given) == 2 else [len(positives) + len(negatives)]
        if [len(scores) for scores in given] != wanted:
            found = " and ".join(str(len(scores)) for scores in given)
            raise ValueError(
                f"{where}: {found} scores in {quote(named)} for {len(positives)} positives and {len(negatives)} "
                "negatives: give each candidate one."
            )
        scored = list(zip(positives + negatives, flatten(given), strict=True))
        kept = [(text, score) for text, score in scored[len(positives) :] if (text, score) != (None, None)]
        if not positives or not kept:
            raise ValueError(f"{where}: a query needs a positive and at least one negative. Remove the row.")
        for text, score in [(query, 0.0), *scored[: len(positives)], *kept]:
            if not check_text(text, where).strip():
                raise ValueError(f"{where}: a text is empty. Fill or remove it with its score.")
            is_number = isinstance(score, (int, float)) and not isinstance(score, bool)
            if not is_number or not math.isfinite(score):
                raise ValueError(f"{where}: the score of {text!r:.60} must be a finite number, got {score!r}.")
        for positive in scored[: len(positives)]:
            texts, scores = zip(positive, *kept, strict=True)
            relations = [POSITIVE] + [NEGATIVE] * len(kept)
            yield {"texts": [query, *texts], "relations": relations, SCORE: list(map(float, scores))}
