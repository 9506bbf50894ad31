"""Poolers: from an encoder's hidden states and attention mask to one embedding per sentence."""

from collections.abc import Sequence

import numpy as np
import torch

from ..ops.unpadded import first_tokens

#: `cls` and `cls_before_pooler` differ only in whether the dense + tanh head follows (`cls`) or not.
POOLER_TYPES = (
    "cls",
    "cls_before_pooler",
    "avg",
    "avg_no_cls",
    "avg_top2",
    "avg_first_last",
    "avg_embeddings_last",
    "max",
)

#: The pooler of models with the setting `templates`, and of no others: the hidden state at the template's mask token.
TEMPLATE_POOLER = "mask"

#: The layer that is averaged with the last one. Layer 0 is the embedding output.
SECOND_LAYER = {"avg_top2": -2, "avg_first_last": 1, "avg_embeddings_last": 0}


def needs_hidden_states(pooler_type: str) -> bool:
    """Return whether the pooler reads more than the last layer.

    Args:
        pooler_type (`str`): One of `POOLER_TYPES`, or `TEMPLATE_POOLER`.

    Returns:
        `bool`: Whether [`pool`] needs its argument `hidden_states`.
    """
    return pooler_type in SECOND_LAYER


def masked_mean(hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Average over the tokens that are not padding. [CLS] and [SEP] count, as in the reference implementation.

    Args:
        hidden (`torch.Tensor`): Hidden states of shape `(batch, length, dim)`.
        attention_mask (`torch.Tensor`): Of shape `(batch, length)`, 1 for a token and 0 for padding.

    Returns:
        `torch.Tensor`: Means of shape `(batch, dim)`, in the dtype of `hidden`. Zero for a row without tokens.
    """
    mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


def check_has_tokens(attention_mask: torch.Tensor, lengths: np.ndarray | None = None) -> None:
    """Raise a `ValueError` if a row has no token, by its length or else by its mask; compiled code skips the check."""
    if torch.compiler.is_compiling():
        return
    has_tokens = attention_mask.any(1) if lengths is None else torch.as_tensor(lengths) > 0
    if not has_tokens.all():
        row = int((~has_tokens).nonzero()[0])
        raise ValueError(
            f"sentence {row} of the batch has no token: its row of attention_mask holds only zeros. Remove the "
            "sentence, or unmask at least one token."
        )


def masked_max(hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Take the maximum of each dimension over the tokens that are not padding.

    Args:
        hidden (`torch.Tensor`): Hidden states of shape `(batch, length, dim)`.
        attention_mask (`torch.Tensor`): Of shape `(batch, length)`, 1 for a token and 0 for padding.

    Returns:
        `torch.Tensor`: Maxima of shape `(batch, dim)`, in the dtype of `hidden`. Zero for a row without tokens.
    """
    mask = attention_mask.bool().unsqueeze(-1)
    maxima = hidden.masked_fill(~mask, torch.finfo(hidden.dtype).min).amax(1)
    return maxima.masked_fill(~mask.any(1), 0.0)


def at_mask(last_hidden_state: torch.Tensor, input_ids: torch.Tensor, mask_token_id: int) -> torch.Tensor:
    """Read the last layer at the mask token (PromptBERT, arXiv:2201.04337, section 4.1).

    Args:
        last_hidden_state (`torch.Tensor`): Of shape `(batch, length, dim)`.
        input_ids (`torch.Tensor`): Of shape `(batch, length)`, with one mask token per row.
        mask_token_id (`int`): The tokenizer's id of the mask token.

    Returns:
        `torch.Tensor`: Embeddings of shape `(batch, dim)`.

    Raises:
        ValueError: If a row does not hold exactly one mask token.
    """
    is_mask = input_ids == mask_token_id
    if not (is_mask.sum(1) == 1).all():
        row = int((is_mask.sum(1) != 1).nonzero()[0])
        raise ValueError(
            f"The pooler 'mask' reads the hidden state at the mask token (id {mask_token_id}), but text {row} of the "
            f"batch holds {int(is_mask[row].sum())} of them. Tokenize texts with the model's template, as SimCSE does."
        )
    return (last_hidden_state * is_mask.unsqueeze(-1)).sum(1)


def pool(
    pooler_type: str,
    last_hidden_state: torch.Tensor,
    attention_mask: torch.Tensor,
    hidden_states: Sequence[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Pool hidden states into one embedding per sentence (SimCSE, section 6.3, Tables 5 and 6).

    - `cls` and `cls_before_pooler`: the last layer at the first token. The head of `cls` is part of the model and is
      applied afterwards.
    - `avg`: the mean of the last layer.
    - `avg_no_cls`: the same without the first token, but with [SEP] (arXiv:2106.04791, section 3).
    - `avg_top2`: the mean of the last two layers.
    - `avg_first_last`: the mean of the first transformer layer and the last one, which is what the reference's code
      computes since January 2022.
    - `avg_embeddings_last`: the mean of the embedding output and the last layer, which is what Table 5 of the paper
      reports.
    - `max`: the largest value of each dimension over the tokens of the last layer (Sentence-BERT, arXiv:1908.10084).

    Args:
        pooler_type (`str`): One of `POOLER_TYPES`.
        last_hidden_state (`torch.Tensor`): Of shape `(batch, length, dim)`.
        attention_mask (`torch.Tensor`): Of shape `(batch, length)`, 1 for a token and 0 for padding. The first
            token that it marks is [CLS], on whichever side texts are padded.
        hidden_states (`Sequence[torch.Tensor]`, *optional*): The embedding output and every layer's output. Required
            if [`needs_hidden_states`] says so.

    Returns:
        `torch.Tensor`: Embeddings of shape `(batch, dim)`.
    """
    if pooler_type in ("cls", "cls_before_pooler"):
        return first_tokens(last_hidden_state, attention_mask)
    if pooler_type == "avg":
        return masked_mean(last_hidden_state, attention_mask)
    if pooler_type == "max":
        return masked_max(last_hidden_state, attention_mask)
    if pooler_type == "avg_no_cls":
        mask = attention_mask.bool()
        return masked_mean(last_hidden_state, mask & (mask.cumsum(1) > 1))
    return masked_mean((hidden_states[SECOND_LAYER[pooler_type]] + last_hidden_state) / 2, attention_mask)  # type: ignore[index]  # see needs_hidden_states
