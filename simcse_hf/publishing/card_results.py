"""Reads what was measured with a model, for its card: tables, scores of the front matter, and `.eval_results`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, EvalResultEntry
from transformers.utils import logging

from ..evaluation.compare import format_comparison
from ..evaluation.protocol import Protocol
from ..evaluation.report import NOT_TASKS, is_transfer, is_user_task, read_results, spread
from ..evaluation.sts import HUB_DATASETS, METRICS, STS_PAIRS, STS_SUBSETS
from ..ops.files import read_json_object
from ..postprocessing.transform import FOLDER
from .card_training import public_name

logger = logging.get_logger(__name__)

SHORT_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
GEOMETRY = ("alignment", "uniformity", "isotropy")
#: Endings of the dev scores that a card shows.
DEV_METRICS = (
    "_spearman",
    "_pearson",
    "_alignment",
    "_uniformity",
    "_accuracy",
    "_v_measure",
    "_average_precision",
    "_map",
    "_ndcg@10",
    "_mrr@10",
    "_recall@100",
)
#: How the front matter of cards calls the kinds of tasks from a user's own files, as sentence-transformers does.
_TASK_TYPES = {
    "classification": "text-classification",
    "clustering": "clustering",
    "pairs": "binary-classification",
    "reranking": "reranking",
    "retrieval": "information-retrieval",
}


@dataclass
class Measured:
    """An evaluation of the published model.

    Args:
        path (`Path`): The result file.
        document (`dict`): Its content.
        seeds (`list[dict]`): The results of the same evaluation of the model of every seed; empty if one is missing.
    """

    path: Path
    document: dict
    seeds: list[dict]


def is_outdated(path: Path, directory: Path) -> bool:
    """Return whether a result file is older than the weights in `directory`, and warn about it.

    The weights of a whitening or flow count as well.
    """
    weights = [*directory.glob("model*.safetensors"), *directory.glob(f"{FOLDER}/*.safetensors")]
    written = max((weight.stat().st_mtime for weight in weights), default=0.0)
    if path.stat().st_mtime >= written:
        return False
    logger.warning(
        f"{path} is older than the model's weights, so the card does not use it. If it was measured with these "
        "weights, name it with --results."
    )
    return True


def read_measured(
    path: Path, directory: Path, repo_id: str | None, run: dict, pooler: str, transform: str | None
) -> Measured:
    """Read an evaluation of a model, and those of its other seeds under the same file name in their folders.

    Args:
        path (`Path`): The result file.
        directory (`Path`): The directory of the model.
        repo_id (`str`, *optional*): The model's name on the hub, which the file may name instead of the directory.
        run (`dict`): The content of `results.json`; empty without a record.
        pooler (`str`): The pooler of the model.
        transform (`str`, *optional*): The method of the transform that is saved with the model.

    Returns:
        [`Measured`]: The evaluation.

    Raises:
        ValueError: If a file is not a result file, or was measured with another model, pooler, transform or protocol.
    """
    document, _ = read_results(path)
    model = document.get("model")
    is_this_model = model is not None
    if is_this_model and model != repo_id:
        is_this_model = Path(model).resolve().name == directory.resolve().name
    if not is_this_model:
        raise ValueError(
            f"{path} holds results of {model}, but the card is for {directory}. Evaluate this model and try again."
        )
    if document.get("pooler") != pooler:
        raise ValueError(
            f"{path} was measured with pooler {document.get('pooler')!r}, but the model's pooler is {pooler!r}. "
            "Evaluate the model without --pooler_type."
        )
    if document.get("postprocessing") != transform:
        raise ValueError(
            f"{path} was measured with transform {document.get('postprocessing')}, but {directory} has {transform}. "
            "Evaluate the model as it is saved, without --no_postprocess."
        )
    measured = Measured(path, document, [])
    runs = run["seeds"]["runs"] if "seeds" in run else []
    if len(runs) < 2 or transform is not None:
        return measured

    folders = [directory / f"seed-{each['seed']}" for each in runs]
    for folder in folders:
        if not (folder / path.name).is_file() or is_outdated(folder / path.name, folder):
            return measured
    for folder in folders:
        other = read_measured(folder / path.name, folder, None, {}, pooler, transform).document
        for key in ("mode", "aggregation", "metric"):
            ours = document["protocol"].get(key)
            theirs = other["protocol"].get(key)
            if ours != theirs:
                raise ValueError(
                    f"{folder / path.name} and {path} were measured with different protocols ({key} {theirs} and "
                    f"{ours}). Evaluate both alike."
                )
        measured.seeds.append(other["results"])
    return measured


def evaluation_facts(measured: Measured) -> dict[str, Any]:
    """Collect what the template says about an evaluation.

    Args:
        measured (`Measured`): The evaluation.

    Returns:
        `dict[str, Any]`: Its `document`; the number of `seeds`; in `tables`, the cells of each score for the published
        model and, with seeds, for their mean: of STS (`average`), transfer (`average_transfer`), `geometry` and each
        task of `users`; and the `protocols` of these tasks.
    """
    document = measured.document
    results = document["results"]
    every = [results, *measured.seeds]
    scores: dict[str, dict[str, list]] = {}
    for average in ("average", "average_transfer"):
        members = results.get(average, {"tasks": [], "missing": []})
        tasks = [task for task in results if task in members["tasks"] + members["missing"]]
        if tasks:
            scores[average] = {task: [task_score(document, each[task]) for each in every] for task in tasks}
            scores[average][f"Avg. of {len(members['tasks'])}"] = [each[average]["value"] for each in every]
    if results.get("geometry"):
        scores["geometry"] = {name: [each["geometry"][name] for each in every] for name in GEOMETRY}
    users = [task for task, result in results.items() if is_user_task(result)]
    for task in users:
        scores[task] = {}
        for metric in results[task]["metrics"]:
            scores[task][metric] = [each[task][metric] for each in every]
    tables: dict[str, dict[str, list]] = {}
    for table, columns in scores.items():
        tables[table] = {}
        for name, values in columns.items():
            cells = [format_scores(name, values[:1])]
            if measured.seeds:
                cells.append(format_scores(name, values[1:]))
            tables[table][SHORT_NAMES.get(name, name)] = cells
    return {
        "document": document,
        "seeds": len(measured.seeds),
        "tables": tables,
        "users": users,
        "protocols": list(dict.fromkeys(f"{results[task]['kind']}: {results[task]['protocol']}" for task in users)),
    }


def dev_facts(run: dict) -> dict[str, Any]:
    """Collect the scores of a training run on its dev set, or their means over its seeds.

    Args:
        run (`dict`): The content of `results.json` of a run with evaluations.

    Returns:
        `dict[str, Any]`: The names of the `metrics`, and in `rows` the cells of each evaluation that there was.
    """
    metrics = [key for key in run["final"] if key.endswith(DEV_METRICS)]
    runs = run["seeds"]["runs"] if "seeds" in run else []
    if len(runs) < 2:
        runs = [run]
    evaluations = {}
    for when in ("initial", "best", "final", "saved"):
        evaluations[when] = [each.get(when) for each in runs]
    evaluations["start"] = [run.get("start")]
    evaluations["published"] = [run.get("saved")]
    rows = {}
    for when, scores in evaluations.items():
        if all(scores):
            rows[when] = [format_scores(name, [each.get(name) for each in scores]) for name in metrics]
    return {"metrics": metrics, "rows": rows}


def format_scores(name: str, values: Sequence[float | None]) -> str:
    """Write a score, or the mean and the standard deviation of several; `n/a` unless all of them are known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "n/a"
    return spread(known, 4 if name.endswith(GEOMETRY) else 2)


