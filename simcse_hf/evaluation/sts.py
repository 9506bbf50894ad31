"""Score STS tasks: correlate cosine similarities with gold scores, by subset or split, in three aggregations."""

from typing import Any

import numpy as np

from .embeddings import SentenceEmbeddings
from .metrics import cosine_similarity_pairs, pearson, spearman
from .pairs import ScoredPairs

AGGREGATIONS = ("all", "mean", "wmean")
METRICS = {"spearman": spearman, "pearson": pearson}


def predict_similarities(embeddings: SentenceEmbeddings, pairs: ScoredPairs) -> np.ndarray:
    """Return the cosine similarities of `pairs`, of shape `(n,)`."""
    return cosine_similarity_pairs(embeddings(pairs.sentences1), embeddings(pairs.sentences2))


def correlations(predicted: np.ndarray, gold: np.ndarray, where: str) -> dict[str, Any]:
    """Return the number of pairs and both correlations times 100; a `ValueError` names `where`."""
    try:
        scores = {name: 100 * metric(predicted, gold) for name, metric in METRICS.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return {"pairs": len(gold), **scores}


def score_subsets(task: str, predicted: dict[str, np.ndarray], gold: dict[str, np.ndarray]) -> dict[str, Any]:
    """Score a task that consists of subsets, as SentEval does.

    `all` correlates the concatenated subsets, `mean` averages the correlations of the subsets, and `wmean` weights
    them by their number of pairs (SimCSE, appendix B).

    Args:
        task (`str`): Name of the task. A single subset of this name means that the subsets are not known; `mean` and
            `wmean` are then `None`.
        predicted (`dict[str, numpy.ndarray]`): Predicted similarities of shape `(n,)` by subset.
        gold (`dict[str, numpy.ndarray]`): Gold scores of shape `(n,)` by subset.

    Returns:
        `dict[str, Any]`: `pairs`, `subsets[subset][pairs | spearman | pearson]` and `aggregate[aggregation][metric]`,
        with correlations times 100.
    """
    subsets = {subset: correlations(predicted[subset], gold[subset], f"{task} {subset}") for subset in gold}
    whole = correlations(np.concatenate(list(predicted.values())), np.concatenate(list(gold.values())), task)
    pairs = whole.pop("pairs")
    aggregate: dict[str, dict[str, Any]] = {
        "all": whole,
        "mean": dict.fromkeys(METRICS),
        "wmean": dict.fromkeys(METRICS),
    }
    if list(subsets) != [task]:
        weights = [scores["pairs"] for scores in subsets.values()]
        for metric in METRICS:
            values = [scores[metric] for scores in subsets.values()]
            aggregate["mean"][metric] = float(np.mean(values))
            aggregate["wmean"][metric] = float(np.average(values, weights=weights))
    return {"pairs": pairs, "subsets": subsets, "aggregate": aggregate}


def score_splits(task: str, predicted: dict[str, np.ndarray], gold: dict[str, np.ndarray]) -> dict[str, Any]:
    """Score a task that consists of splits; return `splits[split][pairs | spearman | pearson]`, times 100."""
    return {"splits": {split: correlations(predicted[split], gold[split], f"{task} {split}") for split in gold}}
