"""Run stock encoders without padding: the tokens of a batch form one row in which each sentence attends to itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from .packing import Packing, attend

ATTENTION_NAME = "sdpa_unpadded"

#: For each supported model type, whether its position ids count tokens from `pad_token_id + 1` instead of columns from
#: 0. An encoder may be listed if its forward takes position ids and hands further keyword arguments down to the
#: attention function, if it mixes tokens nowhere else, and if its outputs were compared with those of padded encoding.
_COUNTS_TOKENS = {
    "albert": False,
    "bert": False,
    "camembert": True,
    "distilbert": False,
    "electra": False,
    "modernbert": False,
    "roberta": True,
    "xlm-roberta": True,
}
_HAS_BERT_LAYERS = {"bert", "camembert", "electra", "roberta", "xlm-roberta"}


def install_unpadded_attention(base_model: PreTrainedModel) -> None:
    """Give an encoder the attention function that [`encode_unpadded`] needs, if it is of a supported family.

    Call it once, when the model is made. For every call that does not come from `encode_unpadded`, the attention
    function is torch's SDPA, which is transformers' default. Another attention implementation stays in place, whether
    it is set before or after this call; the encoder then runs with padding.

    Args:
        base_model (`transformers.PreTrainedModel`): A stock encoder.
    """
    config = base_model.config
    if config.model_type not in _COUNTS_TOKENS or getattr(config, "is_decoder", False):
        return
    if config._attn_implementation == "sdpa":
        base_model.set_attn_implementation(ATTENTION_NAME)
    if config.model_type in _HAS_BERT_LAYERS:
        last_layer: Any = base_model.get_submodule("encoder.layer")[-1]  # type: ignore[index]
        last_layer.register_forward_pre_hook(_keep_first_tokens, with_kwargs=True)


def supports_unpadded(base_model: PreTrainedModel, device_map: Mapping[str, Any] | None = None) -> bool:
    """Return whether [`encode_unpadded`] can run an encoder as it is now.

    BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, DistilBERT, ALBERT and ModernBERT can run without padding once
    [`install_unpadded_attention`] has seen them. MPNet and DeBERTa cannot, because their attention depends on
    distances within the row. Nor can an encoder in training with gradient checkpointing, which calls layers again
    after the pass.

    Args:
        base_model (`transformers.PreTrainedModel`): A stock encoder.
        device_map (`Mapping[str, Any]`, *optional*): Where Accelerate placed the modules (`model.hf_device_map`).

    Returns:
        `bool`: False also if another attention implementation is set, or if the modules lie on several accelerators,
        because the packing of a batch stays on one.
    """
    if base_model.config._attn_implementation != ATTENTION_NAME:
        return False
    if device_map is not None:
        accelerators = {str(device) for device in device_map.values()} - {"cpu", "disk"}
        if len(accelerators) > 1:
            return False
    if not base_model.training:  # inference need not walk the model
        return True
    return not any(getattr(module, "gradient_checkpointing", False) for module in base_model.modules())


def first_tokens(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the first token of each row, [CLS], whether the row is padded on the right or on the left.

    Args:
        hidden (`torch.Tensor`): States of shape `(batch, length, dim)`, or `(batch, 1, dim)` of first tokens only.
        attention_mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.

    Returns:
        `torch.Tensor`: Of shape `(batch, dim)`.
    """
    if hidden.shape[1] == 1:
        return hidden[:, 0]
    column = attention_mask.bool().int().argmax(1)  # of the first 1
    # A gather keeps the batch size symbolic when the model is exported; indexing by an arange would fix it.
    index = column[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, index).squeeze(1)


def reads_left_to_right(config_class: type[PreTrainedConfig]) -> bool:
    """Return whether an encoder is a decoder such as Llama, in which a token sees only those before it."""
    return config_class in MODEL_FOR_CAUSAL_LM_MAPPING and config_class not in MODEL_FOR_MASKED_LM_MAPPING


