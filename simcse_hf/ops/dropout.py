"""Dropout whose masks are cheap to draw on a CPU; on other devices it is torch's."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

_LEVELS = 1 << 16  # a mask element is a 16-bit draw against a threshold


def keep_mask(shape: torch.Size | tuple[int, ...], p: float) -> tuple[torch.Tensor, float]:
    """Draws which elements dropout keeps, on the CPU.

    One draw from torch's generator seeds a stream of 16-bit numbers, so the mask follows `torch.manual_seed` and a
    restored generator state draws it again, whatever the number of threads. int16 rather than bool, because torch
    compares and multiplies bools element by element and numbers of one type in vectors.

    Args:
        shape: of the mask.
        p: share of elements to drop, rounded to a multiple of 2**-16.

    Returns:
        The mask, int16, 1 where an element stays and 0 where it is dropped; and 1 / (share kept), by which what stays
        is multiplied so that the mean stays.

    Raises:
        ValueError: `p` rounds to 0 or 1, where there is nothing to draw.
    """
    dropped = round(p * _LEVELS)
    if not 0 < dropped < _LEVELS:
        raise ValueError(f"a mask is drawn for a dropout rate between 2**-16 and 1 - 2**-16, got {p}")
    size = int(np.prod(shape))
    seed = int(torch.randint(2**63 - 1, ()))
    draws = np.random.SFC64(seed).random_raw((size + 3) // 4).view(np.int16)[:size]
    threshold = dropped - _LEVELS // 2
    mask = torch.from_numpy(draws).clamp_(threshold - 1, threshold).sub_(threshold - 1)
    return mask.view(shape), _LEVELS / (_LEVELS - dropped)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        mask, ctx.scale = keep_mask(x.shape, p)
        ctx.save_for_backward(mask)
        return mask.to(x.dtype).mul_(x).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return mask.to(gradient.dtype).mul_(gradient).mul_(ctx.scale), None


def dropout(x: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """As `torch.nn.functional.dropout`, several times faster on a CPU; the masks are others than torch's.

    Compiled code has torch's own: it is fused with what is around it, and a draw from numpy would cut the graph there.
    """
    drawn = 0 < round(p * _LEVELS) < _LEVELS
    if training and x.device.type == "cpu" and drawn and not torch.compiler.is_compiling():
        return _Dropout.apply(x, p)
    return F.dropout(x, p, training)


class FastDropout(nn.Dropout):
    """[`dropout`] as a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return dropout(x, self.p, self.training)


def use_fast_dropout(model: nn.Module) -> None:
    """Puts a `FastDropout` in the place of each plain `nn.Dropout` in `model`; weights and their names stay."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout and not child.inplace:
                setattr(module, name, FastDropout(child.p).train(child.training))
