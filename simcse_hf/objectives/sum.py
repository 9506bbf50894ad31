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
        name (`str`): The name of the sum.
        parts (`Mapping[str, Objective]`): The parts by their names.
        weights (`Mapping[str, float]`): The weight of each part.

    Raises:
        ValueError: If the parts read different training rows or different columns of embeddings.
    """

    def __init__(self, dim: int, name: str, parts: Mapping[str, Objective], weights: Mapping[str, float]):
        super().__init__(dim, parts.values())
        self.name = name
        self.weights = dict(weights)
        self.parts = nn.ModuleDict()
        summaries = []
        for of_part, part in parts.items():
            self.parts[of_part.replace(".", "_")] = part
            summaries.append(f"{part.summary} (weight {weights[of_part]:g})")
            if part.rows != self.rows or part.reconstructs != self.reconstructs:
                raise ValueError(
                    f"objective {name!r}: {of_part} reads other training rows or columns than the first part, so they "
                    "cannot be summed"
                )
        self.summary = "the sum of " + "; and ".join(summaries)

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
