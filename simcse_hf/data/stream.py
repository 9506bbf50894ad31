"""Training text as a stream, for text that is larger than the memory and the disk cache."""

import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import islice
from pathlib import Path
from weakref import WeakSet

import torch
from datasets import Dataset, IterableDataset

from ..ops.files import read_json_object, write_json
from .columns import SAMPLE_ROWS, RowCleaner
from .read import find_paths, load_from_hub, table_cleaners, text_features
from .table import open_records, open_table
from .view_dataset import SeededDataset

STATE_FILE = "stream_state.json"

_BATCH_ROWS = 1000
_resolved: WeakSet[IterableDataset] = WeakSet()  # streams that leave out rows with an empty cell


def load_text_stream(
    source: str | Path | Sequence,
    *,
    split: str = "train",
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
) -> IterableDataset:
    """Open sentences, pairs, or pairs with hard negatives as a stream that never holds more than a few rows.

    Nothing is cached. A row is checked when it is read, so a malformed row far down a file is reported only then.

    Args:
        source (`str | Path | Sequence`): Files or the name of a dataset on the hub, as for `load_text_dataset`.
        split (`str`, *optional*, defaults to `"train"`): Split of a hub dataset.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`~data.columns.resolve_columns`].
        expected_columns (`int`, *optional*): How many columns there must be.

    Returns:
        `datasets.IterableDataset`: A stream with the string columns `sent0`; `sent0, sent1`; or `sent0, sent1, sent2,
        ...`. Its `state_dict` and `load_state_dict` continue it at any row.

    Raises:
        DataFileNotFoundError: If a file does not exist. This is also a `ValueError`.
        ValueError: If the columns are unclear, or `source` is neither a file nor a dataset on the hub.
    """
    paths = find_paths(source)
    if paths is None:
        if not isinstance(source, str):
            raise ValueError(f"a stream is read from files or from the hub, got a {type(source).__name__}.")
        stream = load_from_hub(source, split, streaming=True)
        return resolve_stream_columns(stream, columns, name=source, expected_columns=expected_columns)
    tables = [open_table(path) for path in paths]
    cleaners = table_cleaners(tables, columns, expected_columns)
    # Lists are the shards of the stream: each file has its path and its columns.
    options = {
        "paths": [str(path) for path in paths],
        "columns": [cleaner.columns for cleaner in cleaners],
        "width": cleaners[0].width,
        "by_name": columns is None,
    }
    features = text_features(cleaners[0].width)
    stream = IterableDataset.from_generator(_rows_of_files, features=features, gen_kwargs=options)
    _resolved.add(stream)
    return stream


def _rows_of_files(
    paths: list[str],
    columns: list[Sequence[str]],
    width: int,
    by_name: bool,
) -> Iterator[dict]:
    names = list(text_features(width))
    for path, chosen in zip(paths, columns, strict=True):
        table = open_table(path)
        table.refuse_late_keys = by_name
        cleaner = RowCleaner(table.name, chosen, table.unit)
        cleaner.width = width
        for row in cleaner.clean_all(table.rows(chosen)):
            yield dict(zip(names, row, strict=True))
        cleaner.log()


def resolve_stream_columns(
    stream: IterableDataset,
    columns: Sequence[str] | None = None,
    *,
    name: str = "the stream",
    expected_columns: int | None = None,
) -> IterableDataset:
    """Select the text columns of a stream, judged by its first rows, and name them `sent0`, `sent1`, `sent2`, ...

    Rows with an empty cell are left out, and lists are expanded, as by `resolve_dataset_columns`.

    Args:
        stream (`datasets.IterableDataset`): The stream.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`~data.columns.resolve_columns`].
        name (`str`, *optional*, defaults to `"the stream"`): What messages call the stream.
        expected_columns (`int`, *optional*): How many columns there must be.

    Returns:
        `datasets.IterableDataset`: The stream with string columns only.

    Raises:
        ValueError: If the stream has no rows, or its columns are unclear.
    """
    if stream in _resolved:
        return stream
    head = list(stream.take(SAMPLE_ROWS))
    table = open_records(name, lambda: enumerate(head, 1), "memory", "row")
    [cleaner] = table_cleaners([table], columns, expected_columns)
    chosen = cleaner.columns
    width = cleaner.width
    features = text_features(width)
    told = 0

    def clean(batch: dict, numbers: list[int]) -> dict:
        nonlocal cleaner, told
        if numbers[0] == 0:  # another pass over the stream begins
            cleaner = RowCleaner(name, chosen)
            cleaner.width = width
        rows = []
        columns_of_batch = [batch[column] for column in chosen]
        for number, *cells in zip(numbers, *columns_of_batch, strict=True):
            rows += cleaner.clean(number + 1, cells)
        left_out = cleaner.counts.total()
        if left_out >= max(1, 2 * told):  # a stream may have no end
            told = left_out
            cleaner.log(", so far")
        texts = {}
        for place, column in enumerate(features):
            texts[column] = [row[place] for row in rows]
        return texts

    cleaned = stream.select_columns(chosen).map(
        clean, with_indices=True, batched=True, batch_size=_BATCH_ROWS, remove_columns=chosen, features=features
    )
    _resolved.add(cleaned)
    return cleaned


