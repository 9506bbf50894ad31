"""The runs of a study in a folder: each is known by what it learns, trained once, and scored once on each task."""

import re
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.utils import logging

from ... import Recipe
from ...evaluation.bm25 import BM25
from ...evaluation.protocol import PAPER_PROTOCOL
from ...evaluation.report import Evaluation
from ...evaluation.scoring import kept_files, score_missing
from ...evaluation.tasks import Task
from ...runtime.distributed import on_first_process, wait_for_all
from ...runtime.encoders import TextEncoder, as_encoder
from ...runtime.errors import LockedError
from ...runtime.files import lock, read_json, remove, write_json, write_text
from ...runtime.identity import digest_value
from ...runtime.messages import errors_only

logger = logging.get_logger(__name__)

#: The folder of all runs in the output folder.
RUNS = "runs"
#: What a finished run records beside its results: what it cost.
COST_FILE = "study_run.json"
FAILURE = "failure.txt"
TESTS = "tests"


class Trainable(ABC):
    """What a run trains: a way of a study, or an arm of an adaptation. Its `name` is that of messages and folders."""

    name: str

    @abstractmethod
    def learns_from(self) -> Any:
        """Return what tells its runs from others, but for their seed."""

    @abstractmethod
    def train(self, seed: int, folder: Path) -> dict[str, Any]:
        """Train with a seed into a folder, or go on there, and return what that has cost."""

    @abstractmethod
    def open(self, folder: Path) -> Any:
        """Load the model that was trained into a folder."""


W = TypeVar("W", bound=Trainable)


@dataclass(frozen=True)
class SeedRun(Generic[W]):
    """A run of a way with a seed, or a model that is not trained.

    Args:
        way (`Trainable`): The way.
        seed (`int`, *optional*): The seed; `None` for the start.
        folder (`Path`): The folder of the run.
    """

    way: W
    seed: int | None
    folder: Path

    @property
    def name(self) -> str:
        """What messages call the run."""
        return self.way.name if self.seed is None else f"{self.way.name}, seed {self.seed}"

    @property
    def record(self) -> dict[str, Any] | None:
        """What the run has cost, or `None` while it is not finished."""
        path = self.folder / COST_FILE
        if not path.exists():
            return None
        return read_json(path, "bytes", advice="Remove the folder, and the run is repeated.")


def plan_runs(ways: Sequence[W], seeds: Sequence[int | None], folder: Path) -> list[SeedRun[W]]:
    """List the runs of a study, one seed of all ways before the next.

    A run is known by the digest of all that it learns from: the arguments, the texts, the start and the seed. So a
    study that gets another way, seed or name finds the runs that it has.

    Args:
        ways (`Sequence[Trainable]`): The ways.
        seeds (`Sequence[int | None]`): Their seeds; `None` alone for what is not trained.
        folder (`Path`): The folder of all runs.

    Returns:
        `list[SeedRun]`: The runs.
    """
    keys = {way.name: digest_value(way.learns_from()) for way in ways}
    folders: dict[str, Path] = {}
    runs = []
    for seed in seeds:
        for way in ways:
            key = digest_value([keys[way.name], seed])[:12]
            for path in folder.glob(f"*-{key}"):
                folders[key] = path
            words = re.sub(r"[^\w.=]+", "-", way.name).strip("-.")[:60]
            runs.append(SeedRun(way, seed, folders.setdefault(key, folder / f"{words}-{seed}-{key}")))
    return runs


def finish_run(run: SeedRun) -> bool:
    """Train a run, unless it is finished. One that was interrupted goes on.

    Args:
        run (`SeedRun`): The run.

    Returns:
        `bool`: Whether it is finished now; `False` if another process works on it.

    Raises:
        Exception: What training raises. The folder of the run then has its traceback.
    """
    if on_first_process(lambda: run.record) is not None:
        return True
    with taken(run.folder) as is_ours:
        if not is_ours:
            return False
        try:
            assert run.seed is not None
            with errors_only(), redirect_stdout(sys.stderr):  # standard output belongs to the table
                cost = run.way.train(run.seed, run.folder)
        except Exception:
            on_first_process(lambda: write_text(run.folder / FAILURE, traceback.format_exc()))
            raise
        size = sum(path.stat().st_size for path in run.folder.glob("*.safetensors"))

        def record() -> None:
            remove(run.folder / FAILURE)
            write_json(run.folder / COST_FILE, {**cost, "bytes": size})

        on_first_process(record)
    return True


@contextmanager
def taken(folder: Path) -> Iterator[bool]:
    """Lock the folder of a run, if no other study works on it, and say whether that was possible."""
    with ExitStack() as stack:

        def take() -> bool:
            try:
                stack.enter_context(lock(folder))
            except LockedError:
                return False
            return True

        yield on_first_process(take)
        wait_for_all()


def score_files(run: SeedRun, tasks: Mapping[str, Task]) -> dict[str, Path]:
    """Return the file in the folder of a run in which its score on each task is kept."""
    return kept_files(run.folder / TESTS, tasks, PAPER_PROTOCOL)


def score_run(run: SeedRun, open_model: Callable[[], Any], tasks: Mapping[str, Task], bar: bool) -> Evaluation:
    """Score a model on the tasks that it was not scored on yet; what was scored is kept in the folder of its run.

    A run whose weights were not kept is made again if a score is missing.

    Args:
        run (`SeedRun`): The run.
        open_model (`Callable`): Loads the model, if a score is missing.
        tasks (`Mapping[str, Task]`): The tasks.
        bar (`bool`): Show a bar while texts are encoded.

    Returns:
        [`Evaluation`]: The results of all tasks.
    """
    files = score_files(run, tasks)

    def is_gone() -> bool:
        has_weights = run.record is None or run.record["bytes"] == 0 or any(run.folder.glob("*.safetensors"))
        return not has_weights and not all(path.exists() for path in files.values())

    def encoder() -> TextEncoder | BM25:
        model = open_model()
        return model if isinstance(model, BM25) else as_encoder(model)

    if on_first_process(is_gone):
        logger.info(f"The weights of {run.name} were not kept, and it has no score yet: it is trained again.")
        on_first_process(lambda: remove(run.folder / COST_FILE))
        finish_run(run)
    return score_missing(files, encoder, tasks, PAPER_PROTOCOL, bar)


class _AfterTheFirstStep(TrainerCallback):
    """Ends a run after its first step, and says how long that took."""

    seconds = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin to measure."""
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Measure the step, and end the run."""
        self.seconds = time.perf_counter() - self._began
        control.should_training_stop = True


def time_first_step(recipe: Recipe) -> tuple[int, float]:
    """Train the first step of a run in a folder that is removed, and return its steps and the seconds of this one.

    Args:
        recipe (`Recipe`): The run.

    Returns:
        `tuple[int, float]`: How many steps the whole run has, and how long its first step took.
    """
    first = _AfterTheFirstStep()
    with TemporaryDirectory() as folder, errors_only():
        values = {"save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False, "report_to": "none"}
        trainer = recipe.but(output_dir=folder, disable_tqdm=True, **values).trainer()
        trainer.add_callback(first)
        trainer.train()
    return trainer.state.max_steps, first.seconds


def remove_model(run: SeedRun) -> None:
    """Remove the weights and checkpoints of a finished run, whose results and scores stay."""
    if run.record is None:
        return
    for pattern in ("checkpoint-*", "*.safetensors"):
        for path in run.folder.glob(pattern):
            remove(path)
