"""Average results, and write them as a table and as a JSON document."""

import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from .._version import __version__
from ..ops.files import read_json_object, write_json
from .bootstrap import Scores, load_scores, save_scores
from .classifier import L2_GRID
from .metrics import METRICS
from .protocol import Protocol
from .transfer import CLASSIFIER_CONFIGS, TRANSFER_EXAMPLES

PACKAGES = ("torch", "transformers", "datasets", "numpy", "scipy", "scikit-learn")

NOT_TASKS = ("average", "average_transfer", "geometry", "mteb", "mteb_averages")


def is_user_task(result: dict) -> bool:
    """Return whether a result is that of a task from a user's own files."""
    return "kind" in result


def is_transfer(task: str) -> bool:
    """Return whether a task is a transfer task; any other task is a set of scored pairs."""
    return task in TRANSFER_EXAMPLES


def average_members(tasks: Sequence[str]) -> dict:
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
    members = {"average": sts, "average_transfer": transfer} if sts else {"average": transfer}
    return {key: averaged for key, averaged in members.items() if averaged}


def add_averages(
    results: dict,
    tasks: Sequence[str],
    protocol: Protocol,
) -> None:
    """Add the averages of [`average_members`] to results.

    A task without a score is listed in `missing` and does not enter the average.
    """
    for key, members in average_members(tasks).items():
        scores: dict = {task: protocol.headline(results[task]) for task in members}
        missing = [task for task in members if scores[task] is None]
        present = [task for task in members if task not in missing]
        mean = float(np.mean([scores[task] for task in present])) if present else None
        results[key] = {"value": mean, "tasks": present, "missing": missing}


def format_number(value: float | None) -> str:
    """Format a score with two decimals, or as `n/a`."""
    return "n/a" if value is None else f"{value:.2f}"


def format_rows(rows: list) -> str:
    """Align the cells of rows in columns, the first column to the left and the rest to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = list(map(str.rjust, row, widths))
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_table(
    results: dict,
    protocol: Protocol,
    verbose: bool = False,
) -> str:
    """Format results as text: a table and average for each kind of task, and why any task has no score.

    Args:
        results (`dict[str, Any]`): Results of an evaluation.
        protocol (`Protocol`): How the tasks were scored.
        verbose (`bool`, *optional*, defaults to `False`): Whether to list every subset and split with both metrics.

    Returns:
        `str`: The text, which may have several lines.
    """
    blocks = []
    for key in ("average", "average_transfer"):
        if key not in results:
            continue
        average = results[key]
        members = [task for task in results if task in average["tasks"] or task in average["missing"]]
        scores = [protocol.headline(results[task]) for task in members]
        cells = [format_number(score) for score in (*scores, average["value"])]
        what = f"{protocol.metric}, aggregation {protocol.aggregation}"
        if is_transfer(members[0]):
            what = "dev accuracy" if protocol.mode == "dev" else "accuracy"
        lines = [
            f"mode {protocol.mode}, {what}, x 100",
            format_rows([[*members, "Avg."], cells]),
            f"Avg. over {len(average['tasks'])} of {len(members)} tasks",
        ]
        for task in average["missing"]:
            reason = results[task].get("missing", f"no {protocol.aggregation} score without its subsets")
            lines.append(f"{task} n/a: {reason}")
        blocks.append("\n".join(lines))
    if verbose:
        # All correlations in a table, then the accuracies
        rows = [["", "pairs", *METRICS]]
        accuracies = []
        for task, result in results.items():
            if task in NOT_TASKS or "missing" in result or is_user_task(result):
                continue
            if "accuracy" in result:
                cells = [f"accuracy {result['accuracy']:.2f}", f"dev {result['dev_accuracy']:.2f}"]
                if "f1" in result:
                    cells.append(f"F1 {result['f1']:.2f}")
                cells += [f"{split} {count}" for split, count in result["examples"].items()]
                accuracies.append(f"{task}: {', '.join(cells)}")
                continue
            parts = result.get("subsets") or result.get("splits") or {"": result}
            for part, numbers in (parts | result.get("aggregate", {})).items():
                pairs = numbers.get("pairs", result.get("pairs"))
                cells = [format_number(numbers[metric]) for metric in METRICS]
                rows.append([f"{task} {part}".rstrip(), str(pairs), *cells])
        if len(rows) > 1:
            blocks.append(format_rows(rows))
        blocks.append("\n".join(accuracies))
    users = []
    for name, result in results.items():
        if is_user_task(result):
            listed = ", ".join(f"{metric} {result[metric]:.2f}" for metric in result["metrics"])
            of = f"{result['examples']} examples of {result['source']}"
            users.append(f"{name}: {listed} (x 100, {of}; {result['protocol']})")
    blocks.append("\n".join(users))
    if "geometry" in results:
        geometry = results["geometry"]
        blocks.append(
            f"STS-B ({', '.join(geometry['splits'])}): alignment {geometry['alignment']:.4f} over "
            f"{geometry['positive_pairs']} pairs, uniformity {geometry['uniformity']:.4f} and isotropy "
            f"{geometry['isotropy']:.4f} over {geometry['sentences']} sentences"
        )
    if "mteb" in results:
        by_name = [[name, format_number(score)] for name, score in results["mteb"].items()]
        blocks.append(format_rows([["MTEB", "score"], *by_name]))
        averages = format_mteb_averages(results.get("mteb_averages", {}))
        if averages:
            blocks.append(format_rows([["MTEB average", "score", "data sets"], *averages]))
    return "\n\n".join(filter(None, blocks))


def format_mteb_averages(averages: dict) -> list:
    """Return a row with the name, the mean and the number of data sets for each of `mteb_averages`."""
    rows = []
    for name, average in averages.items():
        title = "Avg. over all data sets" if name == "average" else name
        number = f"{average['tasks']} of {average['of']}"
        rows.append([title, format_number(average["value"]), number])
    return rows


def describe_protocol(protocol: Protocol) -> dict:
    """Describe a [`Protocol`] and the settings of its classifier for the JSON document."""
    classifier = vars(CLASSIFIER_CONFIGS[protocol.mode])
    return {
        **vars(protocol),
        "text": "tokens joined by single spaces",
        "scale": 100,
        "classifier": {"model": "logistic regression", **classifier, "l2": list(L2_GRID)},
    }


def versions() -> dict:
    """Return the versions of Python and of the packages that the scores depend on."""
    # An editable installation keeps the metadata of the version that was installed first.
    own = {"python": platform.python_version(), "simcse-hf": __version__}
    return own | {package: metadata.version(package) for package in PACKAGES}


def write_results(
    path: str | Path,
    document: dict,
    scores: Scores,
) -> None:
    """Write the JSON document, and beside it the predicted and gold scores that `simcse-hf compare` resamples.

    Args:
        path (`str | Path`): The JSON file. The scores are written beside it, to the same name with `.scores.npz`.
        document (`dict`): The document. The name of the file of scores is added to it as `scores`.
        scores (`dict`): The scores of an [`Evaluation`].
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if scores:
        scores_path = path.with_suffix(".scores.npz")
        save_scores(scores_path, scores)
        document = document | {"scores": scores_path.name}
    write_json(path, document)


def read_results(path: str | Path) -> tuple:
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
    name = document.get("scores")
    if name:
        # Only the name counts: a document never leads to a file in another folder.
        scores_path = path.with_name(Path(str(name)).name)
        if scores_path.is_file():
            return document, load_scores(scores_path)
    return document, {}


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Format scores of several seeds as mean ± standard deviation, or a single one as it is."""
    values = list(values)
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"
