"""Several data sets in one run: their rows, an order in which each batch comes from one of them, and its tensors."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np
from datasets import Dataset

from .collator import ContrastiveCollator, PermutedSampler
from .view_dataset import SeededDataset

#: Ways to share the batches among the data sets, beside numbers.
SHARES = ("proportional", "round_robin")


class MixedRows(SeededDataset):
    """The rows of several data sets, one after the other, each with the number of its data set in `dataset`.

    Args:
        parts (`Sequence[Dataset | SeededDataset]`): The rows of each data set.
        first (`int`, *optional*, defaults to `0`): The number of the first data set.
    """

    def __init__(self, parts: Sequence[Dataset | SeededDataset], first: int = 0):
        super().__init__(seed=0)
        self.parts = parts
        self.first = first
        #: The row number of the first row of each data set, and at the end the number of all rows.
        self.starts = [0, *accumulate(map(len, self.parts))]

    def set_epoch(self, epoch: int) -> None:
        """Switch every data set whose rows are drawn anew to the rows of an epoch."""
        for part in self.parts:
            if isinstance(part, SeededDataset):
                part.set_epoch(epoch)

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitems__(self, indices: list[int]) -> list[dict]:
        rows = []
        # The rows of a batch are of one data set, so they are read in one call.
        for number, of_part in groupby(indices, lambda index: bisect_right(self.starts, index) - 1):
            found = self.parts[number].__getitems__([index - self.starts[number] for index in of_part])
            rows += [{**row, "dataset": self.first + number} for row in found]
        return rows


class MixtureSampler(PermutedSampler):
    """Draw the rows of several data sets so that each batch, of all processes together, comes from one of them.

    An epoch has as many batches as all data sets fill together, and each data set has its share of them. One that has
    fewer batches than its share starts again in another order, and one that has more is used in part. Rows that fill
    no batch are left out, other ones in another epoch.

    Args:
        parts (`Mapping[str, PermutedSampler]`): The order of the rows of each data set, by its name.
        starts (`Sequence[int]`): The number of the first row of each data set.
        shares (`str` or `Sequence[float]`): `"proportional"` to their sizes, `"round_robin"` for one batch of each
            data set in turn, or the share of each data set in the batches of an epoch, in any unit.
        block (`int`): Rows of a batch of all processes.
        seed (`int`): Chooses the orders.

    Raises:
        ValueError: If a data set does not fill a batch.
    """

    def __init__(
        self,
        parts: Mapping[str, PermutedSampler],
        starts: Sequence[int],
        shares: str | Sequence[float],
        block: int,
        seed: int,
    ) -> None:
        for name, part in parts.items():
            if len(part) < block:
                few = f"{len(part)} rows, fewer than one batch of {block} over all processes"
                raise ValueError(f"the data set {name!r} has {few}: lower per_device_train_batch_size")
        self.parts = list(parts.values())
        self.starts = starts
        self.block = block
        self.in_turn = shares == "round_robin"
        whole = [len(part) // block for part in self.parts]
        if shares == "proportional":
            shares = whole
        elif isinstance(shares, str):
            shares = [1.0] * len(whole)
        #: The batches of each data set in an epoch.
        self.batches = [max(1, round(sum(whole) * share / sum(shares))) for share in shares]
        super().__init__(sum(self.batches) * block, seed)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of an epoch."""
        numbers = np.arange(len(self.parts))
        if self.in_turn:
            numbers = np.tile(numbers, self.batches[0])
        else:
            numbers = rng.permutation(np.repeat(numbers, self.batches))
        rows = np.empty((len(numbers), self.block), np.int64)
        for number, part in enumerate(self.parts):
            batches = self.batches[number]
            drawn: list[np.ndarray] = []
            while len(drawn) < batches:
                whole = len(part) // self.block * self.block
                drawn += list(part.order(rng)[:whole].reshape(-1, self.block))
            rows[numbers == number] = self.starts[number] + np.stack(drawn[:batches])
        return rows.ravel()


@dataclass
class MixtureCollator:
    """Make a batch as the data set of its rows needs it, with the number of that data set for the objective.

    Args:
        collators (`Sequence[Callable]`): The collator of each data set.
        default (`ContrastiveCollator`): The collator of rows that are of no data set, such as those of an evaluation.
    """

    collators: Sequence[Callable[[Sequence[Mapping]], dict]]
    default: ContrastiveCollator

    def __call__(self, rows: Sequence[Mapping]) -> dict:
        """Collate rows of one data set into a batch.

        Args:
            rows (`Sequence[Mapping[str, Any]]`): The rows, from [`MixedRows`].

        Returns:
            `dict[str, torch.Tensor]`: The batch of the data set's collator, and `dataset`, a tuple of its number for
            each row, which stays on the host.
        """
        if "dataset" not in rows[0]:
            return self.default(rows)
        numbers = tuple(row["dataset"] for row in rows)
        batch = self.collators[numbers[0]](rows)
        batch["dataset"] = numbers
        return batch
