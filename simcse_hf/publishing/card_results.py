"""Turns result files into the tables of a card and into the entries that the hub reads."""

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, EvalResultEntry
from transformers.utils import logging

from ..evaluation.report import NOT_TASKS, headline, is_transfer, is_user_task, read_results
from ..evaluation.run import Evaluation
from ..evaluation.sts_data import HUB_DATASETS
from ..evaluation.tasks import STS_SUBSETS
from ..ops.files import read_json_object
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
    advice = "A training run writes this file: restore it, or move it out of the model's directory."
    return read_json_object(path, "settings", advice=advice)


def read_evaluation(
    path: Path, directory: Path, repo_id: str | None, pooler: str, transform: str | None
) -> tuple[dict, Evaluation]:
    """Read a result file of `simcse-hf evaluate` and check that it belongs to the model in `directory`.

    Args:
        path (`Path`): The result file.
        directory (`Path`): The directory of the model.
        repo_id (`str`, *optional*): The model's name on the hub, which the file may name instead of the directory.
        pooler (`str`): The pooler of the model.
        transform (`str`, *optional*): The method of the transform that is saved with the model.

    Returns:
        `tuple[dict, Evaluation]`: The content of the file, and its results with their scores.

    Raises:
        ValueError: If the file is not a result file, or was measured with another model, pooler or transform.
    """
    document, scores = read_results(path)
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
    return document, Evaluation(document["results"], scores)


def without_outdated(paths: list[Path], directory: Path) -> list[Path]:
    """Return the result files that exist and are not older than the weights in `directory`; warn about older ones.

    The weights of a whitening or flow count as well.
    """
    paths = [path for path in paths if path.is_file()]
    weights = [*directory.glob("model*.safetensors"), *directory.glob(f"{FOLDER}/*.safetensors")]
    written = max((path.stat().st_mtime for path in weights), default=0.0)
    outdated = [path for path in paths if path.stat().st_mtime < written]
    for path in outdated:
        logger.warning(
            f"{path} is older than the model's weights, so the card does not use it. If it was measured with these "
            "weights, name it with --results."
        )
    return [path for path in paths if path not in outdated]


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
