"""Read training text as a stream, for text that is larger than the memory and the disk cache."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import IterableDataset

from .columns import check_column_count, output_columns, resolve_columns
from .files import open_table
from .readers import find_paths, load_from_hub, resolve_tables, text_features
from .rows import RowReport, clean_row, clean_rows, row_width
from .table import SAMPLE_ROWS, Row, TextTable

_BATCH_ROWS = 1000


class _StreamedTable(TextTable):
    """The name and the unit of a stream of rows, for messages."""

    unit = "row"

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        raise NotImplementedError


def load_text_stream(
    source: str | Path | Sequence[Any],
    *,
    split: str = "train",
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
) -> IterableDataset:
    """Open sentences, pairs, or pairs with hard negatives as a stream that never holds more than a few rows.

    Nothing is cached. A row is checked when it is read, so a malformed row far down a file is an error at that time.

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
    resolved, width = resolve_tables(tables, columns, expected_columns)
    # Lists are the shards of the stream: each file has its path and its columns.
    files = {"paths": [str(path) for path in paths], "columns": resolved, "width": width}
    return IterableDataset.from_generator(_rows_of_files, features=text_features(width), gen_kwargs=files)


def _rows_of_files(paths: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> Iterator[dict[str, str]]:
    names = output_columns(width)
    for path, resolved in zip(paths, columns, strict=True):
        table, report = open_table(path), RowReport()
        for row in clean_rows(table, resolved, width, report):
            yield dict(zip(names, row, strict=True))
        report.log(table.name, table.unit)


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
    head = list(stream.take(SAMPLE_ROWS))
    if not head:
        raise ValueError(f"{name}: there are no rows.")
    names = list(head[0])
    if stream.features is not None and stream.features == text_features(len(names)):
        check_column_count(len(names), expected_columns, names, name, names)
        return stream
    sample = [[row.get(column) for column in names] for row in head]
    resolved = resolve_columns(names, name=name, sample=sample, columns=columns, expected_columns=expected_columns)
    width = row_width([row[column] for column in resolved] for row in head)
    check_column_count(width, expected_columns, resolved, name, names)
    table, report = _StreamedTable(name), RowReport(width=width)

    def clean(batch: dict[str, list[Any]], numbers: list[int]) -> dict[str, list[str]]:
        nonlocal report
        if numbers[0] == 0:  # another pass over the stream begins
            report = RowReport(width=width, logged=report.logged)
        cells = zip(*(batch[column] for column in resolved), strict=True)
        rows = [
            row
            for number, row_cells in zip(numbers, cells, strict=True)
            for row in clean_row(table, number + 1, row_cells, resolved, width, report)
        ]
        report.rows += len(rows)
        report.log_so_far(name, table.unit)
        return {column: [row[i] for row in rows] for i, column in enumerate(output_columns(width))}

    return stream.select_columns(resolved).map(
        clean,
        batched=True,
        batch_size=_BATCH_ROWS,
        with_indices=True,
        remove_columns=resolved,
        features=text_features(width),
    )
