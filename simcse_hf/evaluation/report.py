"""Results as averages, a table, and a JSON document."""

import json
import platform
from importlib import metadata
from pathlib import Path

import numpy as np

from .classifier import L2_GRID
from .tasks import ALL_TASKS, STS_TASKS, headline_split

PACKAGES = ("simcse-hf", "torch", "transformers", "datasets", "numpy", "scipy")
NOT_TASKS = ("average", "average_transfer", "geometry", "mteb")


def is_transfer(task: str) -> bool:
    """Whether a task is a transfer task; any other is a set of scored pairs."""
    return task in ALL_TASKS and task not in STS_TASKS


def headline(result: dict, mode: str, aggregation: str, metric: str) -> float | None:
    """The one figure of a task's result under a protocol, times 100; `None` if there is none."""
    if "missing" in result:
        return None
    if "accuracy" in result:
        return result["dev_accuracy" if mode == "dev" else "accuracy"]
    if "aggregate" in result:
        return result["aggregate"][aggregation][metric]
    if "splits" in result:
        return result.get("regressor", result["splits"])[headline_split(mode)][metric]
    return result[metric]


def add_averages(results: dict, tasks: tuple[str, ...], mode: str, aggregation: str, metric: str) -> None:
    """Adds `average` to results: of the STS tasks, or of the transfer tasks where no STS task was asked for.

    Accuracies and correlations are not mixed: with both kinds, the transfer tasks have `average_transfer`. A task
    without a figure is listed in `missing` and counts for nothing.
    """
    kinds = [[task for task in tasks if not is_transfer(task)], [task for task in tasks if is_transfer(task)]]
    for key, members in zip(("average", "average_transfer"), [kind for kind in kinds if kind], strict=False):
        values = {task: headline(results[task], mode, aggregation, metric) for task in members}
        present = [task for task in members if values[task] is not None]
        results[key] = {
            "value": float(np.mean([values[task] for task in present])) if present else None,
            "tasks": present,
            "missing": [task for task in members if task not in present],
        }


def format_number(value: float | None) -> str:
    """A figure with two decimals, or `n/a`."""
    return "n/a" if value is None else f"{value:.2f}"


