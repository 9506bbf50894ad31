"""Reranking and retrieval: how high the relevant documents of a query stand among its candidates, or in a corpus."""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy import ndarray
from sklearn.metrics import average_precision_score
from transformers.utils import logging

from ...data.table import open_table
from ...ops.similarity import similarity_matrix
from ...search.exact import ExactIndex, comparable
from ..groups import distinct
from .base import (
    TaskResult,
    UserTask,
    checked_text,
    file_of,
    fingerprints,
    read_columns,
    short_name,
    tables_of,
)

logger = logging.get_logger(__name__)

MRR_CUTOFF = 10
DEPTH = 100
_QREL_COLUMNS = ["query-id", "corpus-id", "score"]


@dataclass
class RankedQuery:
    """A query and its candidates.

    Args:
        text (`str`): The query.
        positives (`list[str]`): The relevant candidates.
        negatives (`list[str]`): The other candidates.
    """

    text: str
    positives: list[str]
    negatives: list[str]

    @property
    def candidates(self) -> list[str]:
        """The relevant candidates and then the others."""
        return [*self.positives, *self.negatives]

    @property
    def can_be_scored(self) -> bool:
        """Whether a ranking can be right or wrong."""
        return bool(self.positives and self.negatives)


@dataclass
class JudgedQuery:
    """A query and the judgements of documents for it.

    Args:
        id (`str`): Its id. A document with the same id and text is the query itself, and never retrieved for it.
        text (`str`): The query.
        relevance (`dict[str, int]`): Relevance by document id; 0 for a document that is not relevant.
    """

    id: str
    text: str
    relevance: dict[str, int]

    @property
    def can_be_scored(self) -> bool:
        """Whether a document is relevant."""
        return any(grade > 0 for grade in self.relevance.values())


class RankingTask(UserTask):
    """A task that ranks documents for queries, each with a prompt of the model before it.

    Args:
        source (`str`): The file or folder.
        name (`str`): Short name.
        units (`list`): The queries. Those for which every ranking would be right are left out with a warning.
        shared (`dict[str, str]`, *optional*): The documents of a corpus, by id.

    Raises:
        ValueError: If no query is left.
    """

    unit = "query"
    #: What the queries that are left out lack, for messages.
    lacking: str
    query_prompt = ""
    document_prompt = ""

    def _prepare(self) -> None:
        kept = [query for query in self.units if query.can_be_scored]
        left_out = len(self) - len(kept)
        if not kept:
            raise ValueError(f"{self.source}: none of the {left_out} queries has {self.lacking}.")
        if left_out:
            logger.warning(
                f"{self.source}: left out {left_out} of {len(self)} queries, because a query needs {self.lacking}."
            )
        self.units = kept
        self._list_texts()

    def _documents(self) -> Iterable:
        """Return the documents of a corpus, without their prompt."""
        return self.shared.values()

    def _list_texts(self) -> None:
        """Set `texts` to the queries and documents with their prompts, and where each of them stands in it."""
        texts = [self.query_prompt + query.text for query in self.units]
        texts += [self.document_prompt + text for text in self._documents()]
        self.texts, positions = distinct(texts)
        self._query_rows, self._document_rows = np.split(positions, [len(self)])

    def with_prompts(self, query: str, document: str) -> Self:
        """Return the task with these prompts; see [`UserTask.with_prompts`]."""
        prompted = copy(self)
        prompted.query_prompt = query
        prompted.document_prompt = document
        prompted._list_texts()
        return prompted

    def _result(self, values: dict, units: list, **details: Any) -> TaskResult:
        """Average the metrics over the queries; the first one is resampled."""
        if self.query_prompt or self.document_prompt:
            details["prompts"] = {"query": self.query_prompt, "document": self.document_prompt}
        metrics = {}
        for name, each in values.items():
            metrics[name] = 100 * float(np.mean(each))
        marks = fingerprints(units)
        scores = {
            "value": np.array(values[self.metric]),
            "gold": marks,
            "unit": marks,
        }
        return TaskResult(metrics, scores, {"examples": len(self), **details})


