"""Which column of a table plays which part, and which of its rows have a text in each of them."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from transformers.utils import logging

logger = logging.get_logger(__name__)

#: Rows that the columns of a table are judged by.
SAMPLE_ROWS = 100
#: Column of the similarity of a pair, for objectives that learn from graded pairs.
SCORE = "score"
#: Names of a sentence column that stands alone.
SENTENCE_NAMES = ("sent0", "text", "sentence")
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
#: Anchor, positive and a pattern for hard negatives, whose optional group is the number of the negative.
_PAIR_NAMES = (
    ("sent0", "sent1", r"(?:hard_neg_?|sent(?=[2-9]|[1-9]\d))(\d{1,9})?"),
    ("anchor", "positive", r"negatives?_?(\d{1,9})?"),
    ("query", "pos", r"negs?_?(\d{1,9})?"),
    ("query", "positive", r"negatives?_?(\d{1,9})?"),
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


def output_columns(count: int) -> list[str]:
    """Name the columns of training data: `sent0`, `sent1`, `sent2`, ...

    `sent0` is the anchor, `sent1` its positive, and the others are its hard negatives. A single column holds sentences
    for unsupervised training.

    Args:
        count (`int`): Number of columns.

    Returns:
        `list[str]`: The names.
    """
    return [f"sent{index}" for index in range(count)]


def resolve_columns(
    column_names: Sequence[str],
    *,
    name: str,
    sample: Sequence[Sequence[Any]] = (),
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
) -> list[str]:
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
        expected_columns (`int`, *optional*): How many columns there must be: 1 for sentences, 2 for pairs, 2 + k for
            pairs with k hard negatives.

    Returns:
        `list[str]`: The names of the chosen columns.

    Raises:
        ValueError: If `columns` names a missing column or one column twice, if negatives come without a positive, if
            the names do not say which columns to take, or if there are not `expected_columns`.
    """
    if columns is None:
        resolved = _resolve_by_name(column_names, sample, name)
    else:
        resolved = _check_requested(column_names, columns, name)
    if not any(is_list(row[column_names.index(column)]) for row in sample for column in resolved):
        check_column_count(len(resolved), expected_columns, resolved, name, column_names)
    _log_roles(column_names, resolved, name)
    return resolved


