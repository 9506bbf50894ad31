"""Training rows from a stream: shuffled in a buffer, split over processes, and resumed at the same row."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset

from ..ops.files import read_json_object
from .view_dataset import SeededDataset

STATE_FILE = "stream_state.json"

MakeRows = Callable[[Sequence[dict[str, str]], Sequence[random.Random]], list[dict[str, Any]]]


class StreamedRows(torch.utils.data.IterableDataset):
    """An endless stream of batches of token ids.

    The text is read in windows of `shuffle_buffer` rows, and each window is put into a random order that depends only
    on the seed, the number of the pass over the text and the place of the window. So a checkpoint needs no texts, but
    only where the window begins and how many of its rows are used. The buffer of `datasets.IterableDataset.shuffle`
    mixes a row with more distant ones, but it is lost and filled anew after a resume.

    When the text ends, the next pass follows, in the same batch if need be. Every process reads the whole text and
    tokenises its own rows: with 2 processes and batches of 4 rows, process 0 takes the rows 0 to 3, 8 to 11 and so on.
    One process with batches of 8 rows has the same batches.

    Args:
        texts (`datasets.IterableDataset`): Columns `sent0`, `sent1`, ..., as from `load_text_stream`.
        head (`datasets.Dataset` or `SeededDataset`): The first rows of token ids, by which a run is checked.
        make_rows (`Callable`): Turns rows of texts, each with its source of randomness, into rows of token ids.
        batch_size (`int`): Rows in a batch of one process.
        shuffle_buffer (`int`): Rows in a window; 1 keeps the order of the text.
        seed (`int`, *optional*, defaults to `0`): The seed.
        rank (`int`, *optional*, defaults to `0`): The number of this process.
        processes (`int`, *optional*, defaults to `1`): How many processes there are.
    """

    #: The columns, as a tokenised `datasets.Dataset` has them.
    column_names = ["input_ids"]

    def __init__(
        self,
        texts: IterableDataset,
        head: Dataset | SeededDataset,
        make_rows: MakeRows,
        *,
        batch_size: int,
        shuffle_buffer: int,
        seed: int = 0,
        rank: int = 0,
        processes: int = 1,
    ):
        self.texts, self.head, self.make_rows = texts, head, make_rows
        self.batch_size, self.shuffle_buffer, self.seed = batch_size, shuffle_buffer, seed
        self.rank, self.processes = rank, processes
        self._start = deepcopy(texts.state_dict())
        self.forget()

    def forget(self) -> None:
        """Return to the first row."""
        # `row` counts the rows of the pass before the window, `done` those of the window that were used.
        self._state = {"pass": 0, "row": 0, "done": 0, "source": self._start}

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        group: list[tuple[int, dict[str, str]]] = []
        group_size = self.batch_size * self.processes
        mine = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        for state, rows in self._windows():
            for position in range(state["done"], len(rows)):
                group.append(rows[position])
                if len(group) == group_size:
                    self._state = state | {"done": position + 1}
                    rngs = [random.Random(f"{self.seed} {state['pass']} {number}") for number, _ in group[mine]]
                    yield self.make_rows([row for _, row in group[mine]], rngs)
                    group = []

    def _windows(self) -> Iterator[tuple[dict[str, Any], list[tuple[int, dict[str, str]]]]]:
        """Yield the state at the start of each window, and its rows with their numbers in a random order."""
        state = deepcopy(self._state)
        while True:
            self.texts.load_state_dict(deepcopy(state["source"]))
            rows_of_pass = iter(self.texts)
            while window := list(islice(rows_of_pass, self.shuffle_buffer)):
                following = deepcopy(self.texts.state_dict())
                rows = list(enumerate(window, state["row"]))
                random.Random(f"shuffle {self.seed} {state['pass']} {state['row']}").shuffle(rows)
                yield state, rows
                state = state | {"row": state["row"] + len(window), "done": 0, "source": following}
            if state["row"] < self.batch_size * self.processes:
                raise ValueError(
                    f"the streamed text has {state['row']} rows, fewer than the batch of "
                    f"{self.batch_size * self.processes} over all processes, so a text would be its own negative: "
                    "lower per_device_train_batch_size"
                )
            state = {"pass": state["pass"] + 1, "row": 0, "done": 0, "source": self._start}

    def save_state(self, directory: str) -> None:
        """Write the place of the last batch that was read into a checkpoint.

        Args:
            directory (`str`): The checkpoint.
        """
        state = {"seed": self.seed, "shuffle_buffer": self.shuffle_buffer, **self._state}
        Path(directory, STATE_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")

    def load_state(self, directory: str) -> None:
        """Continue after the last batch of a checkpoint.

        Args:
            directory (`str`): The checkpoint.

        Raises:
            ValueError: If the checkpoint is of a run that did not stream, or that streamed in another order.
        """
        path = Path(directory, STATE_FILE)
        if not path.exists():
            raise ValueError(
                f"{directory} has no {STATE_FILE}: its run did not stream its text. Resume it without streaming, or "
                "start a new run from it."
            )
        state = read_json_object(path, "seed", "shuffle_buffer", advice="Resume from an older checkpoint.")
        for name in ("seed", "shuffle_buffer"):
            if state.pop(name) != getattr(self, name):
                raise ValueError(
                    f"{path} is of a run with another {name}, so its rows came in another order: resume with the "
                    "settings of that run, or start a new run from its weights."
                )
        self._state = state
