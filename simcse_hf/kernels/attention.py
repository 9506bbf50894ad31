"""Attention of packed sentences in one call: torch's kernels, and the choice of one that is right."""

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.utils import logging

from .packing import Packing

logger = logging.get_logger(__name__)

_ROUNDING = 0.05  # of the probe, whose values lie around 1 and whose precision is bfloat16's


def attend_packed(
    kernel: str,
    packing: Packing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """Compute softmax(query key^T scaling) value within each sentence, with dropout and a backward pass.

    `torch.nn.attention.varlen` offers flash attention without dropout, which SimCSE learns from. This function
    therefore calls the operators below it, which torch's nested tensors call as well.

    Args:
        kernel (`str`): `"flash"`, with blocks of 128 x 128 scores; `"memory-efficient"`, with smaller ones, without a
            window and also in float32; or `"padded"`, torch's SDPA in the padded batch, on any device.
        packing (`Packing`): Where the sentences lie.
        query (`torch.Tensor`): Queries of shape `(T, heads, size)`, or `(sentences, heads, size)` for first tokens.
        key (`torch.Tensor`): Keys of shape `(T, heads, size)`.
        value (`torch.Tensor`): Values of shape `(T, heads, size)`.
        scaling (`float`, *optional*): Factor of the scores. Defaults to `size ** -0.5`.
        dropout (`float`, *optional*, defaults to `0.0`): Dropout rate of the attention weights.
        window (`int`, *optional*): How far a token sees to either side; `None` for the whole sentence.

    Returns:
        `torch.Tensor`: Of the shape of `query`.
    """
    first_only = len(query) != len(key)
    if kernel == "padded":
        mask = packing.mask[:, None, None]
        band = band_mask(packing.shape[1], window, key.device)
        if band is not None:
            mask = mask & band
        unpacked = (packing.unpack(query, first_only), packing.unpack(key), packing.unpack(value))
        q, k, v = (x.transpose(1, 2) for x in unpacked)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        out = out.transpose(1, 2)
        return packing.pack(out, first_only)
    bounds = [packing.bounds, packing.bounds]  # of the sentences in the queries, and in the keys
    longest = [packing.longest, packing.longest]
    if first_only:
        bounds[0] = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
        longest[0] = 1
    if kernel == "flash":
        return torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            *bounds,
            *longest,
            dropout,
            False,  # is_causal
            False,  # return_debug_mask
            scale=scaling,
            window_size_left=window,
            window_size_right=window,
        )[0]
    return torch.ops.aten._efficient_attention_forward(
        query[None],
        key[None],
        value[None],
        None,  # bias
        *bounds,
        *longest,
        dropout,
        0,  # custom_mask_type: no mask
        True,  # compute_log_sumexp, which the backward pass reads
        scale=scaling,
    )[0].squeeze(0)


def band_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Return the mask of local attention, or `None` if the window holds all tokens."""
    if window is None or length <= window + 1:
        return None
    position = torch.arange(length, device=device)
    return (position[:, None] - position).abs() <= window


@torch.compiler.assume_constant_result  # torch.compile cannot trace what is asked here
def choose_kernel(device: torch.device, dtype: torch.dtype, size: int, is_short: bool) -> str:
    """Return the kernel that [`attend_packed`] takes.

    On an NVIDIA GPU this is the first of flash (in half precision), memory-efficient (for short sentences) and padded
    attention that reproduces the formula on a small example. `torch.nn.attention.sdpa_kernel` switches the first two
    off.

    Args:
        device (`torch.device`): The device.
        dtype (`torch.dtype`): Type of the queries.
        size (`int`): Size of a head.
        is_short (`bool`): Whether no sentence has more than 64 tokens, and each token sees all of them. Above, the
            memory-efficient kernel adds the gradients of blocks of keys in any order, so that no two runs are equal.

    Returns:
        `str`: The kernel.
    """
    if device.type != "cuda":
        return "padded"
    names = []
    if dtype in (torch.float16, torch.bfloat16) and torch.backends.cuda.flash_sdp_enabled():
        names.append("flash")
    # Earlier versions count the draws within a CUDA graph with 32 bits, and this kernel takes T * T for each head.
    if is_short and torch.__version__ >= "2.10" and torch.backends.cuda.mem_efficient_sdp_enabled():
        names.append("memory-efficient")
    for name in names:
        if is_right(name, device, dtype, size):
            return name
    return "padded"


@lru_cache
def is_right(name: str, device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Return whether a kernel of [`attend_packed`] reproduces the formula, and its gradients, on a device."""
    # The operators are not part of torch's stable interface, and not every build or GPU has them. So the values and
    # gradients of sentences of 5 and 3 tokens are compared with those of padded attention on the CPU.
    results = []
    try:
        with torch.inference_mode(False), torch.random.fork_rng([device]):
            packing = Packing.from_lengths(np.array([5, 3]))
            drawn = torch.randn(3, 8, 2, size).to(dtype).double().requires_grad_()
            for kernel, inputs, rate in (
                ("padded", drawn, 0.0),
                (name, drawn.to(device, dtype), 0.0),
                (name, drawn.to(device, dtype), 0.5),
            ):
                out = attend_packed(kernel, packing.to(inputs.device), *inputs, dropout=rate).cpu().double()
                results.append((out, *torch.autograd.grad(out, drawn, out.detach())))
        expected, found, (out, gradient) = results
        torch.testing.assert_close(found, expected, rtol=_ROUNDING, atol=_ROUNDING)
        # The output is linear in the values. So their gradient gives it back, if it has the same dropout masks.
        torch.testing.assert_close((drawn * gradient)[2].sum(), out.square().sum(), rtol=_ROUNDING, atol=_ROUNDING)
    except (AssertionError, AttributeError, RuntimeError, TypeError) as problem:
        logger.warning(
            f"torch's {name} attention cannot be used for sentences without padding on {device} ({dtype}, heads of "
            f"{size}): {' '.join(str(problem).split())[:200]}. Another kernel takes its place."
        )
        return False
    return True
