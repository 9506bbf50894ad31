"""Turn runs, evaluations and adaptations into the tables of a card and into the entries that the hub reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, EvalResultEntry
from transformers.utils import logging

from ..evaluation.compare import describe_difference, format_comparison
from ..evaluation.report import (
    NOT_TASKS,
    format_mteb_averages,
    format_number,
    headline,
    is_transfer,
    is_user_task,
    read_results,
    spread,
)
from ..evaluation.scoring import Evaluation
from ..evaluation.sts import HUB_DATASETS, METRICS, STS_PAIRS, STS_SUBSETS
from ..ops.errors import refuse
from ..ops.files import read_json_object
from ..postprocessing.transform import FOLDER
from .card_training import public_name

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


_DEV_METRICS = tuple(
    "_spearman _pearson _alignment _uniformity _accuracy _v_measure _average_precision _map _ndcg@10 _mrr@10 "
    "_recall@100".split()
)
_GEOMETRY = ("alignment", "uniformity", "isotropy")
_PROTOCOL = ("mode", "aggregation", "metric")
ADAPTATION = "adaptation.json"


@dataclass
class Table:
    """A table of a card with the protocol of its scores."""

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
    is_ours = model is not None and (model == repo_id or Path(model).resolve().name == directory.resolve().name)
    other_model = (
        f"{path} holds results of {model}, but the card is for {directory}. Evaluate this model and try again."
    )
    other_pooler = (
        f"{path} was measured with pooler {document.get('pooler')!r}, but the model's pooler is {pooler!r}. Evaluate "
        "the model without --pooler_type."
    )
    measured, saved = (method or "no transform" for method in (document.get("postprocessing"), transform))
    other_transform = (
        f"{path} was measured with {measured}, but {directory} has {saved}. Evaluate the model as it is saved, "
        "without --no_postprocess."
    )
    refuse(
        {
            other_model: not is_ours,
            other_pooler: document.get("pooler") != pooler,
            other_transform: measured != saved,
        }
    )
    return document, Evaluation(document["results"], scores)


@dataclass
class Measured:
    """An evaluation of the published model.

    Args:
        path (`Path`): The result file.
        document (`dict`): Its content.
        evaluation (`Evaluation`): Its results and scores.
        seeds (`list[Evaluation]`): The same evaluation of the model of every seed; empty if one of them is missing.
    """

    path: Path
    document: dict[str, Any]
    evaluation: Evaluation
    seeds: list[Evaluation]


def read_measured(path: Path, directory: Path, repo_id: str | None, run: dict[str, Any], **expected: Any) -> Measured:
    """Read an evaluation of a model, and those of its other seeds under the same file name in their folders.

    Args:
        path (`Path`): The result file.
        directory (`Path`): The directory of the model.
        repo_id (`str`, *optional*): The model's name on the hub.
        run (`dict`): The content of `results.json`; empty without a record.
        expected (`Any`): `pooler` and `transform`, as for [`read_evaluation`].

    Returns:
        [`Measured`]: The evaluation.

    Raises:
        ValueError: If a file is not a result file, or was measured with another model, pooler or transform.
    """
    document, evaluation = read_evaluation(path, directory, repo_id, **expected)
    folders = [directory / f"seed-{seed}" for seed in seeds_of(run)] if len(seeds_of(run)) > 1 else []
    files = [found for folder in folders for found in without_outdated([folder / path.name], folder)]
    seeds = []
    if files and len(files) == len(folders) and expected["transform"] is None:
        seeds = [read_evaluation(file, file.parent, None, **expected) for file in files]
        for file, (other, _) in zip(files, seeds, strict=True):
            _check_protocol(file, other, path, document)
    return Measured(path, document, evaluation, [each for _, each in seeds])


def seeds_of(run: dict[str, Any]) -> list[int]:
    """Return the seeds of a training run; empty without a record."""
    if "seeds" in run:
        return [each["seed"] for each in run["seeds"]["runs"]]
    return [run["seed"]] if "seed" in run else []


def seed_note(run: dict[str, Any], of_all_seeds: bool = False) -> str:
    """Say in a sentence from how many seeds a score of a trained model comes.

    Args:
        run (`dict`): The content of `results.json`; empty without a record.
        of_all_seeds (`bool`, *optional*, defaults to `False`): Whether all seeds were measured, and not only the
            published one.

    Returns:
        `str`: The sentence.
    """
    seeds = seeds_of(run)
    if not seeds:
        return "There is no record of the training, so it is unknown from how many seeds these scores come."
    if len(seeds) == 1:
        return f"All scores come from one seed ({seeds[0]})."
    listed, published = ", ".join(map(str, seeds)), run["seeds"]["published"]
    if of_all_seeds:
        return f"Mean ± standard deviation over {len(seeds)} seeds ({listed}); the published seed is {published}."
    chosen = "the best on the dev set" if run["seeds"]["chosen_by"] else "the first"
    return f"All scores come from one seed ({published}), {chosen} of {len(seeds)}."


def _check_protocol(path: Path, document: dict[str, Any], other: Path, reference: dict[str, Any]) -> None:
    ours, theirs = reference["protocol"], document["protocol"]
    different = [
        f"{key} {theirs.get(key)} and {ours.get(key)}" for key in _PROTOCOL if ours.get(key) != theirs.get(key)
    ]
    listed = ", ".join(different)
    refuse({f"{path} and {other} were measured with different protocols ({listed}). Evaluate both alike.": different})


def comparison_text(paths: Sequence[Path]) -> str:
    """Return the tables that `simcse-hf compare` wrote, as blocks of preformatted text.

    Args:
        paths (`Sequence[Path]`): JSON files that `simcse-hf compare --output` wrote.

    Returns:
        `str`: The tables.

    Raises:
        ValueError: If a file is not such a comparison. The message names the file.
    """
    advice = "Name a file that `simcse-hf compare --output` wrote."
    tables = []
    for path in paths:
        comparison = read_json_object(path, "baseline", "scores", "differences", advice=advice)
        text = format_comparison(comparison)
        for name in (comparison["baseline"], *comparison["differences"]):  # as wide as before, without a local folder
            text = text.replace(name, str(public_name(name)).ljust(len(name)))
        tables.append(f"```\n{text}\n```")
    return "\n\n".join(tables)


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
    return (
        f"{protocol['metric'].capitalize()}'s correlation x 100 between gold score and cosine similarity, mode "
        f"{protocol['mode']}, subsets of STS12 to STS16 aggregated by `{protocol['aggregation']}`; {length}."
    )


def model_index(document: dict) -> list[EvalResult]:
    """List the scores of an evaluation for the card's front matter."""
    protocol, revisions = document["protocol"], document.get("dataset_revisions", {})
    scores = []
    for task, value in _headlines(document):
        if is_user_task(result := document["results"][task]):
            scores.append(_user_task_entry(result, value))
            continue
        transfer = is_transfer(task)
        scores.append(
            EvalResult(
                task_type="text-classification" if transfer else "semantic-similarity",
                task_name="SentEval transfer" if transfer else "Semantic Textual Similarity",
                dataset_type=_hub_dataset(document, task)
                or (f"SentEval/{task}" if task in HUB_DATASETS or transfer else task),
                dataset_name=SHORT_NAMES.get(task, task),
                dataset_revision=revisions.get(task),
                dataset_split=protocol["mode"] if protocol["mode"] == "dev" else "test",
                metric_type="accuracy" if transfer else f"{protocol['metric']}_cosine",
                metric_name=protocol_of(document, transfer),
                metric_value=round(value, 2),
            )
        )
    return scores


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


