"""The columns of a table: which one plays which part, and what may stand in a cell."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, TypeGuard

from ..runtime.errors import DataError

#: The most characters of a line or a text. A tokenizer took more than 7 GB of memory for 100 million characters.
LONGEST_TEXT = 2**24
TOO_LONG = "more than 16 million characters, which is no sentence. Write each text on a line of its own."

#: Texts between quotation marks, or numbers, in brackets.
_WRITTEN_LIST = re.compile(r"\[((['\"]).*\2|[\d., ]+)\]", re.DOTALL)


def is_list(cell: object) -> TypeGuard[Sequence]:
    """Say whether a cell lists several texts."""
    return isinstance(cell, (list, tuple))


def plain(cell: object) -> Any:
    """Return a cell as a value of Python: arrays become lists, and nan, NaT and pandas.NA become `None`."""
    if type(cell) is str:  # nearly all of them
        return cell
    for convert in ("tolist", "to_list", "as_py"):  # of numpy, polars and pyarrow
        if hasattr(cell, convert):
            cell = getattr(cell, convert)()
    if is_list(cell):
        return list(map(plain, cell))
    return cell if (cell == cell) is True else None  # nan differs from itself, and pandas.NA does not say


def has_text(cell: object) -> bool:
    """Say whether a cell holds a text of more than white space."""
    return isinstance(cell, str) and cell != "" and not cell.isspace()


def refuse_written_lists(cells: Sequence, where: str) -> None:
    """Refuse cells that are all lists written as a text, such as "['a', 'b']", as pandas writes one to csv."""
    if cells and all(isinstance(cell, str) and _WRITTEN_LIST.fullmatch(cell) for cell in cells):
        raise DataError(f"{where}: {cells[0]!r:.50} is a list written as a text. Use .jsonl, which has real lists.")


def is_plain(text: object) -> bool:
    """Say whether [`check_text`] need not look at a text, nor anybody put its place into words."""
    return isinstance(text, str) and text.isascii() and len(text) <= LONGEST_TEXT


def check_text(text: object, where: str) -> str:
    """Return a text; raise a `ValueError` if it is no string, too long, or holds half of a surrogate pair."""
    if not isinstance(text, str):
        raise DataError(f"{where}: expected a text, got {text!r}. Fill or remove the row.")
    if len(text) > LONGEST_TEXT:
        raise DataError(f"{where}: {TOO_LONG}")
    try:
        text.encode()  # JSON can hold half of a surrogate pair as an escape
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the text {text[:50]!r} holds half of a surrogate pair, {text[error.start]!r}. Write the "
            "character itself, or both halves."
        ) from None
    return text


def list_texts(texts: str | Iterable[str]) -> list[str]:
    """Return one text or several as a list, or raise a `ValueError` that names what is no text or no list of them."""
    if isinstance(texts, str):
        texts = [texts]
    is_table = isinstance(texts, (Mapping, set, frozenset)) or hasattr(texts, "columns")
    if is_table or not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise DataError(f"expected a text or a list of texts, got a {kind}: pass its texts as a list.")
    return [check_text(plain(text), f"sentence {position}") for position, text in enumerate(texts)]


def holds_texts(items: object) -> bool:
    """Say whether an array holds texts, and not numbers."""
    return getattr(getattr(items, "dtype", None), "kind", None) in ("U", "O", "T")


def flatten(cells: Iterable) -> list:
    """Return the texts of cells that are texts or lists of texts, in one list."""
    texts: list = []
    for cell in cells:
        texts += cell if is_list(cell) else [cell]
    return texts


def quote(names: Iterable[str]) -> str:
    """Return names in quotation marks, for a message."""
    return ", ".join(map(repr, names))


def first_few(items: Sequence) -> str:
    """Return the first five items for a message, with dots if there are more."""
    dots = ", ..." if len(items) > 5 else ""
    return ", ".join(map(str, items[:5])) + dots


#: How many of the first rows are read to choose the columns of a table.
SAMPLE_ROWS = 100
#: Column of the similarity of a pair, for objectives that learn from graded pairs.
SCORE = "score"
#: Column of the class of a text, for objectives that learn from classes.
LABEL = "label"
#: Columns of rows that hold no texts, and stay as they are when the texts are tokenized.
NO_TEXT = (SCORE, LABEL, "relations")

#: Case-insensitive column names of dev sets, tasks and labelled pairs; messages use the first one.
PART_NAMES = {
    "score": ("score", "similarity_score", "relatedness_score", "label"),
    "sentence1": ("sentence1", "sent1", "sentence_a"),
    "sentence2": ("sentence2", "sent2", "sentence_b"),
    "text": ("text", "sentence", "sent0"),
    "label": ("label", "labels", "category", "class", "intent"),
    "split": ("split",),
    "query": ("query", "question", "anchor"),
    "positive": ("positive", "positives", "pos"),
    "negative": ("negative", "negatives", "neg"),
    "_id": ("_id",),
    "title": ("title",),
    "query-id": ("query-id",),
    "corpus-id": ("corpus-id",),
    "premise": ("premise", "sentence1", "context"),
    "hypothesis": ("hypothesis", "sentence2"),
    "relation": ("label", "gold_label"),
}
#: Names of the anchor and the positive of training rows.
_PAIR_NAMES = (
    ("sent0", "sent1"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    *product(PART_NAMES["query"], PART_NAMES["positive"]),
)
#: More of these names, for tables without labels: a pair with a label may not be a positive one.
_UNLABELLED_NAMES = (("question", "answer"), ("query", "answer"), ("title", "body"))
_RETRIEVAL_NAMES = (*product(PART_NAMES["query"], ("document", "passage", "context")),)
#: A hard negative, with its number.
_NEGATIVE = re.compile(r"(?:(?:hard_)?neg(?:ative)?s?|sent(?=[2-9]|[1-9]\d))_?(\d{1,9})?")
_ANCHORS, _POSITIVES = map(set, zip(*_PAIR_NAMES, *_UNLABELLED_NAMES, *_RETRIEVAL_NAMES, strict=True))
#: Names of one text of a pair, beside which another column of texts is no single sentence.
_OF_PAIRS = set().union(*_PAIR_NAMES).difference(PART_NAMES["text"])
#: A column that judges a pair.
JUDGEMENT = re.compile(r"(.*_)?(labels?|scores?)", re.IGNORECASE)
#: A name that ends like a sentence or has more than four words: the first text of a file without a header.
LIKE_SENTENCE = re.compile(r"\w[.!?]\W*$|\A\s*(\S+\s+){4}\S")
_NOT_TEXT = re.compile(
    r"|unnamed: \d+|__index_level_\d+__|(.*_)?(idx|id|guid|pairid|index|split|category|class|intent)|"
    + JUDGEMENT.pattern,
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
) -> list[str]:
    """Choose the text columns of a table: first the anchor, then the positive, then the hard negatives.

    Columns are chosen by the names that the field uses, in any case and order: `sent0, sent1, hard_neg`; `anchor`,
    `query` or `question` with `positive` or `pos`, and `negative` or `neg`; `sentence1, sentence2`; `premise,
    hypothesis`; without labels also `query, document`; `question, answer`; `title, body`; or a single `sent0`, `text`
    or `sentence`. Several negatives are numbered, as in `hard_neg_1, hard_neg_2` or `sent2, sent3`. Otherwise the only
    text column is taken, or two or three that are all there is. Columns of identifiers, labels, scores or numbers are
    never taken for text.

    Args:
        column_names (`Sequence[str]`): The columns of the table, in its own order.
        name (`str`): The table's name, for messages.
        sample (`Sequence[Sequence[Any]]`, *optional*, defaults to `()`): Cells of the first rows, one sequence as long
            as `column_names` for each row.
        columns (`Sequence[str]`, *optional*): The columns to take instead, in the same order of parts.

    Returns:
        `list[str]`: The names of the chosen columns. A cell may list several positives or hard negatives.

    Raises:
        DataError: If `columns` names a missing column or one column twice, if negatives come without a positive, or
            if the names do not say which columns to take.
    """
    # 1. Refuse columns that are missing, and names that contradict each other.
    if columns is not None:
        check_columns(columns, column_names, name)
        return list(columns)
    own = {column.strip().lower(): column for column in column_names}
    if len(own) < len(column_names):  # names that differ in case only
        own = {column: column for column in column_names}
    column_names = list(own)
    numbered: dict[int, str] = {}
    for column in column_names:
        match = _NEGATIVE.fullmatch(column)
        other = numbered.setdefault(int(match[1] or -1), column) if match else column
        if other != column:
            raise DataError(f"{name}: two of {other!r}, {column!r} have the same number. {ADVICE}.")
    negatives = [column for _, column in sorted(numbered.items())]
    has_judgement = any(map(JUDGEMENT.fullmatch, column_names))
    pairs: list[tuple[str, str]] = []
    for known in (_PAIR_NAMES,) if has_judgement else (_PAIR_NAMES, _UNLABELLED_NAMES, _RETRIEVAL_NAMES):
        pairs = pairs or [pair for pair in known if own.keys() >= set(pair)]
    for anchor, positive in _PAIR_NAMES:
        if negatives and anchor in own and not pairs:
            raise DataError(f"{name}: there are {anchor!r} and {quote(negatives)}, but no {positive!r}. {ADVICE}.")

    # 2. The first rule that applies decides.
    texts = []  # the columns that hold no numbers, and are not named like labels, scores or identifiers
    for place, column in enumerate(column_names):
        cells = [row[place] for row in sample if row[place] not in (None, "")]
        is_numeric = cells and all(map(_is_number, cells))
        if not is_numeric and not _NOT_TEXT.fullmatch(column):
            texts.append(column)
    named = [column for column in texts if column in PART_NAMES["text"]]
    is_pair = len(texts) <= 3 and len(texts) - len(negatives) >= 2
    if len(column_names) == 1:
        chosen = column_names
    elif len(pairs) == 1:
        chosen = [*pairs[0], *negatives]
    elif not pairs and len(texts) == 1:
        chosen = texts
    # the column that is named like a text, beside none that is named like a part of a pair
    elif not pairs and not negatives and len(named) == 1 and _OF_PAIRS.isdisjoint(texts):
        chosen = named
    # two or three columns of texts that are all there is: by their parts, and then in their order
    elif not pairs and is_pair and texts == column_names and not any(map(LIKE_SENTENCE.search, texts)):
        chosen = sorted(texts, key=part_of)
    else:
        excluded = [own[column] for column in column_names if column not in texts]
        cannot = f" ({quote(excluded)} cannot be text)" if excluded else ""
        raise DataError(
            f"{name}: the column names do not say which columns hold the texts{cannot}. {ADVICE}; the columns are "
            f"{quote(own.values())}."
        )
    return [own[column] for column in chosen]


def part_of(column: str) -> int:
    """Return the part that a column plays by its name: 0 for an anchor, 2 a positive, 3 a hard negative; else 1."""
    name = column.strip().lower()
    if _NEGATIVE.fullmatch(name):
        return 3
    if name in _POSITIVES:
        return 2
    return 0 if name in _ANCHORS else 1


def check_columns(columns: Sequence[str], column_names: Sequence[str], name: str) -> None:
    """Refuse columns that a table does not have, or one of them twice."""
    if isinstance(columns, str) or not columns or len(set(columns)) < len(columns):
        raise DataError(f"{name}: columns must be a non-empty list of different column names, got {columns!r}.")
    missing = [column for column in columns if column not in column_names]
    if missing:
        raise DataError(f"{name}: no column {quote(missing)}; the columns are {quote(column_names)}.")


def class_columns(
    column_names: Sequence[str], sample: Sequence[Sequence] = (), columns: Sequence[str] | None = None
) -> list[str] | None:
    """Find the columns of texts and of their class labels.

    Args:
        column_names (`Sequence[str]`): The columns of the table.
        sample (`Sequence[Sequence[Any]]`, *optional*, defaults to `()`): Cells of the first rows.
        columns (`Sequence[str]`, *optional*): The columns of texts that were asked for.

    Returns:
        `list[str]`: The column of texts and the column of labels (`label`, `labels`, `category`, `class` or `intent`);
            `None` if there is no such column, or a row has several texts.
    """
    label = find_parts(column_names, ["label"]).get("label")
    if label is None or len(column_names) == 1:
        return None
    if columns is None:
        columns = [column for column in column_names if column != label]
        if len(columns) > 1:  # the only other column is one of texts, even if these are numbers
            try:
                columns = resolve_columns(column_names, name="", sample=sample)
            except ValueError:
                return None
    return [*columns, label] if len(columns) == 1 and columns[0] != label else None


def find_parts(column_names: Iterable[str], parts: Sequence[str], name: str | None = None) -> dict[str, str]:
    """Find the columns that play some parts, by their names in any case.

    Args:
        column_names (`Iterable[str]`): The columns of the table.
        parts (`Sequence[str]`): Keys of [`PART_NAMES`].
        name (`str`, *optional*): The table's name, for the message if every part must have a column.

    Returns:
        `dict[str, str]`: The column of each part that has one.

    Raises:
        DataError: If there is a `name` and a part has no column. The message lists the columns that there are.
    """
    by_name: dict[str, str] = {}
    for column in column_names:
        by_name.setdefault(column.strip().lower(), column)
    found = {}
    missing = []
    for part in parts:
        names = [known for known in PART_NAMES[part] if known in by_name]
        if names:
            found[part] = by_name[names[0]]
        else:
            first, *others = PART_NAMES[part]
            missing.append(f"no column {first!r} (also accepted: {', '.join(others) or 'no other name'})")
    if missing and name is not None:
        columns = quote(by_name.values())
        raise DataError(f"{name}: {' and '.join(missing)}. The columns are {columns}. Rename one.")
    return found


def _is_number(cell: object) -> bool:
    if not isinstance(cell, str):
        return not is_list(cell)
    try:
        float(cell)
    except ValueError:
        return False
    return True
