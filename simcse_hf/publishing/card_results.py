"""Reads what was measured with a model, for its card: tables, scores of the front matter, and `.eval_results`."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, EvalResultEntry
from transformers.utils import logging

from ..evaluation.compare import format_comparison
from ..evaluation.protocol import Protocol
from ..evaluation.report import NOT_TASKS, is_transfer, is_user_task, read_results
from ..evaluation.sts import HUB_DATASETS, STS_PAIRS, STS_SUBSETS
from ..ops.files import read_json_object
from ..postprocessing.transform import FOLDER
from .card_training import GEOMETRY, format_scores, public_name

logger = logging.get_logger(__name__)

SHORT_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
#: How the front matter of cards calls the kinds of tasks from a user's own files, as sentence-transformers does.
_TASK_TYPES = {
    "classification": "text-classification",
    "clustering": "clustering",
    "pairs": "binary-classification",
    "reranking": "reranking",
    "retrieval": "information-retrieval",
}


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
) -> tuple[dict, list[dict]]:
    """Read an evaluation of a model, and those of its other seeds under the same file name in their folders.

    Args:
        path (`Path`): The result file.
        directory (`Path`): The directory of the model.
        repo_id (`str`, *optional*): The model's name on the hub, which the file may name instead of the directory.
        run (`dict`): The content of `results.json`; empty without a record.
        pooler (`str`): The pooler of the model.
        transform (`str`, *optional*): The method of the transform that is saved with the model.

    Returns:
        `tuple[dict, list[dict]]`: The content of the file, and the results of the same evaluation of the model of
        every seed, which are empty if one is missing.

    Raises:
        ValueError: If a file is not a result file, or was measured with another model, pooler, transform or protocol.
    """
    document, _ = read_results(path)
    model = document.get("model")
    if model is None or (model != repo_id and Path(model).resolve().name != directory.resolve().name):
        raise ValueError(
            f"{path} holds results of {model}, but the card is for {directory}. Evaluate this model and try again."
        )
    used = document.get("pooler")
    applied = document.get("postprocessing")
    if (used, applied) != (pooler, transform):
        raise ValueError(
            f"{path} was measured with transform {applied} and pooler {used!r}, but the model's pooler is {pooler!r} "
            f"and its transform {transform}. Evaluate it as it is saved, without --pooler_type and --no_postprocess."
        )
    runs = run["seeds"]["runs"] if "seeds" in run else []
    if len(runs) < 2 or transform is not None:
        return document, []

    folders = [directory / f"seed-{each['seed']}" for each in runs]
    if any(not (folder / path.name).is_file() or is_outdated(folder / path.name, folder) for folder in folders):
        return document, []
    seeds = []
    for folder in folders:
        other, _ = read_measured(folder / path.name, folder, None, {}, pooler, transform)
        theirs = protocol_of(other, transfer=False)
        ours = protocol_of(document, transfer=False)
        if theirs != ours:
            raise ValueError(
                f"{folder / path.name} and {path} were measured with different protocols. Evaluate both alike. The "
                f"first: {theirs} The second: {ours}"
            )
        seeds.append(other["results"])
    return document, seeds


def evaluation_facts(document: dict, seeds: list[dict]) -> dict[str, Any]:
    """Collect what the template says about an evaluation.

    Args:
        document (`dict`): The content of a result file of the published model.
        seeds (`list[dict]`): The results of the model of every seed, or none.

    Returns:
        `dict[str, Any]`: Its `document`; the number of `seeds`; in `tables`, the cells of each score for the published
        model and, with seeds, for their mean: of STS (`average`), transfer (`average_transfer`), `geometry` and each
        task of `users`; and the `protocols` of these tasks.
    """
    results = document["results"]
    every = [results, *seeds]
    scored = [scores_of(document, each) for each in every]
    scores: dict[str, dict[str, list]] = {}
    for average in ("average", "average_transfer"):
        if average in results:
            measured = results[average]["tasks"]
            tasks = [task for task in results if task in measured + results[average]["missing"]]
            scores[average] = {task: [each[task] for each in scored] for task in tasks}
            scores[average][f"Avg. of {len(measured)}"] = [each[average]["value"] for each in every]
    users = [task for task, result in results.items() if is_user_task(result)]
    named = {task: results[task]["metrics"] for task in users}
    if results.get("geometry"):
        named["geometry"] = GEOMETRY
    for task, names in named.items():
        scores[task] = {name: [each[task][name] for each in every] for name in names}
    tables: dict[str, dict[str, list]] = {}
    for table, columns in scores.items():
        tables[table] = {}
        for name, values in columns.items():
            parts = [values[:1], values[1:]]
            tables[table][SHORT_NAMES.get(name, name)] = [format_scores(name, part) for part in parts if part]
    return {
        "document": document,
        "seeds": len(seeds),
        "tables": tables,
        "users": users,
        "protocols": list(dict.fromkeys(f"{results[task]['kind']}: {results[task]['protocol']}" for task in users)),
    }


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


def scores_of(document: dict, results: dict) -> dict[str, float | None]:
    """Return the score that the protocol of an evaluation reports for each task, times 100; `None` without one."""
    described = document["protocol"]
    protocol = Protocol(described["mode"], described["aggregation"], described["metric"])
    return {task: protocol.headline(result) for task, result in results.items() if task not in NOT_TASKS}


def hub_scores(document: dict, source: str) -> tuple[list[EvalResult], list[EvalResultEntry]]:
    """List the scores of an evaluation for the card's front matter, and those for `.eval_results`.

    The second list has the scores that mteb would give for the same pairs, under the ids of its tasks: Spearman's
    correlations over all pairs of a test set. Pairs that were read from local files have no revision, and count only
    if they are as many as the published ones.

    Args:
        document (`dict`): A result file of `simcse-hf evaluate`.
        source (`str`): URL of the result file.

    Returns:
        `tuple[list[EvalResult], list[EvalResultEntry]]`: The scores of all tasks that were measured, and those of
        benchmarks: none of dev sets and of tasks from a user's own files.
    """
    protocol = document["protocol"]
    split = "dev" if protocol["mode"] == "dev" else "test"
    listed = []
    benchmarks = []
    for task, score in scores_of(document, document["results"]).items():
        if score is None:
            continue
        value = round(score, 2)
        result = document["results"][task]
        if is_user_task(result):
            entry = EvalResult(
                task_type=_TASK_TYPES[result["kind"]],
                task_name=result["kind"].capitalize(),
                dataset_type="unknown",
                dataset_name=result["name"],
                metric_type=result["metrics"][0],
                metric_name=result["protocol"],
                metric_value=value,
            )
            listed.append(entry)
            continue
        transfer = is_transfer(task)
        notes = protocol_of(document, transfer)
        revision = document.get("dataset_revisions", {}).get(task)
        dataset = HUB_DATASETS.get(task)
        if task == "SICKRelatedness" and revision is None:
            dataset = None  # SentEval has 4,927 of the hub's 9,927 pairs
        local = f"SentEval/{task}" if transfer or task in STS_PAIRS else task
        entry = EvalResult(
            task_type="text-classification" if transfer else "semantic-similarity",
            task_name="SentEval transfer" if transfer else "Semantic Textual Similarity",
            dataset_type=dataset or local,
            dataset_name=SHORT_NAMES.get(task, task),
            dataset_revision=revision,
            dataset_split=split,
            metric_type="accuracy" if transfer else f"{protocol['metric']}_cosine",
            metric_name=notes,
            metric_value=value,
        )
        listed.append(entry)
        is_other_average = task in STS_SUBSETS and protocol["aggregation"] != "all"
        if dataset is None or split == "dev" or protocol["metric"] != "spearman" or is_other_average:
            continue
        if revision is None:
            part = task if task in STS_SUBSETS else "test"
            tested = result["splits"][part] if "splits" in result else result
            if tested.get("pairs") != STS_PAIRS[task][part]:
                continue
            notes += " The pairs were read from local files."
        benchmark = EvalResultEntry(
            dataset_id=dataset,
            task_id=task.replace("SICKRelatedness", "SICK-R"),
            value=value,
            dataset_revision=revision,
            date=document.get("date"),
            source_url=source,
            source_name="simcse-hf evaluate",
            notes=notes,
        )
        benchmarks.append(benchmark)
    return listed, benchmarks


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
