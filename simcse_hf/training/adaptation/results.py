"""Write the result of an adaptation: the content of `adaptation.json`, and the adapted or the unchanged model."""

import json
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download

from ..._version import __version__
from ...inference.simcse import SimCSE
from ...ops.files import write_atomically
from ...publishing import write_card
from ...publishing.card_results import ADAPTATION
from ...publishing.card_training import public_name
from ...publishing.plots import COLOURS, MARKERS, new_figure
from ..run_record import hardware
from .candidate_search import Search
from .tasks import Tasks
from .trial import START, Trial
from .verdict import CONFIDENCE, GAIN, TaskVerdict, sentence

MODEL = "model"


PICTURE = "trials.png"
_MEANINGS = {
    "start": "the start model",
    "untrained": "other pooler or whitening",
    "short": "short run",
    "long": "longer run",
    "seed": "further seed of the chosen run",
}


def describe(
    arguments: dict[str, Any],
    search: Search,
    chosen: Sequence[Trial],
    best: Trial,
    tasks: Tasks,
    verdicts: Sequence[TaskVerdict],
) -> dict[str, Any]:
    """Collect what `adaptation.json` says.

    Args:
        arguments (`dict[str, Any]`): The arguments of the command.
        search (`Search`): The search, which has ended.
        chosen (`Sequence[Trial]`): The chosen model, with a trial for each seed.
        best (`Trial`): The trial whose model is shipped if there is a gain.
        tasks (`Tasks`): The tasks.
        verdicts (`Sequence[TaskVerdict]`): The verdict on each task. The first one decides.

    Returns:
        `dict[str, Any]`: The document.
    """
    first = verdicts[0]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        "verdict": first.verdict,
        "summary": sentence(first),
        "task": first.task,
        "metric": first.metric,
        "before": first.before,
        "after": first.after,
        "difference": first.difference,
        "interval": first.interval,
        "confidence": CONFIDENCE,
        "seeds": [trial.seed for trial in chosen if trial.seed is not None],
        "weak_evidence": tasks.are_weak,
        "chosen": {
            "name": chosen[0].name,
            "variant": chosen[0].variant,
            "steps": chosen[0].steps,
            "stages": chosen[0].stages,
            "seed": best.seed,
            "dev": [trial.variants[chosen[0].variant] for trial in chosen],
            "is_start": best.round == START,
        },
        "tasks": [
            {
                **asdict(verdict),
                "verdict": verdict.verdict,
                "summary": sentence(verdict),
                "source": Path(source).name,
                "dev_units": len(dev),
                "description": text,
            }
            for verdict, source, dev, text in zip(verdicts, tasks.sources, tasks.dev, tasks.descriptions, strict=True)
        ],
        "model": public_name(arguments["model"]),
        "start_pooler": str(search.start.variant),
        "corpus": search.corpus.describe(),
        "budget_seconds": search.record.budget,
        "division": asdict(search.division) if search.division else None,
        "notes": search.record.notes,
        "plan": [asdict(trial) for trial in search.trials],
        "arguments": arguments,
        "hardware": hardware(device),
        "versions": {
            "simcse_hf": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def ship(result: dict[str, Any], model: SimCSE | None, start: str, output: Path) -> None:
    """Write `model`: the adapted model with its card after a gain, else the files of the start model as they are.

    Args:
        result (`dict[str, Any]`): What [`describe`] returned.
        model (`SimCSE`, *optional*): The best seed of the chosen model.
        start (`str`): Folder or hub name of the start model.
        output (`Path`): The output directory.
    """
    with write_atomically(output / MODEL) as folder:
        if result["verdict"] != GAIN or model is None:
            source = start if Path(start).is_dir() else snapshot_download(start, local_files_only=True)
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns("checkpoint-*"))
            return
        model.save_pretrained(folder)
        kept = {name: value for name, value in result.items() if name != "arguments"}
        (folder / ADAPTATION).write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        write_card(folder, repo_id=f"your-name/{output.resolve().name}")


def draw_trials(result: dict[str, Any], output: Path) -> None:
    """Write `trials.png`, if matplotlib is installed.

    Args:
        result (`dict[str, Any]`): The content of `adaptation.json`.
        output (`Path`): The output directory.
    """
    trials = [trial for trial in result["plan"] if trial["dev"]]
    values = [trial["dev"][result["task"]] for trial in trials]
    try:
        figure = new_figure(8, 1.2 + 0.26 * len(trials))
    except ImportError:
        return
    axes = figure.subplots()
    for number, (name, meaning) in enumerate(_MEANINGS.items()):
        rows = [row for row, trial in enumerate(trials) if trial["round"] == name]
        if rows:
            found = [values[row] for row in rows]
            axes.scatter(found, rows, color=COLOURS[number], marker=MARKERS[number], label=meaning, zorder=3)
    axes.axvline(values[0], color="black", linewidth=1, linestyle="--", zorder=1)
    steps = [f", {sum(trial['steps'])} steps" if trial["steps"] else "" for trial in trials]
    labels = [f"{trial['name']}{count} ({trial['variant']})" for trial, count in zip(trials, steps, strict=True)]
    axes.set_yticks(range(len(trials)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"dev {result['task']} ({result['metric']} × 100); dashed: the start model")
    figure.legend(loc="outside upper right", ncols=3, fontsize=8)
    figure.savefig(output / PICTURE, dpi=120)
