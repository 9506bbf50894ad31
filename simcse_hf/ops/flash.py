"""torch's flash attention of packed sentences, on NVIDIA GPUs in half precision."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.utils import logging

logger = logging.get_logger(__name__)

_LARGEST_HEAD = 256
_TOLERANCE = 0.05  # of the probe, whose values lie around 1 and whose precision is bfloat16's


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    *,
    scaling: float | None,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """Compute softmax(query key^T scaling) value within each sentence, with dropout and a backward pass.

    `torch.nn.attention.varlen` offers the same kernel without dropout, which SimCSE learns from. This function
    therefore calls the operator below it, which torch's nested tensors call as well. With sentences of 3 and 2 tokens
    the bounds are 0, 3, 5. If only first tokens are queries, those of the queries are 0, 1, 2.

    Args:
        query (`torch.Tensor`): Queries of shape `(Q, heads, size)`.
        key (`torch.Tensor`): Keys of shape `(T, heads, size)`.
        value (`torch.Tensor`): Values of shape `(T, heads, size)`.
        bounds (`tuple[torch.Tensor, torch.Tensor]`): Where the sentences begin and end in the queries and in the keys,
            each of shape `(sentences + 1,)` and type int32.
        longest (`tuple[int, int]`): The most queries and the most keys of a sentence.
        scaling (`float`): Factor of the scores.
        dropout (`float`, *optional*, defaults to `0.0`): Dropout rate of the attention weights.
        window (`int`, *optional*): How far a token sees to either side; `None` for the whole sentence.

    Returns:
        `torch.Tensor`: Of the shape of `query`.
    """
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


def supports_flash(query: Tensor) -> bool:
    """Return whether [`flash_attention`] can be used for these queries.

    Args:
        query (`torch.Tensor`): Queries of shape `(Q, heads, size)`.

    Returns:
        `bool`: True for half precision on an NVIDIA GPU, head sizes that the kernel knows, and a kernel that
        reproduced the formula on a small example; false if flash attention is switched off
        (`torch.nn.attention.sdpa_kernel`).
    """
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if query.device.type != "cuda" or not is_half:
        return False
    size = query.shape[-1]
    if size % 8 or size > _LARGEST_HEAD:
        return False
    return _kernel_works(query.device.index or 0, query.dtype, size)


@torch.compiler.assume_constant_result  # torch.compile cannot trace what is asked here
def _kernel_works(device: int, dtype: torch.dtype, size: int) -> bool:
    return torch.backends.cuda.flash_sdp_enabled() and _probe(torch.device("cuda", device), dtype, size)


@lru_cache
def _probe(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    # The operator is not part of torch's stable interface, and not every build or GPU has it. So its values and
    # gradients of sentences of 5 and 3 tokens are compared with those on the CPU, once for each dtype and head size.
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 8, 2, size, generator=generator).to(dtype).double().requires_grad_()
    bounds = torch.tensor([0, 5, 8], dtype=torch.int32, device=device)
    problem = ""
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            query, key, value = drawn.to(device, dtype)
            kernel = flash_attention(query, key, value, (bounds, bounds), (5, 5), scaling=size**-0.5)
            sentences = [x.transpose(1, 2) for x in drawn.split((5, 3), dim=1)]
            formula = torch.cat([F.scaled_dot_product_attention(q, k, v).transpose(0, 1) for q, k, v in sentences])
            outputs = [kernel.cpu().double(), formula]
            gradients = [torch.autograd.grad(out.square().sum(), drawn)[0] for out in outputs]
        for found, expected in (outputs, gradients):
            error = (found - expected).abs().max()
            allowed = _TOLERANCE * expected.abs().max().clamp(min=1)
            if not error <= allowed:  # also where it is NaN
                problem = "its values differ from the formula's"
    except (RuntimeError, TypeError, AttributeError) as raised:
        problem = " ".join(str(raised).split())[:200]
    if problem:
        logger.warning(
            f"torch's flash attention cannot be used for sentences without padding on {device} ({dtype}, heads of "
            f"{size}): {problem}. Slower attention takes its place."
        )
    return not problem
