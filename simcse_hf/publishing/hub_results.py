"""List the scores of an evaluation in the two forms that the hub reads: a card's front matter and `.eval_results`."""

from huggingface_hub import EvalResult, EvalResultEntry

from ..evaluation.report import NOT_TASKS, is_transfer, is_user_task
from ..evaluation.sts import HUB_DATASETS, METRICS, STS_PAIRS, STS_SUBSETS
from .card_tables import DEV_METRICS, GEOMETRY, SHORT_NAMES, protocol_of, task_score

#: How the front matter of cards calls the kinds of tasks from a user's own files, as sentence-transformers does.
_TASK_TYPES = {
    "classification": "text-classification",
    "clustering": "clustering",
    "pairs": "binary-classification",
    "reranking": "reranking",
    "retrieval": "information-retrieval",
}


def model_index(document: dict) -> list[EvalResult]:
    """List the scores of an evaluation for the card's front matter."""
    return [_front_matter_entry(document, task, value) for task, value in _scores(document).items()]


def _front_matter_entry(document: dict, task: str, value: float) -> EvalResult:
    result = document["results"][task]
    if is_user_task(result):
        return EvalResult(
            task_type=_TASK_TYPES[result["kind"]],
            task_name=result["kind"].capitalize(),
            dataset_type="unknown",
            dataset_name=result["name"],
            metric_type=result["metrics"][0],
            metric_name=result["protocol"],
            metric_value=round(value, 2),
        )
    protocol = document["protocol"]
    transfer = is_transfer(task)
    dataset = _hub_dataset(document, task)
    if dataset is None:
        is_senteval = transfer or task in HUB_DATASETS
        dataset = f"SentEval/{task}" if is_senteval else task
    return EvalResult(
        task_type="text-classification" if transfer else "semantic-similarity",
        task_name="SentEval transfer" if transfer else "Semantic Textual Similarity",
        dataset_type=dataset,
        dataset_name=SHORT_NAMES.get(task, task),
        dataset_revision=_revision(document, task),
        dataset_split="dev" if protocol["mode"] == "dev" else "test",
        metric_type="accuracy" if transfer else f"{protocol['metric']}_cosine",
        metric_name=protocol_of(document, transfer),
        metric_value=round(value, 2),
    )


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
        revision = _revision(document, task)
        if revision is None and not is_whole:
            continue
        notes = protocol_of(document, False)
        if revision is None:
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


def dev_metric_id(key: str) -> str | None:
    """Return the id of the metric behind a dev score such as `stsb_spearman`; `None` for geometry and other keys."""
    for ending in DEV_METRICS:
        name = ending[1:]
        if key.endswith(ending) and name not in GEOMETRY:
            return f"{name}_cosine" if name in METRICS else name
    return None


def _scores(document: dict) -> dict[str, float]:
    """Return the score of every task that was measured."""
    scores = {}
    for task, result in document["results"].items():
        if task in NOT_TASKS:
            continue
        value = task_score(document, result)
        if value is not None:
            scores[task] = value
    return scores


def _revision(document: dict, task: str) -> str | None:
    return document.get("dataset_revisions", {}).get(task)


def _hub_dataset(document: dict, task: str) -> str | None:
    """Return the hub data set with the pairs of a task; SentEval's SICK-R has 4,927 of the hub's 9,927."""
    if task == "SICKRelatedness" and task not in document.get("dataset_revisions", {}):
        return None
    return HUB_DATASETS.get(task)
