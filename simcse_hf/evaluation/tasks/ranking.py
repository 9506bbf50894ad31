"""Pairs, reranking and retrieval: how high what belongs together ranks, among pairs, candidates or a corpus."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray
from transformers.utils import logging

from ...data.columns import find_parts
from ...data.read import open_one
from ...data.scored_pairs import finite_score, read_scored_pairs
from ...data.table import Table, open_table
from ...runtime.errors import DataError
from .base import Ranker, Task, TaskResult, checked_text, file_of, short_name

logger = logging.get_logger(__name__)

MRR_CUTOFF = 10
DEPTH = 100
LAYOUT = (
    "A retrieval task is a folder in BEIR's layout: corpus.jsonl and queries.jsonl with the columns _id and text, and "
    "qrels/test.tsv with the columns query-id, corpus-id and score, separated by tabs."
)


class PairsTask(Task):
    """Rank pairs of texts by their cosine; pairs labelled 1 should come before pairs labelled 0.

    Args:
        source (`str`): The file.
        name (`str`): Short name.
        units (`list[tuple[str, str, float]]`): The pairs, with labels 0 and 1.

    Raises:
        ValueError: If a label is neither 0 nor 1, or all labels are the same.
    """

    kind = "pairs"
    metrics = ("average_precision",)
    unit = "pair"
    needs_vectors = False
    hub_type = "binary-classification"

    @classmethod
    def read(cls, path: Path | Table, label_separator: str | None) -> Task:
        """Read the columns `sentence1`, `sentence2` and `label`, in a layout of [`read_scored_pairs`]."""
        if isinstance(path, Path) and path.is_dir():
            raise DataError(f"{path}: is a folder. Name a file of pairs.")
        pairs = read_scored_pairs(path)
        return cls(str(path), short_name(path), list(pairs.rows()))

    def __post_init__(self) -> None:
        for number, (text, _, label) in enumerate(self.units, start=1):
            if label not in (0, 1):
                raise DataError(
                    f"{self.source}: pair {number} ({text[:60]!r}, ...) has the label {label:g}, which must be 0 or "
                    "1; scores are for --pairs."
                )
        self.first, self.second, labels = zip(*self.units, strict=True)
        self.gold = np.array(labels).astype(np.int64)
        self.roles = {None: [*self.first, *self.second]}
        self.links = [texts for *texts, _ in self.units]
        if len(set(self.gold)) < 2:
            raise DataError(
                f"{self.source}: all {len(self)} pair(s) have the label {self.gold[0]}. Add pairs of the other."
            )

    def score(self, embeddings: Ranker) -> TaskResult:
        """Compute the average precision of the similarities; see [`Task.score`]."""
        from sklearn.metrics import average_precision_score  # scikit-learn takes a second to import

        predicted = embeddings.pairs(self.first, self.second)
        return self._result(
            {"average_precision": 100 * float(average_precision_score(self.gold, predicted))},
            {"similarity": predicted, "gold": self.gold},
            [(*texts, f"{label:g}") for *texts, label in self.units],
            protocol=f"average precision of the {embeddings.similarity}",
            positives=int(self.gold.sum()),
        )


@dataclass
class Query:
    """A query and the judgements of documents for it.

    Args:
        text (`str`): The query.
        relevance (`dict[str, float]`): Relevance by document, 0 for one that is not relevant. Reranking names a
            document by its text, and retrieval by its id.
        itself (`str`, *optional*): In retrieval, the id of the document that is the query itself, with the same id and
            text. It is never retrieved for it.
    """

    text: str
    relevance: dict[str, float]
    itself: str = ""

    def documents(self, relevant: bool) -> list[str]:
        """Return the documents that are relevant, or those that are not."""
        return [name for name, grade in self.relevance.items() if (grade > 0) == relevant]


class RankingTask(Task):
    """A task that ranks documents for queries, which a model encodes as in a search.

    Args:
        source (`str`): The file or folder.
        name (`str`): Short name.
        units (`list[Query]`): The queries. Those for which every ranking would be right are left out with a warning.
        shared (`dict[str, str]`, *optional*): The documents of a corpus, by id. Without it, each query ranks its own.

    Raises:
        ValueError: If no query is left.
    """

    unit = "query"
    needs_vectors = False

    def __post_init__(self) -> None:
        kept = [query for query in self.units if query.documents(relevant=True)]
        if self.shared is None:
            needed = "both a positive and a negative"
            kept = [query for query in kept if query.documents(relevant=False)]
            self.links = [[query.text, *query.documents(relevant=True)] for query in kept]
            documents = [text for query in kept for text in query.relevance]
        else:
            needed = "a relevant document"
            self.links = [[query.text] for query in kept]  # both parts of a split may share the corpus
            documents = self.shared.values()
        left_out = len(self) - len(kept)
        if not kept:
            raise DataError(f"{self.source}: none of the {left_out} queries has {needed}.")
        if left_out:
            logger.warning(
                f"{self.source}: left out {left_out} of {len(self)} queries, because a query needs {needed}."
            )
        self.units = kept
        self.roles = {"query": [query.text for query in kept], "document": list(documents)}

    def _ranked_result(self, rankings: Iterable[list[str]], marks: list, **details: object) -> TaskResult:
        """Average the metrics of each query's ranking over the queries; the headline is resampled."""
        values: dict = {metric: [] for metric in self.metrics}
        for query, ranking in zip(self.units, rankings, strict=True):
            grades = np.array([max(query.relevance.get(document, 0), 0) for document in ranking])
            ideal = np.sort([grade for grade in query.relevance.values() if grade > 0])[::-1]
            hits = 1 + np.flatnonzero(grades)  # the ranks of the relevant documents
            found = {
                "map": (np.arange(1, len(hits) + 1) / hits).sum() / len(ideal),
                f"mrr@{MRR_CUTOFF}": 1 / hits[0] if len(hits) and hits[0] <= MRR_CUTOFF else 0.0,
                "ndcg@10": _gain(grades) / _gain(ideal),
                f"recall@{DEPTH}": len(hits) / len(ideal),
            }
            for metric in self.metrics:
                values[metric].append(found[metric])
        metrics = {metric: 100 * float(np.mean(each)) for metric, each in values.items()}
        return self._result(metrics, {"value": np.array(values[self.metric])}, marks, **details)


