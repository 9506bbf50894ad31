"""The tables of a card: figures of the dev set during training, and of the evaluations after it."""

from collections.abc import Callable, Sequence
from typing import Any

from ..evaluation.compare import describe_difference
from ..evaluation.report import format_mteb_averages, format_number, headline, is_transfer, is_user_task, spread
from ..evaluation.run import Evaluation
from .card_comparison import Measured, seed_note, seeds_of
from .card_results import SHORT_NAMES, Table, protocol_of
from .card_training import public_name

_DEV_METRICS = tuple(
    "_spearman _pearson _alignment _uniformity _accuracy _v_measure _average_precision _map _ndcg@10 _mrr@10 "
    "_recall@100".split()
)
_GEOMETRY = ("alignment", "uniformity", "isotropy")


def dev_table(run: dict[str, Any], transform: str | None = None) -> Table | None:
    """Build the table of dev figures of a training run: before training, at the best and at the last evaluation.

    Args:
        run (`dict`): The content of `results.json`. With several seeds, the figures are means over them.
        transform (`str`, *optional*): The transform that was fitted after training; these figures lack it.

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
        protocol += f" All figures are without the {transform}, which was fitted later."
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
        if averages := format_mteb_averages(mteb):
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

    def figure(each: Evaluation, task: str) -> float | None:
        if task == key:
            return each.results[key]["value"]
        return headline(each.results[task], protocol["mode"], protocol["aggregation"], protocol["metric"])

    names = [*(SHORT_NAMES.get(task, task) for task in tasks), f"Avg. of {len(results[key]['tasks'])}"]
    return Table(
        "Transfer" if transfer else "Semantic textual similarity",
        f"{protocol_of(measured.document, transfer)}{missing} {note}",
        [*[""] * bool(measured.seeds), *names],
        _rows(measured, figure, [*tasks, key]),
    )


def _rows(
    measured: Measured,
    figure: Callable[[Evaluation, str], float | None],
    names: Sequence[str],
) -> list[list[str]]:
    """Return the row of the published model, and if all seeds were measured that of their means."""
    published = [figure(measured.evaluation, name) for name in names]
    cells = ["n/a" if x is None else f"{x:.{_digits(name)}f}" for x, name in zip(published, names, strict=True)]
    if not measured.seeds:
        return [cells]
    columns = [[figure(each, name) for each in measured.seeds] for name in names]
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