def encode_padded(
    base_model: PreTrainedModel,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor | None = None,
    lengths: np.ndarray | None = None,
    *,
    all_layers: bool = False,
    first_only: bool = False,
    pooled: bool = False,
) -> BaseModelOutputWithPooling:
    """Run a stock encoder as it is; `pooled` applies its pooler to the first token, wherever that is.

    Args:
        base_model (`transformers.PreTrainedModel`): Any encoder.
        input_ids (`torch.Tensor`): Token ids of shape `(batch, length)`.
        attention_mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.
        token_type_ids (`torch.Tensor`, *optional*): Of shape `(batch, length)`.
        lengths (`np.ndarray`, *optional*): Number of tokens of each row. With them, transformers does not make the
            host wait for an accelerator to find out whether there is padding.
        all_layers (`bool`, *optional*, defaults to `False`): Return the hidden states of every layer as well.
        first_only (`bool`, *optional*, defaults to `False`): Ignored: the last layer is computed and returned whole.
        pooled (`bool`, *optional*, defaults to `False`): Return the output of the encoder's own pooler.

    Returns:
        `BaseModelOutputWithPooling`: As from [`encode_unpadded`], with arbitrary states in the padding.
    """
    inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
    config = base_model.config
    if reads_left_to_right(type(config)):
        # Positions count tokens, also where a row is padded on the left. No token is generated, so nothing is cached.
        positions = attention_mask.long().cumsum(1) - 1
        inputs["position_ids"] = positions.clamp(min=0)
        inputs["use_cache"] = False
    if lengths is not None and config._attn_implementation == ATTENTION_NAME and config.model_type != "modernbert":
        # A mask of four axes reaches the attention function as it is. (ModernBERT's local layers need other masks.)
        has_padding = lengths.min() < input_ids.shape[1]
        inputs["attention_mask"] = None
        if has_padding:
            inputs["attention_mask"] = attention_mask.bool()[:, None, None]
    if token_type_ids is not None:  # DistilBERT and others have no such argument
        inputs["token_type_ids"] = token_type_ids
    outputs = base_model(**inputs, output_hidden_states=all_layers)
    if pooled:  # the stock pooler took column 0, which is padding where a row is padded on the left
        first = first_tokens(outputs.last_hidden_state, attention_mask)
        outputs["pooler_output"] = _pool_first_tokens(base_model, first)
    return outputs


