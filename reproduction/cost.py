"""What the runs of a table will cost: their steps, and the hours and the memory on the GPU that was measured."""

import json
import math
from pathlib import Path
from typing import Any

MEASURED = Path("benchmarks/results/gpu.json")
#: Rows of the papers' files.
_ROWS = {"data/wiki1m_for_simcse.txt": 1_000_000, "data/nli_for_simcse.csv": 275_601}


def steps_of(settings: dict[str, Any]) -> tuple[int | None, int]:
    """Return the steps of a run, if they are known without its files, and the rows of a step."""
    batch = settings.get("per_device_train_batch_size", 64) * settings.get("gradient_accumulation_steps", 1)
    if settings.get("max_steps", -1) > 0:
        return settings["max_steps"], batch
    rows = _ROWS.get(settings.get("train_file") or "")
    if rows is None:
        return None, batch
    return math.ceil(rows / batch * settings.get("num_train_epochs", 1)), batch


def describe_cost(runs: list[dict[str, Any]]) -> str:
    """Say how long the runs take on the GPU that was measured, as BERT-base with the nearest batch.

    Args:
        runs (`list[dict[str, Any]]`): Distinct runs with `steps` and `batch`.

    Returns:
        `str`: One sentence, or nothing if the steps of a run or the speed of the GPU are not known.
    """
    path = Path(__file__).parents[1] / MEASURED
    if not runs or not path.is_file() or any(run["steps"] is None for run in runs):
        return ""
    content = json.loads(path.read_text(encoding="utf-8"))
    speeds = {row["work"]: row for row in content["rows"] if row["contestant"] == "plain"}
    seconds = memory = 0.0
    for run in runs:
        measured = speeds[
            "BERT-base, sentences, batch 64" if run["batch"] <= 64 else "BERT-base, sentences, batch 512"
        ]
        seconds += run["steps"] * run["batch"] / measured["sentences_per_second"]
        memory = max(memory, measured["peak_memory_mib"] / 1024)
    machine = content["machine"]["processor"]
    return f"As BERT-base on one {machine}: about {seconds / 3600:.1f} hours and {memory:.0f} GiB ({MEASURED})."
