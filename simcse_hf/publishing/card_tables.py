"""Turn a training run and evaluations into the tables of a card."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..evaluation.compare import describe_difference
from ..evaluation.protocol import Protocol
from ..evaluation.report import format_mteb_averages, format_number, is_transfer, is_user_task, spread
from .card_sources import Measured, seeds_of
from .card_training import public_name

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


@dataclass
class Table:
    """A table of a card with the protocol of its scores."""

    title: str
    protocol: str
    header: list[str]
    rows: list[list[str]]


def seed_note(run: dict, of_all_seeds: bool = False) -> str:
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
    published = run["seeds"]["published"]
    if of_all_seeds:
        listed = ", ".join(map(str, seeds))
        return f"Mean ± standard deviation over {len(seeds)} seeds ({listed}); the published seed is {published}."
    chosen = "the best on the dev set" if run["seeds"]["chosen_by"] else "the first"
    return f"All scores come from one seed ({published}), {chosen} of {len(seeds)}."


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


def dev_table(run: dict, transform: str | None = None) -> Table:
    """Build the table of dev scores of a training run: before training, at the best and at the last evaluation.

    Args:
        run (`dict`): The content of `results.json` of a run with evaluations. With several seeds, the scores are
            means over them.
        transform (`str`, *optional*): The transform that was fitted after training; these scores lack it.

    Returns:
        `Table`: The table.
    """
    metrics = [key for key in run["final"] if key.endswith(DEV_METRICS)]
    rows = []

    def add_row(label: str, scores: dict) -> None:
        cells = [_number(scores.get(name), name) for name in metrics]
        rows.append([label, *cells])

    start = run.get("start") or {}
    if start.get("pooler"):  # an encoder without a pooler of its own, as one would use it
        add_row(f"before training, pooler `{start['pooler']}`", start)
    if len(seeds_of(run)) > 1:
        for key, label in {
            "initial": "before training",
            "final": "last evaluation",
            "saved": "saved weights",
        }.items():
            cells = []
            for name in metrics:
                values = [each[key].get(name) for each in run["seeds"]["runs"]]
                cells.append(_mean(values, name))
            rows.append([label, *cells])
        add_row(f"seed {run['seeds']['published']}, saved weights", run["saved"])
    else:
        for key, label in {
            "initial": "before training",
            "best": "best evaluation",
            "final": "last evaluation",
        }.items():
            scores = run.get(key)
            if scores:
                add_row(f"{label} (step {scores['step']})", scores)
    protocol = (
        "Measured on the dev set during training; all but alignment and uniformity x 100."
        f"{_saved_note(run)} {seed_note(run, of_all_seeds=True)}{_change_note(run)}"
    )
    if transform is not None:
        protocol += f" All scores are without the {transform}, which was fitted later."
    return Table("Dev set", protocol, ["", *metrics], rows)


def _saved_note(run: dict) -> str:
    """Say which weights were saved."""
    if "arguments" not in run:
        return ""
    if not run["arguments"].get("load_best_model_at_end"):
        return " The saved weights are those of the last step."
    step = run.get("saved", run["best"])["step"]
    if step == run["best"]["step"]:
        return " The saved weights are those of the best evaluation."
    return f" The saved weights are those of step {step}, the best evaluation after the start."


def _change_note(run: dict) -> str:
    """Say how training changed the dev score, and what the dev set chose."""
    change = run.get("change")
    if not change:
        return ""
    start = f"{public_name(run.get('base_model')) or 'the model'} before training"
    pooler = (run.get("start") or {}).get("pooler")
    if pooler:
        start += f" with the pooler `{pooler}`"
    numbers = {name: change[name] for name in ("difference", "low", "high", "confidence")}
    described = describe_difference(**numbers, against=start)
    drawn = f" and the {change['seeds']} seeds" if change["seeds"] > 1 else ""
    note = f" Change of `{change['metric']}`: {described} (paired bootstrap over the examples{drawn})."
    chosen = []
    if run.get("arguments", {}).get("load_best_model_at_end"):
        chosen.append("checkpoint")
    if len(seeds_of(run)) > 1:
        chosen.append("seed")
    if chosen:
        note += f" The same dev set chose the {' and '.join(chosen)}, so the gain on other data may be smaller."
    return note


def _digits(name: str) -> int:
    return 4 if name.endswith(GEOMETRY) else 2


def _number(value: float | None, name: str) -> str:
    if value is None:
        return "n/a"
    return f"{value:.{_digits(name)}f}"


def _mean(values: Sequence[float | None], name: str) -> str:
    """Write the mean and standard deviation over the seeds, if all of them have the score."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "n/a"
    return spread(known, _digits(name))


