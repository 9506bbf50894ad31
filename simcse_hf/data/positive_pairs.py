"""Build training pairs from two texts of a row or any two texts of a group, such as the captions of a picture."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers.utils import logging

from .columns import check_encodable
from .nli import describe_skipped
from .read import Row, Table, decoded_lines, open_table
from .row_filter import Condition, keeps

logger = logging.get_logger(__name__)


def build_positive_pairs(
    source: str | Path | Sequence[str | Path],
    columns: Sequence[str],
    *,
    group_column: str | None = None,
    column_names: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    exclude: Iterable[str] = (),
    max_rows: int | None = None,
    seed: int = 42,
) -> Dataset:
    """Build pairs of texts that belong together (Gao et al. 2021, section 4 and Table 4).

    Texts that belong together form a group, and any two different texts of a group are a pair, as "any two captions of
    the same image" in the paper. Without `group_column` the texts of a row are a group: with two columns a row is one
    pair, with five it is ten. With `group_column` all rows with the same cell in it are one group.

    The log counts what is left out: rows that do not fulfil `where`, empty texts, texts to `exclude`, texts that occur
    again in their group, and groups with fewer than two texts.

    Args:
        source (`str`, `Path` or `Sequence`): csv, tsv, json, jsonl or parquet files, possibly with `.gz`.
        columns (`Sequence[str]`): The columns of texts: two or more, or one or more with `group_column`.
        group_column (`str`, *optional*): The column that says which rows belong together.
        column_names (`Sequence[str]`, *optional*): Names for the columns of files without a header, whose cells are
            separated by tabs and not quoted.
        where (`Sequence[Condition]`, *optional*): Conditions that a row must fulfil.
        exclude (`Iterable[str]`, *optional*): Texts that no pair may hold, such as those of test sets. Case, spacing
            and punctuation make no difference.
        max_rows (`int`, *optional*): Keep a random sample of at most this many pairs, in their order.
        seed (`int`, *optional*, defaults to `42`): Seed of the sample.

    Returns:
        `Dataset`: The string columns `sent0` and `sent1`, in the order of the files.

    Raises:
        DataFileNotFoundError: If a file does not exist (also a ValueError).
        ValueError: If a column is missing, an argument is out of range, a cell is no text, or no pair is left. The
            message names the file and the line or row.
    """
    needed = 1 if group_column is not None else 2
    if isinstance(columns, str) or len(columns) < needed:
        raise ValueError(f"columns must name at least {needed} column(s) of texts, got {columns!r}.")
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows must be 1 or more, got {max_rows}.")
    paths = [source] if isinstance(source, (str, Path)) else list(source)
    tables = [open_table(path) if column_names is None else TabbedFile(Path(path), column_names) for path in paths]
    skipped: Counter[str] = Counter()
    excluded = {_wording(text) for text in exclude}
    pairs: list[tuple[str, str]] = []
    for texts in _groups(tables, columns, group_column, where, skipped):
        distinct = list(dict.fromkeys(texts))
        kept = [text for text in distinct if not excluded or _wording(text) not in excluded]
        skipped["texts that occur again in their group"] += len(texts) - len(distinct)
        skipped["excluded texts"] += len(distinct) - len(kept)
        skipped["groups with fewer than two texts"] += len(kept) < 2
        pairs += combinations(kept, 2)
    name = ", ".join(table.name for table in tables)
    if not pairs:
        raise ValueError(f"{name}: no pair could be built; left out: {describe_skipped(skipped)}.")
    logger.info(f"{name}: built {len(pairs)} pairs; left out: {describe_skipped(skipped)}.")
    if max_rows is not None and len(pairs) > max_rows:
        chosen = random.Random(seed).sample(range(len(pairs)), max_rows)
        pairs = [pairs[index] for index in sorted(chosen)]
    return Dataset.from_dict({"sent0": [first for first, _ in pairs], "sent1": [second for _, second in pairs]})


class TabbedFile(Table):
    """A file without a header, whose lines are cells between tabs. Quotation marks belong to the texts.

    Args:
        path (`Path`): The file, also gzipped.
        columns (`Sequence[str]`): Names for the columns.

    Raises:
        DataFileNotFoundError: If the file does not exist.
        ValueError: If the file is no plain text, or a name occurs twice.
    """

    def __init__(self, path: Path, columns: Sequence[str]):
        if path.name.removesuffix(".gz").endswith((".json", ".jsonl", ".parquet")):
            raise ValueError(f"{path}: the columns of this format have names: leave out column_names.")
        if len(set(columns)) < len(columns):
            raise ValueError(f"column_names must differ, got {', '.join(columns)}.")
        if not path.is_file():
            open_table(path)  # says what is wrong
        super().__init__(path, columns)

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the number and the cells of each row; see [`Table.rows`]."""
        indices = [self.columns.index(column) for column in columns]
        for number, line in decoded_lines(Path(self.name)):
            cells = line.rstrip("\r\n").split("\t")
            if not line.strip():
                continue
            if len(cells) != len(self.columns):
                raise ValueError(
                    f"{self.at(number)}: {len(cells)} cells between tabs where {len(self.columns)} columns are named "
                    f"({', '.join(self.columns)}). Name each column of the file."
                )
            yield number, [cells[index] for index in indices]


def _groups(
    tables: Sequence[Table],
    columns: Sequence[str],
    group_column: str | None,
    where: Sequence[Condition],
    skipped: Counter[str],
) -> Iterable[list[str]]:
    """Return the texts of each group, in the order in which the groups were first seen."""
    groups: dict[Any, list[str]] = {}
    for table in tables:
        read = [*columns, *(condition.column for condition in where), *([group_column] if group_column else [])]
        for column in read:
            if column not in table.columns:
                raise ValueError(
                    f"{table.name}: no column {column!r}; the columns are {', '.join(map(repr, table.columns))}."
                )
        for number, cells in table.rows(read):
            at = partial(table.at, number)
            if not keeps(where, cells[len(columns) : len(columns) + len(where)], at):
                skipped["rows that do not fulfil the conditions"] += 1
                continue
            texts = [_checked(cell, column, at) for cell, column in zip(cells, columns, strict=False)]
            skipped["empty texts"] += sum(not text for text in texts)
            key = (table.name, number) if group_column is None else cells[-1]
            if key is None or key == "":
                raise ValueError(f"{at()}, column {group_column!r}: the cell is empty, so the row is in no group.")
            groups.setdefault(key, []).extend(filter(None, texts))
    return groups.values()


def _checked(cell: Any, column: str, at: partial[str]) -> str:
    """Return the text of a cell, or an empty text if it has only white space."""
    if cell is not None and not isinstance(cell, str):
        raise ValueError(f"{at()}, column {column!r}: expected a text, got {cell!r}.")
    check_encodable(cell or "", at)
    return cell if cell and not cell.isspace() else ""


def _wording(text: str) -> str:
    return "".join(re.findall(r"\w+", text.casefold()))
