"""A weighted sum of objectives."""

from collections.abc import Mapping

from torch import Tensor, nn

from .base import EncodedBatch, Objective, named_losses
from .combined import Combined


class Sum(Combined):
    """A weighted sum of objectives on the same embeddings: `simcse+barlow_twins:0.1`, where 1 is left out.

    It has as many views and encoders as the most demanding part, and works with GradCache if all parts do.

    Args:
        dim (`int`): Embedding size.
        parts (`Mapping[str, Objective]`): The parts by their names.
        weights (`Mapping[str, float]`): The weight of each part.

    Raises:
        ValueError: If the parts read different training rows or different columns of embeddings.
    """

    def __init__(self, dim: int, parts: Mapping[str, Objective], weights: Mapping[str, float]):
        super().__init__(dim, parts.values())
        self.weights = dict(weights)
        self.parts = nn.ModuleDict()
        terms = []
        summaries = []
        for name, part in parts.items():
            self.parts[name.replace(".", "_")] = part
            weight = weights[name]
            terms.append(name if weight == 1 else f"{name}:{weight:g}")
            summaries.append(f"{part.summary} (weight {weight:g})")
        self.name = "+".join(terms)
        self.summary = "the sum of " + "; and ".join(summaries)
        for name, part in parts.items():
            if part.rows != self.rows or part.reconstructs != self.reconstructs:
                raise ValueError(
                    f"objective {self.name!r}: {name} reads other training rows or columns than the first part, so "
                    "they cannot be summed"
                )

    def forward(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """Compute the weighted loss of every part.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `dict[str, torch.Tensor]`: `simcse_loss` for the part `simcse`, or `esimcse_info_nce` and the like if the
                part has named parts of its own.
        """
        losses = {}
        for (name, weight), part in zip(self.weights.items(), self.objectives, strict=True):
            for what, value in named_losses(part(batch)).items():
                losses[f"{name}_{what}"] = weight * value
        return losses
