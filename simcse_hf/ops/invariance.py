"""Batch-invariant encoding on a CPU: an embedding has the same bits whatever other texts are in the batch."""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

#: A product of fewer rows may take another kernel, which adds up in another order.
LEAST_ROWS, ROW_STEP = 64, 16
#: Rows of each product where the order depends on the number of rows, as in bfloat16.
TILE = 128
_PROBED_ROWS = (64, 80, 272, 1040, 2064)
#: Padded widths. Texts of one batch share one, so that what a text is computed with depends on its own length only.
_WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class BatchInvariant(TorchFunctionMode):
    """While it is active in a thread, linear layers on a CPU give a row the same bits whatever the other rows are.

    A library of matrix products chooses its kernel by the number of rows, and kernels add up in different orders. MKL
    has kernels of its own for few rows; above them the bits of a row are the same for any number of rows. A probe,
    once for each shape, checks this on the processor at hand. Where it does not hold, products of exactly `TILE` rows
    are computed one after the other.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear:
            return _linear(*args, **(kwargs or {}))
        if func in _PRODUCTS and args[0].dim() == args[1].dim() == 2:  # in a flow
            return _linear(args[0], args[1].mT)
        if func in _PRODUCTS and args[0].dim() == args[1].dim() > 2:
            # PyTorch makes the attention heads of several texts contiguous, but multiplies those of a single text as a
            # strided view. On some processors, another kernel handles strided input and sums in another order.
            return func(args[0].contiguous(), args[1].contiguous(), *args[2:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> "BatchInvariant":
        _active.modes = getattr(_active, "modes", 0) + 1
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        _active.modes -= 1
        super().__exit__(*exception)


_active = threading.local()
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


def batch_invariance(enabled: bool) -> AbstractContextManager:
    """Return [`BatchInvariant`], or a context that changes nothing."""
    return BatchInvariant() if enabled else nullcontext()


def is_batch_invariant() -> bool:
    """Return whether [`BatchInvariant`] is active in this thread."""
    return getattr(_active, "modes", 0) > 0


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if _ignores_other_rows(tuple(weight.shape), weight.dtype, bias is not None, torch.get_num_threads()):
        padded = _pad_rows(rows, max(LEAST_ROWS, -(-len(rows) // ROW_STEP) * ROW_STEP))
        out = F.linear(padded, weight, bias)[: len(rows)]
    else:
        out = in_tiles(lambda tile: F.linear(tile, weight, bias), rows)
    return out.view(*x.shape[:-1], len(weight))


def in_tiles(function: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Apply a function of rows to exactly `TILE` rows at a time.

    Args:
        function (`Callable`): Maps a tensor of shape `(TILE, dim)` to one of shape `(TILE, other)`, row by row.
        rows (`torch.Tensor`): Rows of shape `(n, dim)`, with n of at least 1.

    Returns:
        `torch.Tensor`: Of shape `(n, other)`.
    """
    tiles = _pad_rows(rows, -(-len(rows) // TILE) * TILE).split(TILE)
    return torch.cat([function(tile) for tile in tiles])[: len(rows)]


def _pad_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    return rows if len(rows) == count else F.pad(rows, (0, 0, 0, count - len(rows)))


@lru_cache(maxsize=256)
def _ignores_other_rows(shape: tuple[int, int], dtype: torch.dtype, has_bias: bool, threads: int) -> bool:
    """Return whether products of this shape give a row the same bits for all numbers of rows that are probed."""
    generator = torch.Generator().manual_seed(0)
    outputs, inputs = shape
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    bias = torch.randn(outputs, generator=generator).to(dtype) if has_bias else None
    x = torch.randn(max(_PROBED_ROWS), inputs, generator=generator).to(dtype)
    whole = F.linear(x, weight, bias)
    return all(torch.equal(F.linear(x[-rows:], weight, bias), whole[-rows:]) for rows in _PROBED_ROWS)


def padded_width(length: int) -> int:
    """Return the width to which a text of some length is padded in batch-invariant encoding.

    Args:
        length (`int`): Number of tokens.

    Returns:
        `int`: The next of a few widths, so that texts of similar length share a batch.
    """
    return next((width for width in _WIDTHS if width >= length), -(-length // _WIDTHS[-1]) * _WIDTHS[-1])