def _hub_dataset(document: dict, task: str) -> str | None:
    """Return the hub data set with the pairs of a task; SentEval's SICK-R has 4,927 of the hub's 9,927."""
    was_read_there = task in document.get("dataset_revisions", {})
    return HUB_DATASETS.get(task) if was_read_there or task != "SICKRelatedness" else None


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
    protocol, results, entries = document["protocol"], document["results"], []
    if protocol["mode"] == "dev" or protocol["metric"] != "spearman":
        return []
    for task, value in _headlines(document):
        dataset, revision = _hub_dataset(document, task), document.get("dataset_revisions", {}).get(task)
        if dataset is None or (task in STS_SUBSETS and protocol["aggregation"] != "all"):
            continue
        pairs = (results[task] if task in STS_SUBSETS else results[task]["splits"]["test"]).get("pairs")
        if revision is None and pairs != STS_PAIRS[task][task if task in STS_SUBSETS else "test"]:
            continue
        where = "" if revision else " The pairs were read from local files."
        entries.append(
            EvalResultEntry(
                dataset_id=dataset,
                task_id="SICK-R" if task == "SICKRelatedness" else task,
                value=round(value, 2),
                dataset_revision=revision,
                date=document.get("date"),
                source_url=source,
                source_name="simcse-hf evaluate",
                notes=protocol_of(document, False) + where,
            )
        )
    return entries


