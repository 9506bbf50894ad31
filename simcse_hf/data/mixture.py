"""Several data sets in one run: their rows, an order in which each batch comes from one of them, and its tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from datasets import Dataset

from ..ops.errors import refuse
from .collator import ContrastiveCollator, HostArray
from .samplers import PermutedSampler
from .view_dataset import SeededDataset

#: Ways to draw the data set of a batch, beside numbers.
SHARES = ("proportional", "round_robin")


class MixedRows(SeededDataset):
    """The rows of several data sets, one after the other, each with the number of its data set in `dataset`.

    Args:
        parts (`Mapping[str, Dataset | SeededDataset]`): The rows of each data set, by its name.
        first (`int`, *optional*, defaults to `0`): The number of the first data set.
    """

    def __init__(self, parts: Mapping[str, Dataset | SeededDataset], first: int = 0):
        super().__init__(seed=0)
        self.parts, self.first = dict(parts), first
        #: The row number of the first row of each data set, and at the end the number of all rows.
        self.starts = np.cumsum([0, *map(len, self.parts.values())])

    def set_epoch(self, epoch: int) -> None:
        """Switch every data set whose rows are drawn anew to the rows of an epoch."""
        for part in self.parts.values():
            if isinstance(part, SeededDataset):
                part.set_epoch(epoch)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        numbers = np.searchsorted(self.starts, indices, side="right") - 1
        rows: list[dict[str, Any]] = [{} for _ in indices]
        for number in np.unique(numbers):
            places = np.flatnonzero(numbers == number)
            part, start = list(self.parts.values())[number], self.starts[number]
            found = cast(Any, part).__getitems__([int(indices[place] - start) for place in places])
            for place, row in zip(places, found, strict=True):
                rows[place] = {**row, "dataset": self.first + int(number)}
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
            refuse(
                {
                    f"the data set {name!r} has {len(part)} rows, fewer than one batch of {block} over all processes: "
                    "lower per_device_train_batch_size, or use fewer processes": len(part) < block
                }
            )
        self.parts, self.starts, self.block = list(parts.values()), starts, block
        self.in_turn = shares == "round_robin"
        whole = [len(part) // block for part in self.parts]
        if isinstance(shares, str):
            shares = whole if shares == "proportional" else [1.0] * len(whole)
        #: The batches of each data set in an epoch.
        self.batches = [max(1, round(sum(whole) * share / sum(shares))) for share in shares]
        if self.in_turn:
            self.batches = [min(self.batches)] * len(whole)
        super().__init__(sum(self.batches) * block, seed)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of an epoch."""
        numbers = np.repeat(np.arange(len(self.parts)), self.batches)
        numbers = np.tile(np.arange(len(self.parts)), self.batches[0]) if self.in_turn else rng.permutation(numbers)
        rows = np.empty((len(numbers), self.block), np.int64)
        for number, (part, start, batches) in enumerate(zip(self.parts, self.starts, self.batches, strict=True)):
            in_pass = len(part) // self.block
            passes = [part.order(rng)[: in_pass * self.block] for _ in range(-(-batches // in_pass))]
            rows[numbers == number] = start + np.concatenate(passes)[: batches * self.block].reshape(-1, self.block)
        return rows.ravel()


@dataclass
class MixtureCollator:
    """Make a batch as the data set of its rows needs it, with the number of that data set for the objective.

    Args:
        collators (`Sequence[ContrastiveCollator]`): The collator of each data set.
        default (`ContrastiveCollator`): The collator of rows that are of no data set, such as those of an evaluation.
    """

    collators: Sequence[ContrastiveCollator]
    default: ContrastiveCollator

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate rows of one data set into a batch.

        Args:
            rows (`Sequence[Mapping[str, Any]]`): The rows, from [`MixedRows`].

        Returns:
            `dict[str, torch.Tensor]`: The batch of the data set's collator, and `dataset`, its number, of shape
            `(batch,)`, which stays on the host.
        """
        if "dataset" not in rows[0]:
            return self.default(rows)
        numbers = np.array([row["dataset"] for row in rows]).view(HostArray)
        return {**self.collators[int(numbers[0])](rows), "dataset": numbers}