def protocol_of(document: dict, transfer: bool) -> str:
    """Describe the protocol of an evaluation in one sentence."""
    protocol = document["protocol"]
    limit = document.get("max_length")
    length = f"texts truncated to {limit} tokens" if limit else "texts not truncated"
    if transfer:
        classifier = protocol.get("classifier", {}).get("model", "a classifier")
        return (
            f"SentEval's transfer tasks, mode {protocol['mode']}: accuracy x 100 of {classifier} on frozen "
            f"embeddings, seed {protocol['seed']}; {length}."
        )
    return (
        f"{protocol['metric'].capitalize()}'s correlation x 100 between gold score and cosine similarity, mode "
        f"{protocol['mode']}, subsets of STS12 to STS16 aggregated by `{protocol['aggregation']}`; {length}."
    )


def task_score(document: dict, result: dict) -> float | None:
    """Return the score that the protocol of an evaluation reports for a task, times 100."""
    described = document["protocol"]
    protocol = Protocol(described["mode"], described["aggregation"], described["metric"])
    return protocol.headline(result)


def model_index(document: dict) -> list[EvalResult]:
    """List the scores of an evaluation for the card's front matter."""
    protocol = document["protocol"]
    entries = []
    for task, value in _scores(document).items():
        result = document["results"][task]
        if is_user_task(result):
            entry = EvalResult(
                task_type=_TASK_TYPES[result["kind"]],
                task_name=result["kind"].capitalize(),
                dataset_type="unknown",
                dataset_name=result["name"],
                metric_type=result["metrics"][0],
                metric_name=result["protocol"],
                metric_value=round(value, 2),
            )
        else:
            transfer = is_transfer(task)
            is_senteval = transfer or task in HUB_DATASETS
            entry = EvalResult(
                task_type="text-classification" if transfer else "semantic-similarity",
                task_name="SentEval transfer" if transfer else "Semantic Textual Similarity",
                dataset_type=_hub_dataset(document, task) or (f"SentEval/{task}" if is_senteval else task),
                dataset_name=SHORT_NAMES.get(task, task),
                dataset_revision=document.get("dataset_revisions", {}).get(task),
                dataset_split="dev" if protocol["mode"] == "dev" else "test",
                metric_type="accuracy" if transfer else f"{protocol['metric']}_cosine",
                metric_name=protocol_of(document, transfer),
                metric_value=round(value, 2),
            )
        entries.append(entry)
    return entries


