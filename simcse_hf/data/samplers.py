"""Orders of the training rows that depend on a seed and the epoch only."""

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
        self.num_rows = num_rows
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def __iter__(self) -> Iterator[int]:
        """Yield the row numbers; the next pass is that of the next epoch, as with Accelerate's sampler."""
        epoch = self.epoch
        order = self.order(np.random.default_rng((self.seed, epoch)))
        for start in range(0, self.num_rows, _BLOCK):
            yield from order[start : start + _BLOCK].tolist()
        self.set_epoch(epoch + 1)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of an epoch."""
        smallest = np.uint32 if self.num_rows <= 2**32 else np.uint64
        order = np.arange(self.num_rows, dtype=smallest)
        rng.shuffle(order)
        return order


class ClassSampler(PermutedSampler):
    """Draw rows in pairs of the same class, in an order that depends on the labels, the seed and the epoch only.

    So a batch of even size holds at least two rows of each class in it. An epoch draws each row once, but of a class
    with an odd number of rows it leaves out one, which is another one in another epoch.

    Args:
        labels (`np.ndarray`): The class of each row, an integer.
        seed (`int`): Chooses the orders.
    """

    def __init__(self, labels: np.ndarray, seed: int) -> None:
        by_class = np.argsort(labels, kind="stable")
        changes = np.flatnonzero(np.diff(labels[by_class]))
        self.classes = np.split(by_class, changes + 1)
        num_pairs = sum(len(rows) // 2 for rows in self.classes)
        super().__init__(2 * num_pairs, seed)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of an epoch."""
        pairs = []
        for rows in self.classes:
            whole = len(rows) // 2 * 2
            pairs.append(rng.permutation(rows)[:whole].reshape(-1, 2))
        order = np.concatenate(pairs)
        rng.shuffle(order)
        return order.ravel()


class NeighborSampler(PermutedSampler):
    """Draw each row once, and after a row those of its nearest neighbours that were not drawn yet.

    Args:
        neighbors (`np.ndarray`): The nearest rows of each row, the nearest first, of shape `(rows, any)`.
        number (`int`): How many neighbours follow a row at most.
        seed (`int`): Chooses the orders.
    """

    def __init__(self, neighbors: np.ndarray, number: int, seed: int) -> None:
        super().__init__(len(neighbors), seed)
        self.neighbors = neighbors
        self.number = number

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of an epoch."""
        drawn: dict[int, None] = {}  # a set that keeps its order
        for row in super().order(rng).tolist():
            if row not in drawn:
                drawn[row] = None
                near = dict.fromkeys(self.neighbors[row].tolist())
                new = [other for other in near if other not in drawn]
                drawn |= dict.fromkeys(new[: self.number])
        return np.array(list(drawn))
