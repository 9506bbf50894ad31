"""Reranking: how high the relevant documents of a query stand among its candidates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.metrics import average_precision_score
from transformers.utils import logging

from .base import RankingTask, TaskResult, distinct, fingerprints, unit_length
from .reading import checked_text, read_columns, short_name
from .splitting import connected_groups, divide_groups

logger = logging.get_logger(__name__)

MRR_CUTOFF = 10


@dataclass
class RankedQuery:
    """A query and its candidates.

    Args:
        query (`str`): The query.
        positives (`list[str]`): The relevant candidates.
        negatives (`list[str]`): The other candidates.
        subset (`str`, *optional*, defaults to `""`): The part of the data set that the query belongs to.
    """

    query: str
    positives: list[str]
    negatives: list[str]
    subset: str = ""

    @property
    def candidates(self) -> list[str]:
        """The relevant candidates, then the others."""
        return self.positives + self.negatives


class RerankingTask(RankingTask):
    """Rank the candidates of each query by their cosine with it.

    Args:
        source (`str`): The file or folder.
        name (`str`): Short name.
        queries (`list[RankedQuery]`): The queries. Those without positives or without negatives are left out, because
            every ranking of their candidates would be right.

    Raises:
        ValueError: If no query has both positives and negatives.
    """

    kind = "reranking"
    metric = "map"
    unit = "query"

    def __init__(self, source: str, name: str, queries: list[RankedQuery]):
        super().__init__(source, name)
        self.queries = [query for query in queries if query.positives and query.negatives]
        left_out = len(queries) - len(self.queries)
        if not self.queries:
            raise ValueError(f"{source}: none of the {len(queries)} queries has both positives and negatives.")
        if left_out:
            logger.warning(
                f"{source}: left out {left_out} of {len(queries)} queries, which have no positives or no negatives."
            )
        self._list_texts()

    def _list_texts(self) -> None:
        texts = []
        for query in self.queries:
            texts += [self.query_prompt + query.query, *(self.document_prompt + text for text in query.candidates)]
        self.texts, self._positions = distinct(texts)

    def __len__(self) -> int:
        return len(self.queries)

    def score(self, embeddings: np.ndarray) -> TaskResult:
        """Compute the average precision and reciprocal rank of each query; see [`UserTask.score`]."""
        x = unit_length(embeddings.astype(np.float64))
        precision, reciprocal, start = [], [], 0
        for query in self.queries:
            rows = self._positions[start : start + 1 + len(query.candidates)]
            start += len(rows)
            cosines = x[rows[1:]] @ x[rows[0]]
            relevant = np.arange(len(cosines)) < len(query.positives)
            precision.append(average_precision_score(relevant, cosines))
            # Of candidates with equal cosines, the relevant one counts as the last.
            rank = 1 + int((cosines[~relevant] >= cosines[relevant].max()).sum())
            reciprocal.append(1 / rank if rank <= MRR_CUTOFF else 0.0)
        value = np.array(precision)
        units = fingerprints([(query.query, *query.positives, "", *query.negatives) for query in self.queries])
        details: dict[str, Any] = {
            "protocol": "candidates ranked by cosine, mean over the queries",
            "examples": len(self),
            "candidates": sum(len(query.candidates) for query in self.queries),
            **self._prompts(),
        }
        subsets = np.array([query.subset for query in self.queries])
        if len(names := np.unique(subsets)) > 1:
            details["map_by_subset"] = {str(name): 100 * float(value[subsets == name].mean()) for name in names}
        return TaskResult(
            {"map": 100 * float(value.mean()), f"mrr@{MRR_CUTOFF}": 100 * float(np.mean(reciprocal))},
            {"value": value, "gold": units, "unit": units},
            details,
        )

    def _divide(self, share: float, seed: int) -> np.ndarray:
        # Candidates that are not relevant may be shared, like the corpus of a retrieval task.
        groups = connected_groups([[query.query, *query.positives] for query in self.queries])
        return divide_groups(groups, share, seed, self.source)

    def _select(self, units: np.ndarray, source: str) -> Self:
        return type(self)(source, self.name, [self.queries[unit] for unit in units.tolist()])


def read_reranking(path: Path) -> RerankingTask:
    """Read a reranking task from a JSON or parquet file.

    A row has the columns `query`, `positive` and `negative`, the last two of them lists, as in sentence-transformers'
    `RerankingEvaluator`. A candidate that is in both lists counts as a positive.

    Args:
        path (`Path`): The file.

    Returns:
        `RerankingTask`: The task.

    Raises:
        ValueError: If a column is missing, a cell is no list of texts, or no query has positives and negatives.
    """
    queries, in_both = [], 0
    for where, (query, positives, negatives) in read_columns(path, "query", "positive", "negative"):
        row = RankedQuery(
            checked_text(query, where),
            _texts(positives, f"{where}, column positive"),
            _texts(negatives, f"{where}, column negative"),
        )
        relevant = set(row.positives)
        in_both += sum(text in relevant for text in row.negatives)
        row.negatives = [text for text in row.negatives if text not in relevant]
        queries.append(row)
    if in_both:
        logger.warning(f"{path}: {in_both} candidate(s) are among both the positives and the negatives of a query.")
    return RerankingTask(str(path), short_name(path), queries)


def _texts(cell: Any, where: str) -> list[str]:
    """Return the distinct texts of a list."""
    if cell is None:
        return []
    if not isinstance(cell, (list, tuple)):
        raise ValueError(f"{where}: expected a list of texts, got {cell!r}. Use a .jsonl or .parquet file.")
    return list(dict.fromkeys(checked_text(text, where) for text in cell))
