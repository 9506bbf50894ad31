"""Training text as a stream, for text that is larger than the memory and the disk cache."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from datasets import IterableDataset

from ..runtime.errors import DataError
from .columns import SAMPLE_ROWS, plain
from .read import find_paths, load_from_hub, make_room, table_cleaners
from .table import RowCleaner, open_records, open_table


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
        DataError: If the columns are unclear, or `source` is neither a file nor a dataset on the hub.
    """
    # 1. Files.
    paths = find_paths(source)
    if paths is not None:
        cleaners = table_cleaners([open_table(path) for path in paths], columns, expected_columns)
        features = make_room(cleaners, SAMPLE_ROWS)

        def rows_of_files(files: Sequence[RowCleaner]) -> Iterator[dict]:
            for file in files:
                cleaner = RowCleaner(file.table, file.columns, file.width)
                for rows in cleaner.read():
                    for row in rows:
                        yield dict(zip(features, row, strict=True))
                cleaner.log()

        # A list is the shards of the stream.
        return IterableDataset.from_generator(rows_of_files, features=features, gen_kwargs={"files": cleaners})

    # 2. A stream, or a data set of the hub.
    if isinstance(source, str):
        name = source
        source = load_from_hub(name, "train", streaming=True)
    if not isinstance(source, IterableDataset):
        raise DataError(f"a stream is read from files or from the hub, got a {type(source).__name__}.")
    stream = source.with_format(None)
    head = list(stream.take(SAMPLE_ROWS))
    table = open_records(name, lambda: enumerate(head, 1), "row")
    if "input_ids" in table.columns:
        raise DataError(f"{name} is a stream of token ids: stream texts, or pass token ids as a datasets.Dataset.")
    [cleaner] = table_cleaners([table], columns, expected_columns)
    chosen = cleaner.columns
    features = make_room([cleaner])
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

    options = {"batched": True, "batch_size": 1000, "features": features}
    return stream.map(clean, with_indices=True, remove_columns=table.columns, **options)


class WholeStream(torch.utils.data.IterableDataset):
    """A stream of which each process takes its share of every batch.

    With 2 processes and batches of 4 rows, process 0 takes the rows 0 to 3, 8 to 11 and so on. One process with
    batches of 8 rows has the same batches. Accelerate would give each process other files of a stream that it knows.

    Args:
        rows (`datasets.IterableDataset`): The rows, with the `NUMBER` of each in its pass.

    Attributes:
        num_rows (`int`): The rows of a pass; 0 before the first one has ended.
    """

    #: The column of the numbers, which is taken away.
    NUMBER = "_number"

    def __init__(self, rows: IterableDataset):
        self.rows = rows
        self.num_rows = 0

    def __iter__(self) -> Iterator[dict]:
        last = -1
        for row in self.rows:
            number = row.pop(self.NUMBER)
            if number <= last:  # another pass begins
                self.num_rows = last + 1
            last = number
            yield row