def format_rows(rows: list[list[str]]) -> str:
    """Aligns the cells of rows in columns, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_table(results: dict, mode: str, aggregation: str, metric: str, verbose: bool = False) -> str:
    """The results as text: a table per kind of task with its average, and what is missing and why.

    Args:
        results (`dict`): Results of an evaluation.
        mode, aggregation, metric: The protocol to show them under.
        verbose (`bool`, *optional*, defaults to `False`): Whether to list every subset and split, under both metrics.
    """
    blocks = []
    for key in ("average", "average_transfer"):
        if key in results:
            blocks.append(_average_block(results, results[key], mode, aggregation, metric))
    if verbose:
        blocks.append(_details(results))
    if "geometry" in results:
        geometry = results["geometry"]
        blocks.append(
            f"STS-B ({', '.join(geometry['splits'])}): alignment {geometry['alignment']:.4f} over "
            f"{geometry['positive_pairs']} pairs, uniformity {geometry['uniformity']:.4f} and isotropy "
            f"{geometry['isotropy']:.4f} over {geometry['sentences']} sentences"
        )
    if "mteb" in results:
        rows = [["MTEB", "score"]] + [[task, format_number(score)] for task, score in results["mteb"].items()]
        blocks.append(format_rows(rows))
    return "\n\n".join(blocks)


def _average_block(results: dict, average: dict, mode: str, aggregation: str, metric: str) -> str:
    members = [task for task in results if task in average["tasks"] or task in average["missing"]]
    cells = [format_number(headline(results[task], mode, aggregation, metric)) for task in members]
    transfer = is_transfer(members[0])
    what = f"{'dev ' if mode == 'dev' else ''}accuracy" if transfer else f"{metric}, aggregation {aggregation}"
    if any("regressor" in results[task] for task in members):
        what += ", STS-B and SICK-R by the trained regressor"
    lines = [
        f"mode {mode}, {what}, x 100",
        format_rows([[*members, "Avg."], [*cells, format_number(average["value"])]]),
        f"Avg. over {len(average['tasks'])} of {len(members)} tasks",
    ]
    for task in average["missing"]:
        lines.append(f"{task} n/a: {results[task].get('missing', f'no {aggregation} figure without its subsets')}")
    return "\n".join(lines)


def _details(results: dict) -> str:
    rows = [["", "pairs", "spearman", "pearson"]]
    other = []
    for task, result in results.items():
        if task in NOT_TASKS or "missing" in result:
            continue
        if "accuracy" in result:
            f1 = [f"F1 {result['f1']:.2f}"] if "f1" in result else []
            counts = [f"{split} {count}" for split, count in result["examples"].items()]
            figures = [f"accuracy {result['accuracy']:.2f}", f"dev {result['dev_accuracy']:.2f}", *f1, *counts]
            other.append(f"{task}: {', '.join(figures)}")
            continue
        parts = result.get("subsets", result.get("splits", {"": result}))
        lines = [(f"{task} {part}".rstrip(), scores) for part, scores in parts.items()]
        lines += [(f"{task} {split} regressor", scores) for split, scores in result.get("regressor", {}).items()]
        lines += [
            (f"{task} {aggregation}", {"pairs": result["pairs"], **scores})
            for aggregation, scores in result.get("aggregate", {}).items()
        ]
        rows += [
            [name, str(s["pairs"]), format_number(s["spearman"]), format_number(s["pearson"])] for name, s in lines
        ]
    tables = [format_rows(rows)] if len(rows) > 1 else []
    return "\n\n".join(tables + (["\n".join(other)] if other else []))


def describe_protocol(protocol, classifier=None) -> dict:
    """The protocol in words and numbers, as the JSON document states it."""
    described = {
        "mode": protocol.mode,
        "aggregation": protocol.aggregation,
        "metric": protocol.metric,
        "similarity": "cosine",
        "regressor": protocol.regressor,
        "seed": protocol.seed,
        "text": "tokens joined by single spaces",
        "scale": 100,
    }
    if classifier is not None:
        described["classifier"] = {"model": "logistic regression", **vars(classifier), "l2": list(L2_GRID)}
    return described


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the figures."""
    return {"python": platform.python_version()} | {package: metadata.version(package) for package in PACKAGES}


def write_results(path: str | Path, document: dict, scores: dict) -> None:
    """Writes the JSON document, and beside it the predicted and gold scores that `simcse-hf compare` resamples.

    Args:
        path (`str` or `Path`): Of the JSON file; the scores go to the same name with the ending `.scores.npz`.
        document (`dict`): The document; the name of the file of scores is added as `scores`.
        scores (`dict`): `Evaluation.scores`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if scores:
        scores_path = path.with_suffix(".scores.npz")
        arrays = {
            f"{task}/{part}/{name}": array
            for task, parts in scores.items()
            for part, named in parts.items()
            for name, array in named.items()
        }
        np.savez_compressed(scores_path, **arrays)
        document = {**document, "scores": scores_path.name}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(path: str | Path) -> tuple[dict, dict]:
    """Reads what `write_results` wrote.

    Returns:
        `tuple[dict, dict]`: The document and the scores; the latter empty if their file is not there.

    Raises:
        ValueError: If the file is not such a document.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file ({error}).") from error
    if not isinstance(document, dict) or "results" not in document:
        raise ValueError(f"{path}: no results of `simcse-hf evaluate`.")
    scores: dict = {}
    scores_path = path.parent / document.get("scores", "")
    if document.get("scores") and scores_path.is_file():
        with np.load(scores_path) as arrays:
            for key in arrays.files:
                task, part, name = key.rsplit("/", 2)  # the name of a hub data set has a slash
                scores.setdefault(task, {}).setdefault(part, {})[name] = arrays[key]
    return document, scores
