"""Training rows whose hard negatives are mined anew during the run."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from ..ops.distributed import sum_over_processes, world
from ..search.hard_negatives import make_index
from ..search.mining import MiningOptions, PairTable, mine_negatives

logger = logging.get_logger(__name__)

STATE_FILE = "mined_negatives.safetensors"
_WINDOW = 50_000  # texts whose token ids are in memory together
_MOST_DRAWS = 100

Encode = Callable[[list[list[int]]], torch.Tensor]


class MinedRows(torch.utils.data.Dataset):
    """Pairs of token ids with the hard negatives that the latest mining found for them.

    Candidates are the positives and the given hard negatives of all rows. A row for which too few candidates pass the
    bounds is filled up with random ones, so that all rows have equally many.

    A data loader fetches rows ahead, perhaps in a worker, and so may return rows with negatives from before the latest
    mining. Every row therefore says by which mining it was made (`mining`), and [`refresh`] makes outdated batches
    again. So what a step sees depends neither on workers nor on a resume.

    Args:
        pairs (`datasets.Dataset`): Rows with `input_ids`: the token ids of an anchor, a positive and perhaps hard
            negatives.
        options (`MiningOptions`): Which candidates may become hard negatives.

    Raises:
        ValueError: If the rows are no pairs, or there are too few candidates.
    """

    #: The columns, as a tokenised `datasets.Dataset` has them.
    column_names = ["input_ids"]

    def __init__(self, pairs: Dataset, options: MiningOptions):
        width = len(pairs[0]["input_ids"])
        if width < 2 or "relations" in pairs.column_names:
            what = "relations" if "relations" in pairs.column_names else "single sentences"
            raise ValueError(
                f"mining hard negatives needs rows of an anchor and a positive, and the training rows hold {what}: "
                "train on pairs or triplets, or leave out mine_every and mine_every_epochs"
            )
        self.pairs, self.options = pairs, options
        keys: list[list[bytes]] = [[] for _ in range(width)]
        for rows in pairs.select_columns("input_ids").iter(1000):
            for row in rows["input_ids"]:
                for column, ids in enumerate(row):
                    keys[column].append(blake2b(array("q", ids).tobytes(), digest_size=16).digest())
        self.table = PairTable(keys[0], keys[1], [key for column in keys[2:] for key in column])
        left = self.table.num_candidates - int(self.table.num_excluded.max())
        if left < options.num_negatives:
            raise ValueError(
                f"mining needs {options.num_negatives} hard negative(s) for each anchor, and there are "
                f"{self.table.num_candidates} distinct candidates, {left} of which some anchor may take: give more "
                "training rows or lower mine_negatives"
            )
        #: Candidate numbers and the number of the mining that chose them, in memory that workers share.
        self._negatives = torch.zeros(len(pairs), options.num_negatives, dtype=torch.long).share_memory_()
        self._mining = torch.zeros(1, dtype=torch.long).share_memory_()
        self.forget()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        # Read before the negatives: those of a mining that ends in between are then called outdated, and made again.
        mining = int(self._mining)
        pairs = self.pairs[list(indices)]["input_ids"]
        negatives = iter(self._candidate_ids(self._negatives[list(indices)].flatten().numpy()))
        per_row = self.options.num_negatives
        return [
            {"input_ids": [*pair[:2], *(next(negatives) for _ in range(per_row))], "row": index, "mining": mining}
            for index, pair in zip(indices, pairs, strict=True)
        ]

    def refresh(self, inputs: dict[str, torch.Tensor], collate: Callable[[Any], Any]) -> dict[str, torch.Tensor]:
        """Return a batch with the negatives of the latest mining.

        Args:
            inputs (`dict[str, torch.Tensor]`): A batch.
            collate (`Callable`): The collator of the run.

        Returns:
            `dict[str, torch.Tensor]`: The batch without `row` and `mining`, made again if it is outdated.

        Raises:
            ValueError: If the collator has dropped `row` or `mining`.
        """
        if not {"row", "mining"} <= inputs.keys():
            raise ValueError(
                "the batch has no `row` and `mining`, by which outdated hard negatives are recognised: keep these "
                "columns in data_collator, or leave it out"
            )
        if not (inputs["mining"] == int(self._mining)).all():
            device = inputs["row"].device
            rows = collate(self.__getitems__(inputs["row"].tolist()))
            inputs = {name: tensor.to(device) for name, tensor in rows.items()}
        return {name: tensor for name, tensor in inputs.items() if name not in ("row", "mining")}

    # --- mining -----------------------------------------------------------------------------------------------------

    def mine(self, encode: Encode, step: int, device: torch.device | None = None) -> None:
        """Replace all hard negatives by those that the model finds now. Every process must call this.

        Args:
            encode (`Callable`): Turns the token ids of texts into embeddings on the CPU, the same in all processes.
            step (`int`): The number of training steps so far.
            device (`torch.device`, *optional*): Where the processes exchange what they found.
        """
        table, (rank, processes) = self.table, world()
        anchors = _embed(encode, self._ids(table.first_anchor))
        candidates = _embed(encode, self._ids(table.first_candidate + len(self)))
        options = replace(self.options, seed=self.options.seed + step)
        index = make_index(candidates)
        share = mine_negatives(table, anchors, candidates, index, options, slice(rank, None, processes))
        found, scores, positives = (
            sum_over_processes(torch.from_numpy(values).to(device)).cpu().numpy()
            for values in (share.candidates, share.scores, share.positive_scores)
        )
        missing = self._fill(found, np.random.default_rng([options.seed, 1]))
        self._negatives.copy_(torch.from_numpy(found))
        self._mining += 1
        self.last_step = step
        similarity = f"{scores[~missing].mean():.4f}" if not missing.all() else "none"
        logger.info(
            f"Step {step}: mined {found.size} hard negatives among {len(candidates)} texts. Mean cosine similarity of "
            f"positives {positives.mean():.4f}, of mined negatives {similarity}. {int(missing.sum())} places without "
            "a candidate inside the bounds were filled at random."
        )

    def _fill(self, found: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Replace -1 by random candidates that the anchors may take; return where."""
        missing = found < 0
        rows, columns = np.nonzero(missing)
        anchors = self.table.anchor_of_pair[rows]
        for _ in range(_MOST_DRAWS):
            drawn = rng.integers(self.table.num_candidates, size=len(rows))
            found[rows, columns] = drawn
            again = self.table.is_excluded(anchors, drawn[:, None])[:, 0]
            rows, columns, anchors = rows[again], columns[again], anchors[again]
            if not len(rows):
                return missing
        for row, column, anchor in zip(rows, columns, anchors, strict=True):  # nearly all candidates are excluded
            every = np.arange(self.table.num_candidates)
            found[row, column] = rng.choice(every[~self.table.is_excluded(np.array([anchor]), every[None])[0]])
        return missing

    def _ids(self, places: np.ndarray) -> Iterator[list[list[int]]]:
        """Yield windows of the token ids at some places; place `column * rows + row` is a text of a row."""
        for start in range(0, len(places), _WINDOW):
            some = places[start : start + _WINDOW]
            rows = self.pairs[(some % len(self)).tolist()]["input_ids"]
            yield [row[column] for row, column in zip(rows, (some // len(self)).tolist(), strict=True)]

    def _candidate_ids(self, numbers: np.ndarray) -> list[list[int]]:
        """Return the token ids of candidates; the first column of candidates is column 1 of the rows."""
        return [ids for window in self._ids(self.table.first_candidate[numbers] + len(self)) for ids in window]

    # --- resuming ---------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Return to the state before the first mining."""
        self._negatives.zero_()
        self._mining.zero_()
        #: The step before which the latest mining took place.
        self.last_step = -1

    def save_state(self, directory: str) -> None:
        """Write the mined negatives into a checkpoint.

        Args:
            directory (`str`): The checkpoint.
        """
        numbers = torch.tensor([int(self._mining), self.last_step])
        save_file({"negatives": self._negatives.clone(), "numbers": numbers}, Path(directory, STATE_FILE))

    def load_state(self, directory: str) -> None:
        """Read the mined negatives from a checkpoint.

        Args:
            directory (`str`): The checkpoint.

        Raises:
            ValueError: If the checkpoint holds none, or those of other training rows.
        """
        path = Path(directory, STATE_FILE)
        if not path.exists():
            raise ValueError(
                f"{directory} has no {STATE_FILE}: its run did not mine hard negatives. Resume without mine_every and "
                "mine_every_epochs, or start a new run from it."
            )
        state = load_file(path)
        if state["negatives"].shape != self._negatives.shape:
            raise ValueError(
                f"{path} holds negatives of shape {tuple(state['negatives'].shape)}, and this run has "
                f"{tuple(self._negatives.shape)}: resume with the training rows and mine_negatives of the run."
            )
        self._negatives.copy_(state["negatives"])
        mining, self.last_step = state["numbers"].tolist()
        self._mining.fill_(mining)


def _embed(encode: Encode, windows: Iterator[list[list[int]]]) -> np.ndarray:
    return torch.cat([F.normalize(encode(ids).float(), dim=-1) for ids in windows]).numpy()
