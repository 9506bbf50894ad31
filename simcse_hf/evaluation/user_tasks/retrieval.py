"""Retrieval: which documents of a corpus are nearest to each query."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from transformers.utils import logging

from ...search.exact import ExactIndex
from .base import RankingTask, TaskResult, distinct, fingerprints, unit_length
from .splitting import connected_groups, divide_groups

logger = logging.get_logger(__name__)

DEPTH = 100
MRR_CUTOFF = 10
_TREC_NAMES = {"ndcg@10": "ndcg_cut_10", "recall@100": "recall_100"}


@dataclass
class JudgedQuery:
    """A query and the judgements of documents for it.

    Args:
        id (`str`): Its id. A document with the same id and text is the query itself, and never retrieved for it.
        text (`str`): The query.
        relevance (`dict[str, int]`): Relevance by document id; 0 for a document that is not relevant.
        corpus (`str`, *optional*, defaults to `""`): Name of the corpus that is searched.
    """

    id: str
    text: str
    relevance: dict[str, int]
    corpus: str = ""


class RetrievalTask(RankingTask):
    """Rank all documents of a corpus by their cosine with each query.

    The metrics are those of trec_eval, through pytrec_eval: nDCG@10 with the relevance as linear gain, the reciprocal
    rank of the first relevant document among the first 10, and recall among the first 100.

    Args:
        source (`str`): The folder.
        name (`str`): Short name.
        queries (`list[JudgedQuery]`): The queries. Those without a relevant document are left out.
        corpora (`dict[str, dict[str, str]]`): Documents by id, by name of the corpus.

    Raises:
        ValueError: If no query has a relevant document.
        ImportError: If pytrec_eval is not installed.
    """

    kind = "retrieval"
    metric = "ndcg@10"
    unit = "query"

    def __init__(self, source: str, name: str, queries: list[JudgedQuery], corpora: dict[str, dict[str, str]]):
        super().__init__(source, name)
        _pytrec_eval()  # a missing package is reported before anything is encoded
        self.queries = [query for query in queries if max(query.relevance.values(), default=0) > 0]
        self.corpora = corpora
        left_out = len(queries) - len(self.queries)
        if not self.queries:
            raise ValueError(f"{source}: none of the {len(queries)} judged queries has a relevant document.")
        if left_out:
            logger.warning(
                f"{source}: left out {left_out} of {len(queries)} queries, which have no relevant document."
            )
        self._list_texts()

    def _list_texts(self) -> None:
        documents = [self.document_prompt + text for corpus in self.corpora.values() for text in corpus.values()]
        queries = [self.query_prompt + query.text for query in self.queries]
        self.texts, self._positions = distinct([*documents, *queries])

    def __len__(self) -> int:
        return len(self.queries)

    def score(self, embeddings: np.ndarray) -> TaskResult:
        """Search the corpora and compute the metrics; see [`UserTask.score`]."""
        x = unit_length(embeddings.astype(np.float32))
        query_rows = self._positions[-len(self.queries) :]
        values = {name: np.zeros(len(self)) for name in ("ndcg@10", f"mrr@{MRR_CUTOFF}", "recall@100")}
        start = 0
        for name, corpus in self.corpora.items():
            rows = self._positions[start : start + len(corpus)]
            start += len(corpus)
            units = [unit for unit, query in enumerate(self.queries) if query.corpus == name]
            if not units:
                continue
            rankings = _search(x[query_rows[units]], x[rows])
            scored = _score([self.queries[unit] for unit in units], corpus, rankings)
            for metric, part in scored.items():
                values[metric][units] = part
        corpus_of = np.array([query.corpus for query in self.queries])
        details: dict[str, Any] = {
            "protocol": "exact search by cosine; metrics of trec_eval, mean over the queries",
            "examples": len(self),
            "documents": sum(map(len, self.corpora.values())),
            **self._prompts(),
        }
        if len(self.corpora) > 1:
            details["ndcg@10_by_corpus"] = {
                name: 100 * float(values["ndcg@10"][corpus_of == name].mean())
                for name in np.unique(corpus_of).tolist()
            }
        judgements = [
            (query.corpus, query.text, *(f"{id} {grade}" for id, grade in sorted(query.relevance.items())))
            for query in self.queries
        ]
        fingerprint = fingerprints(judgements)
        return TaskResult(
            {name: 100 * float(part.mean()) for name, part in values.items()},
            {"value": values["ndcg@10"], "gold": fingerprint, "unit": fingerprint},
            details,
        )

    def _divide(self, share: float, seed: int) -> np.ndarray:
        return divide_groups(connected_groups([[query.text] for query in self.queries]), share, seed, self.source)

    def _select(self, units: np.ndarray, source: str) -> Self:
        return type(self)(source, self.name, [self.queries[unit] for unit in units.tolist()], self.corpora)


def _search(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return the positions of the nearest documents of each query, one more than are scored."""
    index = ExactIndex(documents.shape[1])
    index.add(documents)
    return index.search(queries, min(DEPTH + 1, len(documents)))[1]


def _score(queries: list[JudgedQuery], corpus: dict[str, str], rankings: np.ndarray) -> dict[str, list[float]]:
    """Score the rankings of queries; `rankings` holds positions in the corpus, best first."""
    ids = list(corpus)
    run, judgements = {}, {}
    for number, (query, ranking) in enumerate(zip(queries, rankings.tolist(), strict=True)):
        # BEIR drops documents by their id alone, which goes wrong where queries and documents are numbered separately.
        itself = query.id if corpus.get(query.id, "").endswith(query.text) else None
        retrieved = [ids[position] for position in ranking if ids[position] != itself][:DEPTH]
        # trec_eval breaks ties by id, so the scores that it gets are ranks.
        run[str(number)] = {id: float(DEPTH - rank) for rank, id in enumerate(retrieved)}
        judgements[str(number)] = query.relevance
    evaluator = _pytrec_eval().RelevanceEvaluator(judgements, {"ndcg_cut.10", "recall.100", "recip_rank"})
    found = evaluator.evaluate(run)
    rows = [found[str(number)] for number in range(len(queries))]
    scored = {name: [row[trec] for row in rows] for name, trec in _TREC_NAMES.items()}
    # The reciprocal rank of the first relevant document is at least 1 / 10 if it is among the first 10.
    scored[f"mrr@{MRR_CUTOFF}"] = [r if (r := row["recip_rank"]) > 1 / (MRR_CUTOFF + 0.5) else 0.0 for row in rows]
    return scored


def _pytrec_eval() -> Any:
    try:
        import pytrec_eval
    except ImportError as error:
        raise ImportError("retrieval tasks need pytrec_eval: run pip install 'simcse-hf[retrieval]'") from error
    return pytrec_eval
