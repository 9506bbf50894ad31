"""The order in which training rows are drawn: random, or with what belongs together or apart in a batch."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Sampler
from transformers.utils import logging

from ..runtime.errors import SettingError

logger = logging.get_logger(__name__)

#: torch's `RandomSampler` makes a list of all row numbers, about 40 bytes for each. Up to this number of rows (0.7 GB
#: in each process) training keeps its order; above, the order is that of [`PermutedSampler`].
LARGEST_LISTED = 2**24
#: Ways to share the batches among several data sets, beside numbers.
SHARES = ("proportional", "round_robin")
#: How the rows of a batch are chosen, by the names of sentence-transformers: at random, or so that no text is equal.
BATCH_SAMPLERS = ("batch_sampler", "no_duplicates")
_LISTED_AT_ONCE = 2**16  # numbers that are turned into Python integers at once


@dataclass(eq=False)
class PermutedSampler(Sampler[int]):
    """Draw each row number once, in an order that depends on the number of rows, the seed and the epoch only.

    So every process has the same order, for any number of processes, and a resumed run continues it. The order takes
    4 bytes for each row.

    Args:
        num_rows (`int`): The number of rows.
        seed (`int`): Chooses the orders.
    """

    num_rows: int
    seed: int
    epoch: int = 0

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
        for start in range(0, self.num_rows, _LISTED_AT_ONCE):
            yield from order[start : start + _LISTED_AT_ONCE].tolist()
        self.set_epoch(epoch + 1)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of an epoch."""
        order = np.arange(self.num_rows, dtype=np.uint32)
        rng.shuffle(order)
        return order


class RepeatableSampler(PermutedSampler):
    """Draw the orders of a sampler that reads torch's global generator, by the seed and the epoch only.

    Args:
        sampler (`Sampler`): The sampler.
        seed (`int`): Chooses the orders.
    """

    def __init__(self, sampler: Sampler, seed: int) -> None:
        super().__init__(len(sampler), seed)  # type: ignore[arg-type]  # those of transformers have a length
        self.sampler = sampler

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of an epoch."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(rng.integers(2**63)))
            return np.array(list(self.sampler))


class FilledSampler(PermutedSampler):
    """Draw as many rows in each epoch as in the first one. Where one finds fewer, its last are those of the first.

    Args:
        seed (`int`): Chooses the orders.
    """

    def __init__(self, seed: int) -> None:
        self.first = self.fill(np.random.default_rng((seed, 0)))
        super().__init__(len(self.first), seed)

    @abstractmethod
    def fill(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the rows of an epoch."""

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the order of an epoch."""
        drawn = self.fill(rng)
        return np.concatenate([drawn, self.first[len(drawn) :]])[: len(self)]


class ClassSampler(FilledSampler):
    """Draw rows in pairs of the same class, in an order that depends on the labels, the seed and the epoch only.

    So a batch of even size holds at least two rows of each class that is in it. An epoch draws each row once, but of a
    class with an odd number of rows it leaves out one, which is another one in another epoch.

    A row of several classes stands for one of them in an epoch, which is drawn. All epochs have as many pairs as the
    first one.

    Args:
        labels (`Sequence`): The class of each row, an integer, or a list of its classes.
        seed (`int`): Chooses the orders.
    """

    def __init__(self, labels: Sequence, seed: int) -> None:
        self.labels = [np.atleast_1d(classes) for classes in labels]
        self.counts = np.array([len(classes) for classes in self.labels])
        super().__init__(seed)

    def fill(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the rows of an epoch, pair by pair."""
        several = self.counts.max() > 1
        places = rng.integers(self.counts) if several else np.zeros_like(self.counts)
        labels = np.array([classes[place] for classes, place in zip(self.labels, places, strict=True)])
        by_class = np.argsort(labels, kind="stable")
        changes = np.flatnonzero(np.diff(labels[by_class]))
        pairs = []
        for rows in np.split(by_class, changes + 1):
            drawn = rng.permutation(rows)
            pairs.append(drawn[: len(rows) // 2 * 2].reshape(-1, 2))
        drawn_pairs = np.concatenate(pairs)
        rng.shuffle(drawn_pairs)
        return drawn_pairs.ravel()


class NoDuplicatesSampler(FilledSampler):
    """Draw rows so that no text stands in two rows of a batch of all processes.

    A row with a text that the batch has already waits for a later batch. Rows that fit into no whole batch are left
    out, other ones in another epoch.

    Args:
        texts (`np.ndarray`): Numbers of the texts of each row, of shape `(rows, texts of a row)`, equal for equal
            texts; 0 where a row has no text.
        block (`int`): Rows of a batch of all processes.
        seed (`int`): Chooses the orders.

    Raises:
        ValueError: If the rows fill no batch.
    """

    def __init__(self, texts: np.ndarray, block: int, seed: int) -> None:
        self.texts = texts
        self.block = block
        super().__init__(seed)
        found = (
            f"batch_sampler = 'no_duplicates': only {self.num_rows:,} of {len(texts):,} rows fit into batches of "
            f"{block} rows with different texts"
        )
        if not self.num_rows:
            raise SettingError(f"{found}: lower per_device_train_batch_size")
        if len(texts) - self.num_rows >= block:
            logger.warning_once(f"{found}. Each epoch leaves out other rows.")

    def fill(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the rows of an epoch: whole batches, in a new order of all rows."""
        rows = deque(rng.permutation(len(self.texts)).tolist())
        drawn: list[int] = []
        while True:
            batch: list[int] = []
            held: set[int] = set()
            later = []
            while rows and len(batch) < self.block:
                row = rows.popleft()
                texts = set(self.texts[row].tolist()) - {0}
                if held.isdisjoint(texts):
                    batch.append(row)
                    held |= texts
                else:
                    later.append(row)
            if len(batch) < self.block:
                return np.array(drawn, np.int64)
            drawn += batch
            rows.extendleft(reversed(later))


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
                raise SettingError(
                    f"the data set {name!r} has {len(part)} rows, fewer than one batch of {block} over all processes: "
                    "lower per_device_train_batch_size"
                )
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
