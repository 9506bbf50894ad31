"""Run stock encoders without padding: the tokens of a batch form one row in which each sentence attends to itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import BaseModelOutput

from .attention import attend_packed, band_mask, choose_kernel
from .cpu import keep_mask
from .packing import Layout, Packing, split_blocks

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
SHORT = 64  # tokens up to which flash attention loses: on a CPU without dropout, and often on a GPU


def install_unpadded_attention(base_model: PreTrainedModel) -> None:
    """Give an encoder the attention function that [`run_encoder`] needs, if it is of a supported family.

    Call it once, when the model is made. For every call that does not come from `run_encoder`, the attention
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


def run_encoder(
    base_model: PreTrainedModel,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor | None = None,
    packing: Packing | None = None,
    *,
    unpadded: bool = True,
    reads_left_to_right: bool = False,
    all_layers: bool = False,
    first_only: bool = False,
) -> BaseModelOutput:
    """Compute `base_model(input_ids, attention_mask, token_type_ids)`, without computing the padding if possible.

    Values and gradients equal those of the padded pass. Dropout masks are drawn for tokens only. Threads may share an
    encoder: the packing of a batch travels with the call.

    Args:
        base_model (`transformers.PreTrainedModel`): A stock encoder.
        input_ids (`torch.Tensor`): Token ids of shape `(batch, length)`.
        attention_mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.
        token_type_ids (`torch.Tensor`, *optional*): Of shape `(batch, length)`.
        packing (`Packing`, *optional*): Where the tokens of the batch lie in a packed row. By default it is made from
            the mask, for which the host waits for an accelerator.
        unpadded (`bool`, *optional*, defaults to `True`): Whether to leave out the padding, with an encoder that
            allows it (see `ContrastiveModel.runs_unpadded`). With `False` the encoder runs as it is.
        reads_left_to_right (`bool`, *optional*, defaults to `False`): Whether it is a decoder.
        all_layers (`bool`, *optional*, defaults to `False`): Return the hidden states of every layer as well.
        first_only (`bool`, *optional*, defaults to `False`): Whether nothing but the first token of the last layer is
            read. If padding is left out, encoders with BERT's layers then compute queries, and all that follows them,
            for these tokens alone. Every row then needs a token.

    Returns:
        `BaseModelOutput`: `last_hidden_state` of shape `(batch, length, dim)`, or `(batch, 1, dim)` of first tokens;
        `hidden_states`, a tuple of tensors `(batch, length, dim)`, with `all_layers`. If padding is left out, its
        states are zero.
    """
    config = base_model.config
    inputs = {"input_ids": input_ids}
    if token_type_ids is not None:  # DistilBERT and others have no such argument
        inputs["token_type_ids"] = token_type_ids
    device = attention_mask.device
    if not unpadded:
        # 1. The encoder as it is.
        mask = attention_mask
        has_own_attention = config._attn_implementation == ATTENTION_NAME and config.model_type != "modernbert"
        if has_own_attention and device.type != "cpu":
            # A mask of four axes reaches the attention function as it is, so that transformers does not make the host
            # wait to find out whether there is padding. (ModernBERT's local layers need other masks.)
            mask = attention_mask.bool()[:, None, None]
        caching = {}
        if reads_left_to_right:
            # Positions count tokens, also where a row is padded on the left. No token is generated: nothing is cached.
            inputs["position_ids"] = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
            caching["use_cache"] = False
        return base_model(**inputs, **caching, attention_mask=mask, output_hidden_states=all_layers)

    # 2. The tokens of all rows become one row.
    first_only = first_only and config.model_type in _HAS_BERT_LAYERS
    if packing is None:
        packing = Packing.from_mask(attention_mask)
    inputs["position_ids"] = torch.arange(attention_mask.shape[1], device=device).expand_as(attention_mask)
    if _COUNTS_TOKENS[config.model_type]:
        is_token = input_ids.ne(config.pad_token_id).long()
        inputs["position_ids"] = is_token.cumsum(1) * is_token + config.pad_token_id
    found: Any
    if len(packing.token_index) == 0:
        nothing = next(base_model.parameters()).new_zeros(1, 0, config.hidden_size)
        layers = (nothing,) * (config.num_hidden_layers + 1)
        found = BaseModelOutput(last_hidden_state=nothing, hidden_states=layers)
    else:
        found = base_model(
            **{name: packing.pack(x)[None] for name, x in inputs.items()},
            # Without a mask of four axes, encoders would make one of the whole row, T x T, for local attention.
            attention_mask=attention_mask.bool()[:, None, None],
            output_hidden_states=all_layers,
            packing=packing,
            first_only=first_only,
        )

    # 3. The tokens return to their rows.
    last = packing.unpack(found.last_hidden_state.squeeze(0), first_only)
    layers = None
    if all_layers:
        layers = tuple(packing.unpack(layer.squeeze(0)) for layer in found.hidden_states)
    return BaseModelOutput(last_hidden_state=last, hidden_states=layers)


