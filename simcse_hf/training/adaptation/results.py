"""Write the result of an adaptation: the content of `adaptation.json`, the model and the picture."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from huggingface_hub import snapshot_download

from ..._version import __version__
from ...inference.simcse import SimCSE
from ...ops.files import write_atomically, write_json
from ...publishing.card import ADAPTATION, write_card
from ...publishing.card_training import hub_id, public_name
from ...publishing.plots import COLOURS, MARKERS, new_figure
from .arms import START, Arm
from .verdict import CONFIDENCE, GAIN, Comparison

MODEL = "model"
PICTURE = "arms.png"


def describe(
    arms: Mapping[str, Arm],
    measured: Mapping,
    chosen: Arm,
    seeds: list[int | None],
    judged: list[Comparison],
) -> dict:
    """Collect what `adaptation.json` says.

    Args:
        arms (`Mapping[str, Arm]`): All arms by name.
        measured (`Mapping[str, Any]`): The dev scores of those that were tried.
        chosen (`Arm`): The arm that was chosen.
        seeds (`list[int | None]`): The seeds of its runs in the verdict.
        judged (`list[Comparison]`): The verdicts. The first one, against the present model, decides.

    Returns:
        `dict[str, Any]`: The document.
    """

    def stages(arm: Arm) -> list[dict]:
        return [asdict(stage) | {"file": stage.file.name} for stage in arm.stages]

    first = judged[0]
    return {
        "verdict": first.verdict,
        "summary": _summary(chosen, arms, measured, judged),
        **asdict(first),
        "confidence": CONFIDENCE,
        "chosen": {**asdict(chosen), "model": hub_id(chosen.model), "stages": stages(chosen), "seed": seeds[0]},
        "seeds": [seed for seed in seeds if seed is not None],
        "comparisons": [{**asdict(each), "verdict": each.verdict} for each in judged],
        "arms": [{"name": name, "stages": stages(arms[name]), **found} for name, found in measured.items()],
        "model": public_name(arms[START].model),
        "versions": {
            "simcse_hf": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def _summary(
    chosen: Arm,
    arms: Mapping[str, Arm],
    measured: Mapping,
    comparisons: list[Comparison],
) -> str:
    """Say in a sentence what helped: the chosen arm against the present model, and the text against its control."""
    first = comparisons[0]
    text = f"{first.verdict}: {first} on {first.task} ({first.metric}) with the arm {chosen.name}"
    for control in comparisons:
        if control.against == chosen.control != START and control.task == first.task:
            helped = "helped" if control.verdict == GAIN else "did not help"
            text += f"; the text of the domain {helped}: {control} over {control.against}"
    if not chosen.control and any(arms[name].control for name in measured):
        text += "; the text of the domain did not help: no arm with it was better on dev"
    return text


def ship(result: dict, model: SimCSE, start: str, output: Path) -> None:
    """Write `model`: the model of the chosen arm with its card after a gain, else the files of the present model.

    Args:
        result (`dict[str, Any]`): What [`describe`] returned.
        model (`SimCSE`): The first run of the chosen arm in the verdict.
        start (`str`): Folder or hub name of the present model.
        output (`Path`): The output directory.
    """
    with write_atomically(output / MODEL) as folder:
        if result["verdict"] == GAIN:
            model.save_pretrained(folder)
            write_json(folder / ADAPTATION, {name: result[name] for name in result if name != "arguments"})
            write_card(folder, repo_id=f"your-name/{output.resolve().name}")
        else:
            source = start if Path(start).is_dir() else snapshot_download(start, local_files_only=True)
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns("checkpoint-*"))


def draw(result: dict, output: Path) -> None:
    """Write `arms.png` if matplotlib is installed: what each arm changes on dev, and the verdicts, with intervals.

    Args:
        result (`dict[str, Any]`): The content of `adaptation.json`.
        output (`Path`): The output directory.
    """
    # The label of a bar, its figures, and the kind of its mark.
    bars = [(arm["name"], arm, 0) for arm in result["arms"] if arm["dev"] is not None]
    for each in result["comparisons"]:
        if each["task"] == result["task"]:
            bars.append((f"held out: {result['chosen']['name']} over {each['against']}", each, 1))
    try:
        figure = new_figure(8, 1.0 + 0.28 * len(bars))
    except ImportError:
        return
    axes = figure.subplots()
    for row, (_, found, kind) in enumerate(bars):
        axes.plot(found["interval"], [row, row], color=COLOURS[kind], linewidth=1.5)
        axes.plot(found["difference"], row, MARKERS[kind], color=COLOURS[kind], markersize=5)
    axes.axvline(0, color="black", linewidth=1, linestyle="--", zorder=1)
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars], fontsize=8)
    axes.invert_yaxis()
    key = "circles: one run over the present model on dev; squares: new runs on held-out rows; bars: 95% intervals"
    figure.supxlabel(f"change of {result['task']} ({result['metric']} × 100)\n{key}", fontsize=8)
    with write_atomically(output / PICTURE) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
