"""Read the log of a training run: its metrics by step."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ops.files import read_json_object

RESULTS = "results.json"
_STATE = "trainer_state.json"
#: Endings of dev metrics that describe the geometry of the embeddings or the evaluation itself.
_NOT_QUALITY = ("_alignment", "_uniformity", "_mean_cosine", "_effective_rank", "_loss", "_runtime", "_per_second")


@dataclass(frozen=True)
class Run:
    """The log of a training run.

    Args:
        history (`list[dict]`): `log_history` of the Trainer: entries with their `step`.
        dev_metric (`str`, *optional*): Name of the dev metric in the log, such as `"eval_stsb_spearman"`.
    """

    history: list[dict[str, Any]]
    dev_metric: str | None

    def series(self, key: str) -> dict[int, float]:
        """Return the finite values of a logged metric by step."""
        values = {}
        for entry in self.history:
            value = entry.get(key)
            if "step" in entry and isinstance(value, (int, float)) and math.isfinite(value):
                values[entry["step"]] = float(value)
        return dict(sorted(values.items()))

    def geometry(self) -> list[tuple[int, float, float]]:
        """Return step, alignment and uniformity of each evaluation on the first dev set that has both."""
        logged = {key for entry in self.history for key in entry}
        for key in sorted(logged):
            if re.fullmatch("eval_.+_alignment", key):
                alignment = self.series(key)
                uniformity = self.series(key.replace("_alignment", "_uniformity"))
                path = []
                for step, value in alignment.items():
                    if step in uniformity:
                        path.append((step, value, uniformity[step]))
                if path:
                    return path
        return []


def read_log(folder: str | Path) -> Run:
    """Read the log of a training run, or of the last checkpoint if the run was interrupted.

    Args:
        folder (`str` or `Path`): The output directory of the run.

    Returns:
        `Run`: The log.

    Raises:
        ValueError: If the folder holds no log, or a file is damaged.
    """
    folder = Path(folder)
    path = folder / _STATE
    if not path.is_file():
        states = {}
        for state in folder.glob(f"checkpoint-*/{_STATE}"):
            step = state.parent.name.removeprefix("checkpoint-")
            if step.isdigit():
                states[int(step)] = state
        if not states:
            raise ValueError(
                f"{folder} holds no training run ({_STATE} is missing). To draw a model, evaluate it first: simcse-hf "
                "evaluate --model MODEL --data_dir FOLDER --geometry --output MODEL.json"
            )
        path = states[max(states)]
    history = read_json_object(path).get("log_history")
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise ValueError(f"{path}: log_history is not a list of objects; the file is damaged")
    results = folder / RESULTS
    if results.is_file():
        metric = read_json_object(results).get("dev_metric")
        if metric:
            return Run(history, f"eval_{metric}")
    for entry in history:
        for name in entry:
            if name.startswith("eval_") and not name.endswith(_NOT_QUALITY):
                return Run(history, name)
    return Run(history, None)
