"""The entailment classifier and the supervised contrastive loss together."""

from typing import Any, ClassVar

import torch

from .base import EncodedBatch, Objective, TrainingRows
from .softmax import Softmax
from .supcon import SUPCON_DEFAULTS, SupCon


class SoftmaxSupCon(Objective):
    r"""(1 - lambda) [`Softmax`] + lambda [`SupCon`] (Liao 2021, arXiv:2106.04791, Eq. 3).

    Both losses read the same embeddings. The defaults are the paper's best model on STS, "allpalln-lambda0.3-SCL" of
    Table 2; "3p3n-lambda0.5-SCL" is `supcon_weight=0.5, max_positives=3, max_negatives=3`.

    Args:
        dim (`int`): Embedding size.
        hidden_dim (`int`, *optional*): Width of the classifier, see [`Softmax`].
        temperature (`float`, *optional*): See [`SupCon`].
        similarity (`str`, *optional*, defaults to `"dot"`): See [`SupCon`].
        supcon_weight (`float`, *optional*, defaults to `0.3`): lambda, from 0 to 1.
        max_positives (`int`, *optional*): See [`SupCon`].
        max_negatives (`int`, *optional*): See [`SupCon`].

    Raises:
        ValueError: If an argument is not valid.
    """

    summary = "an entailment classifier and supervised contrastive learning together"
    papers = ("liao", "sbert")
    defaults: ClassVar[dict[str, Any]] = SUPCON_DEFAULTS
    rows = "nli"
    needs_text_ids = True

    def __init__(
        self,
        dim: int,
        hidden_dim: int | None = None,
        temperature: float | None = None,
        similarity: str = "dot",
        supcon_weight: float = 0.3,
        max_positives: int | None = None,
        max_negatives: int | None = None,
    ):
        super().__init__(dim)
        if not 0 <= supcon_weight <= 1:
            raise ValueError(f"supcon_weight must be from 0 to 1, got {supcon_weight}")
        self.supcon_weight = supcon_weight
        self.softmax = Softmax(dim, hidden_dim)
        self.supcon = SupCon(dim, temperature, similarity, max_positives, max_negatives)

    def check(self, rows: TrainingRows) -> None:
        """Check the training data; see [`SupCon.check`]."""
        self.supcon.check(rows)

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """Compute both weighted losses, `softmax_loss` and `supcon_loss`; see [`Objective.forward`]."""
        return {
            "softmax_loss": (1 - self.supcon_weight) * self.softmax(batch),
            "supcon_loss": self.supcon_weight * self.supcon(batch),
        }