def check_column_count(
    count: int, expected: int | None, resolved: Sequence[str], name: str, column_names: Sequence[str]
) -> None:
    """Check that a table gives the number of text columns that the caller needs.

    Args:
        count (`int`): The number of columns that the table gives.
        expected (`int`, *optional*): The number that is needed, or `None` for any.
        resolved (`Sequence[str]`): The columns that they come from.
        name (`str`): The table's name.
        column_names (`Sequence[str]`): All columns of the table.

    Raises:
        ValueError: If the two numbers differ.
    """
    if expected is not None and count != expected:
        parts = ("sentences", "anchor and positive", f"anchor, positive and {expected - 2} hard negative(s)")
        raise ValueError(
            f"{name}: {count} text column(s) ({_quote(resolved)}) where {expected} are expected "
            f"({parts[min(expected, 3) - 1]}). Name them with --columns (columns=[...]); the columns are "
            f"{_quote(column_names)}."
        )


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
        return _check_requested(column_names, [column], name)[0]
    known = [name for name in column_names if len(column_names) == 1 or name in SENTENCE_NAMES]
    if len(known) != 1:
        raise ValueError(f"{name}: which of the columns {_quote(column_names)} holds the texts? Name it.")
    return known[0]


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
        expected_columns (`int`, *optional*): How many columns there must be; see [`resolve_columns`].
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
    if columns is None and dataset._fingerprint in _resolved:
        check_column_count(len(column_names), expected_columns, column_names, name, column_names)
        return dataset
    if len(dataset) == 0:
        raise ValueError(f"{name}: there are no rows.")
    dataset = dataset.with_format(None)
    head = dataset[:SAMPLE_ROWS]
    sample = list(zip(*(head[column] for column in column_names), strict=True))
    resolved = resolve_columns(
        column_names, name=name, sample=sample, columns=columns, expected_columns=expected_columns
    )
    features = [dataset.features[column] for column in resolved]
    for column, feature in zip(resolved, features, strict=True):
        if feature not in _STRINGS and getattr(feature, "feature", None) not in _STRINGS:
            raise ValueError(
                f"{name}: column {column!r} holds {feature}, not strings. Name the text columns with --columns "
                f"(columns=[...]); the columns are {_quote(column_names)}."
            )
    if any(feature not in _STRINGS for feature in features):
        if keep is not None:
            raise ValueError(f"{name}: a cell holds a list, but beside the column {keep!r} it must hold one text.")
        return mark_resolved(_expand_lists(dataset.select_columns(resolved), name, expected_columns))
    names = output_columns(len(resolved))
    kept = [] if keep is None else [keep]
    dataset = dataset.select_columns([*resolved, *kept]).rename_columns(dict(zip(resolved, names, strict=True)))
    has_text = np.concatenate(
        [
            np.all(
                [pc.fill_null(pc.utf8_length(pc.utf8_trim_whitespace(c)), 0).to_numpy() > 0 for c in batch.columns], 0
            )
            for batch in dataset.select_columns(names).with_format("arrow").iter(10_000)
        ]
    )
    cleaner = RowCleaner(name, names, len(names), kept=int(has_text.sum()))
    cleaner.note("dropped", *(np.flatnonzero(~has_text) + 1).tolist())
    cleaner.check_any()
    cleaner.log()
    if not has_text.all():
        dataset = dataset.select(np.flatnonzero(has_text))
    string_features = Features(dataset.features | {column: Value("string") for column in names})
    return mark_resolved(dataset if dataset.features == string_features else dataset.cast(string_features))


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
    if SCORE not in dataset.column_names:
        raise ValueError(
            f"{name}: there is no column {SCORE!r}, and the objective learns from the scores of pairs. Name the "
            f"columns sentence1, sentence2 and score; the columns are {_quote(dataset.column_names)}."
        )
    advice = "Correct or remove the row"
    values = dataset.with_format(None)[SCORE][:]
    scores = [parse_score(value, f"{name}, row {number}", advice) for number, value in enumerate(values, 1)]
    scored = dataset.remove_columns(SCORE).add_column(SCORE, scores)
    return resolve_dataset_columns(scored, name=name, expected_columns=2, keep=SCORE).cast_column(
        SCORE, Value("float64")
    )


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
        score = float(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(f"{where}: the score {value!r} is not a finite number. {advice}.")
    return score


# --- rows ------------------------------------------------------------------------------------------------------------

_SHOWN_ROWS = 5
_resolved: set[str] = set()  # fingerprints of data sets that need not be scanned again


def mark_resolved(dataset: Dataset) -> Dataset:
    """Remember that a dataset has the columns `sent0`, `sent1`, ... and no empty cell, and return it."""
    _resolved.add(dataset._fingerprint)
    return dataset


@dataclass
class RowCleaner:
    """Turn the cells of a row into rows of texts, and count what is left out.

    Args:
        name (`str`): What messages call the source.
        columns (`Sequence[str]`): The columns of the cells: anchor, positive, hard negatives.
        width (`int`): Texts in each row; see [`row_width`].
        unit (`str`, *optional*, defaults to `"row"`): What numbers count, `"line"` or `"row"`.
        kept (`int`, *optional*, defaults to `0`): Rows that were kept.
        longer (`int`, *optional*, defaults to `0`): Rows that list more hard negatives than are taken.
        counts (`dict[str, int]`, *optional*): How many rows were `dropped` for an empty cell, and how many `empty`
            texts were left out of the lists of other rows.
        places (`dict[str, list[int]]`, *optional*): The numbers of the first of these rows.
        logged (`int`, *optional*, defaults to `0`): What was told by the last call of [`log_so_far`].
    """

    name: str
    columns: Sequence[str]
    width: int
    unit: str = "row"
    kept: int = 0
    longer: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"dropped": 0, "empty": 0})
    places: dict[str, list[int]] = field(default_factory=lambda: {"dropped": [], "empty": []})
    logged: int = 0

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
        where = partial("{}, {} {}".format, self.name, self.unit, number)
        for index, cell in enumerate(cells):
            for text in cell if index and is_list(cell) else (cell,):
                if isinstance(text, str):
                    check_encodable(text, where)
                elif text is not None:
                    raise ValueError(f"{where()}, column {self.columns[index]!r}: expected a string, got {cell!r}.")
        lists = [cell for cell in cells if is_list(cell)]
        if lists:
            negatives = [text for text in _flatten(cells[2:]) if _has_text(text)]
            self.longer += len(negatives) > self.width - 2
            rows = [[cells[0], positive, *negatives[: self.width - 2]] for positive in _flatten(cells[1:2])]
        else:
            rows = [list(cells)]
        rows = [row for row in rows if len(row) == self.width and all(map(_has_text, row))]
        if not rows:
            self.note("dropped", number)
        elif lists:
            self.note("empty", *(number for text in _flatten(lists) if not _has_text(text)))
        self.kept += len(rows)
        return rows

    def clean_all(self, rows: Iterable[tuple[int, Sequence[Any]]]) -> Iterator[list[str]]:
        """Yield the rows of texts that numbered rows give, and refuse a source without any."""
        for number, cells in rows:
            yield from self.clean(number, cells)
        self.check_any()

    def check_any(self) -> None:
        """Raise a `ValueError` if every row has an empty cell."""
        if not self.kept:
            raise ValueError(
                f"{self.name}: every one of the {self.counts['dropped']} row(s) has an empty cell in "
                f"{', '.join(self.columns)}."
            )

    def note(self, what: str, *numbers: int) -> None:
        """Count rows that were `dropped`, or texts that were `empty`, by the numbers of their rows."""
        self.counts[what] += len(numbers)
        places = self.places[what]
        room = _SHOWN_ROWS + 1 - len(places)  # one more than is shown
        places += list(dict.fromkeys(numbers))[:room] if room else []

    def log(self, name: str | None = None) -> None:
        """Log what was dropped and left out.

        Args:
            name (`str`, *optional*): What to call the source instead.
        """
        shown = {
            what: f"{self.unit} {', '.join(map(str, places[:_SHOWN_ROWS]))}{', ...' * (len(places) > _SHOWN_ROWS)}"
            for what, places in self.places.items()
        }
        dropped, empty, negatives = *self.counts.values(), self.width - 2
        for count, message in (
            (dropped, f"dropped {dropped} of {self.kept + dropped} rows for an empty cell: {shown['dropped']}."),
            (empty, f"left {empty} empty text(s) out of lists of positives or hard negatives: {shown['empty']}."),
            (
                self.longer,
                f"{self.longer} rows list more than {negatives} hard negative(s), the fewest that any row lists; only "
                f"the first {negatives} of each row are used.",
            ),
        ):
            if count:
                logger.warning("%s: %s", name or self.name, message)

    def log_so_far(self) -> None:
        """Log as [`log`] does, for a stream, which may have no end: whenever there is twice as much to tell."""
        found = sum(self.counts.values()) + self.longer
        if found >= max(1, 2 * self.logged):
            self.logged = found
            self.log(f"{self.name}, so far")


