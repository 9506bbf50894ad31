"""Turns result files into the tables of a card and into the entries that the hub reads."""

import json
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, EvalResultEntry
from transformers.utils import logging

from ..evaluation.report import (
    NOT_TASKS,
    format_mteb_averages,
    format_number,
    headline,
    is_transfer,
    is_user_task,
    read_results,
)
from ..evaluation.sts_data import HUB_DATASETS
from ..evaluation.tasks import STS_SUBSETS
from ..postprocessing.files import FOLDER

logger = logging.get_logger(__name__)

SHORT_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
# The hub's SICK-R has all 9,927 pairs; the papers report the 4,927 pairs of the test split.
_SAME_PAIRS_ON_HUB = {task: name for task, name in HUB_DATASETS.items() if task != "SICKRelatedness"}
#: How the front matter of cards calls the kinds of tasks from a user's own files, as sentence-transformers does.
_TASK_TYPES = {
    "classification": "text-classification",
    "clustering": "clustering",
    "pairs": "binary-classification",
    "reranking": "reranking",
    "retrieval": "information-retrieval",
}
_DEV_METRICS = tuple(
    "_spearman _pearson _alignment _uniformity _accuracy _v_measure _average_precision _map _ndcg@10 _mrr@10 "
    "_recall@100".split()
)


@dataclass
class Table:
    """A table of a card with the protocol of its figures."""

    title: str
    protocol: str
    header: list[str]
    rows: list[list[str]]


def read_run(path: Path) -> dict:
    """Read the `results.json` of a training run.

    Args:
        path (`Path`): The file, which need not exist.

    Returns:
        `dict`: The content of the file; empty without a file.

    Raises:
        ValueError: If the file was not written by a training run.
    """
    if not path.exists():
        return {}
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a JSON file ({error}). Remove it or restore it from the run.") from error
    if not isinstance(run, dict) or "settings" not in run:
        raise ValueError(f"{path} does not hold the results of a training run. Move it out of the model's directory.")
    return run


def read_evaluation(path: Path, directory: Path, repo_id: str | None, pooler: str, transform: str | None) -> dict:
    """Read a result file of `simcse-hf evaluate` and check that it belongs to the model in `directory`.

    Args:
        path (`Path`): The result file.
        directory (`Path`): The directory of the model.
        repo_id (`str`, *optional*): The model's name on the hub, which the file may name instead of the directory.
        pooler (`str`): The pooler of the model.
        transform (`str`, *optional*): The method of the transform that is saved with the model.

    Returns:
        `dict`: The content of the file.

    Raises:
        ValueError: If the file is not a result file, or was measured with another model, pooler or transform.
    """
    document, _ = read_results(path)
    model = document.get("model")
    if model is None or (model != repo_id and Path(model).resolve().name != directory.resolve().name):
        raise ValueError(
            f"{path} holds results of {model}, but the card is for {directory}. Evaluate this model and try again."
        )
    if document.get("pooler") != pooler:
        raise ValueError(
            f"{path} was measured with pooler {document.get('pooler')!r}, but the model's pooler is {pooler!r}. "
            "Evaluate the model without --pooler_type."
        )
    if document.get("postprocessing") != transform:
        measured, saved = (method or "no transform" for method in (document.get("postprocessing"), transform))
        raise ValueError(
            f"{path} was measured with {measured}, but {directory} has {saved}. Evaluate the model as it is saved, "
            "without --no_postprocess."
        )
    return document


def without_outdated(paths: list[Path], directory: Path) -> list[Path]:
    """Return the result files that are not older than the weights in `directory`, and warn about the other files.

    The weights of a whitening or flow count as well.
    """
    weights = [*directory.glob("model*.safetensors"), *directory.glob(f"{FOLDER}/*.safetensors")]
    written = max((path.stat().st_mtime for path in weights), default=0.0)
    outdated = [path for path in paths if path.stat().st_mtime < written]
    for path in outdated:
        logger.warning(
            f"{path} is older than the model's weights, so the card does not use it. If it was measured with these "
            "weights, name it with --results."
        )
    return [path for path in paths if path not in outdated]


def dev_table(run: dict, transform: str | None = None) -> Table | None:
    """Build the table of dev figures of a training run: before training, at the best and at the last evaluation.

    Args:
        run (`dict`): The content of `results.json`.
        transform (`str`, *optional*): The transform that was fitted after training; these figures lack it.

    Returns:
        `Table`: The table, or None if the run had no evaluations.
    """
    if not run.get("final"):
        return None
    metrics = [key for key in run["final"] if key.endswith(_DEV_METRICS)]
    when = {"initial": "before training", "best": "best evaluation", "final": "last evaluation"}
    rows = [
        [f"{when[key]} (step {run[key]['step']})", *(_number(run[key].get(name), name) for name in metrics)]
        for key in when
        if run.get(key)
    ]
    saved = ""
    if "arguments" in run:
        best = run["arguments"].get("load_best_model_at_end")
        saved = f" The saved weights are those of the {'best evaluation' if best else 'last step'}."
    protocol = f"Measured on the dev set during training; all but alignment and uniformity x 100.{saved}"
    if transform is not None:
        protocol += f" All figures are without the {transform}, which was fitted later."
    return Table("Dev set", protocol, ["", *metrics], rows)


def _number(value: float | None, name: str) -> str:
    digits = 4 if name.endswith(("_alignment", "_uniformity")) else 2
    return "n/a" if value is None else f"{value:.{digits}f}"


