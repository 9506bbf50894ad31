"""Scoring STS tasks: cosine similarity against gold, by subset or split, under the three aggregations."""

import numpy as np

from .metrics import cosine_similarity_pairs, pearson, spearman
from .pairs import ScoredPairs
from .vectors import SentenceVectors

AGGREGATIONS = ("all", "mean", "wmean")
METRICS = {"spearman": spearman, "pearson": pearson}


def predict_similarities(vectors: SentenceVectors, pairs: ScoredPairs) -> np.ndarray:
    """Cosine similarities of `pairs`, of shape `(n,)`."""
    return cosine_similarity_pairs(vectors(pairs.sentences1), vectors(pairs.sentences2))


def correlations(predicted: np.ndarray, gold: np.ndarray, where: str) -> dict[str, float]:
    """Number of pairs and both correlations, times 100; a `ValueError` names `where`."""
    try:
        scores = {name: 100 * metric(predicted, gold) for name, metric in METRICS.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return {"pairs": len(gold), **scores}


def score_subsets(task: str, predicted: dict[str, np.ndarray], gold: dict[str, np.ndarray]) -> dict:
    """Scores a task that consists of subsets, as SentEval does.

    `all` correlates the concatenated subsets, `mean` averages the correlations of the subsets and `wmean` weighs them
    by their number of pairs (paper, appendix B).

    Args:
        task (`str`): Name of the task, for messages. A single part of this name means that the subsets are not known:
            `mean` and `wmean` are then `None`.
        predicted (`dict[str, array]`): Predicted similarities of shape `(n,)` by subset.
        gold (`dict[str, array]`): Gold scores of shape `(n,)` by subset.

    Returns:
        `dict`: `pairs`, `subsets[subset][pairs | spearman | pearson]` and `aggregate[aggregation][metric]`, times 100.
    """
    subsets = {subset: correlations(predicted[subset], gold[subset], f"{task} {subset}") for subset in gold}
    whole = correlations(np.concatenate(list(predicted.values())), np.concatenate(list(gold.values())), task)
    pairs = whole.pop("pairs")
    aggregate = {"all": whole, "mean": dict.fromkeys(METRICS), "wmean": dict.fromkeys(METRICS)}
    if list(subsets) != [task]:
        weights = [scores["pairs"] for scores in subsets.values()]
        for metric in METRICS:
            values = [scores[metric] for scores in subsets.values()]
            aggregate["mean"][metric] = float(np.mean(values))
            aggregate["wmean"][metric] = float(np.average(values, weights=weights))
    return {"pairs": pairs, "subsets": subsets, "aggregate": aggregate}


def score_splits(task: str, predicted: dict[str, np.ndarray], gold: dict[str, np.ndarray]) -> dict:
    """Scores a task that consists of splits; the result is `splits[split][pairs | spearman | pearson]`, times 100."""
    return {"splits": {split: correlations(predicted[split], gold[split], f"{task} {split}") for split in gold}}
