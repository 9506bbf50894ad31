"""The correlations as a metric of the package `evaluate`, for `evaluate.load(simcse_hf.evaluation.METRIC_MODULE)`."""

from collections.abc import Sequence

import datasets
import evaluate

from simcse_hf.evaluation.metrics import pearson, spearman  # `evaluate.load` copies this file, without its neighbours


class SimilarityCorrelation(evaluate.Metric):
    """Compute Spearman's and Pearson's correlation of predicted similarities with gold scores.

    The metric is part of this package, so nothing is downloaded. It takes `predictions` and `references` (floats),
    returns `{"spearman": ..., "pearson": ...}` in [-1, 1], and can be used with `evaluate.combine`.

    Examples:
        >>> import evaluate
        >>> from simcse_hf.evaluation import METRIC_MODULE
        >>> metric = evaluate.load(METRIC_MODULE)
        >>> metric.compute(predictions=[0.1, 0.5, 0.9], references=[1.0, 3.0, 4.0])["spearman"]
        1.0
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Correlation of predicted sentence similarities with gold scores.",
            citation="Gao, Yao and Chen (2021). SimCSE: Simple Contrastive Learning of Sentence Embeddings. App. B.",
            inputs_description="predictions, references: sequences of floats of equal length.",
            features=datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("float64"))),
        )

    def _compute(self, predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
        return {"spearman": spearman(predictions, references), "pearson": pearson(predictions, references)}