class RerankingTask(RankingTask):
    """Rank the candidates of each query by their cosine with it; see [`RankingTask`]."""

    kind = "reranking"
    metrics = ("map", f"mrr@{MRR_CUTOFF}")
    hub_type = "reranking"

    @classmethod
    def read(cls, path: Path | Table, label_separator: str | None) -> Task:
        """Read a reranking task from a JSON or parquet file, or a table.

        A row has the columns `query`, `positive` and `negative`, the last two of them lists, as in
        sentence-transformers' `RerankingEvaluator`. A candidate that is in both lists counts as a positive.

        Args:
            path (`Path` or `Table`): The file or table.
            label_separator (`str`, *optional*): Not used.

        Returns:
            `RerankingTask`: The task.

        Raises:
            DataError: If a column is missing, a cell is no list of texts, or no query has positives and negatives.
        """
        queries = []
        in_both = 0
        for where, (query, positives, negatives) in open_one(path, None).parts(("query", "positive", "negative")):
            relevance: dict[str, float] = {}
            for column, cell, grade in (("positive", positives, 1), ("negative", negatives, 0)):
                place = f"{where}, column {column}"
                if not isinstance(cell, (list, tuple, type(None))):
                    raise DataError(f"{place}: expected a list of texts, got {cell!r}. Use a .jsonl or .parquet file.")
                for text in dict.fromkeys(checked_text(text, place) for text in cell or ()):
                    in_both += relevance.setdefault(text, grade) != grade
            queries.append(Query(checked_text(query, where), relevance))
        if in_both:
            logger.warning(
                f"{path}: {in_both} candidate(s) are among both the positives and the negatives of a query."
            )
        return cls(str(path), short_name(path), queries)

    def score(self, embeddings: Ranker) -> TaskResult:
        """Compute the average precision and reciprocal rank of each query; see [`Task.score`]."""
        rankings: list = []
        marks = []
        for query in self.units:
            candidates = {text: text for text in query.relevance}  # a candidate has no other id
            rankings += embeddings.rank([query.text], candidates, len(candidates))
            marks.append((query.text, *query.documents(relevant=True), "", *query.documents(relevant=False)))
        return self._ranked_result(
            rankings,
            marks,
            protocol=f"candidates ranked by {embeddings.similarity}, mean over the queries",
            candidates=len(self.roles["document"]),
        )


