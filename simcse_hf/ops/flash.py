"""Attention of packed sentences in one call of torch's flash kernel, on NVIDIA GPUs in half precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.utils import logging

logger = logging.get_logger(__name__)

HALF_PRECISION = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
_TOLERANCE = 0.05  # of the probe, whose values lie around 1 and whose precision is bfloat16's


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: tuple[torch.Tensor, torch.Tensor],
    longest: tuple[int, int],
    *,
    scaling: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> torch.Tensor:
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


def supports_flash(query: torch.Tensor) -> bool:
    """Return whether [`flash_attention`] can be used for these queries.

    Args:
        query (`torch.Tensor`): Queries of shape `(Q, heads, size)`.

    Returns:
        `bool`: True for half precision on an NVIDIA GPU, head sizes that the kernel knows, and a kernel that
        reproduced the formula on a small example; false if flash attention is switched off
        (`torch.nn.attention.sdpa_kernel`).
    """
    size = query.shape[-1]
    if query.device.type != "cuda" or query.dtype not in HALF_PRECISION or size % 8 or size > _LARGEST_HEAD:
        return False
    return _kernel_works(query.device.index or 0, query.dtype, size)


@torch.compiler.assume_constant_result  # torch.compile cannot trace what is asked here
def _kernel_works(device: int, dtype: torch.dtype, size: int) -> bool:
    return torch.backends.cuda.flash_sdp_enabled() and _probe(torch.device("cuda", device), dtype, size)


@lru_cache
def _probe(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    # The operator is not part of torch's stable interface, and not every build or GPU has it. So its values and
    # gradients of sentences of 5 and 3 tokens are compared with the formula, once for each dtype and head size.
    lengths, scaling = [5, 3], size**-0.5
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(sum(lengths), 2, size, generator=generator).to(device, dtype) for _ in range(3)]
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            query, key, value = leaves = [x.clone().requires_grad_() for x in tensors]
            bounds = torch.tensor([0, 5, 8], dtype=torch.int32, device=device)
            found = flash_attention(query, key, value, (bounds, bounds), (5, 5), scaling=scaling)
            doubles = [x.double().requires_grad_() for x in tensors]
            sentences = zip(*(x.split(lengths) for x in doubles), strict=True)
            expected = torch.cat([_formula(q, k, v, scaling) for q, k, v in sentences])
            pairs = [(found, expected)]
            pairs += zip(
                torch.autograd.grad(found.square().sum(), leaves),
                torch.autograd.grad(expected.square().sum(), doubles),
                strict=True,
            )
        works = all((x.double() - y).abs().max() <= _TOLERANCE * y.abs().max().clamp(min=1) for x, y in pairs)
        problem = "" if works else "its values differ from the formula's"
    except (RuntimeError, TypeError, AttributeError) as error:
        problem = " ".join(str(error).split())[:200]
    if problem:
        logger.warning(
            f"torch's flash attention cannot be used for sentences without padding on {device} ({dtype}, heads of "
            f"{size}): {problem}. Slower attention takes its place."
        )
    return not problem


def _formula(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    weights = torch.einsum("qhd,khd->hqk", query, key).mul(scaling).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


@contextmanager
def avoid_cudnn_attention(device: torch.device) -> Iterator[None]:
    """Keep torch's attention from choosing the kernels of cuDNN, unless they are all that is switched on.

    cuDNN comes first on Hopper GPUs. It makes a plan for every new shape, which takes milliseconds where nearly all
    batches have a new shape, and some of its kernels round a dropout rate to a multiple of 1/16
    (https://github.com/pytorch/pytorch/pull/174245).

    Args:
        device (`torch.device`): The device of the tensors. Nothing changes unless it is a GPU.
    """
    if device.type != "cuda" or not torch.backends.cuda.cudnn_sdp_enabled():
        yield
        return
    others = {
        SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled(),
        SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled(),
    }
    enabled = [backend for backend, is_enabled in others.items() if is_enabled]
    if not enabled:
        yield
        return
    with sdpa_kernel(enabled):
        yield
