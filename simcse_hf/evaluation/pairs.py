"""Scored sentence pairs, and reading them from a table."""

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COLUMN_NAMES = {
    "score": ("score", "similarity_score", "relatedness_score", "label"),
    "sentence1": ("sentence1", "sent1", "sentence_a"),
    "sentence2": ("sentence2", "sent2", "sentence_b"),
}
STSB_COLUMNS = (4, 5, 6)  # sts-dev.csv: genre, file, year, id, score, sentence1, sentence2, optional sources
PLAIN_COLUMNS = (0, 1, 2)  # score, sentence1, sentence2

Row = tuple[int, object, object, object]


@dataclass
class ScoredPairs:
    """Sentence pairs with a gold similarity.

    Args:
        name (`str`): Name of the set, as it appears in tables and results.
        sentences1 (`list[str]`): First sentences, of length `n`.
        sentences2 (`list[str]`): Second sentences, of length `n`.
        scores (`list[float]`): Gold similarities, of length `n`, on any scale.
    """

    name: str
    sentences1: list[str] = field(default_factory=list)
    sentences2: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.scores)


def read_scored_pairs(path: str | Path, name: str | None = None) -> ScoredPairs:
    """Reads the scored sentence pairs of one file.

    Understood are, optionally gzipped (`.gz`):

    - a csv, tsv, jsonl or parquet table with the columns `sentence1`, `sentence2` and `score`, also found under the
      names of [`COLUMN_NAMES`], which cover the SICK files and the hub's STS data sets;
    - SentEval's `sts-{train,dev,test}.csv`: tab-separated without a header, score in column 5, texts in 6 and 7;
    - tab-separated lines of score, sentence 1, sentence 2 without a header.

    Tab-separated files are read raw: a quotation mark is text. Runs of white space become one space, as in
    SentEval, which joins its tokens by single spaces. A row with a blank score is skipped.

    Args:
        path (`str` or `Path`): The file.
        name (`str`, *optional*): Name of the set; the file's stem when not given.

    Returns:
        [`ScoredPairs`]: At least one pair, in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: Naming file and line (1-based), for a malformed row, a score that is no finite number, an empty
            text, bytes that are not UTF-8, an unknown column layout, or a file without a scored pair.
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
        raise ValueError(f"{path}: no scored sentence pair in this file; it is empty or every score is blank.")
    return pairs


def parse_score(value: object, path: Path, line: int) -> float:
    """Returns `value` as a finite float, or raises a `ValueError` that names file and line."""
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(f"{path}, line {line}: the score {value!r} is not a finite number.")
    return score


def parse_text(value: object, path: Path, line: int) -> str:
    """Returns `value` with single spaces, or raises a `ValueError` that names file and line."""
    if not isinstance(value, str):
        raise ValueError(f"{path}, line {line}: a sentence must be text, got {value!r}.")
    text = " ".join(value.split())
    if not text:
        raise ValueError(f"{path}, line {line}: a sentence is empty; remove the row or blank its score.")
    return text


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Reads the lines of a text file, `.gz` or not, without their line ends.

    Lines end at a line feed only: the Unicode line separators that `str.splitlines` also cuts at occur in real text.

    Args:
        path (`str` or `Path`): The file.
        encoding (`str`, *optional*, defaults to `"utf-8"`): Its encoding; a byte-order mark is dropped.

    Returns:
        `list[str]`: The lines; no empty last one for a final line feed.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: Naming file and line of the first bytes that cannot be decoded.
    """
    path = Path(path)
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: not a complete gzip file ({error}).") from error
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
    """Yields (1-based line, score, sentence1, sentence2) of every row."""
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


def _csv_rows(path: Path, reader) -> Iterator[tuple[int, list[str]]]:
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
    """Maps each of score, sentence1, sentence2 to the column that holds it; `None` if one is not there."""
    lowered = {name.strip().lower(): name for name in reversed(names)}
    found = {key: next((lowered[a] for a in names if a in lowered), None) for key, names in COLUMN_NAMES.items()}
    return None if None in found.values() else found


def _unknown_columns(path: Path, found: object) -> ValueError:
    return ValueError(
        f"{path}, line 1: expected the columns sentence1, sentence2 and score, or without a header the STS-B layout "
        f"(score in column 5 and texts in 6 and 7, tab-separated) or score, text, text (tab-separated); got {found}."
    )


def _table_rows(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    first = next(rows, None)
    if first is None:
        return
    line, header = first
    columns = find_columns(header)
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
        yield line, *(header[pick] for pick in picks)
    for line, row in rows:
        if len(row) < fewest or (most is not None and len(row) > most):
            expected = fewest if most is not None else f"at least {fewest}"
            raise ValueError(f"{path}, line {line}: {len(row)} columns where {expected} are expected.")
        yield line, *(row[pick] for pick in picks)


def _json_rows(path: Path, lines: list[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({error}).") from error
        columns = find_columns(list(record)) if isinstance(record, dict) else None
        if columns is None:
            raise ValueError(
                f"{path}, line {number}: expected an object with sentence1, sentence2, score: {line[:80]}"
            )
        yield number, record[columns["score"]], record[columns["sentence1"]], record[columns["sentence2"]]


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a parquet file ({error}).") from error
    columns = find_columns(table.column_names)
    if columns is None:
        raise _unknown_columns(path, table.column_names)
    values = [table[columns[key]].to_pylist() for key in ("score", "sentence1", "sentence2")]
    yield from zip(range(1, table.num_rows + 1), *values, strict=True)
