"""Read sentence pairs with gold similarities from a file."""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ..data.columns import find_part, find_parts, parse_score
from ..data.read import csv_records, open_table, read_lines

PARTS = ("score", "sentence1", "sentence2")
STSB_COLUMNS = (4, 5, 6)  # genre, file, year, id, score, sentence1, sentence2, and sometimes sources
PLAIN_COLUMNS = (0, 1, 2)  # score, sentence1, sentence2


@dataclass
class ScoredPairs:
    """Sentence pairs with a gold similarity.

    Args:
        name (`str`): Name of the set in tables and results.
        sentences1 (`list[str]`): First sentences.
        sentences2 (`list[str]`): Second sentences.
        scores (`list[float]`): Gold similarities on any scale.
    """

    name: str
    sentences1: list[str] = field(default_factory=list)
    sentences2: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.scores)


def read_scored_pairs(path: str | os.PathLike[str], name: str | None = None) -> ScoredPairs:
    """Read the scored sentence pairs of one file, which may be gzipped.

    The file has one of these layouts:

    - a csv, tsv, jsonl or parquet table with the columns `sentence1`, `sentence2` and `score`, or with the other names
      of [`~data.columns.PART_NAMES`], which cover the SICK files and the STS data sets of the hub;
    - SentEval's `sts-{train,dev,test}.csv`, tab-separated without a header, with the score in column 5 and the texts
      in columns 6 and 7;
    - tab-separated lines of score, sentence 1 and sentence 2 without a header.

    Quotation marks in tab-separated files are part of the text. Runs of white space become one space, as in SentEval,
    which joins its tokens by single spaces. Rows with a blank score are skipped.

    Args:
        path (`str | os.PathLike`): The file.
        name (`str`, *optional*): Name of the set. Defaults to the stem of the file name.

    Returns:
        [`ScoredPairs`]: At least one pair, in the order of the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a row is malformed, a score is not a finite number, a text is empty, the bytes are not UTF-8,
            the columns are unknown, or there is no scored pair. The message names the file and the line, from 1.
    """
    path = Path(path)
    table = Path(path.name.removesuffix(".gz"))
    pairs = ScoredPairs(name or table.stem)
    for line, (score, sentence1, sentence2) in _rows(path, table.suffix.lower()):
        if score is None or str(score).strip() == "" or (isinstance(score, float) and math.isnan(score)):
            continue
        pairs.scores.append(parse_score(score, f"{path}, line {line}"))
        pairs.sentences1.append(parse_text(sentence1, path, line))
        pairs.sentences2.append(parse_text(sentence2, path, line))
    if not pairs.scores:
        raise ValueError(f"{path}: no scored sentence pair in this file. Either it is empty or every score is blank.")
    return pairs


def parse_text(value: object, path: Path | str, line: int) -> str:
    """Return `value` with single spaces, or raise a `ValueError` that names file and line."""
    if not isinstance(value, str):
        raise ValueError(f"{path}, line {line}: a sentence must be a string, got {value!r}.")
    text = " ".join(value.split())
    if not text:
        raise ValueError(f"{path}, line {line}: a sentence is empty. Remove the row, or leave its score blank.")
    return text


def _rows(path: Path, suffix: str) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield (line counted from 1, (score, sentence1, sentence2)) for each row."""
    if suffix in (".jsonl", ".json", ".parquet"):
        table = open_table(path)
        table.refuse_late_keys = True  # rows with other names for their columns would count as rows without a score
        yield from table.rows(find_parts(table.columns, PARTS, table.name))
        return
    lines = read_lines(path)
    if lines and "\t" in lines[0]:
        yield from _table_rows(path, ((i, line.split("\t")) for i, line in enumerate(lines, start=1) if line.strip()))
    else:
        yield from _table_rows(path, csv_records(path, ","))


def _table_rows(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the rows of a table, whose first row is a header or has one of the two layouts without a header."""
    first, header = next(rows, (1, []))
    has_header = all(find_part(header, part) for part in PARTS)
    picks: Sequence[int] = [header.index(column) for column in find_parts(header, PARTS, "")] if has_header else ()
    fewest, most = len(header), len(header)
    if not has_header and len(header) >= 7:
        picks, fewest, most = STSB_COLUMNS, 7, sys.maxsize
    elif not has_header and len(header) == 3:
        picks = PLAIN_COLUMNS
    elif header and not has_header:
        raise ValueError(
            f"{path}, line 1: expected the columns sentence1, sentence2 and score, or without a header the STS-B "
            "layout (score in column 5 and texts in 6 and 7, tab-separated) or score, text, text (tab-separated), got "
            f"{header}."
        )
    for line, row in rows if has_header or not header else chain([(first, header)], rows):
        if not fewest <= len(row) <= most:
            expected = f"at least {fewest}" if most > fewest else fewest
            raise ValueError(f"{path}, line {line}: {len(row)} columns instead of {expected}.")
        yield line, [row[pick] for pick in picks]
