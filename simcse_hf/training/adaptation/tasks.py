"""The tasks of an adaptation, the user's or drawn from the text, each split into a dev and a held-out part."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from transformers.utils import logging

from ...data.documents import read_documents
from ...data.read import open_table
from ...data.views.words import DeleteWords, split_words
from ...evaluation.user_tasks import UserTask, read_task
from .corpus import MIN_TEXTS, Corpus, without_texts

logger = logging.get_logger(__name__)

#: Share of a task that the search sees; the rest is for the judgement.
DEV_SHARE = 0.5
#: The search scores dozens of models, so it sees fewer units of a large task.
_MAX_DEV_UNITS = 2000
_SPLIT_SEED = 0
TITLE_COLUMNS = ("title", "headline", "heading", "subject", "question")
MAX_QUERIES, MIN_QUERIES = 800, 40
_MAX_DISTRACTORS = 1200
_MAX_DOCUMENTS = 20_000
_SENTENCES_OF_A_DOCUMENT = 5
_DELETED = 0.5
_MIN_WORDS = 6


@dataclass(frozen=True)
class DrawnTask:
    """Queries and documents drawn from a corpus.

    Args:
        name (`str`): `"titles"`, `"documents"` or `"shortened"`.
        description (`str`): What a query and its relevant documents are, for the report.
        queries (`list[str]`): The queries.
        documents (`list[str]`): The documents.
        relevant (`list[list[int]]`): For each query, the positions of its relevant documents.
        originals (`list[str]`): The texts of the corpus that the queries come from; they must not be trained on.
    """

    name: str
    description: str
    queries: list[str]
    documents: list[str]
    relevant: list[list[int]]
    originals: list[str]

    def write(self, folder: Path) -> None:
        """Write the task in BEIR's layout: `corpus.jsonl`, `queries.jsonl` and `qrels/test.tsv`."""
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        for file, letter, texts in (("corpus", "d", self.documents), ("queries", "q", self.queries)):
            lines = (json.dumps({"_id": f"{letter}{i}", "text": t}, ensure_ascii=False) for i, t in enumerate(texts))
            (folder / f"{file}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        pairs = (f"q{i}\td{j}\t1\n" for i, positions in enumerate(self.relevant) for j in positions)
        header = "query-id\tcorpus-id\tscore\n"
        (folder / "qrels" / "test.tsv").write_text(header + "".join(pairs), encoding="utf-8")


def draw_tasks(corpus: Corpus) -> list[DrawnTask]:
    """Draw the tasks that a corpus allows, the best evidence first.

    - `titles`: the query is a title, and its body is to be found. The file has a column named like a title.
    - `documents`: the query is a sentence, and the other sentences of its document are to be found. The file is a txt
      file with empty lines between documents.
    - `shortened`: the query is a text without a random half of its words, and the same text without another half is to
      be found. Any file allows it.

    Args:
        corpus (`Corpus`): The corpus.

    Returns:
        `list[DrawnTask]`: The tasks. They are the same in every call.

    Raises:
        ValueError: If the corpus is too small for any of them.
    """
    draws: Sequence[Callable[[Corpus, random.Random], DrawnTask | None]] = (_titles, _documents, _shortened)
    tasks = [task for draw in draws if (task := draw(corpus, random.Random(0))) is not None]
    if not tasks:
        raise ValueError(
            f"{corpus.path}: its {len(corpus.texts)} texts are too few or too short to draw a task from, and there is "
            f"no --task. Name a task of yours, or give at least {MIN_TEXTS + MIN_QUERIES} texts of {_MIN_WORDS} words."
        )
    return tasks


def _number_of_queries(texts: int, candidates: int) -> int:
    """Return a fifth of the texts, at least `MIN_QUERIES`; 0 if too few texts would remain for training."""
    number = min(MAX_QUERIES, candidates, max(MIN_QUERIES, texts // 5))
    return number if number >= MIN_QUERIES and texts - number >= MIN_TEXTS else 0


def _titles(corpus: Corpus, rng: random.Random) -> DrawnTask | None:
    table = open_table(corpus.path)
    by_name = {name.lower(): name for name in table.columns}
    title = next((by_name[name] for name in TITLE_COLUMNS if by_name.get(name, corpus.column) != corpus.column), None)
    if title is None:
        return None
    known = set(corpus.texts)
    pairs: dict[str, str] = {}
    for _, (heading, body) in islice(table.rows([title, corpus.column]), 10 * _MAX_DOCUMENTS):
        if isinstance(heading, str) and isinstance(body, str) and heading.strip() and body.strip() in known:
            pairs.setdefault(body.strip(), heading.strip())
    count = _number_of_queries(len(corpus.texts), len(pairs))
    if not count:
        return None
    chosen = rng.sample(sorted(pairs), min(len(pairs), count + _MAX_DISTRACTORS))
    return DrawnTask(
        "titles",
        f"find the {corpus.column} that belongs to a {title}",
        [pairs[body] for body in chosen[:count]],
        chosen,
        [[i] for i in range(count)],
        chosen[:count],
    )


def _documents(corpus: Corpus, rng: random.Random) -> DrawnTask | None:
    table = open_table(corpus.path)
    if table.format != "txt":
        return None
    try:
        read = [list(dict.fromkeys(document)) for document in islice(read_documents(corpus.path), _MAX_DOCUMENTS)]
    except ValueError:  # there are no empty lines
        return None
    usable = [document for document in read if len(document) > 1]
    # Documents give up all their sentences, so a fifth of the texts allows fewer queries than otherwise.
    sentences = sum(map(len, usable)) / max(1, len(usable))
    count = min(_number_of_queries(len(corpus.texts), len(usable)), int(len(corpus.texts) // 5 // max(1, sentences)))
    if count < MIN_QUERIES:
        return None
    queries: list[str] = []
    documents: dict[str, int] = {}
    relevant: list[list[int]] = []
    originals: list[str] = []
    for document in rng.sample(usable, count):
        query, *others = rng.sample(document, min(len(document), _SENTENCES_OF_A_DOCUMENT + 1))
        queries.append(query)
        relevant.append([documents.setdefault(text, len(documents)) for text in others])
        originals += document
    return DrawnTask(
        "documents",
        "find the other sentences of the document that a sentence is from",
        queries,
        list(documents),
        relevant,
        originals,
    )


def _shortened(corpus: Corpus, rng: random.Random) -> DrawnTask | None:
    long_enough = [text for text in corpus.texts if len(split_words(text)) >= _MIN_WORDS]
    count = _number_of_queries(len(corpus.texts), len(long_enough))
    if not count:
        return None
    view = DeleteWords(_DELETED)
    chosen = long_enough[: count + _MAX_DISTRACTORS]
    return DrawnTask(
        "shortened",
        "find a text without half of its words by the same text without another half",
        [view(text, rng) for text in chosen[:count]],
        [view(text, rng) for text in chosen],
        [[i] for i in range(count)],
        chosen[:count],
    )


@dataclass(frozen=True)
class Tasks:
    """The tasks of an adaptation, in two parts.

    Args:
        names (`list[str]`): A name for each task, the kind where it is unique.
        sources (`list[str]`): The file or folder of each task.
        dev (`list[UserTask]`): The parts that the search sees.
        held_out (`list[UserTask]`): The parts of the final judgement.
        descriptions (`list[str]`): For tasks drawn from the text, what they ask; empty for the user's.
        are_weak (`bool`): Whether the tasks were drawn from the text itself.
    """

    names: list[str]
    sources: list[str]
    dev: list[UserTask]
    held_out: list[UserTask]
    descriptions: list[str]
    are_weak: bool


def prepare_tasks(
    given: Sequence[tuple[str, str]], corpus: Corpus, folder: Path, keep_overlap: bool = False
) -> tuple[Tasks, Corpus]:
    """Read the user's tasks or draw some, split each in two, and take their texts out of the corpus.

    Args:
        given (`Sequence[tuple[str, str]]`): Kind and file of each task. Without any, tasks are drawn from the corpus.
        corpus (`Corpus`): The corpus.
        folder (`Path`): Where drawn tasks are written.
        keep_overlap (`bool`, *optional*, defaults to `False`): Leave the texts of the user's tasks in the corpus.

    Returns:
        `tuple[Tasks, Corpus]`: The tasks, and the corpus to train on.

    Raises:
        ValueError: If a task is malformed or too small to split, or too few texts remain.
    """
    if given:
        whole = [read_task(kind, path) for kind, path in given]
        count = Counter(task.kind for task in whole)
        names = [task.kind if count[task.kind] == 1 else f"{task.kind}:{task.name}" for task in whole]
        if len(set(names)) < len(names):
            raise ValueError(f"two tasks have the same kind and file name: {', '.join(names)}. Rename a file.")
        descriptions = ["" for _ in whole]
        corpus = without_texts(corpus, (text for task in whole for text in task.texts), keep_overlap)
    else:
        drawn = draw_tasks(corpus)
        for draw in drawn:
            draw.write(folder / draw.name)
        whole = [read_task("retrieval", folder / draw.name) for draw in drawn]
        names, descriptions = [draw.name for draw in drawn], [draw.description for draw in drawn]
        originals = {text for draw in drawn for text in draw.originals}
        corpus = replace(corpus, texts=tuple(text for text in corpus.texts if text not in originals))
        logger.warning(
            f"There is no --task, so the verdict rests on tasks drawn from the text itself ({', '.join(names)}). That "
            "is weak evidence for any other use."
        )
    parts = []
    for task in whole:
        try:
            parts.append(task.split(min(DEV_SHARE, _MAX_DEV_UNITS / len(task)), _SPLIT_SEED))
        except ValueError as error:
            raise ValueError(
                f"{task.source}: the task cannot be split into a dev part and a held-out part: {error}"
            ) from error
    dev, held_out = ([part[i] for part in parts] for i in (0, 1))
    return Tasks(names, [task.source for task in whole], dev, held_out, descriptions, are_weak=not given), corpus
