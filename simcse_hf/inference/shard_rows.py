"""Read the rows of shards from their places in a file, in windows of texts."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..data.read import Place, Table, placed_texts

Row = tuple[int, str]


@dataclass(frozen=True)
class Shard:
    """The rows of a shard.

    Args:
        number (`int`): The number of the shard, from 0.
        first (`int`): The number of rows before it.
        size (`int`): The number of its rows.
        start (`Place`, *optional*): Where it starts in the file, if that was recorded.
    """

    number: int
    first: int
    size: int
    start: Place | None


@dataclass(frozen=True)
class Window:
    """Rows of one shard that are encoded together.

    Args:
        shard (`int`): The number of the shard.
        rows (`list[tuple[int, str]]`): The line or row numbers, from 1, and the texts.
        ends_shard (`bool`): Whether the last row of the shard is among them.
    """

    shard: int
    rows: list[Row]
    ends_shard: bool


def file_version(path: Path) -> tuple[int, int]:
    """Return the size of a file and the time of its last change, to notice that it was written to."""
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def read_windows(
    table: Table, column: str, shards: Sequence[Shard], window: int, version: tuple[int, int] | None
) -> Generator[Window]:
    """Yield the rows of some shards in windows, none of which holds rows of two shards.

    Args:
        table (`Table`): The file.
        column (`str`): The column of texts.
        shards (`Sequence[Shard]`): The shards, in the order of their numbers.
        window (`int`): The most rows of a window.
        version (`tuple[int, int]`, *optional*): What [`file_version`] returned before the rows were counted.

    Yields:
        `Window`: The next rows.

    Raises:
        ValueError: If the file has changed since its rows were counted.
    """
    position, texts = 0, placed_texts(table, column)
    for shard in shards:
        if shard.first != position and shard.start is not None and table.can_seek:
            texts.close()
            texts = placed_texts(table, column, shard.start)
        else:  # skip the rows of finished shards and those of other processes
            next(islice(texts, shard.first - position, shard.first - position), None)
        for start in range(0, shard.size, window):
            count = min(window, shard.size - start)
            rows = [(place.number, text) for place, text in islice(texts, count)]
            if len(rows) != count or (version is not None and file_version(Path(table.name)) != version):
                raise ValueError(f"{table.name}: the file was changed while it was encoded. Encode it again from new.")
            yield Window(shard.number, rows, start + count == shard.size)
        position = shard.first + shard.size
