"""Scores as the hub reads them: in the front matter of a card, and in `.eval_results`."""

from collections.abc import Collection

from huggingface_hub import EvalResult, EvalResultEntry

from ..evaluation.metrics import METRICS
from ..evaluation.report import is_transfer, is_user_task
from ..evaluation.sts import HUB_DATASETS, STS_PAIRS, STS_SUBSETS
from .card_results import DEV_METRICS, GEOMETRY, SHORT_NAMES, protocol_of, scores_of

#: How the front matter of cards calls the kinds of tasks from a user's own files, as sentence-transformers does.
_TASK_TYPES = {
    "classification": "text-classification",
    "clustering": "clustering",
    "pairs": "binary-classification",
    "reranking": "reranking",
    "retrieval": "information-retrieval",
}


def hub_scores(document: dict, source: str) -> tuple[list[EvalResult], list[EvalResultEntry]]:
    """List the scores of an evaluation for the card's front matter, and those for `.eval_results`.

    Args:
        document (`dict`): A result file of `simcse-hf evaluate`.
        source (`str`): URL of the result file.

    Returns:
        `tuple[list[EvalResult], list[EvalResultEntry]]`: The scores of all tasks that were measured, and those of
        benchmarks: none of dev sets and of tasks from a user's own files.
    """
    listed = []
    benchmarks = []
    for task, score in scores_of(document, document["results"]).items():
        if score is None:
            continue
        value = round(score, 2)
        result = document["results"][task]
        if is_user_task(result):
            listed.append(_of_users_task(result, value))
            continue
        listed.append(_of_task(document, task, value))
        if _is_benchmark(document, task):
            benchmarks.append(_of_benchmark(document, task, value, source))
    return listed, benchmarks


def _of_users_task(result: dict, value: float) -> EvalResult:
    return EvalResult(
        task_type=_TASK_TYPES[result["kind"]],
        task_name=result["kind"].capitalize(),
        dataset_type="unknown",
        dataset_name=result["name"],
        metric_type=result["metrics"][0],
        metric_name=result["protocol"],
        metric_value=value,
    )


def _of_task(document: dict, task: str, value: float) -> EvalResult:
    protocol = document["protocol"]
    transfer = is_transfer(task)
    local = f"SentEval/{task}" if transfer or task in STS_PAIRS else task
    return EvalResult(
        task_type="text-classification" if transfer else "semantic-similarity",
        task_name="SentEval transfer" if transfer else "Semantic Textual Similarity",
        dataset_type=_hub_dataset(document, task) or local,
        dataset_name=SHORT_NAMES.get(task, task),
        dataset_revision=_revision(document, task),
        dataset_split="dev" if protocol["mode"] == "dev" else "test",
        metric_type="accuracy" if transfer else f"{protocol['metric']}_cosine",
        metric_name=protocol_of(document, transfer),
        metric_value=value,
    )


def _revision(document: dict, task: str) -> str | None:
    """Return the commit of the hub's data set; `None` if the pairs were read from local files."""
    return document.get("dataset_revisions", {}).get(task)


def _hub_dataset(document: dict, task: str) -> str | None:
    """Return the hub's data set that a task is. SentEval's SICK-R has 4,927 of the hub's 9,927 pairs."""
    if task == "SICKRelatedness" and _revision(document, task) is None:
        return None
    return HUB_DATASETS.get(task)


def _is_benchmark(document: dict, task: str) -> bool:
    """Return whether mteb would give the same score: Spearman's correlation over all pairs of a test set."""
    protocol = document["protocol"]
    if _hub_dataset(document, task) is None or protocol["mode"] == "dev" or protocol["metric"] != "spearman":
        return False
    if task in STS_SUBSETS and protocol["aggregation"] != "all":
        return False
    if _revision(document, task) is not None:
        return True
    # Pairs from local files count if they are as many as the published ones.
    result = document["results"][task]
    part = task if task in STS_SUBSETS else "test"
    tested = result["splits"][part] if "splits" in result else result
    return tested.get("pairs") == STS_PAIRS[task][part]


def _of_benchmark(document: dict, task: str, value: float, source: str) -> EvalResultEntry:
    revision = _revision(document, task)
    local = "" if revision else " The pairs were read from local files."
    dataset = _hub_dataset(document, task)
    assert dataset is not None
    return EvalResultEntry(
        dataset_id=dataset,
        task_id=SHORT_NAMES[task] if task == "SICKRelatedness" else task,
        value=value,
        dataset_revision=revision,
        date=document.get("date"),
        source_url=source,
        source_name="simcse-hf evaluate",
        notes=protocol_of(document, transfer=False) + local,
    )


def dev_metric_ids(scores: Collection[str]) -> set[str]:
    """Return the ids of the metrics behind dev scores such as `stsb_spearman`, without those of geometry."""
    ids = set()
    for ending in DEV_METRICS:
        name = ending[1:]
        if name not in GEOMETRY and any(key.endswith(ending) for key in scores):
            ids.add(f"{name}_cosine" if name in METRICS else name)
    return ids