def dev_metric_id(key: str) -> str | None:
    """Return the id of the metric behind a dev score such as `stsb_spearman`; `None` for geometry and other keys."""
    name = next((suffix[1:] for suffix in _DEV_METRICS if key.endswith(suffix)), None)
    return None if name in _GEOMETRY else f"{name}_cosine" if name in METRICS else name


def _headlines(document: dict) -> list[tuple[str, float]]:
    """List (task, score) for every task that was measured."""
    protocol = document["protocol"]
    values = {
        task: headline(result, protocol["mode"], protocol["aggregation"], protocol["metric"])
        for task, result in document["results"].items()
        if task not in NOT_TASKS
    }
    return [(task, value) for task, value in values.items() if value is not None]


def dev_table(run: dict[str, Any], transform: str | None = None) -> Table | None:
    """Build the table of dev scores of a training run: before training, at the best and at the last evaluation.

    Args:
        run (`dict`): The content of `results.json`. With several seeds, the scores are means over them.
        transform (`str`, *optional*): The transform that was fitted after training; these scores lack it.

    Returns:
        `Table`: The table, or None if the run had no evaluations.
    """
    if not run.get("final"):
        return None
    metrics = [key for key in run["final"] if key.endswith(_DEV_METRICS)]
    seeds = seeds_of(run)
    when = {"initial": "before training", "best": "best evaluation", "final": "last evaluation"}
    if len(seeds) > 1:
        when = {"initial": "before training", "final": "last evaluation", "saved": "saved weights"}
        runs = run["seeds"]["runs"]
        rows = [[label, *(_spread(runs, key, name) for name in metrics)] for key, label in when.items()]
        rows.append([f"seed {run['seeds']['published']}, saved weights", *(_number(run["saved"], x) for x in metrics)])
    else:
        rows = [
            [f"{label} (step {run[key]['step']})", *(_number(run[key], name) for name in metrics)]
            for key, label in when.items()
            if run.get(key)
        ]
    best = run.get("arguments", {}).get("load_best_model_at_end")
    saved = f" The saved weights are those of the {'best evaluation' if best else 'last step'}."
    if best and run.get("saved", run["best"])["step"] != run["best"]["step"]:
        saved = f" The saved weights are those of step {run['saved']['step']}, the best evaluation after the start."
    protocol = "Measured on the dev set during training; all but alignment and uniformity x 100."
    protocol += (saved if "arguments" in run else "") + f" {seed_note(run, of_all_seeds=True)}"
    if change := run.get("change"):
        start = f"{public_name(run.get('base_model')) or 'the model'} before training"
        interval = (change["difference"], change["low"], change["high"])
        described = describe_difference(*interval, change["confidence"], start)
        drawn = f" and the {change['seeds']} seeds" if change["seeds"] > 1 else ""
        protocol += f" Change of `{change['metric']}`: {described} (paired bootstrap over the examples{drawn})."
        if best or len(seeds) > 1:
            what = " and ".join(["checkpoint"] * bool(best) + ["seed"] * (len(seeds) > 1))
            protocol += f" The same dev set chose the {what}, so the gain on other data may be smaller."
    if transform is not None:
        protocol += f" All scores are without the {transform}, which was fitted later."
    return Table("Dev set", protocol, ["", *metrics], rows)


