"""Read the log of a training run from the files in its folder."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...ops.files import read_json_object
from .drawing import is_number

STATE, RESULTS = "trainer_state.json", "results.json"
#: Endings of dev metrics that describe the geometry of the embeddings, or the evaluation itself.
_NOT_QUALITY = ("_alignment", "_uniformity", "_mean_cosine", "_effective_rank", "_loss", "_runtime", "_per_second")


@dataclass
class Run:
    """The log of a training run.

    Args:
        name (`str`): Name of the run in pictures.
        history (`list[dict]`): `log_history` of the Trainer: entries with their `step`.
        results (`dict`): Content of `results.json`, or nothing if the run has not ended.
        source (`str`): The file that the history was read from.
    """

    name: str
    history: list[dict[str, Any]]
    results: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    def series(self, key: str) -> list[tuple[int, float]]:
        """Return `(step, value)` of a logged figure in the order of the steps, the last entry of each step."""
        points = {entry["step"]: entry[key] for entry in self.history if key in entry and "step" in entry}
        return [(step, float(value)) for step, value in sorted(points.items()) if isinstance(value, (int, float))]

    @property
    def steps(self) -> int:
        """The last step that was logged."""
        return max((entry.get("step", 0) for entry in self.history), default=0)

    @property
    def dev_metric(self) -> str | None:
        """The logged name of the metric of the dev set, such as `eval_stsb_spearman`; `None` without a dev set."""
        if self.results.get("dev_metric"):
            return f"eval_{self.results['dev_metric']}"
        names = [name for entry in self.history for name in entry if name.startswith("eval_")]
        return next((name for name in names if not name.endswith(_NOT_QUALITY)), None)

    @property
    def geometry_set(self) -> str | None:
        """The dev set whose alignment and uniformity were logged together, such as `stsb`."""
        names = {name for entry in self.history for name in entry}
        sets = [match[1] for name in names if (match := re.fullmatch(r"eval_(.+)_alignment", name))]
        return next((each for each in sorted(sets) if f"eval_{each}_uniformity" in names), None)

    def summary(self) -> dict[str, Any]:
        """Return what a table says about the run: steps, seed, loss, and its dev figure at first, at best and last."""
        summary = {"source": self.source, "steps": self.steps, "seed": self.results.get("seed"), "dev_metric": None}
        losses = [value for _, value in self.series("loss")]
        summary["last_loss"] = losses[-1] if losses else None
        summary["mean_loss"] = next((value for _, value in self.series("train_loss")), None)
        if self.dev_metric is not None:
            points = [point for point in self.series(self.dev_metric) if is_number(point[1])]
            summary["dev_metric"] = self.dev_metric.removeprefix("eval_")
            if points:
                best = max(points[1:] or points, key=lambda point: point[1])
                summary |= {"first": points[0][1], "best": best[1], "best_step": best[0], "last": points[-1][1]}
        return summary


def is_run(folder: str | Path) -> bool:
    """Return whether a folder holds the log of a training run."""
    path = Path(folder)
    return path.is_dir() and any((path / name).is_file() for name in (STATE, RESULTS)) or bool(_checkpoints(path))


def read_run(folder: str | Path, name: str | None = None) -> Run:
    """Read the log of a run.

    Args:
        folder (`str` or `Path`): The output directory of a run. If the run was interrupted, the log is read from its
            last checkpoint; if only `results.json` is left, the first, the best and the last evaluation are known.
        name (`str`, *optional*): Name of the run in pictures. Defaults to the name of the folder.

    Returns:
        `Run`: The log.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If the folder holds no run, or a file is damaged.
    """
    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}: name the output directory of a training run")
    results = read_json_object(path / RESULTS) if (path / RESULTS).is_file() else {}
    name = name or path.resolve().name
    states = [path / STATE, *(checkpoint / STATE for checkpoint in _checkpoints(path))]
    for file in states:
        if file.is_file():
            history = read_json_object(file).get("log_history", [])
            if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
                raise ValueError(f"{file}: log_history is not a list of objects; the file is damaged")
            return Run(name, history, results, str(file))
    if results.get("final"):
        entries = [results[when] for when in ("initial", "best", "final") if results.get(when)]
        history = [{key if key == "step" else f"eval_{key}": value for key, value in e.items()} for e in entries]
        return Run(name, history, results, str(path / RESULTS))
    raise ValueError(f"{path} holds no training run (no {STATE}, and no dev figures in {RESULTS})")


def _checkpoints(path: Path) -> list[Path]:
    """List the checkpoints that hold a log, the last one first."""
    found = [state.parent for state in path.glob(f"checkpoint-*/{STATE}") if state.parent.name[11:].isdigit()]
    return sorted(found, key=lambda checkpoint: int(checkpoint.name[11:]), reverse=True)
