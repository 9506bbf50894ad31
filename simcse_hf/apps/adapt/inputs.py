"""What an adaptation reads: text, labels and tasks, without what would make the verdict too favourable."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from transformers.utils import logging

from ...data.columns import SCORE, find_parts
from ...data.kinds import Source, read_source
from ...data.read import is_labelled
from ...data.table import open_table, stream_texts
from ...encoding.windows import split_sentences
from ...evaluation.tasks import Task, name_tasks
from ...runtime.errors import DataError, SettingError
from ...runtime.files import StrPath
from ..mining import fold_text

logger = logging.get_logger(__name__)

#: Rows that are read of a larger file. They take seconds; all rows of 10 GB would take minutes of the budget.
MAX_ROWS = 1_000_000
#: A run of a few hundred steps reads fewer texts.
MAX_TEXTS, MIN_TEXTS = 100_000, 64
#: Share of a task that chooses the arm. The verdict gets more, because it has to tell small differences from chance.
DEV_SHARE = 1 / 3
#: Every arm is scored on the dev part, so it has fewer units of a large task.
_MAX_DEV_UNITS = 2000
_SPLIT_SEED = 0
#: Training reads far less of a text, and long documents would fill the memory.
_MAX_CHARACTERS = 10_000
#: Lines of a txt file that show whether empty lines stand between its documents.
_FIRST_LINES = 10_000


def split_tasks(
    given: Sequence[str],
    general: Mapping[str, Task],
    label_separator: str | None = None,
) -> tuple[dict[str, Task], dict[str, Task], frozenset[str]]:
    """Read the user's tasks, and split each in two.

    Args:
        given (`Sequence[str]`): Tasks as KIND=FILE. The first one chooses the arm.
        general (`Mapping[str, Task]`): The general tasks, which choose nothing and are not split.
        label_separator (`str`, *optional*): What stands between several labels in a cell.

    Returns:
        `tuple[dict[str, Task], dict[str, Task], frozenset[str]]`: By the name of the task, the parts that
        choose the arm and the parts of the verdict; and the texts of all scored rows and queries, those
        of the general tasks, too, as [`fold_text`] returns them.

    Raises:
        SettingError: If there is no task.
        DataError: If one is malformed or too small to split.
    """
    if not given:
        raise SettingError("adapt needs a task to judge by: name one, for example --task classification=labelled.csv.")
    dev = {}
    held_out = {}
    tasks = name_tasks(given, label_separator)
    for name, task in tasks.items():
        try:
            share = min(DEV_SHARE, _MAX_DEV_UNITS / len(task))
            dev[name], held_out[name] = task.split(share, _SPLIT_SEED)
        except ValueError as error:
            raise DataError(
                f"{task.source}: the task cannot be split into a dev part and a held-out part: {error}"
            ) from error
    scored = _scored_texts(tasks.values())
    others = _scored_texts(general.values())
    if scored & others:
        logger.warning(
            f"{len(scored & others):,} of {len(others):,} texts of the general tasks are also texts of --task. The "
            "change there may not show what the model forgets."
        )
    held_out |= {f"general {name}": task for name, task in general.items()}
    return dev, held_out, frozenset(scored | others)


def _scored_texts(tasks: Iterable[Task]) -> set[str]:
    links = chain.from_iterable(task.links for task in tasks)
    return {fold_text(text[:_MAX_CHARACTERS]) for texts in links for text in texts}


def read_corpus(
    path: StrPath,
    scored: frozenset[str],
    column: str | None = None,
) -> tuple[list[str], dict]:
    """Draw distinct texts from a file in one pass and in bounded memory (reservoir sampling, Vitter 1985).

    Texts that differ only in case or white space count as duplicates.

    Args:
        path (`str | os.PathLike`): A txt, csv, tsv, json, jsonl or parquet file, or one of these followed by .gz.
        scored (`frozenset[str]`): Texts that the tasks score, which are left out.
        column (`str`, *optional*): The column of texts, if the file has several.

    Returns:
        `tuple[list[str], dict[str, Any]]`: At most `MAX_TEXTS` texts in random order, which are the same in every
        call; and what was read and left out.

    Raises:
        DataError: If the file cannot be read, its column is unclear, or it holds fewer than `MIN_TEXTS` texts.
    """
    rng = random.Random(0)
    drawn: list[str] = []
    seen = set()
    rows = overlap = 0
    for _, text in islice(stream_texts(path, column), MAX_ROWS):
        rows += 1
        text = text.strip()[:_MAX_CHARACTERS]
        key = fold_text(text)
        if not key or hash(key) in seen:
            continue
        seen.add(hash(key))
        if key in scored:
            overlap += 1
        elif len(drawn) < MAX_TEXTS:
            drawn.append(text)
        elif (place := rng.randrange(len(seen))) < MAX_TEXTS:
            drawn[place] = text
    rng.shuffle(drawn)
    _warn_of_overlap(path, overlap, rows)
    if rows == MAX_ROWS:
        logger.warning(f"{path}: only the first {MAX_ROWS:,} rows are read. Shuffle the file if their order matters.")
    if len(drawn) < MIN_TEXTS:
        raise DataError(
            f"{path}: {len(drawn)} distinct texts that no task scores are too few to adapt a model to: give at least "
            f"{MIN_TEXTS}, better several thousand, with one text in each row."
        )
    return drawn, {"path": Path(path).name, "texts": len(drawn), "rows": rows, "overlap": overlap}


def neighbouring_spans(
    path: StrPath,
    scored: frozenset[str],
    column: str | None = None,
) -> list[dict[str, str]]:
    """Pair two neighbouring spans, of two sentences each, of every document that has four sentences.

    The pairs are those of Gonzalez-Marquez, Berens and Kobak 2025 (arXiv:2508.03453). A document is the text of a row
    or, in a txt file with empty lines, the lines between two of them.

    Args:
        path (`str | os.PathLike`): As in [`read_corpus`].
        scored (`frozenset[str]`): Texts that the tasks score. Pairs that hold one are left out.
        column (`str`, *optional*): As in [`read_corpus`].

    Returns:
        `list[dict[str, str]]`: One pair `sent0`, `sent1` of each document, the same in every call.
    """
    rng = random.Random(0)
    pairs = []
    for sentences in islice(_documents(path, column), MAX_TEXTS):
        if len(sentences) < 4:
            continue
        place = rng.randrange(len(sentences) - 3)
        drawn = sentences[place : place + 4]
        first, second = " ".join(drawn[:2]), " ".join(drawn[2:])
        whole = " ".join(sentences)
        if scored.isdisjoint(fold_text(text) for text in (*drawn, first, second, whole)):
            pairs.append({"sent0": first, "sent1": second})
    return pairs


def _documents(path: StrPath, column: str | None) -> Iterator[list[str]]:
    """Yield the sentences of each document of a file."""
    lines = [number for number, _ in islice(stream_texts(path, column), _FIRST_LINES)]
    is_divided = ".txt" in Path(path).suffixes and lines[-1] > len(lines)
    document: list[str] = []
    last = 0
    for number, text in islice(stream_texts(path, column), MAX_ROWS):
        if not is_divided:
            yield split_sentences(text[:_MAX_CHARACTERS])
            continue
        if number > last + 1:
            yield document
            document = []
        document.append(text)
        last = number
    yield document


def _warn_of_overlap(
    path: StrPath,
    overlap: int,
    rows: int,
) -> None:
    if overlap:
        logger.warning(f"{path}: {overlap:,} of {rows:,} rows hold a text that a task scores. They are left out.")


def write_rows(rows: Iterable[Mapping], path: Path) -> None:
    """Write rows as a file that the training commands read."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def prepare_labels(source: str, scored: frozenset[str], path: Path, label_separator: str | None = None) -> str:
    """Write the labelled rows of a file without those whose text a task scores.

    Args:
        source (`str`): Triplets, pairs, scored pairs, or texts with a class label, told apart by their columns.
        scored (`frozenset[str]`): Texts that the tasks score.
        path (`Path`): The file to write.
        label_separator (`str`, *optional*): What stands between several class labels in a cell.

    Returns:
        `str`: The objective that learns from the rows.

    Raises:
        DataError: If the file holds no labels, or a row is malformed.
    """
    columns = open_table(source).columns
    parts = find_parts(columns, ["sentence1", "sentence2", "score"])
    # The files of STS-B have tabs and no header.
    if len(parts) == 3 or any("\t" in column for column in columns):
        kind, objective = "scored_pairs", "cosent"
    elif is_labelled(source):
        kind, objective = "classes", "class_labels"
    else:
        kind, objective = "texts", "simcse"
    rows = [*read_source(kind, Source(source, supervised=True, label_separator=label_separator))]
    values = {row.get(SCORE) for row in rows}
    is_scored_by_label = kind == "scored_pairs" and parts.get("score") == "label"
    if is_scored_by_label and len(values) > 2 and values <= {-1, 0, 1, 2}:
        raise DataError(
            f"{source}: the labels 0, 1 and 2 are those of entailment, neutral and contradiction, and not scores of "
            "similarity. Make triplets of them with `simcse-hf build-nli`, or call the column 'score'."
        )

    kept = []
    for row in rows:
        if scored.isdisjoint(fold_text(cell[:_MAX_CHARACTERS]) for cell in row.values() if isinstance(cell, str)):
            kept.append(row)
    _warn_of_overlap(source, len(rows) - len(kept), len(rows))
    if not kept:
        raise DataError(f"{source}: the tasks score a text of every row. Give labels of other texts.")
    write_rows(kept, path)
    return objective
