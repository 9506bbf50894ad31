"""Shuffle any number of rows in constant memory: the order is computed from a key and never stored."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

#: torch's `RandomSampler` makes a list of all row numbers, about 40 bytes for each. Up to this number of rows (0.7 GB
#: in each process) training keeps its order; above, the order is that of [`PermutedSampler`].
LARGEST_LISTED = 2**24

_BLOCK = 2**16  # numbers that are permuted at once
_ROUNDS = 8  # four make a pseudo-random permutation of a large domain (Luby and Rackoff, 1988); a small one needs more


class PermutedSampler(Sampler[int]):
    """Draw each row number once, in an order that depends on the number of rows, the seed and the epoch only.

    A keyed Feistel network permutes the numbers below the next power of two, and a number that lands beyond the rows
    is permuted again until it lands among them (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite
    Domains", 2002). So every process has the same order, for any number of processes, and a resumed run continues it.

    Args:
        num_rows (`int`): The number of rows.
        seed (`int`): Chooses the orders.

    Raises:
        ValueError: If there are no rows.
    """

    def __init__(self, num_rows: int, seed: int) -> None:
        if num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {num_rows}. Give a training file with rows.")
        self.num_rows, self.seed, self.epoch = num_rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def __iter__(self) -> Iterator[int]:
        """Yield the row numbers; the next pass is that of the next epoch, as with Accelerate's sampler."""
        seed, epoch = self.seed, self.epoch
        for start in range(0, self.num_rows, _BLOCK):
            places = np.arange(start, min(start + _BLOCK, self.num_rows), dtype=np.uint64)
            yield from permuted(places, self.num_rows, (seed, epoch)).tolist()
        self.set_epoch(epoch + 1)


def permuted(places: np.ndarray, num_rows: int, key: tuple[int, ...]) -> np.ndarray:
    """Return which row stands at each place of a pseudo-random order.

    Args:
        places (`np.ndarray`): Places from 0 to `num_rows - 1`, of dtype uint64.
        num_rows (`int`): The number of rows.
        key (`tuple[int, ...]`): Integers of at least 0 that choose the order.

    Returns:
        `np.ndarray`: The row numbers, of the same shape and dtype. Different places have different rows.
    """
    keys = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
    rows = _feistel(places, num_rows, keys)
    while (beyond := np.flatnonzero(rows >= num_rows)).size:
        rows[beyond] = _feistel(rows[beyond], num_rows, keys)
    return rows


def _feistel(numbers: np.ndarray, num_rows: int, keys: np.ndarray) -> np.ndarray:
    """Return what a keyed permutation of the numbers below the next power of two makes of some of them.

    With 5 bits, a number is split into 2 bits on the left and 3 on the right. A round turns (left, right) into
    (right, left xor f(right)), which can be undone whatever f is. The widths swap in each round, so after an even
    number of rounds they are as before.
    """
    bits = max(2, (num_rows - 1).bit_length())
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = numbers >> np.uint64(right_bits), numbers & np.uint64(2**right_bits - 1)
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & np.uint64(2**left_bits - 1))
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _mixed(x: np.ndarray) -> np.ndarray:
    """Mix the bits of each number: the output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
