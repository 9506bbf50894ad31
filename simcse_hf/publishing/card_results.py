"""Result files become the tables of a card and the entries that the hub reads."""

import json
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, EvalResultEntry
from transformers.utils import logging

from ..evaluation.report import NOT_TASKS, format_number, headline, is_transfer, read_results
from ..evaluation.sts_data import HUB_DATASETS
from ..evaluation.tasks import STS_SUBSETS
from ..postprocessing.files import FOLDER

logger = logging.get_logger(__name__)

SHORT_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
# The hub's SICK-R has 9,927 pairs, of which the papers' figure is over the 4,927 of the test split.
_SAME_ON_HUB = {task: name for task, name in HUB_DATASETS.items() if task != "SICKRelatedness"}


@dataclass
class Table:
    """A table of a card: what its figures are, by what protocol, and the cells."""

    title: str
    protocol: str
    header: list[str]
    rows: list[list[str]]


def read_run(path: Path) -> dict:
    """The `results.json` of a training run; empty where there is none.

    Raises:
        ValueError: the file is no such document.
    """
    if not path.exists():
        return {}
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(run, dict) or "settings" not in run:
        raise ValueError(f"{path}: no results of a training run")
    return run


def read_evaluation(path: Path, directory: Path, repo_id: str | None, pooler: str, transform: str | None) -> dict:
    """The JSON document of `simcse-hf evaluate`, if it is of the model in `directory`.

    Args:
        path: of the file.
        directory: of the model.
        repo_id: its name on the hub, which the file may hold instead.
        pooler: of the model.
        transform: method of the transform beside it, if there is one.

    Raises:
        ValueError: the file is no such document, or of another model or pooler, or measured with another transform.
    """
    document, _ = read_results(path)
    model = document.get("model")
    if model is None or (model != repo_id and Path(model).resolve().name != directory.resolve().name):
        raise ValueError(f"{path} holds figures of {model}, and the card is of {directory}: evaluate this model")
    if document.get("pooler") != pooler:
        raise ValueError(
            f"{path} was measured with pooler {document.get('pooler')!r}; the model's is {pooler!r}. Evaluate it "
            "without --pooler."
        )
    if document.get("postprocessing") != transform:
        measured, own = (what or "no transform" for what in (document.get("postprocessing"), transform))
        raise ValueError(
            f"{path} was measured with {measured}, and {directory} has {own}: evaluate it as it is, without "
            "--no_postprocess."
        )
    return document


def not_outdated(paths: list[Path], directory: Path) -> list[Path]:
    """Those of the result files that are not older than the weights in `directory`, its transform's among them.

    The others are warned of.
    """
    weights = [*directory.glob("model*.safetensors"), *directory.glob(f"{FOLDER}/*.safetensors")]
    written = max((path.stat().st_mtime for path in weights), default=0.0)
    outdated = [path for path in paths if path.stat().st_mtime < written]
    for path in outdated:
        logger.warning(f"{path} is older than the weights and left out. If they are the same, name it by --results.")
    return [path for path in paths if path not in outdated]


def dev_table(run: dict, transform: str | None = None) -> Table | None:
    """Dev figures of a training run: before training, the best and the last evaluation; all without `transform`."""
    if not run.get("final"):
        return None
    names = [key for key in run["final"] if key.endswith(("_spearman", "_pearson", "_alignment", "_uniformity"))]
    when = {"initial": "before training", "best": "best evaluation", "final": "last evaluation"}
    rows = [
        [f"{when[key]} (step {run[key]['step']})", *(_number(run[key].get(name), name) for name in names)]
        for key in when
        if run.get(key)
    ]
    saved = ""
    if "arguments" in run:
        best = run["arguments"].get("load_best_model_at_end")
        saved = f" The weights are those of the {'best evaluation' if best else 'last step'}."
    protocol = f"On the dev set during training; correlations x 100.{saved}"
    if transform is not None:
        protocol += f" All are without the {transform}, which was fitted later."
    return Table("Dev set", protocol, ["", *names], rows)


def _number(value: float | None, name: str) -> str:
    digits = 4 if name.endswith(("_alignment", "_uniformity")) else 2
    return "n/a" if value is None else f"{value:.{digits}f}"


