"""Average results, and write them as a table and as a JSON document."""

import platform
import statistics
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..ops.files import ARRAY_DAMAGE, read_json_object, write_atomically, write_json
from .classifier import L2_GRID, ClassifierConfig
from .transfer import TRANSFER_EXAMPLES

PACKAGES = ("torch", "transformers", "datasets", "numpy", "scipy", "scikit-learn")
#: The predicted and gold scores of an [`Evaluation`], by task, by subset or split, and by name.
Scores = dict[str, dict[str, dict[str, np.ndarray]]]

#: What zipfile and numpy raise on a damaged npz file; `RuntimeError` if a damaged flag says that it is encrypted.
_DAMAGE = (*ARRAY_DAMAGE, AttributeError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)

NOT_TASKS = ("average", "average_transfer", "geometry", "mteb", "mteb_averages")


def is_user_task(result: dict[str, Any]) -> bool:
    """Return whether a result is that of a task from a user's own files."""
    return "kind" in result


def is_transfer(task: str) -> bool:
    """Return whether a task is a transfer task; any other task is a set of scored pairs."""
    return task in TRANSFER_EXAMPLES


def headline(result: dict[str, Any], mode: str, aggregation: str, metric: str) -> float | None:
    """Return the score that a protocol reports for a task, times 100, or `None` if there is none."""
    if "missing" in result:
        return None
    if is_user_task(result):
        return result[result["metrics"][0]]
    if "accuracy" in result:
        return result["dev_accuracy" if mode == "dev" else "accuracy"]
    if "aggregate" in result:
        return result["aggregate"][aggregation][metric]
    if "splits" in result:
        return result["splits"]["dev" if mode == "dev" else "test"][metric]
    return result[metric]


def average_members(tasks: Sequence[str]) -> dict[str, list[str]]:
    """Return the tasks of each average.

    Correlations and accuracies are averaged separately.

    Args:
        tasks (`Sequence[str]`): Names of tasks.

    Returns:
        `dict[str, list[str]]`: `average` over the STS tasks and, if there are transfer tasks too, `average_transfer`;
        with transfer tasks only, `average` is over them.
    """
    sts = [task for task in tasks if not is_transfer(task)]
    transfer = [task for task in tasks if is_transfer(task)]
    return dict(zip(("average", "average_transfer"), filter(None, (sts, transfer)), strict=False))


def add_averages(results: dict[str, Any], tasks: tuple[str, ...], mode: str, aggregation: str, metric: str) -> None:
    """Add the averages of [`average_members`] to results.

    A task without a score is listed in `missing` and does not enter the average.
    """
    for key, members in average_members(tasks).items():
        values = {task: headline(results[task], mode, aggregation, metric) for task in members}
        present = [task for task in members if values[task] is not None]
        results[key] = {
            "value": float(np.mean([values[task] for task in present])) if present else None,
            "tasks": present,
            "missing": [task for task in members if task not in present],
        }


def format_number(value: float | None) -> str:
    """Format a score with two decimals, or as `n/a`."""
    return "n/a" if value is None else f"{value:.2f}"


