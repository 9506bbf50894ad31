"""Several data sets in one run: their rows, and the tensors of a batch, whose rows all come from one of them."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from datasets import Dataset

from .collator import ContrastiveCollator
from .view_dataset import SeededDataset


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