class RetrievalTask(RankingTask):
    """Rank all documents of a corpus by their cosine with each query; see [`RankingTask`].

    The metrics are those of trec_eval: nDCG@10 with the relevance as linear gain, the reciprocal rank of the first
    relevant document among the first 10, and recall among the first 100.
    """

    kind = "retrieval"
    metrics = ("ndcg@10", f"mrr@{MRR_CUTOFF}", f"recall@{DEPTH}")
    hub_type = "information-retrieval"

    @classmethod
    def read(cls, path: Path | Table, label_separator: str | None) -> Task:
        """Read a retrieval task from a folder in BEIR's layout.

        Documents have `_id`, `text` and possibly `title`, which is put before the text; queries have `_id` and `text`.
        Judgements are those of `qrels/test.tsv`. To use others, name their file: `folder/qrels/dev.tsv`. Those of
        queries or documents that are not there, as in ArguAna and NFCorpus, are left out with a warning.

        Args:
            path (`Path`): The folder, or a file in its folder `qrels`.
            label_separator (`str`, *optional*): Not used.

        Returns:
            `RetrievalTask`: The task.

        Raises:
            DataError: If a file or column is missing, an id occurs twice, a query has no text, or judgements are
                missing or malformed.
        """
        if isinstance(path, Table):
            raise DataError(f"{path}: retrieval is not read from rows. {LAYOUT}")
        folder = path.parent.parent
        qrels = path
        if path.is_dir():
            folder = path
            refusal = (
                "no qrels/test.tsv with the judgements. Name another file of them: retrieval=FOLDER/qrels/dev.tsv."
            )
            qrels = file_of(folder / "qrels", "test", refusal)
        corpus = _read_texts(folder, "corpus")
        queries = _read_texts(folder, "queries")

        judged: dict = {}
        unknown: dict[str, list[str]] = {"query": [], "document": []}
        for where, (query, document, score) in open_table(qrels).parts(("query-id", "corpus-id", "score")):
            query = str(query)
            document = str(document)
            grade = finite_score(score, where)
            if query not in queries:
                unknown["query"].append(query)
                continue
            relevance = judged.setdefault(query, Query(queries[query][0], {})).relevance
            if document in relevance:
                raise DataError(f"{where}: document {document!r} is judged a second time for query {query!r}.")
            if document in corpus:
                relevance[document] = grade
            else:
                unknown["document"].append(document)
        for what, ids in unknown.items():
            if ids:
                logger.warning(
                    f"{qrels}: left out {len(ids)} judgement(s) of a {what} that is not in this folder, such as "
                    f"{ids[0]!r}."
                )
        if not judged:
            raise DataError(f"{qrels}: there are no judgements of queries of this folder.")
        empty = [id for id, parts in corpus.items() if not parts]
        if empty:
            logger.warning(f"{folder}: left out {len(empty)} document(s) without text, such as {empty[0]!r}.")
        documents = {id: " ".join(parts) for id, parts in corpus.items() if parts}
        for id, query in judged.items():
            # BEIR drops documents by their id alone, which is wrong where both are numbered separately.
            if id in documents and query.text in (documents[id], corpus[id][-1]):  # with or without its title
                query.itself = id
        return cls(str(path), short_name(folder), list(judged.values()), documents)

    def score(self, embeddings: Ranker) -> TaskResult:
        """Search the corpus and compute the metrics; see [`Task.score`]."""
        rankings = []
        marks = []
        found = embeddings.rank(self.roles["query"], self.shared, DEPTH + 1)
        for query, ranking in zip(self.units, found, strict=True):
            rankings.append([id for id in ranking if id != query.itself][:DEPTH])
            marks.append((query.text, *(f"{id} {grade:g}" for id, grade in sorted(query.relevance.items()))))
        return self._ranked_result(
            rankings,
            marks,
            protocol=f"exact search by {embeddings.similarity}; metrics as in trec_eval, mean over the queries",
            documents=len(self.shared),
        )


def _gain(grades: ndarray) -> float:
    """Return the discounted cumulative gain of the first 10, with the relevance as linear gain."""
    grades = grades[:10]
    discounts = np.log2(np.arange(2, len(grades) + 2))
    return float((grades / discounts).sum())


def _read_texts(folder: Path, stem: str) -> dict:
    """Read the corpus or the queries by id: the text, after a title if there is one. A document may be empty."""
    path = file_of(folder, stem, f"there is no {stem}.jsonl. {LAYOUT}")
    parts = ["_id", "text"]
    table = open_table(path)
    if stem == "corpus" and find_parts(table.columns, ["title"]):
        parts.append("title")
    texts = {}
    for where, (id, text, *title) in table.parts(parts):
        if id is None or id == "":
            raise DataError(f"{where}: the _id is empty.")
        id = str(id)
        if id in texts:
            raise DataError(f"{where}: the _id {id!r} occurs a second time. Ids must be unique.")
        if stem == "corpus":
            texts[id] = [part.strip() for part in (*title, text) if part and part.strip()]
        else:
            texts[id] = [checked_text(text, where)]
    return texts