def protocol_of(document: dict, transfer: bool) -> str:
    """The protocol of an evaluation in a sentence."""
    protocol, limit = document["protocol"], document.get("max_length")
    length = f"texts cut to {limit} tokens" if limit else "texts not cut"
    if transfer:
        settings = protocol.get("classifier", {})
        what = f"accuracy x 100 of {settings.get('model', 'a classifier')} on frozen vectors"
        return f"SentEval's transfer tasks, mode {protocol['mode']}: {what}, seed {protocol['seed']}; {length}."
    scored = "the trained regressor for STS-B and SICK-R, else cosine" if protocol["regressor"] else "cosine"
    return (
        f"{protocol['metric'].capitalize()}'s correlation x 100 of gold score and {scored} similarity, mode "
        f"{protocol['mode']}, subsets of STS12 to STS16 aggregated by `{protocol['aggregation']}`; {length}."
    )


def evaluation_tables(document: dict) -> list[Table]:
    """STS, transfer, geometry and MTEB tables of an evaluation, as far as it has them."""
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
        absent = " n/a: not measured, and not in the average." if results[key]["missing"] else ""
        tables.append(
            Table(
                "Transfer" if transfer else "Semantic textual similarity",
                protocol_of(document, transfer) + absent,
                [*(SHORT_NAMES.get(task, task) for task in tasks), average],
                [[*map(format_number, values), format_number(results[key]["value"])]],
            )
        )
    if geometry := results.get("geometry"):
        cells = [f"{geometry[name]:.4f}" for name in ("alignment", "uniformity", "isotropy")]
        protocol_text = (
            f"On STS-B ({', '.join(geometry['splits'])}): alignment over {geometry['positive_pairs']} pairs scored "
            f"above 4, uniformity and isotropy over {geometry['sentences']} sentences. Lower alignment and uniformity "
            "are better."
        )
        tables.append(Table("Geometry", protocol_text, ["alignment", "uniformity", "isotropy"], [cells]))
    if mteb := results.get("mteb"):
        rows = [[task, format_number(score)] for task, score in mteb.items()]
        tables.append(Table("MTEB", "Main scores of the package `mteb`.", ["task", "score"], rows))
    return tables


def model_index(document: dict) -> list[EvalResult]:
    """The figures of an evaluation for the card's front matter."""
    protocol = document["protocol"]
    found = []
    for task, value in _headlines(document):
        transfer = is_transfer(task)
        found.append(
            EvalResult(
                task_type="text-classification" if transfer else "semantic-similarity",
                task_name="SentEval transfer" if transfer else "Semantic Textual Similarity",
                dataset_type=_SAME_ON_HUB.get(task, f"SentEval/{task}" if task in HUB_DATASETS or transfer else task),
                dataset_name=SHORT_NAMES.get(task, task),
                dataset_split=protocol["mode"] if protocol["mode"] == "dev" else "test",
                metric_type="accuracy" if transfer else f"{protocol['metric']}_cosine",
                metric_name=protocol_of(document, transfer),
                metric_value=round(value, 2),
            )
        )
    return found


def eval_result_entries(document: dict) -> list[EvalResultEntry]:
    """The figures of an evaluation for `.eval_results`: only of benchmarks that the hub holds with the same pairs."""
    protocol = document["protocol"]
    if protocol["mode"] == "dev" or protocol["regressor"]:
        return []
    return [
        EvalResultEntry(
            dataset_id=_SAME_ON_HUB[task], task_id="default", value=round(value, 2), notes=protocol_of(document, False)
        )
        for task, value in _headlines(document)
        if task in _SAME_ON_HUB and (task not in STS_SUBSETS or protocol["aggregation"] == "all")
    ]


def _headlines(document: dict) -> list[tuple[str, float]]:
    """(task, figure) of every task that has one."""
    protocol = document["protocol"]
    values = {
        task: headline(result, protocol["mode"], protocol["aggregation"], protocol["metric"])
        for task, result in document["results"].items()
        if task not in NOT_TASKS
    }
    return [(task, value) for task, value in values.items() if value is not None]
