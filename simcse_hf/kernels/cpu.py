"""What makes training fast on a CPU: cheap dropout masks, memory that is kept, and bfloat16 where it helps."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.utils import is_torch_xla_available

_LARGEST_BLOCK = (32 << 20) - (1 << 16)  # bytes; glibc's threshold rises to 32 MB at most
_LEVELS = 1 << 16  # a mask element compares a 16-bit draw with a threshold
#: What torch 2.9 and later know of this processor: its name, its architecture and its instructions.
_PROCESSOR: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
#: Whether oneDNN computes linear layers faster than MKL, which has its kernels for AVX-512 on Intel's processors only.
MKL_IS_SLOW = (
    str(_PROCESSOR.get("cpu_name")).startswith("AMD")
    and _PROCESSOR.get("avx512_f", False)
    and torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


def keep_mask(shape: Sequence[int], p: float) -> tuple[Tensor, float]:
    """Draw which elements dropout keeps, on the CPU.

    One draw from torch's generator seeds a stream of 16-bit numbers. The mask therefore follows `torch.manual_seed`,
    and a restored generator state draws it again, for any number of threads. The mask is int16 and not bool, because
    torch processes bools one by one and int16 numbers in vectors.

    Args:
        shape (`Sequence[int]`): Shape of the mask.
        p (`float`): Dropout rate between 0 and 1, rounded to a multiple of 2**-16 between them.

    Returns:
        `tuple[torch.Tensor, float]`: The mask, int16, 1 where an element is kept and 0 where it is dropped; and
        1 / (1 - p), the factor that preserves the mean.
    """
    dropped = min(max(round(p * _LEVELS), 1), _LEVELS - 1)
    size = math.prod(shape)
    seed = int(torch.randint(2**63 - 1, ()))
    words = np.random.SFC64(seed).random_raw((size + 3) // 4)  # of 64 bits, four draws each
    draws = torch.from_numpy(words.view(np.int16)[:size])
    lowest_kept = dropped - _LEVELS // 2
    mask = draws.clamp_(lowest_kept - 1, lowest_kept).sub_(lowest_kept - 1)
    return mask.view(*shape), _LEVELS / (_LEVELS - dropped)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        mask, ctx.scale = keep_mask(x.shape, p)
        ctx.save_for_backward(mask)
        return mask.to(x.dtype).mul_(x).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return mask.to(gradient.dtype).mul_(gradient).mul_(ctx.scale), None


class FastDropout(nn.Dropout):
    """Dropout as `nn.Dropout` has it, several times faster on a CPU and with other masks.

    Compiled code uses torch's own dropout, which is fused with the operations around it; a draw from numpy would break
    the graph.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout in training mode."""
        draws_mask = self.training and x.device.type == "cpu" and 0 < self.p < 1
        if draws_mask and not torch.compiler.is_compiling():
            return _Dropout.apply(x, self.p)
        return super().forward(x)


class FastLinear(TorchFunctionMode):
    """Within this context, compute linear layers by oneDNN where torch's own choice, MKL, is slow.

    On an EPYC 9005, oneDNN is 2.3 times as fast in float32. The context belongs to its thread, needs no gradients, and
    changes no weights. Compiled code keeps its own choice, because torch cannot lower this operation for shapes that
    vary.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, `F.linear` as oneDNN has it."""
        is_linear = func is F.linear and not kwargs
        if is_linear and not torch.compiler.is_compiling():
            x, weight, bias = args
            is_float32 = x.dtype == weight.dtype == torch.float32
            if is_float32 and not torch.is_autocast_enabled(x.device.type):
                return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return func(*args, **(kwargs or {}))


@cache
def keep_freed_memory() -> None:
    """Allocate and free one large block, so that glibc keeps later blocks of a few megabytes for reuse.

    glibc returns a large block to the system when it is freed; the next one is requested anew, and the kernel fills it
    with zeros page by page. This takes a tenth of the time of encoding in bfloat16. A block counts as large from
    128 KB at first, and later from the size of the largest block that was ever freed, up to 32 MB (see
    `M_MMAP_THRESHOLD` in mallopt(3)). The block is never written to and so takes up no memory. Other allocators are
    not affected.
    """
    torch.empty(_LARGEST_BLOCK, dtype=torch.uint8)


def lacks_bfloat16() -> bool:
    """Return whether this x86 processor lacks bfloat16 instructions, which makes bfloat16 slower than float32."""
    if _PROCESSOR.get("architecture") != "x86_64":
        return False
    return not any(_PROCESSOR.get(name) for name in ("amx_bf16", "avx512_bf16", "avx10_2"))


def has_only_cpu() -> bool:
    """Return whether this machine has no accelerator that torch or XLA knows."""
    return not torch.accelerator.is_available() and not is_torch_xla_available()