def format_rows(rows: list[list[str]]) -> str:
    """Align the cells of rows in columns, the first column to the left and the rest to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def format_table(results: dict[str, Any], mode: str, aggregation: str, metric: str, verbose: bool = False) -> str:
    """Format results as text: a table and average for each kind of task, and why any task has no score.

    Args:
        results (`dict[str, Any]`): Results of an evaluation.
        mode (`str`): See [`Protocol`].
        aggregation (`str`): See [`Protocol`].
        metric (`str`): See [`Protocol`].
        verbose (`bool`, *optional*, defaults to `False`): Whether to list every subset and split with both metrics.

    Returns:
        `str`: The text, which may have several lines.
    """
    averages = [results[key] for key in ("average", "average_transfer") if key in results]
    blocks = [_average_block(results, average, mode, aggregation, metric) for average in averages]
    if verbose:
        blocks.append(_details(results))
    blocks.append("\n".join(_user_task_line(name, result) for name, result in results.items() if is_user_task(result)))
    if "geometry" in results:
        geometry = results["geometry"]
        blocks.append(
            f"STS-B ({', '.join(geometry['splits'])}): alignment {geometry['alignment']:.4f} over "
            f"{geometry['positive_pairs']} pairs, uniformity {geometry['uniformity']:.4f} and isotropy "
            f"{geometry['isotropy']:.4f} over {geometry['sentences']} sentences"
        )
    if "mteb" in results:
        blocks.append(format_rows([["MTEB", "score"], *([k, format_number(v)] for k, v in results["mteb"].items())]))
        if rows := format_mteb_averages(results.get("mteb_averages", {})):
            blocks.append(format_rows([["MTEB average", "score", "data sets"], *rows]))
    return "\n\n".join(filter(None, blocks))


def format_mteb_averages(averages: dict[str, Any]) -> list[list[str]]:
    """Return a row with the name, the mean and the number of data sets for each of `mteb_averages`."""
    names = {"average": "Avg. over all data sets"}
    return [[names.get(k, k), format_number(v["value"]), f"{v['tasks']} of {v['of']}"] for k, v in averages.items()]


def _user_task_line(name: str, result: dict[str, Any]) -> str:
    scores = ", ".join(f"{metric} {result[metric]:.2f}" for metric in result["metrics"])
    return f"{name}: {scores} (x 100, {result['examples']} examples of {result['source']}; {result['protocol']})"


def _average_block(results: dict[str, Any], average: dict[str, Any], mode: str, aggregation: str, metric: str) -> str:
    members = [task for task in results if task in average["tasks"] or task in average["missing"]]
    cells = [format_number(headline(results[task], mode, aggregation, metric)) for task in members]
    transfer = is_transfer(members[0])
    what = f"{'dev ' if mode == 'dev' else ''}accuracy" if transfer else f"{metric}, aggregation {aggregation}"
    lines = [
        f"mode {mode}, {what}, x 100",
        format_rows([[*members, "Avg."], [*cells, format_number(average["value"])]]),
        f"Avg. over {len(average['tasks'])} of {len(members)} tasks",
    ]
    for task in average["missing"]:
        lines.append(f"{task} n/a: {results[task].get('missing', f'no {aggregation} score without its subsets')}")
    return "\n".join(lines)


def _details(results: dict[str, Any]) -> str:
    rows = [["", "pairs", "spearman", "pearson"]]
    accuracies = []
    for task, result in results.items():
        if task in NOT_TASKS or "missing" in result or is_user_task(result):
            continue
        if "accuracy" in result:
            named = {"accuracy": "accuracy", "dev_accuracy": "dev", "f1": "F1"}
            scores = [f"{word} {result[name]:.2f}" for name, word in named.items() if name in result]
            scores += [f"{split} {count}" for split, count in result["examples"].items()]
            accuracies.append(f"{task}: {', '.join(scores)}")
            continue
        parts = result.get("subsets", result.get("splits", {"": result}))
        lines = [(f"{task} {part}".rstrip(), scores) for part, scores in parts.items()]
        lines += [
            (f"{task} {aggregation}", {"pairs": result["pairs"], **scores})
            for aggregation, scores in result.get("aggregate", {}).items()
        ]
        rows += [
            [name, str(s["pairs"]), format_number(s["spearman"]), format_number(s["pearson"])] for name, s in lines
        ]
    tables = [format_rows(rows)] if len(rows) > 1 else []
    return "\n\n".join(tables + (["\n".join(accuracies)] if accuracies else []))


def describe_protocol(protocol: Any, classifier: ClassifierConfig | None = None) -> dict[str, Any]:
    """Describe a [`Protocol`] and the settings of its classifier for the JSON document."""
    described = {name: getattr(protocol, name) for name in ("mode", "aggregation", "metric", "seed")}
    described |= {"similarity": "cosine", "text": "tokens joined by single spaces", "scale": 100}
    if classifier is not None:
        described["classifier"] = {"model": "logistic regression", **vars(classifier), "l2": list(L2_GRID)}
    return described


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the scores depend on."""
    # An editable installation keeps the metadata of the version that was installed first.
    own = {"python": platform.python_version(), "simcse-hf": __version__}
    return own | {package: metadata.version(package) for package in PACKAGES}


def write_results(path: str | Path, document: dict[str, Any], scores: Scores) -> None:
    """Write the JSON document, and beside it the predicted and gold scores that `simcse-hf compare` resamples.

    Args:
        path (`str | Path`): The JSON file. The scores are written beside it, to the same name with `.scores.npz`.
        document (`dict[str, Any]`): The document. The name of the file of scores is added to it as `scores`.
        scores (`dict`): The scores of an [`Evaluation`].
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if scores:
        scores_path = path.with_suffix(".scores.npz")
        save_scores(scores_path, scores)
        document = {**document, "scores": scores_path.name}
    write_json(path, document)


def save_scores(path: Path, scores: Scores) -> None:
    """Write scores into a file with one array for each task, part and name."""
    arrays: dict[str, Any] = {
        f"{task}/{part}/{name}": array
        for task, parts in scores.items()
        for part, named in parts.items()
        for name, array in named.items()
    }
    with write_atomically(path) as temporary, open(temporary, "wb") as file:  # numpy would add a suffix to a path
        np.savez_compressed(file, **arrays)


def load_scores(path: Path) -> Scores:
    """Read what [`save_scores`] wrote.

    Args:
        path (`Path`): The file.

    Returns:
        `dict`: The scores.

    Raises:
        ValueError: If the file is damaged.
    """
    scores: Scores = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for key in arrays.files:
                task, part, name = key.rsplit("/", 2)  # the name of a hub data set has a slash
                scores.setdefault(task, {}).setdefault(part, {})[name] = arrays[key]
    except _DAMAGE as error:
        raise ValueError(f"{path}: damaged ({error}); evaluate the model again.") from error
    return scores


def read_results(path: str | Path) -> tuple[dict[str, Any], Scores]:
    """Read what [`write_results`] wrote.

    Args:
        path (`str | Path`): The JSON file.

    Returns:
        `tuple[dict, dict]`: The document and the scores, which are empty if their file does not exist.

    Raises:
        ValueError: If the file is not such a document.
    """
    path = Path(path)
    document = read_json_object(path, "results", advice="Name a result file of `simcse-hf evaluate`.")
    scores_path = path.parent / Path(str(document.get("scores") or "none")).name
    has_scores = document.get("scores") and scores_path.is_file()
    return document, load_scores(scores_path) if has_scores else {}


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Format scores of several seeds as mean ± standard deviation, or a single one as it is."""
    values = list(values)
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
