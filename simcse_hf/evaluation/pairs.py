"""Read sentence pairs with gold similarities from a file."""

import csv
import gzip
import io
import json
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..data.files import open_table

COLUMN_NAMES = {
    "score": ("score", "similarity_score", "relatedness_score", "label"),
    "sentence1": ("sentence1", "sent1", "sentence_a"),
    "sentence2": ("sentence2", "sent2", "sentence_b"),
}
STSB_COLUMNS = (4, 5, 6)  # genre, file, year, id, score, sentence1, sentence2, and sometimes sources
PLAIN_COLUMNS = (0, 1, 2)  # score, sentence1, sentence2

Row = tuple[int, object, object, object]


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
      of [`COLUMN_NAMES`], which cover the SICK files and the STS data sets of the hub;
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
    for line, score, sentence1, sentence2 in _rows(path, table.suffix.lower()):
        if score is None or str(score).strip() == "" or (isinstance(score, float) and math.isnan(score)):
            continue
        pairs.scores.append(parse_score(score, path, line))
        pairs.sentences1.append(parse_text(sentence1, path, line))
        pairs.sentences2.append(parse_text(sentence2, path, line))
    if not pairs.scores:
        raise ValueError(f"{path}: no scored sentence pair in this file. Either it is empty or every score is blank.")
    return pairs


def parse_score(value: object, path: Path | str, line: int) -> float:
    """Return `value` as a finite float, or raise a `ValueError` that names file and line."""
    try:
        score = float(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(
            f"{path}, line {line}: the score {value!r} is not a finite number. Correct it, or leave it blank to skip "
            "the row."
        )
    return score


def parse_text(value: object, path: Path | str, line: int) -> str:
    """Return `value` with single spaces, or raise a `ValueError` that names file and line."""
    if not isinstance(value, str):
        raise ValueError(f"{path}, line {line}: a sentence must be a string, got {value!r}.")
    text = " ".join(value.split())
    if not text:
        raise ValueError(f"{path}, line {line}: a sentence is empty. Remove the row, or leave its score blank.")
    return text


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file, which may be gzipped, without their line ends.

    Only line feeds end a line. `str.splitlines` also splits at Unicode line separators, which occur in real text.

    Args:
        path (`str | Path`): The file.
        encoding (`str`, *optional*, defaults to `"utf-8"`): Its encoding. A byte-order mark is dropped.

    Returns:
        `list[str]`: The lines. A final line feed does not add an empty line.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If bytes cannot be decoded. The message names the file and the line.
    """
    path = Path(path)
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: not a complete gzip file ({error}). Download it again.") from error
    try:
        text = data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: not {encoding} (byte 0x{data[error.start]:02x}). Save the file as {encoding}."
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _rows(path: Path, suffix: str) -> Iterator[Row]:
    """Yield (line counted from 1, score, sentence1, sentence2) for each row."""
    if suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    lines = read_lines(path)
    if suffix in (".jsonl", ".json"):
        yield from _json_rows(path, lines)
    elif lines and "\t" in lines[0]:
        numbered = ((i, line.split("\t")) for i, line in enumerate(lines, start=1) if line.strip())
        yield from _table_rows(path, numbered)
    else:
        reader = csv.reader(io.StringIO("\n".join(lines)), strict=True)
        yield from _table_rows(path, _csv_rows(path, reader))


def _csv_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}, line {line}: malformed csv ({error}).") from error
        if row:
            yield line, row


def find_columns(names: list[str]) -> dict[str, str] | None:
    """Map each of score, sentence1 and sentence2 to the name of its column; return `None` if one has no column."""
    lowered = {name.strip().lower(): name for name in reversed(names)}
    columns = {}
    for key, aliases in COLUMN_NAMES.items():
        columns[key] = next((lowered[alias] for alias in aliases if alias in lowered), "")
    return columns if all(columns.values()) else None


def _unknown_columns(path: Path, names: list[str]) -> ValueError:
    return ValueError(
        f"{path}, line 1: expected the columns sentence1, sentence2 and score, or without a header the STS-B layout "
        f"(score in column 5 and texts in 6 and 7, tab-separated) or score, text, text (tab-separated), got {names}."
    )


def _table_rows(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    first = next(rows, None)
    if first is None:
        return
    line, header = first
    columns = find_columns(header)
    picks: Sequence[int]
    most: int | None
    if columns is not None:
        picks = [header.index(columns[key]) for key in ("score", "sentence1", "sentence2")]
        fewest, most = len(header), len(header)
    elif len(header) >= 7:
        picks, fewest, most = STSB_COLUMNS, 7, None
    elif len(header) == 3:
        picks, fewest, most = PLAIN_COLUMNS, 3, 3
    else:
        raise _unknown_columns(path, header)
    if columns is None:
        yield line, header[picks[0]], header[picks[1]], header[picks[2]]
    for line, row in rows:
        if len(row) < fewest or (most is not None and len(row) > most):
            expected = fewest if most is not None else f"at least {fewest}"
            raise ValueError(f"{path}, line {line}: {len(row)} columns instead of {expected}.")
        yield line, row[picks[0]], row[picks[1]], row[picks[2]]


def _json_rows(path: Path, lines: list[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # also for 4,300 digits in a row, and for deep nesting
            raise ValueError(f"{path}, line {number}: not a JSON object ({error}).") from error
        columns = find_columns(list(record)) if isinstance(record, dict) else None
        if columns is None:
            raise ValueError(
                f"{path}, line {number}: expected an object with sentence1, sentence2, score: {line[:80]}"
            )
        yield number, record[columns["score"]], record[columns["sentence1"]], record[columns["sentence2"]]


def _parquet_rows(path: Path) -> Iterator[Row]:
    table = open_table(path)
    columns = find_columns(table.columns)
    if columns is None:
        raise _unknown_columns(path, table.columns)
    for number, (score, sentence1, sentence2) in table.rows([columns[k] for k in ("score", "sentence1", "sentence2")]):
        yield number, score, sentence1, sentence2