def protocol_of(document: dict, transfer: bool) -> str:
    """Describe the protocol of an evaluation in one sentence."""
    protocol, limit = document["protocol"], document.get("max_length")
    length = f"texts truncated to {limit} tokens" if limit else "texts not truncated"
    if transfer:
        settings = protocol.get("classifier", {})
        metric = f"accuracy x 100 of {settings.get('model', 'a classifier')} on frozen embeddings"
        return f"SentEval's transfer tasks, mode {protocol['mode']}: {metric}, seed {protocol['seed']}; {length}."
    score = "trained regressor (STS-B and SICK-R) or cosine" if protocol["regressor"] else "cosine"
    return (
        f"{protocol['metric'].capitalize()}'s correlation x 100 between gold score and {score} similarity, mode "
        f"{protocol['mode']}, subsets of STS12 to STS16 aggregated by `{protocol['aggregation']}`; {length}."
    )


def evaluation_tables(document: dict) -> list[Table]:
    """Build the tables for which an evaluation has results: STS, transfer, users' tasks, geometry and MTEB."""
    results, protocol = document["results"], document["protocol"]
    tables = []
    for key in ("average", "average_transfer"):
        if key not in results:
            continue
        tasks = [task for task in results if task in {*results[key]["tasks"], *results[key]["missing"]}]
        if not tasks:
            continue
        values = [
            headline(results[task], protocol["mode"], protocol["aggregation"], protocol["metric"]) for task in tasks
        ]
        average = f"Avg. of {len(results[key]['tasks'])}"
        transfer = is_transfer(tasks[0])
        missing = " n/a: not measured and not part of the average." if results[key]["missing"] else ""
        tables.append(
            Table(
                "Transfer" if transfer else "Semantic textual similarity",
                protocol_of(document, transfer) + missing,
                [*(SHORT_NAMES.get(task, task) for task in tasks), average],
                [[*map(format_number, values), format_number(results[key]["value"])]],
            )
        )
    if users := [result for result in results.values() if is_user_task(result)]:
        tables.append(_user_task_table(users))
    if geometry := results.get("geometry"):
        cells = [f"{geometry[name]:.4f}" for name in ("alignment", "uniformity", "isotropy")]
        protocol_text = (
            f"On STS-B ({', '.join(geometry['splits'])}): alignment over {geometry['positive_pairs']} pairs scored "
            f"above 4; uniformity and isotropy over {geometry['sentences']} sentences. For alignment and uniformity, "
            "lower is better."
        )
        tables.append(Table("Geometry", protocol_text, ["alignment", "uniformity", "isotropy"], [cells]))
    if mteb := results.get("mteb"):
        rows = [[task, format_number(score)] for task, score in mteb.items()]
        tables.append(Table("MTEB", "Main scores, measured with the package `mteb`.", ["task", "score"], rows))
        if averages := format_mteb_averages(mteb):
            text = "Means of the main scores; each data set counts once."
            tables.append(Table("MTEB averages", text, ["average over", "score", "data sets"], averages))
    return tables


def _user_task_table(results: list[dict]) -> Table:
    rows = [
        [f"{result['kind']} ({result['name']})", metric, format_number(result[metric]), str(result["examples"])]
        for result in results
        for metric in result["metrics"]
    ]
    protocols = dict.fromkeys(f"{result['kind']}: {result['protocol']}" for result in results)
    return Table(
        "Tasks from files",
        f"Measured on the author's own data, x 100. {'. '.join(protocols)}.",
        ["task", "metric", "value", "examples"],
        rows,
    )


def model_index(document: dict) -> list[EvalResult]:
    """List the figures of an evaluation for the card's front matter."""
    protocol = document["protocol"]
    figures = []
    for task, value in _headlines(document):
        if is_user_task(result := document["results"][task]):
            figures.append(_user_task_entry(result, value))
            continue
        transfer = is_transfer(task)
        figures.append(
            EvalResult(
                task_type="text-classification" if transfer else "semantic-similarity",
                task_name="SentEval transfer" if transfer else "Semantic Textual Similarity",
                dataset_type=_SAME_PAIRS_ON_HUB.get(
                    task, f"SentEval/{task}" if task in HUB_DATASETS or transfer else task
                ),
                dataset_name=SHORT_NAMES.get(task, task),
                dataset_split=protocol["mode"] if protocol["mode"] == "dev" else "test",
                metric_type="accuracy" if transfer else f"{protocol['metric']}_cosine",
                metric_name=protocol_of(document, transfer),
                metric_value=round(value, 2),
            )
        )
    return figures


def _user_task_entry(result: dict, value: float) -> EvalResult:
    return EvalResult(
        task_type=_TASK_TYPES[result["kind"]],
        task_name=result["kind"].capitalize(),
        dataset_type="unknown",
        dataset_name=result["name"],
        metric_type=result["metrics"][0],
        metric_name=result["protocol"],
        metric_value=round(value, 2),
    )


def eval_result_entries(document: dict) -> list[EvalResultEntry]:
    """List the figures for `.eval_results`: those of benchmarks that the hub holds with the same pairs."""
    protocol = document["protocol"]
    if protocol["mode"] == "dev" or protocol["regressor"]:
        return []
    return [
        EvalResultEntry(
            dataset_id=_SAME_PAIRS_ON_HUB[task],
            task_id="default",
            value=round(value, 2),
            notes=protocol_of(document, False),
        )
        for task, value in _headlines(document)
        if task in _SAME_PAIRS_ON_HUB and (task not in STS_SUBSETS or protocol["aggregation"] == "all")
    ]


def _headlines(document: dict) -> list[tuple[str, float]]:
    """List (task, figure) for every task that was measured."""
    protocol = document["protocol"]
    values = {
        task: headline(result, protocol["mode"], protocol["aggregation"], protocol["metric"])
        for task, result in document["results"].items()
        if task not in NOT_TASKS
    }
    return [(task, value) for task, value in values.items() if value is not None]
