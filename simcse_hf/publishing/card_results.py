"""The results in a card: tables with what they were measured with, and scores as the hub reads them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from huggingface_hub import EvalResult, EvalResultEntry

from ..evaluation.compare import describe_change
from ..evaluation.metrics import find_metric
from ..evaluation.report import NOT_TASKS, Evaluation, average_rows
from ..evaluation.tasks import class_of
from ..evaluation.tasks.base import headline
from ..evaluation.tasks.senteval import HUB_DATASETS, STS_PAIRS, STS_SUBSETS
from .card_subject import Measured, Subject, protocol_of

SHORT_NAMES = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
GEOMETRY = ("alignment", "uniformity", "isotropy")


class ScoreTable(NamedTuple):
    """A table of a card.

    Args:
        title (`str`): Its heading.
        protocol (`str`): How the scores were measured.
        header (`Sequence[str]`): The titles of the columns.
        rows (`Sequence[Sequence]`): The cells. A float has two decimals, and `None` is `n/a`.
    """

    title: str
    protocol: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


def tables(model: Subject, evaluations: Iterable[Measured]) -> list[ScoreTable]:
    """Make the tables of everything that was measured.

    Args:
        model (`Subject`): The model.
        evaluations (`Iterable[Measured]`): Its evaluations.

    Returns:
        `list[ScoreTable]`: The dev set, the adaptation, the study, and those of each evaluation.
    """
    found = [*_dev_set(model), *_adaptation(model.adaptation), *_study(model.study)]
    for each in evaluations:
        found += _of_tasks(model, each)
        # The tables of a benchmark by the package `mteb`, which measures no seeds.
        results = each.evaluation.results
        if results.get("mteb"):
            protocol = f"Main scores, measured with the package `mteb`. {_origin(model)}"
            found.append(ScoreTable("MTEB", protocol, ["task", "score"], [*results["mteb"].items()]))
        rows = average_rows(results)
        if rows:
            protocol = f"Means of the main scores; each data set counts once. {_origin(model)}"
            found.append(ScoreTable("MTEB averages", protocol, ["average over", "score", "data sets"], rows))
    return found


# During training ----------------------------------------------------------------------------------------------------


def _dev_set(model: Subject) -> Iterator[ScoreTable]:
    # 1. A row for each evaluation, or for the mean over the seeds.
    run = model.run
    metrics = [key for key in run.get("final") or () if key == run.get("dev_metric") or find_metric(key).on_card]
    if not metrics:
        return
    lines = {}
    start = run.get("start") or {}
    if start.get("pooler"):
        lines[f"before training, pooler `{start['pooler']}`"] = [start]
    if len(model.runs) > 1:
        for when, label in (("initial", "before training"), ("final", "last evaluation"), ("saved", "saved weights")):
            lines[label] = [each[when] for each in model.runs]
        lines[f"seed {run['seeds']['published']}, saved weights"] = [run["saved"]]
    else:
        for when, label in (("initial", "before training"), ("best", "best evaluation"), ("final", "last evaluation")):
            if run.get(when):
                lines[f"{label} (step {run[when]['step']})"] = [run[when]]
    rows = []
    for label, scores in lines.items():
        rows.append([label] + [format_scores([each.get(name) for each in scores], name) for name in metrics])

    # 2. Which evaluation the saved weights belong to.
    sentences = ["Measured on the dev set during training; all but alignment and uniformity x 100."]
    best = run.get("best") or {}
    step = (run.get("saved") or best).get("step")
    chooses = model.arguments.get("load_best_model_at_end")
    if "arguments" in run and not chooses:
        sentences.append("The saved weights are those of the last step.")
    elif "arguments" in run and step == best.get("step"):
        sentences.append("The saved weights are those of the best evaluation.")
    elif "arguments" in run:
        sentences.append(f"The saved weights are those of step {step}, the best evaluation after the start.")
    sentences.append(_origin(model, is_mean=True))

    # 3. By how much training changed the headline metric, and what that is worth.
    change = run.get("change")
    if change:
        before = f"{model.base_model or 'the model'} before training"
        if run.get("earlier_steps"):
            before = f"{model.base_model or 'the model'} after {run['earlier_steps']:,} earlier steps"
        if start.get("pooler"):
            before += f" with the pooler `{start['pooler']}`"
        gain = describe_change(change, before)
        resampled = "the examples"
        if change["seeds"] > 1:
            resampled += f" and the {change['seeds']} seeds"
        sentences.append(f"Change of `{change['metric']}`: {gain} (paired bootstrap over {resampled}).")
        chosen = ["checkpoint"] if chooses else []
        if len(model.seeds) > 1:
            chosen.append("seed")
        if chosen:
            choice = " and ".join(chosen)
            sentences.append(f"The same dev set chose the {choice}, so the gain on other data may be smaller.")
    for each in run.get("general", ()):
        task = Path(each["source"]).name
        sentences.append(f"Change of `{each['metric']}` (general task {task}): {describe_change(each)}.")
    if model.transform:
        sentences.append(f"All scores are without the {model.method}, which was fitted later.")
    yield ScoreTable("Dev set", " ".join(sentences), ["", *metrics], rows)


def _adaptation(adaptation: dict) -> Iterator[ScoreTable]:
    if not adaptation:
        return
    rows = []
    for each in adaptation["comparisons"]:
        difference = "{:+.2f} [{:+.2f}, {:+.2f}]".format(each["difference"], *each["interval"])
        rows.append([each["task"], each["metric"], each["against"], each["before"], each["after"], difference])
    runs = len(adaptation["seeds"])
    means, over = (f"means of {runs} runs; ", "rows and runs") if runs > 1 else ("", "rows")
    protocol = (
        f"`{adaptation['chosen']['name']}` against other arms, on a part of each task that did not choose it ({means}"
        f"brackets: {adaptation['confidence']:.0%} interval over {over})."
    )
    yield ScoreTable(
        "Adaptation", protocol, ["task", "metric", "against", "its score", "this arm", "difference"], rows
    )


def _study(study: dict) -> Iterator[ScoreTable]:
    if not study:
        return
    header, *rows = study["table"]
    seeds = ", ".join(map(str, study["seeds"]))
    own = study["of"]
    protocol = (
        f"`simcse-hf study` trained each way with the seeds {seeds}; this model is `{own['way']}` with seed "
        f"{own['seed']}. Mean ± standard deviation over the seeds on the {study['judged_on']} set, x 100; the "
        f"{study['confidence']:.0%} intervals hold together for all pairs. {study['summary']}"
    )
    yield ScoreTable("Study", protocol, header, rows)


# After training -----------------------------------------------------------------------------------------------------


def _of_tasks(model: Subject, measured: Measured) -> Iterator[ScoreTable]:
    results = measured.evaluation.results

    # 1. The tasks that an average is over, and the average.
    for average, title in (("average", "Semantic textual similarity"), ("average_transfer", "Transfer")):
        if average not in results:
            continue
        members = results[average]["tasks"]
        missing = results[average]["missing"]
        columns = {}
        for task in results:
            if task in members or task in missing:
                scores = [headline(each[task], measured.evaluation.protocol) for each in measured.every]
                columns[SHORT_NAMES.get(task, task)] = scores
        columns[f"Avg. of {len(members)}"] = [each[average]["value"] for each in measured.every]
        protocol = protocol_of(measured.evaluation, average == "average_transfer")
        if missing:
            protocol += " n/a: not measured and not part of the average."
        yield _of_all_seeds(model, measured, title, protocol, columns)

    # 2. The tasks from a user's own files.
    rows = []
    protocols = []
    for task, result in results.items():
        if "kind" not in result:
            continue
        protocols.append(f"{result['kind']}: {result['protocol']}")
        for metric in result["metrics"]:
            values = [each[task][metric] for each in measured.every]
            cells = [format_scores(part, metric) for part in (values[:1], values[1:]) if part]
            rows.append([f"{result['kind']} ({result['name']})", metric, *cells, result["examples"]])
    if rows:
        protocol = (
            f"Measured on the author's own data, x 100. {'. '.join(dict.fromkeys(protocols))}. "
            f"{_origin_of_scores(model, measured, 'column `value`')}"
        )
        mean = [f"mean of {len(measured.seeds)} seeds"] if measured.seeds else []
        yield ScoreTable("Tasks from files", protocol, ["task", "metric", "value", *mean, "examples"], rows)

    # 3. The geometry.
    geometry = results.get("geometry")
    if geometry:
        columns = {name: [each["geometry"][name] for each in measured.every] for name in GEOMETRY}
        protocol = (
            f"On STS-B ({', '.join(geometry['splits'])}): alignment over {geometry['positive_pairs']} pairs scored "
            f"above 4; uniformity and isotropy over {geometry['sentences']} sentences. For alignment and uniformity, "
            "lower is better."
        )
        yield _of_all_seeds(model, measured, "Geometry", protocol, columns)


def _of_all_seeds(
    model: Subject, measured: Measured, title: str, protocol: str, columns: dict[str, list]
) -> ScoreTable:
    """Make a table with a row for the published model and, with seeds, one for their mean."""
    header = list(columns)
    rows = [[format_scores(values[:1], name) for name, values in columns.items()]]
    if measured.seeds:
        header = ["", *header]
        rows[0] = ["published", *rows[0]]
        means = [format_scores(values[1:], name) for name, values in columns.items()]
        rows.append([f"mean of {len(measured.seeds)} seeds", *means])
    return ScoreTable(title, f"{protocol} {_origin_of_scores(model, measured, 'first row')}", header, rows)


# From how many seeds ------------------------------------------------------------------------------------------------


def _origin(model: Subject, is_mean: bool = False) -> str:
    """Say from which seed or, for means over them, from how many seeds scores come."""
    if not model.seeds:
        return "There is no record of the training, so it is unknown from how many seeds these scores come."
    if len(model.seeds) == 1:
        return f"All scores come from one seed ({model.seeds[0]})."
    seeds = model.run["seeds"]
    if is_mean:
        listed = ", ".join(map(str, model.seeds))
        return (
            f"Mean ± standard deviation over {len(model.seeds)} seeds ({listed}); the published seed is "
            f"{seeds['published']}."
        )
    which = "the best on the dev set" if seeds["chosen_by"] else "the first"
    return f"All scores come from one seed ({seeds['published']}), {which} of {len(model.seeds)}."


def _origin_of_scores(model: Subject, measured: Measured, where: str) -> str:
    """Say from how many seeds the scores of an evaluation come."""
    origin = _origin(model, bool(measured.seeds))
    return f"{origin} The {where} is the published model." if measured.seeds else origin


# Scores -------------------------------------------------------------------------------------------------------------


def format_scores(values: list, name: str = "") -> str:
    """Write a score, or the mean and the standard deviation of several; `n/a` unless all of them are known."""
    if None in values:
        return "n/a"
    digits = find_metric(name).digits
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):.{digits}f}"


# As the hub reads them: in the front matter of a card, and in `.eval_results` ---------------------------------------


def hub_scores(evaluation: Evaluation, source: str, model: Subject) -> tuple[list[EvalResult], list[EvalResultEntry]]:
    """List the scores of an evaluation for the card's front matter, and those for `.eval_results`.

    Args:
        evaluation (`Evaluation`): The evaluation.
        source (`str`): URL of the result file.
        model (`Subject`): The model, which knows its seeds.

    Returns:
        `tuple[list[EvalResult], list[EvalResultEntry]]`: The scores of all tasks that were measured, and those of
        benchmarks: none of dev sets and of tasks from a user's own files.
    """
    protocol = evaluation.protocol
    listed = []
    benchmarks = []
    for task, result in evaluation.results.items():
        score = None if task in NOT_TASKS else headline(result, protocol)
        if score is None:
            continue
        value = round(score, 2)
        task_class = class_of(task, result)
        if "kind" in result:  # of a user's own files
            entry = EvalResult(
                task_type=task_class.hub_type,
                task_name=result["kind"].capitalize(),
                dataset_type="unknown",
                dataset_name=result["name"],
                metric_type=result["metrics"][0],
                metric_name=result["protocol"],
                metric_value=value,
            )
            listed.append(entry)
            continue

        # 1. In the front matter. SentEval's SICK-R has 4,927 of the hub's 9,927 pairs.
        revision = evaluation.dataset_revisions.get(task)
        dataset = None if task == "SICKRelatedness" and revision is None else HUB_DATASETS.get(task)
        transfer = task_class.average == "average_transfer"
        local = f"SentEval/{task}" if transfer or task in STS_PAIRS else task
        entry = EvalResult(
            task_type=task_class.hub_type,
            task_name="SentEval transfer" if transfer else "Semantic Textual Similarity",
            dataset_type=dataset or local,
            dataset_name=SHORT_NAMES.get(task, task),
            dataset_revision=revision,
            dataset_split=protocol.split,
            metric_type="accuracy" if transfer else f"{protocol.metric}_cosine",
            metric_name=protocol_of(evaluation, transfer),
            metric_value=value,
        )
        listed.append(entry)

        # 2. In `.eval_results` if mteb would give the same score: Spearman's correlation over all pairs of a test set.
        if dataset is None or protocol.split == "dev" or protocol.metric != "spearman":
            continue
        if task in STS_SUBSETS and protocol.aggregation != "all":
            continue
        if revision is None:  # pairs from local files count if they are as many as the published ones
            part = task if task in STS_SUBSETS else "test"
            tested = result["splits"][part] if "splits" in result else result
            if tested.get("pairs") != STS_PAIRS[task][part]:
                continue
        origin = "" if revision else " The pairs were read from local files."
        benchmark = EvalResultEntry(
            dataset_id=dataset,
            task_id=SHORT_NAMES[task] if task == "SICKRelatedness" else task,
            value=value,
            dataset_revision=revision,
            date=evaluation.date,
            source_url=source,
            source_name="simcse-hf evaluate",
            notes=f"{protocol_of(evaluation)}{origin} {_origin(model)}",
        )
        benchmarks.append(benchmark)
    return listed, benchmarks
