"""Which column of a table plays which part, and which of its rows have a text in each of them."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from transformers.utils import logging

from ..ops.errors import refuse

logger = logging.get_logger(__name__)

#: Rows that the columns of a table are judged by.
SAMPLE_ROWS = 100
#: Characters of a line or a text: a tokenizer took more than 7 GB of memory for 100 million.
LONGEST_TEXT = 2**24
TOO_LONG = "more than 16 million characters, which is no sentence. Write each text on a line of its own."
#: Column of the similarity of a pair, for objectives that learn from graded pairs.
SCORE = "score"
#: Column of the class of a text, for objectives that learn from classes.
LABEL = "label"
#: Columns of rows that hold no texts, and stay as they are when the texts are tokenised.
NO_TEXT = (SCORE, LABEL, "relations")
#: Names, in any case, by which a column of a dev set, a task or labelled pairs is known; messages use the first one.
PART_NAMES = {
    "score": ("score", "similarity_score", "relatedness_score", "label"),
    "sentence1": ("sentence1", "sent1", "sentence_a"),
    "sentence2": ("sentence2", "sent2", "sentence_b"),
    "text": ("text", "sentence", "sent0"),
    "label": ("label", "category", "class", "intent"),
    "split": ("split",),
    "query": ("query", "question", "anchor"),
    "positive": ("positive", "positives", "pos"),
    "negative": ("negative", "negatives", "neg"),
    "premise": ("premise", "sentence1", "context"),
    "hypothesis": ("hypothesis", "sentence2"),
    "relation": ("label", "gold_label"),
}
_NO_NEGATIVE = r"(?!)"
#: Anchor, positive and a pattern for hard negatives of training rows, whose group is the number of the negative.
_PAIR_NAMES = (
    ("sent0", "sent1", r"(?:hard_neg_?|sent(?=[2-9]|[1-9]\d))(\d{1,9})?"),
    ("anchor", "positive", r"negatives?_?(\d{1,9})?"),
    ("anchor", "positives", r"negatives?_?(\d{1,9})?"),
    ("query", "pos", r"negs?_?(\d{1,9})?"),
    ("query", "positive", r"negatives?_?(\d{1,9})?"),
    ("query", "positives", r"negatives?_?(\d{1,9})?"),
    ("sentence1", "sentence2", _NO_NEGATIVE),
    ("premise", "hypothesis", _NO_NEGATIVE),
)
_ROLE_NAME = re.compile("|".join(f"{positive}|{pattern}" for _, positive, pattern in _PAIR_NAMES))
_JUDGEMENT = re.compile(r"(.*_)?(labels?|scores?)", re.IGNORECASE)
_NOT_TEXT = re.compile(
    rf"|unnamed: \d+|__index_level_\d+__|(.*_)?(idx|id|guid|pairid|index|split|category|class)|{_JUDGEMENT.pattern}",
    re.IGNORECASE,
)
_STRINGS = (Value("string"), Value("large_string"))
_ADVICE = (
    "Name the columns with --columns or, in Python, load_text_dataset(..., columns=[...]), in the order anchor, "
    "positive, hard negatives"
)


# --- names -----------------------------------------------------------------------------------------------------------


def resolve_columns(
    column_names: Sequence[str],
    *,
    name: str,
    sample: Sequence[Sequence[Any]] = (),
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
) -> tuple[list[str], int]:
    """Choose the text columns of a table: first the anchor, then the positive, then the hard negatives.

    Columns are chosen by the names that the field uses: `sent0, sent1, hard_neg`; `anchor, positive, negative`;
    `query, pos, neg`; `query, positive, negative`; `sentence1, sentence2`; `premise, hypothesis`; or a single `sent0`,
    `text` or `sentence`. Several negatives are numbered, as in `hard_neg_1, hard_neg_2` or `sent2, sent3`. Otherwise
    the only text column is taken. Columns of identifiers, labels, scores or numbers are never taken for text. A log
    line says which column plays which part.

    Args:
        column_names (`Sequence[str]`): The columns of the table, in its own order.
        name (`str`): The table's name, for messages.
        sample (`Sequence[Sequence[Any]]`, *optional*, defaults to `()`): Cells of the first rows, one sequence as long
            as `column_names` for each row.
        columns (`Sequence[str]`, *optional*): The columns to take instead, in the same order of parts.
        expected_columns (`int`, *optional*): How many texts a row must have: 1 for sentences, 2 for pairs, 2 + k for
            pairs with k hard negatives.

    Returns:
        `tuple[list[str], int]`: The names of the chosen columns, and the number of texts in a row. Where cells list
        several hard negatives, this is two more than the fewest of any row that has some. Empty texts do not count,
        so a row with one of them is narrower, and not dropped.

    Raises:
        ValueError: If `columns` names a missing column or one column twice, if negatives come without a positive, if
            the names do not say which columns to take, or if there are not `expected_columns` texts.
    """
    column_names = list(column_names)
    chosen = _by_name(column_names, sample, name) if columns is None else _requested(column_names, columns, name)
    rows = [[row[column_names.index(column)] for column in chosen] for row in sample]
    width = len(chosen)
    if any(is_list(cell) for row in rows for cell in row):
        counts = {sum(not isinstance(x, str | None) or has_text(x) for x in _flatten(row[2:])) for row in rows}
        width = 2 + min(counts - {0}, default=0)
    refuse(
        {
            f"{name}: {width} text column(s) ({_quote(chosen)}) where {expected_columns} are expected. {_ADVICE}; the "
            f"columns are {_quote(column_names)}.": expected_columns not in (None, width)
        }
    )
    parts = ", ".join(
        f"{part} {_quote(names)}"
        for part, names in (("anchor", chosen[:1]), ("positive", chosen[1:2]), ("hard negatives", chosen[2:]))
        if names
    )
    ignored = [column for column in column_names if column not in chosen]
    message = f"{name}: {parts if len(chosen) > 1 else f'the sentences are in column {chosen[0]!r}'}"
    message += f"; ignored {_quote(ignored)}." if ignored else "."
    if len(chosen) > 1 and any(map(_JUDGEMENT.fullmatch, ignored)):
        logger.warning(
            f"{message} Every row counts as a positive pair, whatever its label or score says; `simcse-hf build-nli` "
            "turns labelled pairs into triplets."
        )
    else:
        logger.info(message)
    return chosen, width


def resolve_text_column(column_names: Sequence[str], name: str, column: str | None = None) -> str:
    """Choose the one column of texts: the requested one, the only one, or the one named `sent0`, `text` or `sentence`.

    Args:
        column_names (`Sequence[str]`): The columns of the table.
        name (`str`): The table's name, for messages.
        column (`str`, *optional*): The column to take.

    Returns:
        `str`: The name of the column.

    Raises:
        ValueError: If the column is missing, or there are several that may be meant.
    """
    if column is not None:
        return _requested(column_names, [column], name)[0]
    known = [name for name in column_names if len(column_names) == 1 or name in PART_NAMES["text"]]
    refuse({f"{name}: which of the columns {_quote(column_names)} holds the texts? Name it.": len(known) != 1})
    return known[0]


def class_columns(
    column_names: Sequence[str], sample: Sequence[Sequence[Any]] = (), columns: Sequence[str] | None = None
) -> list[str] | None:
    """Find the columns of texts and of their class labels.

    Args:
        column_names (`Sequence[str]`): The columns of the table.
        sample (`Sequence[Sequence[Any]]`, *optional*, defaults to `()`): Cells of the first rows.
        columns (`Sequence[str]`, *optional*): The columns of texts that were asked for.

    Returns:
        `list[str]`: The column of texts and the column of labels (`label`, `category`, `class` or `intent`); `None` if
            there is no such column, or a row has several texts.
    """
    label = find_part(column_names, "label")
    if label is None or len(column_names) == 1:
        return None
    others = [name for name in column_names if name != label]
    cells = [[row[column_names.index(name)] for name in others] for row in sample]
    try:
        chosen = _by_name(others, cells, "") if columns is None else list(columns)
    except ValueError:
        return None
    return [*chosen, label] if len(chosen) == 1 else None


def find_part(column_names: Iterable[str], part: str) -> str | None:
    """Return the column that plays a part of [`PART_NAMES`], or `None`."""
    lowered = {column.strip().lower(): column for column in reversed(list(column_names))}
    return next((lowered[name] for name in PART_NAMES[part] if name in lowered), None)


def find_parts(column_names: Iterable[str], parts: Sequence[str], name: str) -> list[str]:
    """Find the columns that play some parts.

    Args:
        column_names (`Iterable[str]`): The columns of the table.
        parts (`Sequence[str]`): Keys of [`PART_NAMES`].
        name (`str`): The table's name, for messages.

    Returns:
        `list[str]`: The column of each part.

    Raises:
        ValueError: If a part has no column. The message lists the columns that there are.
    """
    column_names = list(column_names)
    found = {part: find_part(column_names, part) for part in parts}
    missing = [PART_NAMES[part] for part, column in found.items() if column is None]
    if missing:
        raise ValueError(
            f"{name}: no column {' and no column '.join(repr(names[0]) for names in missing)} (also accepted: "
            f"{'; '.join(', '.join(names[1:]) or 'no other name' for names in missing)}). The columns are "
            f"{_quote(column_names)}. Rename one."
        )
    return [column for column in found.values() if column is not None]


def _requested(column_names: Sequence[str], columns: Sequence[str], name: str) -> list[str]:
    is_wrong = isinstance(columns, str) or not columns or len(set(columns)) < len(columns)
    missing = [column for column in columns if column not in column_names]
    refuse(
        {
            f"columns must be a non-empty list of different column names, got {columns!r}.": is_wrong,
            f"{name}: no column {_quote(missing)}; the columns are {_quote(column_names)}.": missing,
        }
    )
    return list(columns)


def _by_name(column_names: Sequence[str], sample: Sequence[Sequence[Any]], name: str) -> list[str]:
    if len(column_names) == 1:  # there is nothing to confuse it with
        return list(column_names)
    pairs = []
    for anchor, positive, pattern in _PAIR_NAMES:
        if anchor in column_names:
            matches = [match for column in column_names if (match := re.fullmatch(pattern, column))]
            negatives = {int(match[1] or -1): match[0] for match in matches}
            if len(negatives) < len(matches):
                raise ValueError(
                    f"{name}: two of {_quote(match[0] for match in matches)} have the same number. {_ADVICE}."
                )
            if positive in column_names:
                pairs.append([anchor, positive, *(negatives[number] for number in sorted(negatives))])
            elif negatives and not any(p in column_names for a, p, _ in _PAIR_NAMES if a == anchor):
                raise ValueError(
                    f"{name}: there are {anchor!r} and {_quote(negatives.values())}, but no {positive!r}. {_ADVICE}."
                )
    if len(pairs) == 1:
        return pairs[0]
    texts = [column for i, column in enumerate(column_names) if not _is_not_text(column, [row[i] for row in sample])]
    named = [column for column in texts if column in PART_NAMES["text"]]
    if not pairs and len(texts) == 1:
        return texts
    if not pairs and len(named) == 1 and not any(map(_ROLE_NAME.fullmatch, texts)):
        return named
    excluded = [column for column in column_names if column not in texts]
    raise ValueError(
        f"{name}: the column names do not say which columns hold the texts"
        f"{f' ({_quote(excluded)} cannot be text)' if excluded else ''}. {_ADVICE}; the columns are "
        f"{_quote(column_names)}."
    )


def _is_not_text(column: str, cells: Iterable[Any]) -> bool:
    cells = [cell for cell in cells if cell is not None and cell != ""]
    return bool(_NOT_TEXT.fullmatch(column)) or (bool(cells) and all(map(_is_number, cells)))


def _is_number(cell: Any) -> bool:
    try:
        return not is_list(cell) and (not isinstance(cell, str) or float(cell) is not None)
    except ValueError:
        return False


def _quote(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


# --- rows ------------------------------------------------------------------------------------------------------------

_SHOWN_ROWS = 5
_resolved: set[str] = set()  # fingerprints of data sets that need not be scanned again


def text_features(width: int) -> Features:
    """Return the features of rows of texts: `sent0` (the anchor), `sent1` (its positive), `sent2`, ... (negatives)."""
    return Features({f"sent{index}": Value("string") for index in range(width)})


def mark_resolved(dataset: Dataset) -> Dataset:
    """Remember that a dataset has the columns `sent0`, `sent1`, ... and no empty cell, and return it."""
    _resolved.add(dataset._fingerprint)
    return dataset


def is_resolved(dataset: Dataset) -> bool:
    """Say whether [`mark_resolved`] remembers a dataset."""
    return dataset._fingerprint in _resolved


def resolve_dataset_columns(
    dataset: Dataset,
    columns: Sequence[str] | None = None,
    *,
    name: str = "the dataset",
    expected_columns: int | None = None,
    keep: str | None = None,
) -> Dataset:
    """Select the text columns of a dataset and name them `sent0`, `sent1`, `sent2`, ... in the order of their parts.

    A dataset that is already tokenised (`input_ids`) or grouped (`texts` and `relations`) is returned as it is, and so
    is one that was resolved before. Rows with an empty cell are dropped with a warning. A cell may hold a list: each
    positive of a list becomes a row of its own, and negatives of a list become columns.

    Args:
        dataset (`datasets.Dataset`): The dataset.
        columns (`Sequence[str]`, *optional*): The columns to take; see [`resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.
        expected_columns (`int`, *optional*): How many texts a row must have; see [`resolve_columns`].
        keep (`str`, *optional*): A further column that stays as it is.

    Returns:
        `datasets.Dataset`: The dataset with string columns only, and the column to `keep`.

    Raises:
        ValueError: If the dataset has no rows, its columns are unclear or hold no strings, or every row has an empty
            cell.
    """
    column_names = [column for column in dataset.column_names if column != keep]
    if "input_ids" in column_names or {"texts", "relations"} <= set(column_names):
        return dataset
    if columns is None and is_resolved(dataset) and expected_columns in (None, len(column_names)):
        return dataset
    refuse({f"{name}: there are no rows.": len(dataset) == 0})
    dataset = dataset.with_format(None)
    head = dataset[:SAMPLE_ROWS]
    sample = list(zip(*(head[column] for column in column_names), strict=True))
    chosen, width = resolve_columns(
        column_names, name=name, sample=sample, columns=columns, expected_columns=expected_columns
    )
    lists = False
    for column in chosen:
        feature = dataset.features[column]
        lists = lists or feature not in _STRINGS
        if feature not in _STRINGS and (keep is not None or getattr(feature, "feature", None) not in _STRINGS):
            raise ValueError(f"{name}: column {column!r} holds {feature}, not strings. {_ADVICE}.")
    cleaner = RowCleaner(name, chosen, width)
    if lists:
        batches = dataset.select_columns(chosen).iter(10_000)
        rows = enumerate((cells for batch in batches for cells in zip(*map(batch.get, chosen), strict=True)), 1)
        names, cleaned = list(text_features(width)), list(cleaner.clean_all(rows))
        dataset = Dataset.from_dict(dict(zip(names, map(list, zip(*cleaned, strict=True)), strict=True)))
    else:
        kept = [] if keep is None else [keep]
        dataset = dataset.select_columns([*chosen, *kept]).rename_columns(
            dict(zip(chosen, text_features(width), strict=True))
        )
        masks = [
            np.all(
                [pc.fill_null(pc.utf8_length(pc.utf8_trim_whitespace(x)), 0).to_numpy() > 0 for x in batch.columns], 0
            )
            for batch in dataset.select_columns(list(text_features(width))).with_format("arrow").iter(10_000)
        ]
        has_texts = np.concatenate(masks)
        cleaner.count(int(has_texts.sum()), np.flatnonzero(~has_texts) + 1)
        dataset = dataset if has_texts.all() else dataset.select(np.flatnonzero(has_texts))
        features = Features(dataset.features | text_features(width))
        dataset = dataset if dataset.features == features else dataset.cast(features)
    cleaner.log()
    return mark_resolved(dataset)


def resolve_scored_pairs(dataset: Dataset, name: str = "the dataset") -> Dataset:
    """Select the two text columns and the score of a dataset.

    A dataset that is already tokenised (`input_ids`) is returned as it is. Rows with an empty text are dropped with a
    warning.

    Args:
        dataset (`datasets.Dataset`): A dataset with the column `score` and two columns of texts, such as `sentence1`
            and `sentence2`; see [`resolve_columns`].
        name (`str`, *optional*, defaults to `"the dataset"`): What messages call the dataset.

    Returns:
        `datasets.Dataset`: The columns `sent0`, `sent1` and `score`, a float.

    Raises:
        ValueError: If the column `score` is missing, a score is not a finite number, or the text columns are unclear.
    """
    if "input_ids" in dataset.column_names:
        return dataset
    columns = dataset.column_names
    refuse(
        {
            f"{name}: there is no column {SCORE!r}, and the objective learns from the scores of pairs. Name the "
            f"columns sentence1, sentence2 and score; the columns are {_quote(columns)}.": SCORE not in columns
        }
    )
    if is_resolved(dataset):
        return dataset
    values = dataset.with_format(None)[SCORE][:]
    scores = [parse_score(value, f"{name}, row {n}", "Correct or remove the row") for n, value in enumerate(values, 1)]
    scored = dataset.remove_columns(SCORE).add_column(SCORE, scores, feature=Value("float64"))
    return resolve_dataset_columns(scored, name=name, expected_columns=2, keep=SCORE)


def parse_score(value: Any, where: str, advice: str = "Correct it, or leave it blank to skip the row") -> float:
    """Return a score as a finite float.

    Args:
        value (`Any`): The cell.
        where (`str`): Its place, for the message.
        advice (`str`, *optional*): The last sentence of the message, without its full stop.

    Returns:
        `float`: The score.

    Raises:
        ValueError: If it is not a finite number.
    """
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    refuse({f"{where}: the score {value!r} is not a finite number. {advice}.": not math.isfinite(score)})
    return score


class RowCleaner:
    """Turn the cells of a row into rows of texts, and count what is left out.

    Args:
        name (`str`): What messages call the source.
        columns (`Sequence[str]`): The columns of the cells: anchor, positive, hard negatives.
        width (`int`): Texts in each row; see [`resolve_columns`].
        unit (`str`, *optional*, defaults to `"row"`): What numbers count, `"line"` or `"row"`.

    Attributes:
        counts (`Counter[str]`): Rows that were `kept`, rows that were `dropped` for an empty cell, `empty` texts that
            were left out of lists, and rows that list `longer` hard negatives than are taken.
        places (`dict[str, list[int]]`): The numbers of the first rows that were `dropped`, or had `empty` texts.
    """

    def __init__(self, name: str, columns: Sequence[str], width: int, unit: str = "row"):
        self.name, self.columns, self.width, self.unit = name, columns, width, unit
        self.counts: Counter[str] = Counter()
        self.places: dict[str, list[int]] = {"dropped": [], "empty": []}

    def clean(self, number: int, cells: Sequence[Any]) -> list[list[str]]:
        """Return the rows of texts that a row gives: none if a cell is empty, and several if a positive is a list.

        A positive that is a list gives one row for each of its texts. Hard negatives that are lists are joined and cut
        to `width`. With `width` 3, the cells `q`, `[p1, p2]` and `[n1, n2]` give the rows `q, p1, n1` and `q, p2, n1`.

        Args:
            number (`int`): The line or row number.
            cells (`Sequence[Any]`): The cells of `columns`.

        Returns:
            `list[list[str]]`: Rows of `width` texts.

        Raises:
            ValueError: If a cell holds no string, or half of a surrogate pair. The message names the line or row.
        """
        where = f"{self.name}, {self.unit} {number}"
        for index, cell in enumerate(cells):
            for text in cell if index and is_list(cell) else (cell,):
                if text is not None and not (
                    isinstance(text, str) and text.isascii() and len(text) <= LONGEST_TEXT
                ):  # most texts are fine
                    check_text(text, f"{where}, column {self.columns[index]!r}")
        lists = [cell for cell in cells if is_list(cell)]
        rows = [list(cells)]
        if lists:
            negatives = list(filter(has_text, _flatten(cells[2:])))
            self.counts["longer"] += len(negatives) > self.width - 2
            rows = [[cells[0], positive, *negatives[: self.width - 2]] for positive in _flatten(cells[1:2])]
        rows = [row for row in rows if len(row) == self.width and all(map(has_text, row))]
        if rows:
            self._note("empty", [number for text in _flatten(lists) if not has_text(text)])
        else:
            self._note("dropped", [number])
        self.counts["kept"] += len(rows)
        return rows

    def clean_all(self, rows: Iterable[tuple[int, Sequence[Any]]]) -> Iterator[list[str]]:
        """Yield the rows of texts that numbered rows give, and refuse a source without any."""
        for number, cells in rows:
            yield from self.clean(number, cells)
        self.count()

    def count(self, kept: int = 0, dropped: Iterable[int] = ()) -> None:
        """Count rows that were kept and rows that were dropped; raise a `ValueError` if none is kept."""
        self.counts["kept"] += kept
        self._note("dropped", list(dropped))
        if not self.counts["kept"]:
            raise ValueError(
                f"{self.name}: every one of the {self.counts['dropped']} row(s) has an empty cell in "
                f"{', '.join(self.columns)}."
            )

    def _note(self, what: str, numbers: list[int]) -> None:
        self.counts[what] += len(numbers)
        room = _SHOWN_ROWS + 1 - len(self.places[what])  # one more than is shown
        self.places[what] += list(dict.fromkeys(numbers[: 10 * room]))[:room] if numbers and room else []

    def log(self, so_far: str = "") -> None:
        """Log what was dropped and left out."""
        kept, dropped, empty, longer = (self.counts[name] for name in ("kept", "dropped", "empty", "longer"))
        shown = {what: ", ".join(map(str, places[:_SHOWN_ROWS])) for what, places in self.places.items()}
        shown = {k: f"{self.unit} {v}{', ...' * (len(self.places[k]) > _SHOWN_ROWS)}." for k, v in shown.items()}
        for count, message in (
            (dropped, f"dropped {dropped} of {kept + dropped} rows for an empty cell: {shown['dropped']}"),
            (empty, f"left {empty} empty text(s) out of lists of positives or hard negatives: {shown['empty']}"),
            (longer, f"{longer} rows list more than {self.width - 2} hard negative(s), and only so many are used."),
        ):
            if count:
                logger.warning(f"{self.name}{so_far}: {message}")


def is_list(cell: Any) -> bool:
    """Say whether a cell lists several texts."""
    return isinstance(cell, (list, tuple))


def has_text(cell: str | None) -> bool:
    """Say whether a cell holds more than white space."""
    return bool(cell) and not cell.isspace()  # type: ignore[union-attr]


def check_text(text: Any, where: str) -> str:
    """Return a text; raise a `ValueError` if it is no string, too long, or holds half of a surrogate pair."""
    if not isinstance(text, str):
        raise ValueError(f"{where}: expected a text, got {text!r}. Fill or remove the row.")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{where}: {TOO_LONG}")
    try:
        text.encode()  # JSON can hold half of a surrogate pair as an escape
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: the text {text[:50]!r} holds half of a surrogate pair, {text[error.start]!r}, which is no "
            "character. Write the character itself or both halves of the pair."
        ) from None
    return text


def _flatten(cells: Iterable[Any]) -> list[Any]:
    return [text for cell in cells for text in (cell if is_list(cell) else [cell])]
