"""Write the results of a table as Markdown, and a dry run as text."""

from typing import Any


def format_markdown(document: dict[str, Any]) -> str:
    """Format the results of a table.

    Args:
        document (`dict[str, Any]`): What `reproduce.summarise` returns.

    Returns:
        `str`: A page with the figures, the verdicts, what differs from the paper, and the command.
    """
    lines = [f"# {document['table']}: {document['title']}", ""]
    where = "the paper's setting" if document["scale"] == "paper" else "the small setting"
    lines += [
        f"{document['figure']}. Ours is the mean over seeds ± standard deviation, at {where}; "
        "the paper's figures are the paper's own.",
        "",
        *_figures(document),
        "",
    ]
    for column in document["columns"]:
        if len(column["averaged"]) > 1:
            lines += [f"{column['name']} is the mean of {', '.join(column['averaged'])}.", ""]
    failures = [row for row in document["rows"] if row["failure"]]
    if failures:
        lines += ["Rows that could not be run:", ""]
        lines += [f"- {row['name']}: {row['failure']}" for row in failures] + [""]
    if document["claims"]:
        bootstrap = document["bootstrap"]
        lines += [
            "## What the paper claims",
            "",
            f"Each interval is at {100 * bootstrap['confidence']:g}%, from {bootstrap['resamples']} resamples of "
            f"{bootstrap['over']}. The runs agree with an ordering if every interval lies above 0, and disagree if "
            "one lies below 0 after a Bonferroni correction for the number of differences, which widens the "
            "intervals that are shown here. Where the paper calls rows alike, the intervals have to lie within a "
            "margin of 0. Any other result is within noise.",
            "",
        ]
        judged = {claim["column"] for claim in document["claims"]}
        for column in document["columns"]:
            if column["name"] in judged and not column["resampled"]:
                lines += [
                    f"Those of {column['name']} come from the seeds alone: they do not say what other test examples "
                    "would have given.",
                    "",
                ]
        for claim in document["claims"]:
            lines += [*_claim(claim), ""]
    if document["differs"]:
        lines += ["## What differs from the paper", ""]
        lines += [f"- {' '.join(text.split())}" for text in document["differs"]] + [""]
    command = " ".join(document["command"])
    lines += ["## How it was made", "", f"    {command}", ""] if command else []
    minutes = document["seconds"] / 60
    lines += [f"simcse_hf {document['version']}; the runs took {minutes:.0f} minutes in all."]
    return "\n".join(lines) + "\n"


def _figures(document: dict[str, Any]) -> list[str]:
    header = [""]
    for column in document["columns"]:
        header += [f"{column['name']}, paper", "ours", "difference", "seeds"]
    rows = []
    for row in document["rows"]:
        cells = [row["name"]]
        for cell in row["cells"]:
            cells += [
                "" if cell["paper"] is None else str(cell["paper"]),
                _mean(cell),
                "" if cell["difference"] is None else f"{cell['difference']:+.2f}",
                _seeds(cell),
            ]
        rows.append(cells)
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def _seeds(cell: dict[str, Any]) -> str:
    if not cell["figures"]:
        return ""
    return str(len(cell["figures"])) if cell["trained"] else "not trained"


def _mean(cell: dict[str, Any]) -> str:
    if cell["mean"] is None:
        return "not run"
    return f"{cell['mean']:.2f}" + ("" if cell["sd"] is None else f" ± {cell['sd']:.2f}")


def _claim(claim: dict[str, Any]) -> list[str]:
    lines = [f"**{claim['verdict'].capitalize()}**: “{claim['says']}” ({claim['column']}; {claim['reason']})", ""]
    for each in claim["differences"]:
        interval = "no interval" if each["low"] is None else f"[{each['low']:+.2f}, {each['high']:+.2f}]"
        lines.append(f"- {each['first']} − {each['second']}: {each['value']:+.2f} {interval}, {_count(each['seeds'])}")
    return lines


def _count(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def format_dry_run(document: dict[str, Any]) -> str:
    """Format a dry run.

    Args:
        document (`dict[str, Any]`): What `reproduce.dry_run` returns.

    Returns:
        `str`: The runs, what is missing, and the cost.
    """
    lines = []
    for run in document["runs"]:
        state = "done" if run["done"] else "shared with a run above" if run["shared"] else "to do"
        lines.append(f"{run['key']}  {run['row']}, {run['column']}, seed {run['seed']}: {state}")
    runs = {run["key"]: run for run in document["runs"]}
    done = sum(run["done"] for run in runs.values())
    lines += [
        "",
        f"{document['table']}, scale {document['scale']}: {len(runs)} runs, of which {done} are done. The others take "
        f"about {document['pending_seconds'] / 60:.0f} minutes in one process (an estimate from {document['rate']}).",
    ]
    if document["missing"]:
        lines += ["Missing:", *(f"  {text}" for text in document["missing"])]
    return "\n".join(lines)
