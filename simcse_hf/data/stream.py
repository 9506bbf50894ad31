"""Training text as a stream, for text that is larger than the memory and the disk cache."""

import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from weakref import WeakSet

import torch
from datasets import IterableDataset

from ..runtime.files import read_json_object, write_json
from .columns import SAMPLE_ROWS, plain
from .read import find_paths, load_from_hub, table_cleaners, text_features
from .table import RowCleaner, open_records, open_table

STATE_FILE = "stream_state.json"

_resolved: WeakSet[IterableDataset] = WeakSet()  # streams that leave out rows with an empty cell


def load_text_stream(
    source: str | Path | Sequence | IterableDataset,
    *,
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
    name: str = "the stream",
) -> IterableDataset:
    """Open sentences, pairs, or pairs with hard negatives as a stream that never holds more than a few rows.

    Nothing is cached. A row is checked when it is read, so a malformed row far down a file is reported only then. Rows
    with an empty cell are left out, and lists are expanded, as by `load_text_dataset`.

    Args:
        source (`str | Path | Sequence | datasets.IterableDataset`): Files or the name of a dataset on the hub, as for
            `load_text_dataset`, by default its split `train`; or a stream, whose columns are judged by its first rows.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`~data.columns.resolve_columns`].
        expected_columns (`int`, *optional*): How many columns there must be.
        name (`str`, *optional*, defaults to `"the stream"`): What messages call a stream.

    Returns:
        `datasets.IterableDataset`: A stream with the string columns `sent0`; `sent0, sent1`; or `sent0, sent1, sent2,
        ...`. Its `state_dict` and `load_state_dict` continue it at any row.

    Raises:
        DataFileNotFoundError: If a file does not exist. This is also a `ValueError`.
        ValueError: If the columns are unclear, or `source` is neither a file nor a dataset on the hub.
    """
    if isinstance(source, IterableDataset):
        stream = source
        if stream in _resolved:
            return stream
    else:
        paths = find_paths(source)
        if paths is not None:
            return _stream_files(paths, columns, expected_columns)
        if not isinstance(source, str):
            raise ValueError(f"a stream is read from files or from the hub, got a {type(source).__name__}.")
        name = source
        stream = load_from_hub(name, "train", streaming=True)
    stream = stream.with_format(None)
    head = list(stream.take(SAMPLE_ROWS))
    table = open_records(name, lambda: enumerate(head, 1), "row")
    if "input_ids" in table.columns:
        raise ValueError(f"{name} is a stream of token ids: stream texts, or pass token ids as a datasets.Dataset.")
    [cleaner] = table_cleaners([table], columns, expected_columns)
    chosen = cleaner.columns
    features = text_features(cleaner.width)
    told = 0
    if stream.column_names is not None:  # all rows have these, and the others need not be read
        stream = stream.select_columns(chosen)

    def clean(batch: dict, numbers: list[int]) -> dict:
        nonlocal cleaner, told
        if numbers[0] == 0:  # another pass over the stream begins
            cleaner = RowCleaner(table, chosen, len(features))
        for column, cells in batch.items():  # of rows without a key, the cell is None
            place = next((place for place, cell in enumerate(cells) if cell is not None), 0)
            table.check_keys(numbers[place] + 1, [column])
        rows = []
        for place, number in enumerate(numbers):
            cells = [batch[column][place] if column in batch else None for column in chosen]
            rows += cleaner.clean(number + 1, plain(cells))
        left_out = cleaner.counts.total()
        if left_out >= max(1, 2 * told):  # a stream may have no end
            told = left_out
            cleaner.log(", so far")
        return {column: [row[place] for row in rows] for place, column in enumerate(features)}

    cleaned = stream.map(
        clean, with_indices=True, batched=True, batch_size=1000, remove_columns=table.columns, features=features
    )
    _resolved.add(cleaned)
    return cleaned


def _stream_files(
    paths: Sequence[Path], columns: Sequence[str] | None, expected_columns: int | None
) -> IterableDataset:
    cleaners = table_cleaners([open_table(path) for path in paths], columns, expected_columns)
    features = text_features(max(cleaner.width for cleaner in cleaners))

    def rows_of_files(files: list[tuple[Path, Sequence[str]]]) -> Iterator[dict]:
        for path, chosen in files:
            table = open_table(path)
            table.refuse_late_keys = columns is None
            cleaner = RowCleaner(table, chosen, len(features))
            for rows in cleaner.read():
                for row in rows:
                    yield dict(zip(features, row, strict=True))
            cleaner.log()

    # A list is the shards of the stream: each file with its columns.
    files = [(path, cleaner.columns) for path, cleaner in zip(paths, cleaners, strict=True)]
    stream = IterableDataset.from_generator(rows_of_files, features=features, gen_kwargs={"files": files})
    _resolved.add(stream)
    return stream