class RerankingTask(RankingTask):
    """Rank the candidates of each query by their cosine with it; see [`RankingTask`]."""

    kind = "reranking"
    metric = "map"
    lacking = "both positives and negatives"

    def _documents(self) -> Iterable:
        return chain(*(query.candidates for query in self.units))

    def linking_texts(self, unit: RankedQuery) -> Sequence[str]:
        """Return the query and its positives; other candidates may be shared, like the corpus of a retrieval task."""
        return [unit.text, *unit.positives]

    def score(self, embeddings: ndarray, similarity: str = "cosine") -> TaskResult:
        """Compute the average precision and reciprocal rank of each query; see [`UserTask.score`]."""
        x = torch.from_numpy(comparable(embeddings.astype(np.float64), similarity))
        precision = []
        reciprocal = []
        units = []
        start = 0
        for query, row in zip(self.units, self._query_rows, strict=True):
            end = start + len(query.candidates)
            candidates = x[self._document_rows[start:end]]
            scores = similarity_matrix(x[[row]], candidates, similarity)[0].numpy()
            start = end
            relevant = np.arange(len(scores)) < len(query.positives)
            precision.append(average_precision_score(relevant, scores))
            # Of candidates with equal scores, the relevant one counts as the last.
            rank = 1 + np.count_nonzero(scores[~relevant] >= scores[relevant].max())
            reciprocal.append(1 / rank if rank <= MRR_CUTOFF else 0.0)
            units.append((query.text, *query.positives, "", *query.negatives))
        return self._result(
            {"map": precision, f"mrr@{MRR_CUTOFF}": reciprocal},
            units,
            protocol=f"candidates ranked by {similarity}, mean over the queries",
            candidates=start,
        )


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
    queries = []
    in_both = 0
    for where, (query, positives, negatives) in read_columns(path, "query", "positive", "negative"):
        relevant = _texts(positives, f"{where}, column positive")
        others = _texts(negatives, f"{where}, column negative")
        in_both += len(relevant.keys() & others)
        kept = [text for text in others if text not in relevant]
        queries.append(RankedQuery(checked_text(query, where), list(relevant), kept))
    if in_both:
        logger.warning(f"{path}: {in_both} candidate(s) are among both the positives and the negatives of a query.")
    return RerankingTask(str(path), short_name(path), queries)


def _texts(cell: Any, where: str) -> dict:
    """Return the distinct texts of a list, in its order."""
    if cell is None:
        return {}
    if not isinstance(cell, (list, tuple)):
        raise ValueError(f"{where}: expected a list of texts, got {cell!r}. Use a .jsonl or .parquet file.")
    return dict.fromkeys(checked_text(text, where) for text in cell)


class RetrievalTask(RankingTask):
    """Rank all documents of a corpus by their cosine with each query; see [`RankingTask`].

    The metrics are those of trec_eval: nDCG@10 with the relevance as linear gain, the reciprocal rank of the first
    relevant document among the first 10, and recall among the first 100.
    """

    kind = "retrieval"
    metric = "ndcg@10"
    lacking = "a relevant document"

    def linking_texts(self, unit: JudgedQuery) -> Sequence[str]:
        """Return the query."""
        return [unit.text]

    def score(self, embeddings: ndarray, similarity: str = "cosine") -> TaskResult:
        """Search the corpus and compute the metrics; see [`UserTask.score`]."""
        x = comparable(embeddings.astype(np.float32), similarity)
        index = ExactIndex(x.shape[1], similarity)
        index.add(x[self._document_rows])
        depth = min(DEPTH + 1, len(self.shared))
        rankings = index.search(x[self._query_rows], depth)[1]
        ids = list(self.shared)
        gains = []
        reciprocal = []
        recalls = []
        units = []
        for query, ranking in zip(self.units, rankings.tolist(), strict=True):
            retrieved = [ids[position] for position in ranking]
            # BEIR drops documents by their id alone, which goes wrong where queries and documents are numbered
            # separately.
            if query.id in retrieved and self.shared[query.id].endswith(query.text):
                retrieved.remove(query.id)
            relevant = {id: grade for id, grade in query.relevance.items() if grade > 0}
            grades = np.array([relevant.get(id, 0) for id in retrieved[:DEPTH]])
            ideal = np.sort(list(relevant.values()))[::-1]
            found = np.flatnonzero(grades[:MRR_CUTOFF])
            gains.append(_gain(grades) / _gain(ideal))
            reciprocal.append(1 / (1 + found[0]) if len(found) else 0.0)
            recalls.append(np.count_nonzero(grades) / len(ideal))
            judged = [f"{id} {grade}" for id, grade in sorted(query.relevance.items())]
            units.append((query.text, *judged))
        return self._result(
            {
                "ndcg@10": gains,
                f"mrr@{MRR_CUTOFF}": reciprocal,
                "recall@100": recalls,
            },
            units,
            protocol=f"exact search by {similarity}; metrics as in trec_eval, mean over the queries",
            documents=len(self.shared),
        )