def evaluation_tables(measured: Measured, run: dict) -> list[Table]:
    """Build the tables for which an evaluation has results: STS, transfer, users' tasks, geometry and MTEB.

    Args:
        measured (`Measured`): The evaluation, also of the other seeds if they were measured.
        run (`dict`): The content of `results.json`; empty without a record.

    Returns:
        `list[Table]`: The tables.
    """
    results = measured.document["results"]
    note = seed_note(run)
    several = note
    if measured.seeds:
        several = f"{seed_note(run, of_all_seeds=True)} The first row is the published model."
    tables = []
    for average in ("average", "average_transfer"):
        if average in results:
            members = results[average]["tasks"] + results[average]["missing"]
            tasks = [task for task in results if task in members]
            if tasks:
                tables.append(_average_table(measured, average, tasks, several))
    users = [name for name, result in results.items() if is_user_task(result)]
    if users:
        tables.append(_user_task_table(measured, users, several.replace("first row", "column `value`")))
    geometry = results.get("geometry")
    if geometry:
        protocol = (
            f"On STS-B ({', '.join(geometry['splits'])}): alignment over {geometry['positive_pairs']} pairs scored "
            f"above 4; uniformity and isotropy over {geometry['sentences']} sentences. For alignment and uniformity, "
            f"lower is better. {several}"
        )
        columns = {}
        for name in GEOMETRY:
            columns[name] = [each["geometry"][name] for each in measured.every]
        tables.append(_wide_table("Geometry", protocol, columns))
    mteb = results.get("mteb")
    if mteb:
        rows = [[task, format_number(score)] for task, score in mteb.items()]
        protocol = f"Main scores, measured with the package `mteb`. {note}"
        tables.append(Table("MTEB", protocol, ["task", "score"], rows))
    averages = format_mteb_averages(results.get("mteb_averages", {}))
    if averages:
        protocol = f"Means of the main scores; each data set counts once. {note}"
        tables.append(Table("MTEB averages", protocol, ["average over", "score", "data sets"], averages))
    return tables


def _average_table(measured: Measured, average: str, tasks: Sequence[str], note: str) -> Table:
    document = measured.document
    members = document["results"][average]
    transfer = is_transfer(tasks[0])
    columns = {}
    for task in tasks:
        name = SHORT_NAMES.get(task, task)
        columns[name] = [task_score(document, results[task]) for results in measured.every]
    columns[f"Avg. of {len(members['tasks'])}"] = [results[average]["value"] for results in measured.every]
    missing = " n/a: not measured and not part of the average." if members["missing"] else ""
    title = "Transfer" if transfer else "Semantic textual similarity"
    return _wide_table(title, f"{protocol_of(document, transfer)}{missing} {note}", columns)


def _wide_table(title: str, protocol: str, columns: dict[str, list[float | None]]) -> Table:
    """Build a table with a row for the published model and, if all seeds were measured, one for their means."""
    header = list(columns)
    published = [_number(values[0], name) for name, values in columns.items()]
    seeds = len(columns[header[0]]) - 1
    if not seeds:
        return Table(title, protocol, header, [published])
    means = [_mean(values[1:], name) for name, values in columns.items()]
    rows = [["published", *published], [f"mean of {seeds} seeds", *means]]
    return Table(title, protocol, ["", *header], rows)


def _user_task_table(measured: Measured, names: Sequence[str], note: str) -> Table:
    results = measured.document["results"]
    header = ["task", "metric", "value", "examples"]
    if measured.seeds:
        header.insert(3, f"mean of {len(measured.seeds)} seeds")
    rows = []
    protocols = []
    for task in names:
        result = results[task]
        for metric in result["metrics"]:
            row = [f"{result['kind']} ({result['name']})", metric, format_number(result[metric])]
            if measured.seeds:
                row.append(spread(each.results[task][metric] for each in measured.seeds))
            rows.append([*row, str(result["examples"])])
        protocols.append(f"{result['kind']}: {result['protocol']}")
    listed = ". ".join(dict.fromkeys(protocols))
    protocol = f"Measured on the author's own data, x 100. {listed}. {note}"
    return Table("Tasks from files", protocol, header, rows)
