"""Write an analysis into a folder: pictures, numbers, and `report.html`, which needs no other file."""

import json
import re
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...evaluation.compare import AVERAGES
from ...evaluation.report import write_results
from ..card_results import SHORT_NAMES, protocol_of
from ..page import render_page
from .document import Analysis, finite
from .drawing import is_number
from .models import MeasuredModel

DOCUMENT, REPORT, RESULTS = "analysis.json", "report.html", "results"
_LABELS = SHORT_NAMES | {"average": "Avg.", "average_transfer": "Avg. transfer"}


def write_analysis(
    folder: Path, analysis: Analysis, models: dict[str, MeasuredModel], command: str, versions: dict[str, str]
) -> None:
    """Write the files of an analysis.

    Args:
        folder (`Path`): An existing folder. It gets `report.html`, `analysis.json`, the PNG, SVG and CSV of each
            picture, and `results/`, with a result file of each model that was measured here, which `simcse-hf compare`
            and `simcse-hf analyze` read.
        analysis (`Analysis`): The analysis.
        models (`dict[str, MeasuredModel]`): The models by name.
        command (`str`): The command line, without secrets.
        versions (`dict[str, str]`): Versions of the packages that the figures depend on.
    """
    for picture in analysis.pictures:
        picture.save(folder)
    for number, (name, model) in enumerate(models.items(), start=1):
        file = folder / RESULTS / f"{number}-{re.sub(r'[^A-Za-z0-9.-]+', '_', name)[:80]}.json"
        document = finite(model.description | {"results": model.evaluation.results})
        write_results(file, document, model.evaluation.scores)
    document = {"command": command, "versions": versions, **analysis.document}
    (folder / REPORT).write_text(_render(analysis, document), encoding="utf-8")
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / DOCUMENT).write_text(text + "\n", encoding="utf-8")


def _render(analysis: Analysis, document: dict[str, Any]) -> str:
    models, comparison = document["models"], document["comparison"]
    figures = {name: model["intervals"] for name, model in models.items()}
    tasks = list(dict.fromkeys(t for row in figures.values() for t in row if row[t]["figure"] is not None))
    tasks = [task for task in tasks if task not in AVERAGES] + [key for key in AVERAGES if key in tasks]
    labels = _LABELS | (comparison["labels"] if comparison else {})
    first = next(iter(models.values()), None)
    subjects = [*models, *document["runs"], *document["searches"]]
    pictures = [
        {"name": p.name, "title": p.title, "reading": p.reading, "svg": Markup(p.inline())} for p in analysis.pictures
    ]
    return render_page(
        Path(__file__).with_name(REPORT),
        **document | {"pictures": pictures},
        headline=", ".join(subjects[:8]) + (" and others" if len(subjects) > 8 else ""),
        tasks=tasks,
        figures=figures if tasks else {},
        labels=labels,
        best={task: _best(task, figures) for task in tasks} if len(models) > 1 else {},
        average_of={key: _members(key, models) for key in AVERAGES if key in tasks},
        protocol_text=_protocol_text(first["description"]) if first else "",
        percent=f"{100 * document['confidence']:g}%",
        baseline=comparison["baseline"] if comparison else "",
        differences=comparison["differences"] if comparison else {},
        compared=list(next(iter(comparison["differences"].values()))) if comparison else [],
        geometry={name: model["geometry"] for name, model in models.items() if model["geometry"]},
        sentences=next((m["description"].get("sentences") for m in models.values() if m["neighbours"]), None),
        neighbours=_neighbours({name: m["neighbours"] for name, m in models.items() if m["neighbours"]}),
        settings=_settings(document),
    )


def _best(task: str, figures: dict[str, Any]) -> list[str]:
    """Return the models with the highest figure; none if all that have one share it."""
    found = {name: row[task]["figure"] for name, row in figures.items() if is_number(row.get(task, {}).get("figure"))}
    return [name for name in found if found[name] == max(found.values())] if len(set(found.values())) > 1 else []


def _members(key: str, models: dict[str, Any]) -> list[str]:
    averages = [model["results"][key] for model in models.values() if key in model["results"]]
    return [_LABELS.get(task, task) for task in averages[0]["tasks"]] if averages else []


def _protocol_text(description: dict[str, Any]) -> str:
    return protocol_of(description, False).replace("`", "") if "protocol" in description else ""


def _neighbours(of_models: dict[str, Any]) -> list[dict[str, Any]]:
    """Put the neighbours of each query by all models side by side: `ranks[i][j]` is neighbour i of model j."""
    rows = []
    for found in zip(*of_models.values(), strict=False):
        lists = [each["neighbours"] for each in found]
        ranks = list(zip(*lists, strict=False))
        rows.append({"query": found[0]["query"], "models": list(of_models), "ranks": ranks})
    return rows


def _settings(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """List the settings of each model, run and of the packages, in words."""
    settings = {
        f"Model {name}": {k: v for k, v in model["description"].items() if k != "versions" and v is not None}
        for name, model in document["models"].items()
    }
    for described in settings.values():
        described["protocol"] = ", ".join(
            f"{key} {value}" for key, value in described.get("protocol", {}).items() if not isinstance(value, dict)
        )
    settings |= {f"Run {name}": {"log": run["source"]} for name, run in document["runs"].items()}
    return settings | {"Versions": document["versions"]}
