"""Cross-entropy and supervised contrastive loss together."""

import torch

from .base import EncodedBatch, Objective, TrainingRows
from .softmax import Softmax
from .supcon import SupCon


class SoftmaxSupCon(Objective):
    r"""(1 - lambda) [`Softmax`] + lambda [`SupCon`] (Liao 2021, arXiv:2106.04791, Eq. 3).

    Both read the same vectors. The paper's best model on STS ("allpalln-lambda0.3-SCL", Table 2) is lambda = 0.3 with
    `similarity="dot"` and `temperature=1.0`, pooler `avg_no_cls`.

    Args:
        dim: of the sentence vectors.
        hidden_dim: of the classifier, see [`Softmax`].
        temperature: see [`SupCon`].
        similarity: see [`SupCon`].
        supcon_weight: lambda, from 0 to 1.

    Raises:
        ValueError: a value outside its range.
    """

    summary = "an entailment classifier and supervised contrastive learning together"
    papers = ("liao", "sbert")
    rows = "nli"

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        temperature: float = 0.05,
        similarity: str = "cosine",
        supcon_weight: float = 0.3,
    ):
        super().__init__(dim)
        if not 0 <= supcon_weight <= 1:
            raise ValueError(f"supcon_weight must be from 0 to 1, got {supcon_weight}")
        self.supcon_weight = supcon_weight
        self.softmax = Softmax(dim, hidden_dim)
        self.supcon = SupCon(dim, temperature, similarity)

    def check(self, rows: TrainingRows) -> None:
        """As [`SupCon`]'s, which asks for all that [`Softmax`] does."""
        self.supcon.check(rows)

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """`softmax_loss` and `supcon_loss`, weighted: the loss is their sum."""
        return {
            "softmax_loss": (1 - self.supcon_weight) * self.softmax(batch),
            "supcon_loss": self.supcon_weight * self.supcon(batch),
        }