def _digits(name: str) -> int:
    return 4 if name.endswith(("alignment", "uniformity", "isotropy")) else 2


def _number(evaluation: dict[str, Any], name: str) -> str:
    return f"{evaluation[name]:.{_digits(name)}f}" if evaluation.get(name) is not None else "n/a"


def _spread(runs: Sequence[dict[str, Any]], when: str, name: str) -> str:
    values = [run[when][name] for run in runs if run[when].get(name) is not None]
    return spread(values, _digits(name)) if len(values) == len(runs) else "n/a"


def evaluation_tables(measured: Measured, run: dict[str, Any]) -> list[Table]:
    """Build the tables for which an evaluation has results: STS, transfer, users' tasks, geometry and MTEB.

    Args:
        measured (`Measured`): The evaluation, also of the other seeds if they were measured.
        run (`dict`): The content of `results.json`; empty without a record.

    Returns:
        `list[Table]`: The tables.
    """
    results, seeds = measured.document["results"], measured.seeds
    note = seed_note(run)
    several = f"{seed_note(run, of_all_seeds=True)} The first row is the published model." if seeds else note
    tables = [
        _average_table(measured, key, several) for key in ("average", "average_transfer") if _members(results, key)
    ]
    if users := [name for name, result in results.items() if is_user_task(result)]:
        tables.append(_user_task_table(measured, users, several.replace("first row", "column `value`")))
    if geometry := results.get("geometry"):
        protocol_text = (
            f"On STS-B ({', '.join(geometry['splits'])}): alignment over {geometry['positive_pairs']} pairs scored "
            f"above 4; uniformity and isotropy over {geometry['sentences']} sentences. For alignment and uniformity, "
            f"lower is better. {several}"
        )
        rows = _rows(measured, lambda each, name: each.results["geometry"][name], _GEOMETRY)
        tables.append(Table("Geometry", protocol_text, [*[""] * bool(seeds), *_GEOMETRY], rows))
    if mteb := results.get("mteb"):
        rows = [[task, format_number(score)] for task, score in mteb.items()]
        protocol_text = f"Main scores, measured with the package `mteb`. {note}"
        tables.append(Table("MTEB", protocol_text, ["task", "score"], rows))
        if averages := format_mteb_averages(results.get("mteb_averages", {})):
            text = f"Means of the main scores; each data set counts once. {note}"
            tables.append(Table("MTEB averages", text, ["average over", "score", "data sets"], averages))
    return tables


def _members(results: dict[str, Any], key: str) -> list[str]:
    """Return the tasks that an average is over, or would be over if they had been measured."""
    if key not in results:
        return []
    return [task for task in results if task in {*results[key]["tasks"], *results[key]["missing"]}]


def _average_table(measured: Measured, key: str, note: str) -> Table:
    results, protocol = measured.document["results"], measured.document["protocol"]
    tasks = _members(results, key)
    transfer = is_transfer(tasks[0])
    missing = " n/a: not measured and not part of the average." if results[key]["missing"] else ""

    def score(each: Evaluation, task: str) -> float | None:
        if task == key:
            return each.results[key]["value"]
        return headline(each.results[task], protocol["mode"], protocol["aggregation"], protocol["metric"])

    names = [*(SHORT_NAMES.get(task, task) for task in tasks), f"Avg. of {len(results[key]['tasks'])}"]
    return Table(
        "Transfer" if transfer else "Semantic textual similarity",
        f"{protocol_of(measured.document, transfer)}{missing} {note}",
        [*[""] * bool(measured.seeds), *names],
        _rows(measured, score, [*tasks, key]),
    )


def _rows(
    measured: Measured,
    score: Callable[[Evaluation, str], float | None],
    names: Sequence[str],
) -> list[list[str]]:
    """Return the row of the published model, and if all seeds were measured that of their means."""
    published = [score(measured.evaluation, name) for name in names]
    cells = ["n/a" if x is None else f"{x:.{_digits(name)}f}" for x, name in zip(published, names, strict=True)]
    if not measured.seeds:
        return [cells]
    columns = [[score(each, name) for each in measured.seeds] for name in names]
    means = [
        spread([x for x in column if x is not None], _digits(name)) if None not in column else "n/a"
        for column, name in zip(columns, names, strict=True)
    ]
    return [["published", *cells], [f"mean of {len(measured.seeds)} seeds", *means]]


