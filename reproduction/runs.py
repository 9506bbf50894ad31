"""Train and measure runs, keep each result in a file of its own, and share them between tables and processes."""

import importlib
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from filelock import FileLock

from simcse_hf.encoding.simcse import SimCSE
from simcse_hf.evaluation.embeddings import Encoder
from simcse_hf.evaluation.report import versions
from simcse_hf.runtime.files import read_arrays, read_json, write_arrays, write_text
from simcse_hf.runtime.messages import errors_only
from simcse_hf.training.checkpoints import checkpoints
from simcse_hf.training.recipe import Recipe
from simcse_hf.training.trainer import SimCSETrainer

from .data import find_senteval
from .figures import Measured, measure
from .specs import Run, Sources
from .variants import nli_file
from .word_vectors import WordVectors

_CURVE = {"stsb_spearman": "dev", "stsb_alignment": "alignment", "stsb_uniformity": "uniformity"}


class RunStore:
    """The finished runs in a folder.

    A run is a file `KEY.json` with `KEY.scores.npz` beside it, written when the run is finished. The key is a digest
    of its settings, seed, training rows, dev set and start model, so equal runs of different tables are trained once.

    Args:
        sources (`Sources`): Where the files are, and the folder of results.
        keep_models (`bool`, *optional*, defaults to `False`): Keep the trained models.
    """

    def __init__(self, sources: Sources, keep_models: bool = False):
        self.sources = sources
        self.keep_models = keep_models
        self.folder = sources.output / "runs"
        self._measured: dict[str, Measured] = {}

    def read(self, run: Run) -> dict[str, Any] | None:
        """Return the document of a run, or `None` if it is not finished."""
        path = self._path(run)
        if not path.is_file():
            return None
        return read_json(path, "results", advice="Delete it, and the run is repeated.")

    def has(self, run: Run, groups: Sequence[str]) -> bool:
        """Return whether a run is finished and was measured in these evaluations."""
        document = self.read(run)
        return document is not None and set(groups) <= set(document["results"])

    def measured(self, run: Run) -> Measured:
        """Read the results and scores of a finished run; they stay in memory."""
        document, key = self.read(run), run.key(self.sources)
        assert document is not None
        if key in self._measured and self._measured[key].results.keys() == document["results"].keys():
            return self._measured[key]
        result = Measured(document["results"])
        for name, parts in read_arrays(self._path(run).with_suffix(".scores.npz"), "run it again.").items():
            group, task = name.split("|")
            result.scores.setdefault(group, {})[task] = parts
        self._measured[key] = result
        return result

    def finish(self, run: Run, groups: Sequence[str], wait: bool = True) -> bool:
        """Train and measure a run, unless it is finished. A lock keeps two processes from training the same one.

        Args:
            run (`Run`): The run.
            groups (`Sequence[str]`): The evaluations to measure it by.
            wait (`bool`, *optional*, defaults to `True`): Wait while another process trains the run.

        Returns:
            `bool`: Whether the run is finished; `False` if another process trains it.

        Raises:
            ValueError: If the run cannot be trained, for example because a file is missing.
        """
        if self.has(run, groups):
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._path(run).with_suffix(".lock"))
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except TimeoutError:
            return False
        try:
            if not self.has(run, groups):
                earlier = (self.read(run) or {"results": {}})["results"]
                self._train(run, list(dict.fromkeys([*earlier, *groups])))
        finally:
            lock.release()
        return True

    def _path(self, run: Run) -> Path:
        return self.folder / f"{run.key(self.sources)}.json"

    def _train(self, run: Run, groups: Sequence[str]) -> None:
        started = time.perf_counter()
        folder = self._path(run).with_suffix("")
        settings = run.arguments(self.sources, folder)
        trainer = _train(run, settings, folder) if run.trained else None
        model = settings["model_name_or_path"] if trainer is None else str(folder / "model")
        if trainer is not None:
            trainer.save_model(model)
        bf16 = trainer is not None and trainer.args.bf16 and trainer.args.use_cpu
        dev_file = settings.get("dev_file")
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            measured = measure(
                partial(_load, model),
                groups,
                find_senteval(self.sources.data_dir),
                None if dev_file is None else Path(dev_file),
                nli_file(self.sources.data_dir),
                run.transfer_examples,
            )
        document = {
            "recipe": run.recipe,
            "settings": run.settings | {"seed": run.seed},
            "sample": run.sample,
            "steps": 0 if trainer is None else trainer.state.global_step,
            "best_step": None if trainer is None else _best_step(trainer),
            "curve": [] if trainer is None else _curve(trainer.state.log_history),
            "results": measured.results,
            "seconds": round(time.perf_counter() - started, 1),
            "versions": versions(),
        }
        scores = {
            f"{group}|{task}": parts for group, tasks in measured.scores.items() for task, parts in tasks.items()
        }
        write_arrays(self._path(run).with_suffix(".scores.npz"), scores)
        write_text(self._path(run), json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        if not self.keep_models:
            shutil.rmtree(folder, ignore_errors=True)


def _load(name: str, pooler: str | None) -> Encoder:
    """Load a model to measure: a checkpoint, a file of word vectors, or what a function `module:function` returns."""
    if name.removesuffix(".gz").endswith(".txt"):
        return WordVectors(Path(name))
    module, colon, function = name.partition(":")
    if colon and not Path(name).exists():
        try:
            return getattr(importlib.import_module(module), function)()
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{name}: {error}") from error
    model = SimCSE(name, pooler_type=pooler, postprocess=False)
    return SimpleNamespace(encode=partial(model.encode, normalize_embeddings=None))


def _train(run: Run, settings: dict[str, Any], folder: Path) -> SimCSETrainer:
    """Train a run as `simcse-hf train` does. A run that was killed after a checkpoint continues there."""
    can_resume = not settings.get("save_only_model") and bool(checkpoints(folder))
    if not can_resume:
        shutil.rmtree(folder, ignore_errors=True)  # what a killed run has left
    recipe = Recipe.read("sup" if run.supervised else "unsup", settings)
    trainer = recipe.but(
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",  # standard output belongs to the command's result
        use_cpu=not torch.cuda.is_available(),
        resume_from_checkpoint="true" if can_resume else None,
    ).trainer()
    with errors_only():
        trainer.train(resume_from_checkpoint=True if can_resume else None)
    return trainer


def _curve(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return step, dev correlation, alignment and uniformity of each evaluation."""
    return [
        {"step": entry["step"]}
        | {short: round(entry[f"eval_{name}"], 4) for name, short in _CURVE.items() if f"eval_{name}" in entry}
        for entry in history
        if "eval_stsb_spearman" in entry
    ]


def _best_step(trainer: SimCSETrainer) -> int:
    best = trainer.state.best_model_checkpoint
    return trainer.state.global_step if best is None else int(best.rpartition("-")[2])