def encode_unpadded(
    base_model: PreTrainedModel,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor | None = None,
    lengths: np.ndarray | None = None,
    *,
    all_layers: bool = False,
    first_only: bool = False,
    pooled: bool = False,
) -> BaseModelOutputWithPooling:
    """Compute `base_model(input_ids, attention_mask, token_type_ids)` without computing the padding.

    Values and gradients equal those of the padded pass. Dropout masks are drawn for tokens only. Threads may share an
    encoder: the packing of a batch travels with the call.

    Args:
        base_model (`transformers.PreTrainedModel`): An encoder that [`supports_unpadded`] accepts.
        input_ids (`torch.Tensor`): Token ids of shape `(batch, length)`.
        attention_mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.
        token_type_ids (`torch.Tensor`, *optional*): Of shape `(batch, length)`.
        lengths (`np.ndarray`, *optional*): Number of tokens of each row, if all padding is on the right. With it, the
            host does not wait for an accelerator to compute the mask.
        all_layers (`bool`, *optional*, defaults to `False`): Return the hidden states of every layer as well.
        first_only (`bool`, *optional*, defaults to `False`): Return the first token of the last layer only. Encoders
            with BERT's layers then compute queries, and all that follows them, for these tokens alone. Every row then
            needs a token.
        pooled (`bool`, *optional*, defaults to `False`): Return the output of the encoder's own pooler.

    Returns:
        `BaseModelOutputWithPooling`: `last_hidden_state` of shape `(batch, length, dim)`, or `(batch, 1, dim)` with
        `first_only`; `hidden_states`, a tuple of tensors `(batch, length, dim)`, with `all_layers`; `pooler_output` of
        shape `(batch, dim)` with `pooled`. Padding is zero.
    """
    config = base_model.config
    skip_last_layer = first_only and not all_layers and config.model_type in _HAS_BERT_LAYERS
    packing = Packing.from_mask(attention_mask, skip_last_layer, lengths)
    if packing.token_index.numel() == 0:
        nothing = next(base_model.parameters()).new_zeros(1, 0, config.hidden_size)
        layers = (nothing,) * (config.num_hidden_layers + 1)
        found: Any = BaseModelOutputWithPooling(last_hidden_state=nothing, hidden_states=layers)
    else:
        inputs = {"input_ids": packing.pack(input_ids), "position_ids": packing.position_ids}
        if _COUNTS_TOKENS[config.model_type]:
            is_token = input_ids.ne(config.pad_token_id).long()
            positions = is_token.cumsum(1) * is_token + config.pad_token_id
            inputs["position_ids"] = packing.pack(positions)
        if token_type_ids is not None:
            inputs["token_type_ids"] = packing.pack(token_type_ids)
        # Stock encoders hand a mask of four axes down to the attention function as it is. Without one they would make
        # a mask of the whole row, T x T, for local attention; ours reads the packing instead, and nothing reads this.
        no_mask = torch.empty(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device)
        found = base_model(**inputs, attention_mask=no_mask, output_hidden_states=all_layers, packing=packing)
    last = found.last_hidden_state.squeeze(0)
    outputs = BaseModelOutputWithPooling()
    if first_only or pooled:
        first = packing.first_tokens(last)
    if first_only:
        outputs["last_hidden_state"] = first[:, None]
    else:
        outputs["last_hidden_state"] = packing.unpack(last)
    if all_layers:
        unpacked = [packing.unpack(layer.squeeze(0)) for layer in found.hidden_states]
        outputs["hidden_states"] = tuple(unpacked)
    if pooled:
        outputs["pooler_output"] = _pool_first_tokens(base_model, first)
    return outputs


def _pool_first_tokens(base_model: PreTrainedModel, first: Tensor) -> Tensor:
    """Apply the encoder's own pooler to first tokens `(batch, dim)`."""
    pooler: Any = base_model.pooler
    if isinstance(pooler, nn.Linear):  # ALBERT and BigBird keep their tanh beside it
        activation: Any = getattr(base_model, "pooler_activation", None) or base_model.activation
        return activation(pooler(first))
    return pooler(first[:, None])


def _keep_first_tokens(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """Run BERT's last layer on the first tokens; all tokens go along for its keys and values (a forward pre-hook)."""
    packing = kwargs.get("packing")
    if packing is None or not packing.first_only:
        return None
    hidden_states, *rest = args
    first = hidden_states.index_select(1, packing.starts)
    return (first, *rest), {**kwargs, "all_tokens": hidden_states}


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    all_tokens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within each sentence of a packed row `(1, heads, T, size)`; without a packing, be torch's SDPA."""
    if packing is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if all_tokens is not None:
        heads = (-1, query.shape[-1])
        keys = module.key(all_tokens).unflatten(-1, heads)
        values = module.value(all_tokens).unflatten(-1, heads)
        key = keys.transpose(1, 2)
        value = values.transpose(1, 2)
    window = kwargs.get("sliding_window")  # the first distance out of sight, for encoders with local attention
    # squeeze, because the gradient of an index is a tensor of zeros into which it is copied.
    query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    out = attend(
        query,
        key,
        value,
        packing,
        scaling=kwargs["scaling"],
        dropout=kwargs["dropout"],
        window=None if window is None else window - 1,
    )
    return out[None], None


AttentionInterface.register(ATTENTION_NAME, _attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