def _gain(grades: ndarray) -> float:
    """Return the discounted cumulative gain of the first 10, with the relevance as linear gain."""
    grades = grades[:10]
    discounts = np.log2(np.arange(2, len(grades) + 2))
    return float((grades / discounts).sum())


def read_retrieval(path: Path) -> RetrievalTask:
    """Read a retrieval task from a folder in BEIR's layout.

    Documents have `_id`, `text` and possibly `title`, which is put before the text, and queries have `_id` and `text`.
    Judgements are those of `qrels/test.tsv`, or of the only file in `qrels`. To use another one, name the file itself:
    `folder/qrels/dev.tsv`.

    Args:
        path (`Path`): The folder, or a file in its folder `qrels`.

    Returns:
        `RetrievalTask`: The task.

    Raises:
        ValueError: If a file or column is missing, an id occurs twice, a query has no text, or judgements are missing,
            malformed, or name unknown queries or documents.
    """
    if path.is_file():
        folder = path.parent.parent
        qrels = path
    else:
        folder = path
        qrels = _find_qrels(path)
    corpus = _read_texts(folder, "corpus")
    queries = _read_texts(folder, "queries")
    relevance = _read_qrels(qrels, queries, corpus)
    empty = [id for id, text in corpus.items() if not text]
    if empty:
        logger.warning(f"{folder}: left out {len(empty)} document(s) without text, such as {empty[0]!r}.")
    judged = [JudgedQuery(id, queries[id], documents) for id, documents in relevance.items()]
    documents = {id: text for id, text in corpus.items() if text}
    return RetrievalTask(str(path), short_name(folder), judged, documents)


def _find_qrels(folder: Path) -> Path:
    files = tables_of(folder / "qrels")
    named = [path for path in files if short_name(path) == "test"] or files
    if len(named) != 1:
        names = ", ".join(path.name for path in files) or "nothing"
        raise ValueError(
            f"{folder}: no qrels/test.tsv with the judgements (there is {names}). Name one: retrieval=qrels/dev.tsv."
        )
    return named[0]


def _read_texts(folder: Path, stem: str) -> dict:
    """Read the corpus or the queries by id. A document may be empty; a query may not."""
    path = file_of(folder, stem)
    if path is None:
        raise ValueError(
            f"{folder}: there is no {stem}.jsonl. A retrieval task is a folder in BEIR's layout, with corpus.jsonl, "
            "queries.jsonl and qrels/test.tsv."
        )
    table = open_table(path)
    columns = ["_id", "text"]
    for column in columns:
        if column not in table.columns:
            raise ValueError(f"{path}: no column {column!r}. The columns are {', '.join(map(repr, table.columns))}.")
    if stem == "corpus" and "title" in table.columns:
        columns.append("title")
    texts: dict = {}
    for number, (id, text, *title) in table.rows(columns):
        where = table.at(number)
        if id is None or id == "":
            raise ValueError(f"{where}: the _id is empty.")
        id = str(id)
        if id in texts:
            raise ValueError(f"{where}: the _id {id!r} occurs a second time. Ids must be unique.")
        if stem == "corpus":
            parts = [part.strip() for part in (*title, text) if part]
            texts[id] = " ".join(parts).strip()
        else:
            texts[id] = checked_text(text, where)
    return texts


def _read_qrels(path: Path, queries: dict, corpus: dict) -> dict:
    """Read the relevance of documents by query, in the order of the file."""
    table = open_table(path)
    for column in _QREL_COLUMNS:
        if column not in table.columns:
            raise ValueError(
                f"{path}, line 1: no column {column!r}. The header of judgements is query-id, corpus-id, score, "
                "separated by tabs."
            )
    relevance: dict = {}
    for number, (query, document, score) in table.rows(_QREL_COLUMNS):
        where = table.at(number)
        query = str(query)
        document = str(document)
        try:
            grade = int(score)
        except (TypeError, ValueError):
            raise ValueError(f"{where}: the score {score!r} is not a whole number.") from None
        for what, id, known in (("query", query, queries), ("document", document, corpus)):
            if id not in known:
                raise ValueError(f"{where}: there is no {what} {id!r} in the {what} file of this folder.")
        if document in relevance.setdefault(query, {}):
            raise ValueError(f"{where}: document {document!r} is judged a second time for query {query!r}.")
        relevance[query][document] = grade
    if not relevance:
        raise ValueError(f"{path}: there are no judgements in this file.")
    return relevance
