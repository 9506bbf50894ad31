"""The output of a contrastive model."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


@dataclass
class ContrastiveOutput(ModelOutput):
    """The output of a contrastive model.

    Args:
        loss (`torch.Tensor`, *optional*): The contrastive loss + `mlm_weight` * the masked-LM loss. `None` if a row
            holds a single sentence.
        sentence_embeddings (`torch.Tensor`): Embeddings of shape `(batch, num_sentences, dim)`, or `(batch, dim)` for
            inputs of two dimensions, not normalized.
        contrastive_loss (`torch.Tensor`, *optional*): The objective's part of the loss.
        mlm_loss (`torch.Tensor`, *optional*): The masked-LM loss before it is weighted. `None` without masked inputs.
        parts (`dict[str, torch.Tensor]`, *optional*): The named parts of `contrastive_loss`, if there are several.
    """

    loss: torch.Tensor | None = None
    sentence_embeddings: torch.Tensor | None = None
    contrastive_loss: torch.Tensor | None = None
    mlm_loss: torch.Tensor | None = None
    parts: dict[str, torch.Tensor] | None = None