def _user_task_table(measured: Measured, names: Sequence[str], note: str) -> Table:
    results, rows = measured.document["results"], []
    for task in names:
        result = results[task]
        for metric in result["metrics"]:
            means = [spread(each.results[task][metric] for each in measured.seeds)] if measured.seeds else []
            value = format_number(result[metric])
            rows.append([f"{result['kind']} ({result['name']})", metric, value, *means, str(result["examples"])])
    protocols = dict.fromkeys(f"{results[task]['kind']}: {results[task]['protocol']}" for task in names)
    header = ["task", "metric", "value", *[f"mean of {len(measured.seeds)} seeds"] * bool(measured.seeds), "examples"]
    return Table(
        "Tasks from files",
        f"Measured on the author's own data, x 100. {'. '.join(protocols)}. {note}",
        header,
        rows,
    )


# --- adaptation ------------------------------------------------------------------------------------------------------


def read_adaptation(directory: Path) -> dict[str, Any]:
    """Read the record of the adaptation in a model's directory.

    Args:
        directory (`Path`): The directory of the model.

    Returns:
        `dict[str, Any]`: The record; empty if there is none or it is older than the weights.

    Raises:
        ValueError: If the file is not valid JSON.
    """
    found = without_outdated([path for path in [directory / ADAPTATION] if path.is_file()], directory)
    return read_json_object(found[0], advice="Remove it, or adapt the model again.") if found else {}


def adaptation_seeds(adaptation: dict[str, Any]) -> dict[str, Any]:
    """Return the seed of an adaptation under the name that `results.json` has for that of a training run."""
    seed = adaptation.get("chosen", {}).get("seed")
    return {} if seed is None else {"seed": seed}


def adaptation_tables(adaptation: dict[str, Any]) -> list[Table]:
    """Build the table of the held-out scores.

    Args:
        adaptation (`dict[str, Any]`): What [`read_adaptation`] returned.

    Returns:
        `list[Table]`: One table, or none without a record.
    """
    if not adaptation:
        return []
    protocol = (
        f"`{adaptation['chosen']['name']}` against other arms, on a part of each task that did not choose it (means "
        f"of {len(adaptation['seeds']) or 1} run(s); brackets: {adaptation['confidence']:.0%} interval of both)."
    )
    rows = []
    for each in adaptation["comparisons"]:
        low, high = each["interval"]
        scores = (
            f"{each['before']:.2f}",
            f"{each['after']:.2f}",
            f"{each['difference']:+.2f} [{low:+.2f}, {high:+.2f}]",
        )
        rows.append([each["task"], each["metric"], each["against"], *scores])
    return [Table("Adaptation", protocol, ["task", "metric", "against", "its score", "this arm", "difference"], rows)]


def adaptation_text(adaptation: dict[str, Any]) -> str:
    """Say how the model was made, for the section on training.

    Args:
        adaptation (`dict[str, Any]`): What [`read_adaptation`] returned.

    Returns:
        `str`: A paragraph; empty without a record.
    """
    if not adaptation:
        return ""
    chosen, corpus = adaptation["chosen"], adaptation["corpus"]
    text = (
        f"`simcse-hf adapt` compared {len(adaptation['arms'])} arms for the domain of `{corpus['path']}` "
        f"({corpus['texts']:,} texts), starting from `{chosen['model']}`, and chose `{chosen['name']}`. "
    )
    stages = [
        f"{stage['steps']} steps of `{stage['objective']}` on `{stage['file']}` at learning rate "
        f"{stage['learning_rate']:g}"
        for stage in chosen["stages"]
    ]
    if not stages:
        return text + "The encoder was not trained: what changed is the pooler or post-processing."
    text += f"Its training is {', then '.join(stages)}"
    runs = len(adaptation["seeds"])
    return f"{text}; this model is the first of the {runs} run(s) of the verdict, seed {chosen['seed']}."
