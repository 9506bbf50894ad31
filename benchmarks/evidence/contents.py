"""Measure what embeddings encode: meaning, word overlap, length, word frequency; and how many directions they use."""

import math
import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_score

from simcse_hf.evaluation.metrics import cosine_similarity_pairs, pearson, singular_spectrum, spearman
from simcse_hf.evaluation.tasks.sts import ScoredPairs


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words."""
    return re.findall(r"[a-z0-9']+", text.lower())


class Contents:
    """The properties of the sentences of scored pairs that embeddings are compared with.

    Args:
        pairs (`ScoredPairs`): The pairs, with gold scores.
        corpus (`Iterable[str]`): Sentences in which the frequency of a word is counted.
    """

    def __init__(self, pairs: ScoredPairs, corpus: Iterable[str]):
        counts = Counter(word for text in corpus for word in words_of(text))
        self.pairs = pairs
        self.texts = list(dict.fromkeys([*pairs.sentences1, *pairs.sentences2]))
        words = [words_of(text) for text in self.texts]
        self.log_length = np.array([math.log(1 + len(each)) for each in words])
        #: The mean over the words of a sentence of the logarithm of 1 + the number of occurrences in the corpus.
        self.log_frequency = np.array([np.mean([math.log1p(counts[w]) for w in each] or [0.0]) for each in words])
        row = {text: number for number, text in enumerate(self.texts)}
        self.first, self.second = ([row[text] for text in side] for side in (pairs.sentences1, pairs.sentences2))
        sets = [set(each) for each in words]
        #: The Jaccard index of the words of the two sentences of a pair.
        self.overlap = np.array(
            [
                len(sets[a] & sets[b]) / max(1, len(sets[a] | sets[b]))
                for a, b in zip(self.first, self.second, strict=True)
            ]
        )
        self.equal_length = -np.abs(self.log_length[self.first] - self.log_length[self.second])
        self.equal_frequency = -np.abs(self.log_frequency[self.first] - self.log_frequency[self.second])

    def baselines(self) -> dict[str, float]:
        """Return Spearman x 100 of the gold scores with word overlap, and with equal length and word frequency."""
        properties = {"overlap": self.overlap, "length": self.equal_length, "frequency": self.equal_frequency}
        return {name: round(100 * spearman(values, self.pairs.scores), 2) for name, values in properties.items()}

    def measure(self, embeddings: torch.Tensor) -> dict[str, float]:
        """Measure the embeddings of `texts`.

        Args:
            embeddings (`torch.Tensor`): Embeddings of shape `(len(texts), dim)`.

        Returns:
            `dict[str, float]`: Spearman x 100 of the cosine of a pair with the gold score (`gold`), with the overlap
            of its words, with the equality of length and of word frequency, and with the gold score when overlap is
            held constant (`gold_given_overlap`, a partial correlation of ranks); the cross-validated share of the
            variance of length and word frequency that a ridge regression finds (`length_r2`, `frequency_r2`); the
            absolute Pearson correlation of the first principal component with both; and the share of the variance in
            the first 1 and 10 components, with the effective number of components (the exponential of the entropy
            of the shares).
        """
        cosine = cosine_similarity_pairs(embeddings[self.first], embeddings[self.second])
        gold, overlap = spearman(cosine, self.pairs.scores), spearman(cosine, self.overlap)
        between = spearman(self.overlap, self.pairs.scores)
        partial = (gold - overlap * between) / math.sqrt((1 - overlap**2) * (1 - between**2))
        centred = (embeddings - embeddings.mean(0)).double()
        variances = np.array(singular_spectrum(centred)) ** 2
        shares = variances / variances.sum()
        component = (centred @ torch.linalg.svd(centred, full_matrices=False).Vh[0]).numpy()
        values = {
            "gold": 100 * gold,
            "gold_given_overlap": 100 * partial,
            "overlap": 100 * overlap,
            "equal_length": 100 * spearman(cosine, self.equal_length),
            "equal_frequency": 100 * spearman(cosine, self.equal_frequency),
            "length_r2": self._explained(centred, self.log_length),
            "frequency_r2": self._explained(centred, self.log_frequency),
            "first_component_length": abs(pearson(component, self.log_length)),
            "first_component_frequency": abs(pearson(component, self.log_frequency)),
            "variance_of_1": shares[0],
            "variance_of_10": shares[:10].sum(),
            "effective_components": math.exp(-(shares * np.log(np.maximum(shares, 1e-12))).sum()),
        }
        return {name: round(float(value), 3) for name, value in values.items()}

    @staticmethod
    def _explained(embeddings: torch.Tensor, values: np.ndarray) -> float:
        scaled = (embeddings / embeddings.std()).numpy()
        return float(cross_val_score(RidgeCV(np.logspace(-2, 4, 7)), scaled, values, cv=5, scoring="r2").mean())