@dataclass(eq=False)
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
        make_rows (`Callable`): Turns rows of texts, each with its source of randomness, into rows of token ids.
        batch_size (`int`): Rows in a batch of one process.
        shuffle_buffer (`int`): Rows in a window; 1 keeps the order of the text.
        seed (`int`, *optional*, defaults to `0`): The seed.
        rank (`int`, *optional*, defaults to `0`): The number of this process.
        processes (`int`, *optional*, defaults to `1`): How many processes there are.
    """

    #: The columns, as a tokenized `datasets.Dataset` has them.
    column_names = ["input_ids"]

    texts: IterableDataset
    make_rows: Callable[..., list[dict]]
    batch_size: int
    shuffle_buffer: int
    seed: int = 0
    rank: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        #: The file of the state. Of a stream that is whole, the first process writes it for all.
        self.state_file = STATE_FILE
        split = self.texts._distributed
        if split is not None:  # by `split_dataset_by_node`: these are the rows of this process
            if self.processes > 1 and (split.rank, split.world_size) != (self.rank, self.processes):
                found = f"process {self.rank} of {self.processes} got part {split.rank} of {split.world_size}"
                raise ValueError(f"train_dataset: {found}. Pass each process its own part, or all the whole stream.")
            if self.rank:
                self.state_file = f"{self.rank}-{STATE_FILE}"
            self.rank, self.processes = 0, 1
        self._start = deepcopy(self.texts.state_dict())
        self.forget()

    def forget(self) -> None:
        """Return to the first row."""
        # `row` counts the rows of the pass before the window, `done` those of the window that were used.
        self._state = {"pass": 0, "row": 0, "done": 0, "source": self._start}

    def __iter__(self) -> Iterator[list[dict]]:
        block = self.batch_size * self.processes
        first = self.rank * self.batch_size
        batch: list[tuple[int, dict]] = []
        state = deepcopy(self._state)
        while True:
            self.texts.load_state_dict(deepcopy(state["source"]))
            rows_of_pass = iter(self.texts)
            of_pass = f"{self.seed} {state['pass']}"
            while window := list(islice(rows_of_pass, self.shuffle_buffer)):
                following = deepcopy(self.texts.state_dict())
                # 1. The rows of a window in a random order, without those that were used before
                rows = list(enumerate(window, state["row"]))
                random.Random(f"shuffle {of_pass} {state['row']}").shuffle(rows)
                for done in range(state["done"], len(rows)):
                    batch.append(rows[done])
                    # 2. The share of this process in each batch
                    if len(batch) == block:
                        self._state = state | {"done": done + 1}
                        own = batch[first : first + self.batch_size]
                        rngs = [random.Random(f"{of_pass} {number}") for number, _ in own]
                        yield self.make_rows([row for _, row in own], rngs)
                        batch = []
                state = state | {"row": state["row"] + len(window), "done": 0, "source": following}
            # 3. The next pass
            if state["row"] < block:
                few = f"the stream ends after {state['row']} rows, fewer than a batch of {block} over all processes"
                raise ValueError(f"train_dataset: {few}. Lower per_device_train_batch_size.")
            state = {"pass": state["pass"] + 1, "row": 0, "done": 0, "source": self._start}

    def save_state(self, directory: str) -> None:
        """Write the place of the last batch that was read into a checkpoint, where no other process writes it.

        Args:
            directory (`str`): The checkpoint.
        """
        state = {"seed": self.seed, "shuffle_buffer": self.shuffle_buffer, **self._state}
        if self.rank == 0:
            write_json(Path(directory, self.state_file), state)

    def load_state(self, directory: str) -> None:
        """Continue after the last batch of a checkpoint.

        Args:
            directory (`str`): The checkpoint.

        Raises:
            ValueError: If the checkpoint is of a run that did not stream, or that streamed in another order.
        """
        path = Path(directory, self.state_file)
        if not path.exists():
            advice = "Resume it without streaming, or start a new run from it."
            raise ValueError(f"{directory} has no {path.name}: its run did not stream its text. {advice}")
        state = read_json_object(path, "seed", "shuffle_buffer", advice="Resume from an older checkpoint.")
        for name in ("seed", "shuffle_buffer"):
            if state.pop(name) != getattr(self, name):
                advice = "resume with the settings of that run, or start a new run from its weights"
                raise ValueError(
                    f"{path} is of a run with another {name}, which read its rows in another order: {advice}."
                )
        self._state = state
