"""The tasks of an adaptation: the user's or drawn ones, each in a part for the search and a part for the judgement."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers.utils import logging

from ...evaluation.user_tasks import UserTask, read_task
from .corpus import Corpus, without_texts
from .text_tasks import draw_tasks

logger = logging.get_logger(__name__)

#: Share of a task that the search sees; the rest is for the judgement.
DEV_SHARE = 0.5
#: The search scores dozens of models, so it sees fewer units of a large task.
_MAX_DEV_UNITS = 2000
_SPLIT_SEED = 0


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