def _keep_first_tokens(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
    """Run BERT's last layer on the first tokens; all tokens go along for its keys and values (a forward pre-hook)."""
    if not kwargs.get("first_only", False):
        return None
    hidden_states, *rest = args
    first = hidden_states.index_select(1, kwargs["packing"].bounds[:-1])
    return (first, *rest), {**kwargs, "all_tokens": hidden_states}


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    all_tokens: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute softmax(query key^T scaling) value within each sentence; without a packing, be torch's SDPA.

    This is an attention function as transformers calls it.

    Args:
        module (`nn.Module`): The attention layer.
        query (`torch.Tensor`): Queries of shape `(1, heads, T, size)`, or `(1, heads, sentences, size)` for the first
            token of each sentence only.
        key (`torch.Tensor`): Keys of shape `(1, heads, T, size)`.
        value (`torch.Tensor`): Values of shape `(1, heads, T, size)`.
        attention_mask (`torch.Tensor`, *optional*): True for tokens; not read with a packing.
        packing (`Packing`, *optional*): Where the sentences lie.
        all_tokens (`torch.Tensor`, *optional*): The states of all tokens, of shape `(1, T, dim)`, in a last layer that
            got first tokens only: its keys and values are made from these.
        scaling (`float`): Factor of the scores.
        dropout (`float`, *optional*, defaults to `0.0`): Dropout rate of the attention weights.
        sliding_window (`int`, *optional*): The first distance out of sight, for encoders with local attention.
        **kwargs (`Any`): What torch's SDPA gets beside them.

    Returns:
        `tuple[torch.Tensor, None]`: Outputs of shape `(1, T, heads, size)`, or `(1, sentences, heads, size)`.
    """
    if packing is None:
        kwargs |= {"scaling": scaling, "dropout": dropout, "sliding_window": sliding_window}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if all_tokens is not None:
        heads = (-1, query.shape[-1])
        key = module.key(all_tokens).unflatten(-1, heads).transpose(1, 2)
        value = module.value(all_tokens).unflatten(-1, heads).transpose(1, 2)
    # squeeze, because the gradient of an index is a tensor of zeros into which it is copied.
    query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    window = None
    if sliding_window is not None and packing.longest > sliding_window:
        window = sliding_window - 1
    is_short = packing.longest <= SHORT
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        # One call for all sentences: few kernels matter more than the padding within one of them.
        is_short = is_short and window is None and not torch.compiler.is_compiling()
        kernel = choose_kernel(query.device, query.dtype, query.shape[-1], is_short)
        out = attend_packed(kernel, packing, query, key, value, scaling=scaling, dropout=dropout, window=window)
        return out[None], None
    prefers_blocks = 0 < dropout < 1 or (dropout == 0 and is_short)
    if window is None and prefers_blocks:
        layout = packing.layout(key.shape[1])
        return _AttendInBlocks.apply(query, key, value, layout, scaling, dropout)[None], None
    # One call of torch's attention for each run of sentences of the same length.
    lengths, counts = packing.bounds.diff().unique_consecutive(return_counts=True)
    num_keys = (lengths * counts).tolist()
    num_queries = num_keys if len(query) == len(key) else counts.tolist()
    queries = query.split(num_queries)
    keys = key.split(num_keys)
    values = value.split(num_keys)
    outputs = []
    for count, *parts in zip(counts.tolist(), queries, keys, values, strict=True):
        q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in parts)
        mask = band_mask(k.shape[2], window, key.device)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None], None


class _AttendInBlocks(torch.autograd.Function):
    """Attention with one batched product for all sentences and heads of a block, and one draw of all dropout masks."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: Layout,
        scaling: float | None,
        rate: float,
    ) -> Tensor:
        heads = key.shape[1]
        is_trained = any(ctx.needs_input_grad)
        # 1. Rows of the blocks. If only first tokens are queried, their rows are in order.
        first_only = len(query) != len(key)
        queries, keys, values = (x.flatten(0, 1) for x in (query, key, value))
        if not first_only:
            queries = queries.index_select(0, layout.to_blocks)
        rows = [queries, keys.index_select(0, layout.to_blocks), values.index_select(0, layout.to_blocks)]
        out = torch.empty_like(queries)
        parts = [split_blocks(layout, x) for x in (*rows, out)]
        # 2. All dropout masks.
        sizes = []
        for q, k in zip(parts[0], parts[1], strict=True):
            number, length = q.shape[:2]
            sizes.append(number * length * k.shape[1])
        keeps: Sequence[Tensor | None] = [None] * len(sizes)
        keep_scale = 1.0
        if rate > 0:
            masks, keep_scale = keep_mask([sum(sizes)], rate)
            keeps = masks.split(sizes)
        # 3. Attention, block by block. `alpha` scales a product without a pass of its own.
        product = partial(torch.baddbmm, query.new_empty(()), beta=0)
        weights = []
        with torch.autocast("cpu", enabled=False):
            for padding, keep, q, k, v, o in zip(layout.paddings, keeps, *parts, strict=True):
                scores = product(q, k.mT, alpha=scaling)
                if padding is not None:
                    by_head = scores.unflatten(0, (-1, heads))
                    by_head.masked_fill_(padding[:, None, None], -torch.inf)
                # Weights have at least float32's precision; they are 0 at padding keys.
                weight = scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32))
                if is_trained:
                    if padding is not None and not first_only:
                        # No gradient may flow from rows that stand for no token.
                        by_head = weight.unflatten(0, (-1, heads))
                        by_head.masked_fill_(padding[:, None, :, None], 0.0)
                    weights.append(weight)
                dropped = weight
                if keep is not None:
                    dropped = keep.view_as(weight).to(weight.dtype).mul_(weight)
                product(dropped.to(v.dtype), v, alpha=keep_scale, out=o)
        ctx.save_for_backward(*rows, *weights, *keeps)
        ctx.settings = layout, heads, first_only, scaling, keep_scale
        if not first_only:
            out = out.index_select(0, layout.from_blocks)
        return out.unflatten(0, (-1, heads))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layout, heads, first_only, scaling, keep_scale = ctx.settings
        saved = ctx.saved_tensors
        end = 3 + len(layout.counts)
        rows = saved[:3]
        weights = saved[3:end]
        keeps = saved[end:]
        of_output = gradient.to(rows[0].dtype).flatten(0, 1)
        if not first_only:
            of_output = of_output.index_select(0, layout.to_blocks)
        gradients = [torch.empty_like(x) for x in rows]
        parts = [split_blocks(layout, x) for x in (*rows, of_output, *gradients)]
        product = partial(torch.baddbmm, of_output.new_empty(()), beta=0)
        for weight, keep, q, k, v, g, dq, dk, dv in zip(weights, keeps, *parts, strict=True):
            dropped = weight
            d_weight = product(g, v.mT, alpha=keep_scale).to(weight.dtype)
            if keep is not None:
                kept = keep.view_as(weight).to(weight.dtype)
                d_weight.mul_(kept)
                dropped = kept.mul_(weight)
            product(dropped.to(v.dtype).mT, g, alpha=keep_scale, out=dv)
            # The gradient of the scores is weight * (d_weight - sum(d_weight * weight)).
            d_weight.mul_(weight)
            sums = d_weight.sum(-1, keepdim=True)
            d_scores = d_weight.addcmul_(weight, sums, value=-1).to(q.dtype)
            product(d_scores, k, alpha=scaling, out=dq)
            product(d_scores.mT, q, alpha=scaling, out=dk)
        d_query, *others = gradients
        if not first_only:
            d_query = d_query.index_select(0, layout.from_blocks)
        d_key, d_value = (x.index_select(0, layout.from_blocks).unflatten(0, (-1, heads)) for x in others)
        return d_query.unflatten(0, (-1, heads)), d_key, d_value, None, None, None


@contextmanager
def avoid_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Keep torch's attention from choosing the kernels of cuDNN, unless they are all that is switched on.

    cuDNN comes first on Hopper GPUs. It makes a plan for every new shape, which takes milliseconds where nearly all
    batches have a new shape, and some of its kernels round a dropout rate to a multiple of 1/16
    (https://github.com/pytorch/pytorch/pull/174245).

    Args:
        device (`torch.device`): The device of the tensors. Nothing changes unless it is a GPU.
    """
    flags = torch.backends.cuda
    has_others = flags.flash_sdp_enabled() or flags.mem_efficient_sdp_enabled() or flags.math_sdp_enabled()
    avoids = device.type == "cuda" and flags.cudnn_sdp_enabled() and has_others
    if avoids:
        flags.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if avoids:
            flags.enable_cudnn_sdp(True)


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