class StreamedRows(torch.utils.data.IterableDataset):
    """An endless stream of batches of token ids.

    The text is read in windows of `shuffle_buffer` rows, and each window is put into a random order that depends only
    on the seed, the number of the pass over the text and the place of the window. So a checkpoint needs no texts, but
    only where the window begins and how many of its rows are used. The buffer of `datasets.IterableDataset.shuffle`
    mixes a row with more distant ones, but it is lost and filled anew after a resume.

    When the text ends, the next pass follows, in the same batch if need be. Every process reads the whole text and
    tokenizes its own rows: with 2 processes and batches of 4 rows, process 0 takes the rows 0 to 3, 8 to 11 and so on.
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

    #: The columns, as a tokenized `datasets.Dataset` has them.
    column_names = ["input_ids"]

    def __init__(
        self,
        texts: IterableDataset,
        head: Dataset | SeededDataset,
        make_rows: Callable[..., list[dict]],
        *,
        batch_size: int,
        shuffle_buffer: int,
        seed: int = 0,
        rank: int = 0,
        processes: int = 1,
    ):
        self.texts = texts
        self.head = head
        self.make_rows = make_rows
        self.batch_size = batch_size
        self.shuffle_buffer = shuffle_buffer
        self.seed = seed
        self.rank = rank
        self.processes = processes
        self._start = deepcopy(texts.state_dict())
        self.forget()

    def forget(self) -> None:
        """Return to the first row."""
        # `row` counts the rows of the pass before the window, `done` those of the window that were used.
        self._state = self._start_of_pass(0)

    def _start_of_pass(self, number: int) -> dict:
        return {"pass": number, "row": 0, "done": 0, "source": self._start}

    def __iter__(self) -> Iterator[list[dict]]:
        numbers: list[int] = []
        rows: list[dict] = []
        first = self.rank * self.batch_size
        mine = slice(first, first + self.batch_size)
        for state, window in self._windows():
            for done, (number, row) in enumerate(window, 1):
                if done <= state["done"]:
                    continue
                numbers.append(number)
                rows.append(row)
                if len(rows) == self.batch_size * self.processes:
                    self._state = state | {"done": done}
                    of_pass = f"{self.seed} {state['pass']}"
                    rngs = [random.Random(f"{of_pass} {number}") for number in numbers[mine]]
                    yield self.make_rows(rows[mine], rngs)
                    numbers = []
                    rows = []

    def _windows(self) -> Iterator[tuple[dict, list[tuple[int, dict]]]]:
        """Yield the state at the start of each window, and its rows with their numbers in a random order."""
        state = deepcopy(self._state)
        while True:
            self.texts.load_state_dict(deepcopy(state["source"]))
            rows_of_pass = iter(self.texts)
            while window := list(islice(rows_of_pass, self.shuffle_buffer)):
                following = deepcopy(self.texts.state_dict())
                rows = list(enumerate(window, state["row"]))
                rng = random.Random(f"shuffle {self.seed} {state['pass']} {state['row']}")
                rng.shuffle(rows)
                yield state, rows
                state = {
                    "pass": state["pass"],
                    "row": state["row"] + len(window),
                    "done": 0,
                    "source": following,
                }
            if state["row"] < self.batch_size * self.processes:
                raise ValueError(
                    f"train_dataset: the stream ends after {state['row']} rows, and a batch over all processes has "
                    f"{self.batch_size * self.processes}, so a text would be its own negative. Lower "
                    "per_device_train_batch_size."
                )
            state = self._start_of_pass(state["pass"] + 1)

    def save_state(self, directory: str) -> None:
        """Write the place of the last batch that was read into a checkpoint.

        Args:
            directory (`str`): The checkpoint.
        """
        state = {"seed": self.seed, "shuffle_buffer": self.shuffle_buffer, **self._state}
        write_json(Path(directory, STATE_FILE), state)

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