def is_list(cell: Any) -> bool:
    """Say whether a cell lists several texts."""
    return isinstance(cell, (list, tuple))


def row_width(rows: Iterable[Sequence[Any]]) -> int:
    """Count the texts of a row, where cells may list several hard negatives.

    Args:
        rows (`Iterable[Sequence[Any]]`): Rows of an anchor, a positive and cells of hard negatives.

    Returns:
        `int`: Two more than the fewest hard negatives of any row that has some, or the number of cells if no cell is a
        list. Empty texts do not count, so a row with one of them is narrower, and not dropped.
    """
    width, lists, counts = 0, False, set()
    for cells in rows:
        width = len(cells)
        lists = lists or any(map(is_list, cells))
        counts.add(sum(not isinstance(text, str | None) or _has_text(text) for text in _flatten(cells[2:])))
    return 2 + min(counts - {0}, default=0) if lists else width


def check_encodable(text: str, where: Callable[[], str]) -> None:
    """Refuse a text that UTF-8 cannot encode, because it holds half of a surrogate pair.

    Args:
        text (`str`): The text. JSON can hold such a half as an escape.
        where (`Callable[[], str]`): Says for the message where the text stands.

    Raises:
        ValueError: If the text holds a half.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where()}: the text {text[:50]!r} holds half of a surrogate pair, {text[error.start]!r}, which is no "
            "character. Write the character itself or both halves of the pair."
        ) from None


def text_features(width: int) -> Features:
    """Return the features of rows of `width` texts."""
    return Features({column: Value("string") for column in output_columns(width)})


def _expand_lists(dataset: Dataset, name: str, expected_columns: int | None) -> Dataset:
    columns = dataset.column_names

    def rows() -> Iterator[Sequence[Any]]:
        return (cells for batch in dataset.iter(10_000) for cells in zip(*map(batch.get, columns), strict=True))

    width = row_width(rows())
    check_column_count(width, expected_columns, columns, name, columns)
    cleaner = RowCleaner(name, columns, width)
    cleaned = list(cleaner.clean_all(enumerate(rows(), 1)))
    cleaner.log()
    return Dataset.from_dict(dict(zip(output_columns(width), map(list, zip(*cleaned, strict=True)), strict=True)))


def _flatten(cells: Iterable[Any]) -> list[Any]:
    return [text for cell in cells for text in (cell if is_list(cell) else [cell])]


def _has_text(cell: str | None) -> bool:
    return bool(cell) and not cell.isspace()


# --- names -----------------------------------------------------------------------------------------------------------


def _check_requested(column_names: Sequence[str], columns: Sequence[str], name: str) -> list[str]:
    if isinstance(columns, str) or not columns:
        raise ValueError(f"columns must be a non-empty list of column names, got {columns!r}.")
    missing = [column for column in columns if column not in column_names]
    if missing:
        raise ValueError(f"{name}: no column {_quote(missing)}; the columns are {_quote(column_names)}.")
    if len(set(columns)) < len(columns):
        raise ValueError(f"columns={list(columns)!r} names a column twice.")
    return list(columns)


def _resolve_by_name(column_names: Sequence[str], sample: Sequence[Sequence[Any]], name: str) -> list[str]:
    if len(column_names) == 1:  # there is nothing to confuse it with
        return list(column_names)
    pairs = []
    for anchor, positive, pattern in _PAIR_NAMES:
        if anchor in column_names:
            negatives = _find_negatives(column_names, pattern, name)
            if positive in column_names:
                pairs.append([anchor, positive, *negatives])
            elif negatives and not any(p in column_names for a, p, _ in _PAIR_NAMES if a == anchor):
                raise ValueError(
                    f"{name}: there are {anchor!r} and {_quote(negatives)}, but no {positive!r}. Rename its "
                    "column, or name the columns with --columns (columns=[...])."
                )
    if len(pairs) == 1:
        return pairs[0]
    texts = [column for i, column in enumerate(column_names) if not _is_not_text(column, [row[i] for row in sample])]
    named = [column for column in texts if column in SENTENCE_NAMES]
    if not pairs and len(texts) == 1:
        return texts
    if not pairs and len(named) == 1 and not any(map(_ROLE_NAME.fullmatch, texts)):
        return named
    excluded = [column for column in column_names if column not in texts]
    raise ValueError(
        f"{name}: the column names do not say which columns hold the anchor, the positive and the hard negatives"
        f"{f' ({_quote(excluded)} cannot be text)' if excluded else ''}. Name them with --columns (columns=[...]), in "
        f"the order anchor, positive, hard negatives; the columns are {_quote(column_names)}."
    )


def _is_not_text(column: str, cells: Sequence[Any]) -> bool:
    cells = [cell for cell in cells if cell is not None and cell != ""]
    return bool(_NOT_TEXT.fullmatch(column)) or (bool(cells) and all(map(_is_number, cells)))


def _is_number(cell: Any) -> bool:
    if not isinstance(cell, str):
        return not is_list(cell)
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _find_negatives(column_names: Sequence[str], pattern: str, name: str) -> list[str]:
    matches = [match for column in column_names if (match := re.fullmatch(pattern, column))]
    numbered = sorted((int(match[1] or -1), match[0]) for match in matches)
    for (first, a), (second, b) in zip(numbered, numbered[1:], strict=False):
        if first == second:
            raise ValueError(
                f"{name}: columns {a!r} and {b!r} have the same number. Name the columns to take with --columns "
                "(columns=[...])."
            )
    return [column for _, column in numbered]


def _log_roles(column_names: Sequence[str], resolved: Sequence[str], name: str) -> None:
    if len(resolved) == 1:
        message = f"{name}: the sentences are in column {resolved[0]!r}"
    else:
        message = f"{name}: anchor {resolved[0]!r}, positive {resolved[1]!r}"
        message += f", hard negatives {_quote(resolved[2:])}" if len(resolved) > 2 else ""
    ignored = [column for column in column_names if column not in resolved]
    message += f"; ignored {_quote(ignored)}." if ignored else "."
    if len(resolved) > 1 and any(map(_JUDGEMENT.fullmatch, ignored)):
        logger.warning(
            "%s Every row counts as a positive pair, whatever its label or score says; `simcse-hf build-nli` turns "
            "labelled pairs into triplets.",
            message,
        )
    else:
        logger.info(message)


def _quote(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
