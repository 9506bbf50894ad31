"""The columns of a table: which one plays which part, and the cleaned rows that they make."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from transformers.utils import logging

logger = logging.get_logger(__name__)

#: The most characters of a line or a text. A tokenizer took more than 7 GB of memory for 100 million characters.
LONGEST_TEXT = 2**24
TOO_LONG = "more than 16 million characters, which is no sentence. Write each text on a line of its own."


def is_list(cell: Any) -> bool:
    """Say whether a cell lists several texts."""
    return isinstance(cell, (list, tuple))


def has_text(cell: Any) -> bool:
    """Say whether a cell holds a text of more than white space."""
    return isinstance(cell, str) and cell != "" and not cell.isspace()


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


def list_texts(texts: str | Sequence[str]) -> list[str]:
    """Return one text or several as a list, or raise a `ValueError` that names what is no text or no list of them."""
    if isinstance(texts, (Mapping, set, frozenset)) or hasattr(texts, "columns"):
        kind = type(texts).__name__
        raise ValueError(f"expected a text or a list of texts, got a {kind}: pass its texts as a list.")
    if isinstance(texts, str):
        texts = [texts]
    checked = []
    for position, text in enumerate(texts):
        checked.append(check_text(text, f"sentence {position}"))
    return checked


def flatten(cells: Iterable) -> list:
    """Return the texts of cells, of which each is a text or a list of them."""
    texts = []
    for cell in cells:
        if is_list(cell):
            texts.extend(cell)
        else:
            texts.append(cell)
    return texts


def quote(names: Iterable[str]) -> str:
    """Return names in quotation marks, for a message."""
    return ", ".join(map(repr, names))


_SHOWN = 5


def first_few(items: Sequence) -> str:
    """Return the first five items for a message, with dots if there are more."""
    dots = ", ..." if len(items) > _SHOWN else ""
    return ", ".join(map(str, items[:_SHOWN])) + dots


_NOTES = {
    "dropped": "dropped for an empty cell",
    "empty": "with an empty text in a list, which is left out",
    "fewer": "with fewer hard negatives than others",
    "longer": "with more hard negatives than are taken",
}


class RowCleaner:
    """Turn the cells of a row into rows of texts, and count what is left out.

    Args:
        name (`str`): What messages call the source.
        columns (`Sequence[str]`): The columns of the cells: anchor, positive, hard negatives.
        unit (`str`, *optional*, defaults to `"row"`): What numbers count, `"line"` or `"row"`.

    Attributes:
        width (`int`): Texts in each row.
        has_lists (`bool`): Whether a cell of the first rows lists hard negatives.
        kept (`int`): Rows of texts that were kept.
        counts (`Counter[str]`): Rows that were `dropped` for an empty cell, that had `empty` texts in lists, and that
            have `fewer` or `longer` lists of hard negatives.
        places (`dict[str, list[int]]`): The numbers of the first of these rows.
    """

    def __init__(self, name: str, columns: Sequence[str], unit: str = "row"):
        self.name = name
        self.columns = columns
        self.unit = unit
        self.width = len(columns)
        self.has_lists = False
        self.kept = 0
        self.counts: Counter[str] = Counter()
        self.places: dict[str, list[int]] = {what: [] for what in _NOTES}

    def widen(self, cells: Sequence) -> None:
        """Make room for the hard negatives of a row."""
        negatives = sum(map(has_text, flatten(cells[2:])))
        self.width = max(self.width, 2 + negatives)

    def clean(self, number: int, cells: Sequence) -> list[list[str | None]]:
        """Return the rows of texts that a row gives: one for each positive that it lists, and none if it lacks a text.

        Hard negatives that are lists are joined. A row may have fewer than others, and ends in `None` then. With
        `width` 4, the cells `q`, `[p1, p2]` and `[n1]` give the rows `q, p1, n1, None` and `q, p2, n1, None`.

        Args:
            number (`int`): The line or row number.
            cells (`Sequence[Any]`): The cells of `columns`.

        Returns:
            `list[list[str | None]]`: Rows of `width` texts.

        Raises:
            ValueError: If a cell holds no string, or half of a surrogate pair. The message names the line or row.
        """
        for place, cell in enumerate(cells):
            texts = cell if place and is_list(cell) else [cell]
            for text in texts:
                is_plain = isinstance(text, str) and text.isascii() and len(text) <= LONGEST_TEXT
                if text is not None and not is_plain:
                    where = f"{self.name}, {self.unit} {number}"
                    check_text(text, f"{where}, column {self.columns[place]!r}")
        if len(cells) == self.width and all(map(has_text, cells)):
            self.kept += 1
            return [list(cells)]
        positives = list(filter(has_text, flatten(cells[1:2])))
        if not has_text(cells[0]) or not positives:
            self._note("dropped", number)
            return []
        negatives = list(filter(has_text, flatten(cells[2:])))
        room = self.width - 2
        if len(negatives) < room:
            self._note("fewer", number)
        elif len(negatives) > room:
            self._note("longer", number)
        listed = flatten(filter(is_list, cells))
        if not all(map(has_text, listed)):
            self._note("empty", number)
        filled = (negatives + [None] * room)[:room]
        self.kept += len(positives)
        return [[cells[0], positive, *filled] for positive in positives]

    def clean_all(self, rows: Iterable[tuple[int, Sequence]]) -> Iterator[list[str | None]]:
        """Yield the rows of texts that numbered rows give, and refuse a source without any."""
        for number, cells in rows:
            yield from self.clean(number, cells)
        self.check_any()

    def check_any(self) -> None:
        """Raise a `ValueError` if no row was kept."""
        if not self.kept:
            raise ValueError(
                f"{self.name}: every one of the {self.counts['dropped']} row(s) has an empty cell in "
                f"{', '.join(self.columns)}."
            )

    def _note(self, what: str, number: int) -> None:
        """Count a row by what was found in it."""
        self.counts[what] += 1
        if len(self.places[what]) <= _SHOWN:  # one more than is shown
            self.places[what].append(number)

    def log(self, so_far: str = "") -> None:
        """Log what was dropped and left out."""
        rows = self.kept + self.counts["dropped"]
        for what, message in _NOTES.items():
            if self.counts[what]:
                places = first_few(self.places[what])
                logger.warning(
                    f"{self.name}{so_far}: {self.counts[what]} of {rows} rows {message}: {self.unit} {places}."
                )


#: How many of the first rows are read to choose the columns of a table.
SAMPLE_ROWS = 100
#: Column of the similarity of a pair, for objectives that learn from graded pairs.
SCORE = "score"
#: Column of the class of a text, for objectives that learn from classes.
LABEL = "label"
#: Columns of rows that hold no texts, and stay as they are when the texts are tokenized.
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
#: Names of the anchor and the positive of training rows.
_PAIR_NAMES = (
    ("sent0", "sent1"),
    ("anchor", "positive"),
    ("anchor", "positives"),
    ("query", "pos"),
    ("query", "positive"),
    ("query", "positives"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
)
#: More of these names, for tables without labels: a pair with a label may not be a positive one.
_UNLABELLED_NAMES = (("question", "answer"), ("query", "answer"), ("title", "body"))
#: A hard negative, with its number.
_NEGATIVE = re.compile(r"(?:hard_neg|negatives?|negs?|sent(?=[2-9]|[1-9]\d))_?(\d{1,9})?")
_ROLES = {positive for _, positive in _PAIR_NAMES}
_JUDGEMENT = re.compile(r"(.*_)?(labels?|scores?)", re.IGNORECASE)
_NOT_TEXT = re.compile(
    rf"|unnamed: \d+|__index_level_\d+__|(.*_)?(idx|id|guid|pairid|index|split|category|class)|{_JUDGEMENT.pattern}",
    re.IGNORECASE,
)
ADVICE = (
    "Name the columns with --columns or, in Python, load_text_dataset(..., columns=[...]), in the order anchor, "
    "positive, hard negatives"
)


def resolve_columns(
    column_names: Sequence[str],
    *,
    name: str,
    sample: Sequence[Sequence] = (),
    columns: Sequence[str] | None = None,
    expected_columns: int | None = None,
) -> list[str]:
    """Choose the text columns of a table: first the anchor, then the positive, then the hard negatives.

    Columns are chosen by the names that the field uses: `sent0, sent1, hard_neg`; `anchor, positive, negative`;
    `query, pos, neg`; `query, positive, negative`; `sentence1, sentence2`; `premise, hypothesis`; without labels also
    `question, answer`; `query, answer`; `title, body`; or a single `sent0`, `text` or `sentence`. Several negatives
    are numbered, as in `hard_neg_1, hard_neg_2` or `sent2, sent3`. Otherwise the only text column is taken, or two or
    three that are all there is. Columns of identifiers, labels, scores or numbers are never taken for text. A log
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
        `list[str]`: The names of the chosen columns. A cell may list several positives or hard negatives.

    Raises:
        ValueError: If `columns` names a missing column or one column twice, if negatives come without a positive, if
            the names do not say which columns to take, or if they are not `expected_columns`.
    """
    column_names = list(column_names)
    if columns is None:
        chosen = _by_name(column_names, sample, name)
    else:
        chosen = _requested(column_names, columns, name)
    if expected_columns not in (None, len(chosen)):
        raise ValueError(
            f"{name}: {len(chosen)} text column(s) ({quote(chosen)}) where {expected_columns} are expected. {ADVICE}; "
            f"the columns are {quote(column_names)}."
        )
    ignored = [column for column in column_names if column not in chosen]
    message = f"{name}: the sentences are in column {chosen[0]!r}"
    if len(chosen) > 1:
        message = f"{name}: anchor {chosen[0]!r}, positive {chosen[1]!r}"
    if len(chosen) > 2:
        message += f", hard negatives {quote(chosen[2:])}"
    message += f"; ignored {quote(ignored)}." if ignored else "."
    if len(chosen) > 1 and any(map(_JUDGEMENT.fullmatch, ignored)):
        logger.warning(
            f"{message} Every row counts as a positive pair, whatever its label or score says; `simcse-hf build-nli` "
            "turns labelled pairs into triplets."
        )
    else:
        logger.info(message)
    return chosen


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
        [requested] = _requested(column_names, [column], name)
        return requested
    if len(column_names) == 1:
        return column_names[0]
    known = [column for column in column_names if column in PART_NAMES["text"]]
    if len(known) != 1:
        raise ValueError(f"{name}: which of the columns {quote(column_names)} holds the texts? Name it.")
    return known[0]


def class_columns(
    column_names: Sequence[str], sample: Sequence[Sequence] = (), columns: Sequence[str] | None = None
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
    if columns is None:
        places = [column_names.index(name) for name in others]
        cells = [[row[place] for place in places] for row in sample]
        try:
            columns = _by_name(others, cells, "")
        except ValueError:
            return None
    if len(columns) != 1:
        return None
    return [*columns, label]


def find_part(column_names: Iterable[str], part: str) -> str | None:
    """Return the column that plays a part of [`PART_NAMES`], or `None`."""
    by_name: dict[str, str] = {}
    for column in column_names:
        by_name.setdefault(column.strip().lower(), column)
    for name in PART_NAMES[part]:
        if name in by_name:
            return by_name[name]
    return None


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
    found = []
    missing = []
    for part in parts:
        column = find_part(column_names, part)
        if column is None:
            first, *others = PART_NAMES[part]
            accepted = ", ".join(others) or "no other name"
            missing.append(f"no column {first!r} (also accepted: {accepted})")
        else:
            found.append(column)
    if missing:
        raise ValueError(f"{name}: {' and '.join(missing)}. The columns are {quote(column_names)}. Rename one.")
    return found


def _requested(column_names: Sequence[str], columns: Sequence[str], name: str) -> list[str]:
    if isinstance(columns, str) or not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns must be a non-empty list of different column names, got {columns!r}.")
    missing = [column for column in columns if column not in column_names]
    if missing:
        raise ValueError(f"{name}: no column {quote(missing)}; the columns are {quote(column_names)}.")
    return list(columns)


def _by_name(column_names: Sequence[str], sample: Sequence[Sequence], name: str) -> list[str]:
    if len(column_names) == 1:  # there is nothing to confuse it with
        return list(column_names)
    negatives = _negatives(column_names, name)
    known: tuple[tuple[str, str], ...] = _PAIR_NAMES
    if not any(map(_JUDGEMENT.fullmatch, column_names)):
        known = known + _UNLABELLED_NAMES
    pairs = [pair for pair in known if set(pair) <= set(column_names)]
    if len(pairs) == 1:
        return [*pairs[0], *negatives]
    texts = []
    for place, column in enumerate(column_names):
        cells = [row[place] for row in sample]
        if not _is_not_text(column, cells):
            texts.append(column)
    if not pairs:
        for anchor, positive in _PAIR_NAMES:
            if negatives and anchor in column_names:
                raise ValueError(
                    f"{name}: there are {anchor!r} and {quote(negatives)}, but no {positive!r}. {ADVICE}."
                )
        if len(texts) == 1:
            return texts
        named = [column for column in texts if column in PART_NAMES["text"]]
        if len(named) == 1 and not negatives and _ROLES.isdisjoint(texts):
            return named
        is_all_text = texts == list(column_names) and not any(map(looks_like_sentence, texts))
        if is_all_text and len(texts) <= 3 and len(texts) - len(negatives) >= 2:
            return sorted(texts, key=negatives.__contains__)
    excluded = [column for column in column_names if column not in texts]
    cannot = f" ({quote(excluded)} cannot be text)" if excluded else ""
    raise ValueError(
        f"{name}: the column names do not say which columns hold the texts{cannot}. {ADVICE}; the columns are "
        f"{quote(column_names)}."
    )


def _negatives(column_names: Sequence[str], name: str) -> list[str]:
    """Return the columns of hard negatives in the order of their numbers."""
    columns: dict[int, str] = {}
    for column in column_names:
        match = _NEGATIVE.fullmatch(column)
        if match:
            number = int(match[1] or -1)
            other = columns.setdefault(number, column)
            if other != column:
                raise ValueError(f"{name}: two of {other!r}, {column!r} have the same number. {ADVICE}.")
    return [columns[number] for number in sorted(columns)]


def looks_like_sentence(column: str) -> bool:
    """Say whether the name of a column may be the first text of a file without a header."""
    ends_like_one = re.search(r"\w[.!?]\W*$", column) is not None
    return ends_like_one or len(column.split()) > 4


def _is_not_text(column: str, cells: Iterable) -> bool:
    if _NOT_TEXT.fullmatch(column):
        return True
    filled = [cell for cell in cells if cell is not None and cell != ""]
    return bool(filled) and all(map(_is_number, filled))


def _is_number(cell: Any) -> bool:
    if not isinstance(cell, str):
        return not is_list(cell)
    try:
        float(cell)
    except ValueError:
        return False
    return True
