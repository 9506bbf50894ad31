"""Poolers: the hidden states of an encoder and its attention mask become one vector a sentence."""

from collections.abc import Sequence

import torch

#: The [CLS] poolers differ only in whether the dense + tanh head follows (`cls`) or not (`cls_before_pooler`).
POOLER_TYPES = ("cls", "cls_before_pooler", "avg", "avg_no_cls", "avg_top2", "avg_first_last", "avg_embeddings_last")

#: The vector at the mask token of a template: the pooler of models with the setting `templates`, and of no others.
TEMPLATE_POOLER = "mask"

_NEEDS_ALL_LAYERS = {"avg_top2", "avg_first_last", "avg_embeddings_last"}


def needs_hidden_states(pooler_type: str) -> bool:
    """Whether `pooler_type` reads more than the last layer."""
    return pooler_type in _NEEDS_ALL_LAYERS


def masked_mean(hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens that the mask marks with 1, [CLS] and [SEP] among them, as in the reference.

    Args:
        hidden: (n, length, dim).
        attention_mask: (n, length), 1 for a token and 0 for padding.

    Returns:
        (n, dim), in the type of `hidden`.
    """
    mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


def at_mask(last_hidden_state: torch.Tensor, input_ids: torch.Tensor, mask_token_id: int) -> torch.Tensor:
    """The last layer at the mask token (PromptBERT, arXiv:2201.04337, section 4.1).

    Args:
        last_hidden_state: (n, length, dim).
        input_ids: (n, length), with one mask token a row.
        mask_token_id: its id.

    Returns:
        (n, dim).

    Raises:
        ValueError: a row that does not hold the mask token once.
    """
    chosen = input_ids == mask_token_id
    if not (chosen.sum(1) == 1).all():
        row = int((chosen.sum(1) != 1).nonzero()[0])
        raise ValueError(
            f"pooler 'mask' reads the vector at the mask token (id {mask_token_id}), and text {row} of the batch "
            f"holds {int(chosen[row].sum())} of them: tokenise texts with the model's template (as SimCSE does)"
        )
    return (last_hidden_state * chosen.unsqueeze(-1)).sum(1)


def pool(
    pooler_type: str,
    last_hidden_state: torch.Tensor,
    attention_mask: torch.Tensor,
    hidden_states: Sequence[torch.Tensor] | None = None,
) -> torch.Tensor:
    """Pools an encoder's output (SimCSE, section 6.3 and Table 6; Table 5 for the first-last baselines).

    [CLS] is the first token, so texts are padded on the right.

    Args:
        pooler_type: `cls` and `cls_before_pooler`: the last layer's first token (the head of `cls` is the model's
            own and follows later); `avg`: mean of the last layer; `avg_no_cls`: the same without the first token,
            [CLS], where [SEP] is kept (arXiv:2106.04791, section 3); `avg_top2`: of the last two; `avg_first_last`: of
            the first transformer layer and the last, which is what the reference's code computes since January 2022;
            `avg_embeddings_last`: of the embedding output and the last layer, which is what the paper's Table 5 holds.
        last_hidden_state: (n, length, dim).
        attention_mask: (n, length).
        hidden_states: embedding output and every layer's output, (n, length, dim) each; only where
            [`needs_hidden_states`] says so.

    Returns:
        (n, dim).
    """
    if pooler_type in ("cls", "cls_before_pooler"):
        return last_hidden_state[:, 0]
    if pooler_type == "avg":
        return masked_mean(last_hidden_state, attention_mask)
    if pooler_type == "avg_no_cls":
        return masked_mean(last_hidden_state[:, 1:], attention_mask[:, 1:])
    other_layer = {"avg_top2": -2, "avg_first_last": 1, "avg_embeddings_last": 0}[pooler_type]
    return masked_mean((hidden_states[other_layer] + last_hidden_state) / 2, attention_mask)
