"""Check the inputs of a training batch and embed its sentences: which columns, with which encoder, in which passes."""

from typing import Any

import numpy as np
import torch

from ..objectives import Objective
from ..ops.packing import send

_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def check_shapes(
    input_ids: torch.Tensor, mlm_input_ids: torch.Tensor | None, mlm_targets: torch.Tensor | None
) -> None:
    """Refuse inputs of a model that have the wrong number of dimensions or belong to others that are missing.

    Args:
        input_ids (`torch.Tensor`): The token ids.
        mlm_input_ids (`torch.Tensor`, *optional*): Token ids masked for the auxiliary loss.
        mlm_targets (`torch.Tensor`, *optional*): Their original ids.

    Raises:
        ValueError: If the inputs do not fit together.
    """
    if mlm_input_ids is not None and (mlm_targets is None or input_ids.dim() != 3):
        raise ValueError(
            "mlm_input_ids need mlm_targets, and both need the shape (batch, num_sentences, length) of input_ids."
        )
    if input_ids.dim() not in (2, 3):
        raise ValueError(
            f"input_ids must be (batch, num_sentences, length) or (batch, length), got {tuple(input_ids.shape)}"
        )


def check_lengths(lengths: np.ndarray | None, input_ids: torch.Tensor) -> np.ndarray | None:
    """Return the lengths of a batch if code that runs may use them.

    Args:
        lengths (`np.ndarray`, *optional*): The number of tokens of each text.
        input_ids (`torch.Tensor`): The token ids.

    Returns:
        `np.ndarray`, *optional*: The lengths; `None` in compiled code, which must not depend on them.

    Raises:
        ValueError: If there is not one length for each text.
    """
    if lengths is None or torch.compiler.is_compiling():
        return None
    if lengths.shape != input_ids.shape[:-1]:
        raise ValueError(
            f"lengths must have the shape {tuple(input_ids.shape[:-1])}, one number for each text of input_ids, got "
            f"{lengths.shape}. Leave lengths out if the batch was changed after the collator made it."
        )
    return lengths


def embed_views(
    model: Any,
    batch: dict[str, torch.Tensor],
    objective: Objective | None,
    lengths: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Embed each sentence of each row, as the objective needs it.

    Args:
        model (`ContrastiveModel`): The model.
        batch (`dict[str, torch.Tensor]`): The batch as [`EncodedBatch`] describes it.
        objective (`Objective`, *optional*): The objective; without one, all columns are embedded.
        lengths (`np.ndarray`, *optional*): The number of tokens of each text, of shape `(batch, num_sentences)`.

    Returns:
        `tuple[torch.Tensor, torch.Tensor | None]`: Embeddings of shape `(batch, num_sentences, dim)` of the
        objective's `embedded_columns` and, if it reads them, the last layer's hidden states of shape
        `(batch, num_sentences, length, dim)`.

    Raises:
        ValueError: If `fixed_mask` is set and a row holds different texts.
    """
    chosen = slice(None) if objective is None else objective.embedded_columns
    inputs = {name: batch[name][:, chosen] for name in _TEXT_INPUTS if name in batch}
    counts = None if lengths is None else lengths[:, chosen]
    ids = inputs["input_ids"]
    if model.settings.fixed_mask:
        # Equal texts under the same dropout mask have equal embeddings, so one pass over the anchors is exact.
        if not (ids == ids[:, :1]).all():
            raise ValueError("fixed_mask is for views of one sentence, but a row holds different texts. Unset it.")
        anchors = {name: tensor[:, 0] for name, tensor in inputs.items()}
        embeddings = model.embed(**anchors, lengths=None if counts is None else counts[:, 0])
        return embeddings.unsqueeze(1).expand(-1, ids.shape[1], -1), None
    if objective is not None and objective.needs_hidden_states:
        flat, flat_counts = _flatten(inputs, counts)
        outputs = model.encode_tokens(
            **flat, lengths=flat_counts, pooler_type=model.active_pooler, whole_last_layer=True
        )
        embeddings = model.pool(outputs, **flat)
        return embeddings.view(*ids.shape[:2], -1), outputs.last_hidden_state.view(*ids.shape, -1)
    encoders = [(model, slice(None))]
    if objective is not None and model.second_encoder is not None:
        encoders = [(model, slice(0, 1)), (model.second_encoder, slice(1, None))]
    embedded = [
        _embed_columns(encoder, inputs, counts, columns, has_gaps="relations" in batch)
        for encoder, columns in encoders
    ]
    return embedded[0] if len(embedded) == 1 else torch.cat(embedded, dim=1), None


def _embed_columns(
    encoder: Any,
    inputs: dict[str, torch.Tensor],
    counts: np.ndarray | None,
    columns: slice,
    has_gaps: bool,
) -> torch.Tensor:
    """Embed some columns in one pass; with `has_gaps`, texts without tokens get embeddings of zeros."""
    rows = len(inputs["input_ids"])
    flat, flat_counts = _flatten(
        {name: tensor[:, columns] for name, tensor in inputs.items()}, None if counts is None else counts[:, columns]
    )
    if not has_gaps or (flat_counts is not None and flat_counts.all()):
        return encoder.embed(**flat, lengths=flat_counts).unflatten(0, (rows, -1))
    # Rows with fewer sentences than the widest are filled up with padding.
    mask = flat["attention_mask"]
    if flat_counts is None:
        present = mask.any(1).nonzero()[:, 0]
    else:
        (places,) = flat_counts.nonzero()
        flat_counts = flat_counts[places]
        (present,) = send([torch.from_numpy(places)], mask.device)
    texts = {name: tensor.index_select(0, present) for name, tensor in flat.items()}
    embedded = encoder.embed(**texts, lengths=flat_counts)
    zeros = embedded.new_zeros(len(mask), embedded.shape[-1])
    return zeros.index_copy(0, present, embedded).unflatten(0, (rows, -1))


def _flatten(
    inputs: dict[str, torch.Tensor], counts: np.ndarray | None
) -> tuple[dict[str, torch.Tensor], np.ndarray | None]:
    flat = {name: tensor.flatten(0, 1) for name, tensor in inputs.items()}
    return flat, None if counts is None else counts.reshape(-1)
