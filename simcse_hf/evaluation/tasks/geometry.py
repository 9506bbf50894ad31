"""The geometry of embeddings on STS-B, as a task."""

from collections.abc import Mapping
from typing import Any

from ..embeddings import SentenceEmbeddings
from ..metrics import alignment, isotropy, singular_spectrum, uniformity
from ..protocol import Protocol
from .base import TaskResult
from .sts import ScoredPairsTask

ALIGNMENT_ABOVE = 4.0  # STS-B pairs with a higher gold score count as positive (SimCSE, footnote 3)


class GeometryTask(ScoredPairsTask):
    """Alignment over the pairs of STS-B with a score above 4, the rest over all sentences (SimCSE, footnote 3)."""

    kind = "geometry"
    average = ""
    order = 1

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Measure the geometry; see [`Task.score`]."""
        positives = [(first, second) for _, first, second, score in self.units if score > ALIGNMENT_ABOVE]
        firsts = embeddings(first for first, _ in positives)
        seconds = embeddings(second for _, second in positives)
        sentences = list(dict.fromkeys(text for texts in self.links for text in texts))
        x = embeddings(sentences)
        document = {
            "alignment": alignment(firsts, seconds),
            "uniformity": uniformity(x),
            "isotropy": isotropy(x),
            "singular_spectrum": singular_spectrum(x),
            "positive_pairs": len(positives),
            "sentences": len(sentences),
            "splits": list(self.parts),
        }
        return TaskResult({}, {}, document)

    @classmethod
    def headline(cls, document: Mapping[str, Any], protocol: Protocol) -> float | None:
        """Return `None`: the geometry has no single score; see [`Task.headline`]."""
        return None