def eval_result_entries(document: dict, source: str) -> list[EvalResultEntry]:
    """List the scores for `.eval_results`: those that mteb would give for the same pairs, under the ids of its tasks.

    These are Spearman's correlations over all pairs of a test set. Pairs that were read from local files have no
    revision, and count only if they are as many as the published ones.

    Args:
        document (`dict`): A result file of `simcse-hf evaluate`.
        source (`str`): URL of the result file.

    Returns:
        `list[EvalResultEntry]`: The entries; none for dev sets and tasks from a user's own files.
    """
    protocol = document["protocol"]
    if protocol["mode"] == "dev" or protocol["metric"] != "spearman":
        return []
    entries = []
    for task, value in _scores(document).items():
        dataset = _hub_dataset(document, task)
        if dataset is None:
            continue
        result = document["results"][task]
        published = STS_PAIRS[task]
        if task in STS_SUBSETS:
            if protocol["aggregation"] != "all":
                continue
            is_whole = result.get("pairs") == published[task]
        else:
            is_whole = result["splits"]["test"].get("pairs") == published["test"]
        revision = document.get("dataset_revisions", {}).get(task)
        notes = protocol_of(document, transfer=False)
        if revision is None:
            if not is_whole:
                continue
            notes += " The pairs were read from local files."
        entries.append(
            EvalResultEntry(
                dataset_id=dataset,
                task_id=task.replace("SICKRelatedness", "SICK-R"),
                value=round(value, 2),
                dataset_revision=revision,
                date=document.get("date"),
                source_url=source,
                source_name="simcse-hf evaluate",
                notes=notes,
            )
        )
    return entries


def _scores(document: dict) -> dict[str, float]:
    """Return the score of every task that was measured."""
    scores = {}
    for task, result in document["results"].items():
        value = None if task in NOT_TASKS else task_score(document, result)
        if value is not None:
            scores[task] = value
    return scores


def _hub_dataset(document: dict, task: str) -> str | None:
    """Return the hub data set with the pairs of a task; SentEval's SICK-R has 4,927 of the hub's 9,927."""
    if task == "SICKRelatedness" and task not in document.get("dataset_revisions", {}):
        return None
    return HUB_DATASETS.get(task)


def dev_metric_id(key: str) -> str | None:
    """Return the id of the metric behind a dev score such as `stsb_spearman`; `None` for geometry and other keys."""
    for ending in DEV_METRICS:
        name = ending[1:]
        if key.endswith(ending) and name not in GEOMETRY:
            return f"{name}_cosine" if name in METRICS else name
    return None


def comparison_text(path: Path) -> str:
    """Return the tables that `simcse-hf compare` wrote.

    Args:
        path (`Path`): A JSON file that `simcse-hf compare --output` wrote.

    Returns:
        `str`: The tables as preformatted text.

    Raises:
        ValueError: If the file is not such a comparison. The message names the file.
    """
    advice = "Name a file that `simcse-hf compare --output` wrote."
    comparison = read_json_object(path, "baseline", "scores", "differences", advice=advice)
    text = format_comparison(comparison)
    for name in (comparison["baseline"], *comparison["differences"]):  # as wide as before, without a local folder
        text = text.replace(name, str(public_name(name)).ljust(len(name)))
    return text
