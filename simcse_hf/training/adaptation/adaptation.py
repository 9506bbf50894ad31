"""The whole adaptation: from a corpus and a start model to a verdict, a model and a picture."""

import json
import os
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging

from ...inference.simcse import SimCSE
from ...models.settings import max_positions
from ...ops.files import read_json_object, write_atomically
from .candidate_search import Search
from .corpus import Corpus, fit_to_tokenizer, read_corpus
from .record import RESULT, Record, clear_output
from .results import describe, draw_trials, ship
from .tasks import Tasks, prepare_tasks
from .trial import START, Trial
from .variants import StartModel, TaskScores, Variant, open_variant
from .verdict import TaskVerdict, judge

logger = logging.get_logger(__name__)

#: The longest texts that are trained on; longer ones cost more time than the budgets of this command allow.
MAX_LENGTH = 128
TASKS, SEARCH = "tasks", "search"


@dataclass(frozen=True)
class AdaptationSettings:
    """What the user of `simcse-hf adapt` asks for.

    Args:
        corpus (`str`): File of unlabelled texts.
        model (`str`): Folder or hub name of the start model.
        output (`str`): Output directory.
        budget (`float`, *optional*, defaults to `20.0`): Minutes that the adaptation may take.
        seeds (`int`, *optional*, defaults to `3`): Runs of the best training, each with another seed.
        tasks (`tuple[tuple[str, str], ...]`, *optional*, defaults to `()`): Kind and file of each task. The first one
            decides. Without any, tasks are drawn from the corpus.
        column (`str`, *optional*): Column of texts, if the corpus has several.
        pooler_type (`str`, *optional*): Pooler of the start model, in place of its own.
        max_texts (`int`, *optional*, defaults to `100_000`): Texts to draw from the corpus.
        keep_overlap (`bool`, *optional*, defaults to `False`): Train on texts that the tasks contain, too.
        bf16 (`bool`, *optional*, defaults to `False`): Train in bfloat16.
    """

    corpus: str
    model: str
    output: str
    budget: float = 20.0
    seeds: int = 3
    tasks: tuple[tuple[str, str], ...] = ()
    column: str | None = None
    pooler_type: str | None = None
    max_texts: int = 100_000
    keep_overlap: bool = False
    bf16: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return what has to be the same when an adaptation continues, under the names of the command's options."""
        given = asdict(self)
        del given["output"]
        given["task"] = [list(task) for task in given.pop("tasks")]
        return given


def adapt(settings: AdaptationSettings, overwrite: bool = False) -> dict[str, Any]:
    """Search for training that improves a model on a domain, judge it on held-out data, and keep what helps.

    The output directory gets `adaptation.json` (the verdict and everything that was tried), `trials.png`
    (the dev scores), and `model`: the adapted model with its card, or the unchanged files of the start model if there
    is no gain. An interrupted adaptation continues when it is called again with the same settings, and a finished one
    returns its result.

    Args:
        settings (`AdaptationSettings`): The corpus, the start model, the tasks and the budget.
        overwrite (`bool`, *optional*, defaults to `False`): Delete an earlier adaptation in the output directory.

    Returns:
        `dict[str, Any]`: The content of `adaptation.json`.

    Raises:
        ValueError: If an input is invalid, or the output directory holds something else.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("adapt runs in one process: start it with `simcse-hf adapt`, not with accelerate launch.")
    output = Path(settings.output).expanduser()
    if overwrite:
        clear_output(output)
    record = Record(output, settings.arguments(), 60 * settings.budget)
    if (output / RESULT).is_file():
        logger.info(f"{output} holds the finished adaptation; --overwrite starts again.")
        return read_json_object(output / RESULT, advice="Start again with --overwrite.")
    if record.was_interrupted:
        logger.info(f"Continuing the adaptation in {output}, of which {record.seconds / 60:.1f} minutes are spent.")
    start = StartModel(settings.model, settings.pooler_type)
    corpus, tasks = _prepare(settings, start, record, output)
    search = Search(start, corpus, tasks.dev[0], tasks.names[0], record, output / SEARCH, settings.bf16)
    chosen = search.run(settings.seeds)
    logger.info("Judging the chosen model on the held-out part of the tasks.")
    verdicts = _judge(search, chosen, tasks)
    best = max(chosen, key=lambda trial: trial.variants[chosen[0].variant])
    result = describe(settings.arguments(), search, chosen, best, tasks, verdicts)
    model = None if best.round == START else _open(search, best, chosen[0].variant)
    result["seconds"] = round(record.seconds, 1)
    ship(result, model, settings.model, output)
    draw_trials(result, output)
    with write_atomically(output / RESULT) as temporary:  # last, because it marks the adaptation as finished
        temporary.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for trial in search.trials:
        if trial.stages:
            shutil.rmtree(search.model_directory(trial), ignore_errors=True)
    record.save()
    return result


def _prepare(settings: AdaptationSettings, start: StartModel, record: Record, output: Path) -> tuple[Corpus, Tasks]:
    """Read the corpus and the tasks, and check that they are those with which an interrupted adaptation began."""
    corpus = read_corpus(settings.corpus, settings.column, settings.max_texts)
    tasks, corpus = prepare_tasks(settings.tasks, corpus, output / TASKS, settings.keep_overlap)
    limits = (MAX_LENGTH, start.max_length, max_positions(start.open().model.config))
    corpus = fit_to_tokenizer(corpus, start.tokenizer, min(limit for limit in limits if limit is not None))
    record.check_unchanged("corpus", _fingerprint(corpus.texts), f"The corpus {settings.corpus}")
    for name, dev, held_out in zip(tasks.names, tasks.dev, tasks.held_out, strict=True):
        record.check_unchanged(f"task {name}", _fingerprint([*dev.texts, *held_out.texts]), f"The task {name}")
    return corpus, tasks


def _judge(search: Search, chosen: Sequence[Trial], tasks: Tasks) -> list[TaskVerdict]:
    """Evaluate the start model and every seed of the chosen model on the held-out parts."""
    before = TaskScores(search.start.open(), tasks.held_out)()
    after = [
        TaskScores(_open(search, trial, chosen[0].variant), tasks.held_out)()
        for trial in chosen
        if trial.round != START
    ]
    return judge(tasks.held_out, tasks.names, before, after)


def _open(search: Search, trial: Trial, variant: str) -> SimCSE:
    """Load the model of a trial with the pooler and the whitening of the chosen model."""
    directory = search.model_directory(trial) if trial.stages else search.start.name
    return open_variant(directory, Variant.parse(variant), search.corpus)


def _fingerprint(texts: Sequence[str]) -> int:
    """Return a number that tells one list of texts from another."""
    number = 0
    for text in texts:
        number = zlib.crc32(text.encode("utf-8", "surrogatepass"), number)
    return number
