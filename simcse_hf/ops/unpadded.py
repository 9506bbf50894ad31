"""Stock encoders without padding: the tokens of a batch as one row, in which each sentence attends to itself only."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling

from .attention import attend
from .packing import Packing

NAME = "simcse_unpadded"

#: model_type -> whether positions are counted over tokens, from `pad_token_id + 1`, and are not the columns. What is
#: here was compared with padded encoding: its forward takes positions, hands further arguments down to the attention
#: function and mixes tokens nowhere else.
_COUNTS_POSITIONS = {
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


def supports_unpadded(base_model: PreTrainedModel) -> bool:
    """Whether an encoder can be run without padding.

    BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, DistilBERT, ALBERT and ModernBERT can. MPNet and DeBERTa cannot: their
    attention reads distances within the row. Nor can anything under gradient checkpointing, which calls layers again
    when the pass is over.
    """
    config = base_model.config
    if config.model_type not in _COUNTS_POSITIONS or getattr(config, "is_decoder", False):
        return False
    modules = base_model.modules() if base_model.training else ()  # a walk that inference need not make
    return not any(getattr(module, "gradient_checkpointing", False) for module in modules)


def encode_unpadded(
    base_model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    token_type_ids: torch.Tensor | None = None,
    *,
    all_layers: bool = False,
    first_only: bool = False,
    pooled: bool = False,
) -> BaseModelOutputWithPooling:
    """What `base_model(input_ids, attention_mask, token_type_ids)` computes, without computing the padding.

    Values and gradients are those of the padded pass; with dropout, masks are drawn for tokens only.

    Args:
        base_model: an encoder that [`supports_unpadded`] accepts.
        input_ids: (n, length) token ids.
        attention_mask: (n, length), 1 for a token and 0 for padding.
        token_type_ids: (n, length).
        all_layers: return the hidden states of every layer as well.
        first_only: return the last layer's first token only; for encoders with BERT's layers, the last layer then
            computes queries and all that follows for these tokens alone.
        pooled: return the vectors of the encoder's own pooler.

    Returns:
        `last_hidden_state` (n, length, dim), or (n, 1, dim) with `first_only`; `hidden_states`, if asked for, a tuple
        of (n, length, dim); `pooler_output` (n, dim), if asked for. Padding is zero, and so is the first token of a
        row without tokens, in all but the pooler's output.
    """
    packing = Packing.from_mask(attention_mask, first_only and base_model.config.model_type in _HAS_BERT_LAYERS)
    if packing.tokens.numel() == 0:
        hidden = base_model.get_input_embeddings().weight.new_zeros(1, 0, base_model.config.hidden_size)
        layers = [hidden] * (base_model.config.num_hidden_layers + 1)
    else:
        inputs = {"input_ids": packing.pack(input_ids), "position_ids": packing.columns}
        if _COUNTS_POSITIONS[base_model.config.model_type]:
            padding = base_model.config.pad_token_id
            counted = input_ids.ne(padding).long()
            inputs["position_ids"] = packing.pack(counted.cumsum(1) * counted + padding)
        if token_type_ids is not None:
            inputs["token_type_ids"] = packing.pack(token_type_ids)
        with _unpadded_attention(base_model):
            outputs = base_model(**inputs, output_hidden_states=all_layers, packing=packing)
        hidden, layers = outputs.last_hidden_state, outputs.hidden_states
    first = packing.firsts_of(hidden[0]) if first_only or pooled else None
    return BaseModelOutputWithPooling(
        last_hidden_state=first[:, None] if first_only else packing.unpack(hidden[0]),
        hidden_states=tuple(packing.unpack(layer[0]) for layer in layers) if all_layers else None,
        pooler_output=_pool_first(base_model, first) if pooled else None,
    )


def _pool_first(base_model: PreTrainedModel, first: torch.Tensor) -> torch.Tensor:
    if isinstance(base_model.pooler, nn.Linear):  # ALBERT keeps its tanh beside it
        return base_model.pooler_activation(base_model.pooler(first))
    return base_model.pooler(first[:, None])


# --- the stock forward, for the time of a call, with our attention -------------------------------------------------


def _attention(module, query, key, value, attention_mask, packing: Packing | None = None, **kwargs):
    if packing is None:  # somebody else's padded call, from another thread
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    window = kwargs.get("sliding_window")  # the first distance out of sight, where an encoder looks around locally
    out = attend(
        *(x[0].transpose(0, 1) for x in (query, key, value)),
        packing,
        scaling=kwargs["scaling"],
        dropout=kwargs["dropout"],
        window=None if window is None else window - 1,
    )
    return out[None], None


def _mask(*args, attention_mask: torch.Tensor | None = None, **kwargs):
    return None if attention_mask is None else sdpa_mask(*args, attention_mask=attention_mask, **kwargs)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)

_lock = threading.Lock()
_running: WeakKeyDictionary[nn.Module, list] = WeakKeyDictionary()


@contextmanager
def _unpadded_attention(base_model: PreTrainedModel) -> Iterator[None]:
    """The encoder uses our attention and last layer within; threads may be in here together."""
    config = base_model.config
    with _lock:
        state = _running.setdefault(base_model, [0, None])
        if state[0] == 0:
            state[1] = config._attn_implementation
            config._attn_implementation = NAME
            if config.model_type in _HAS_BERT_LAYERS:
                last = base_model.encoder.layer[-1]
                last.forward = _first_only(last, last.forward)
        state[0] += 1
    try:
        yield
    finally:
        with _lock:
            state[0] -= 1
            if state[0] == 0:
                config._attn_implementation = state[1]
                if config.model_type in _HAS_BERT_LAYERS:
                    del base_model.encoder.layer[-1].forward


def _first_only(layer: nn.Module, whole_layer):
    """BERT's layer where its output is read at the first token of each sentence only."""

    def forward(hidden_states, *args, packing: Packing | None = None, **kwargs):
        if packing is None or not packing.first_only:
            extra = {} if packing is None else {"packing": packing}
            return whole_layer(hidden_states, *args, **extra, **kwargs)
        attention = layer.attention.self
        first = hidden_states[:, packing.firsts]
        query, key, value = (
            projection(x)[0].unflatten(-1, (-1, attention.attention_head_size))
            for projection, x in (
                (attention.query, first),
                (attention.key, hidden_states),
                (attention.value, hidden_states),
            )
        )
        rate = attention.dropout.p if attention.training else 0.0
        context = attend(query, key, value, packing, scaling=attention.scaling, dropout=rate)
        return layer.feed_forward_chunk(layer.attention.output(context.flatten(1)[None], first))

    return forward
