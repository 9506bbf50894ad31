"""Shuffle many rows in little memory."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

#: torch's `RandomSampler` makes a list of all row numbers, about 40 bytes for each. Up to this number of rows (0.7 GB
#: in each process) training keeps its order; above, the order is that of [`PermutedSampler`].
LARGEST_LISTED = 2**24

_BLOCK = 2**16  # numbers that are turned into Python integers at once


class PermutedSampler(Sampler[int]):
    """Draw each row number once, in an order that depends on the number of rows, the seed and the epoch only.

    So every process has the same order, for any number of processes, and a resumed run continues it. The order takes
    4 bytes for each row (8 bytes from 2^32 rows on).

    Args:
        num_rows (`int`): The number of rows.
        seed (`int`): Chooses the orders.
    """

    def __init__(self, num_rows: int, seed: int) -> None:
        self.num_rows, self.seed, self.epoch = num_rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def __iter__(self) -> Iterator[int]:
        """Yield the row numbers; the next pass is that of the next epoch, as with Accelerate's sampler."""
        epoch = self.epoch
        order = np.arange(self.num_rows, dtype=np.uint32 if self.num_rows <= 2**32 else np.uint64)
        np.random.default_rng((self.seed, epoch)).shuffle(order)
        for start in range(0, self.num_rows, _BLOCK):
            yield from order[start : start + _BLOCK].tolist()
        self.set_epoch(epoch + 1)
