"""Write the results of a table as Markdown, and a dry run as text."""

import re
from typing import Any

from .cost import describe_cost

#: The most columns of a paper in a table of a page, and the most characters in a line of code.
WIDEST, WIDTH = 3, 115


def format_markdown(document: dict[str, Any]) -> str:
    """Format the results of a table.

    Args:
        document (`dict[str, Any]`): What `reproduce.summarise` returns.

    Returns:
        `str`: A page with the figures, the verdicts, what differs from the paper, and the command.
    """
    rows, columns = _shown(document)
    lines = [f"# {document['table']}: {document['title']}", ""]
    where = "the paper's setting" if document["scale"] == "paper" else "the small setting"
    lines += [
        f"{document['figure']}. Ours is the mean over seeds ± standard deviation, at {where}; "
        "the paper's figures are the paper's own.",
        "",
        *_figures(document, rows, columns),
        *_left_out(document, rows, columns),
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
            f"Each interval covers {100 * bootstrap['confidence']:g}% of {bootstrap['resamples']} bootstrap resamples "
            f"of {bootstrap['over']}. The runs agree with an ordering if every interval lies above 0. They disagree "
            "if an interval lies below 0 after it was widened by a Bonferroni correction for the number of "
            "differences; the intervals shown here are not widened. Where the paper calls rows alike, the intervals "
            "have to lie within a margin around 0. Any other result is within noise.",
            "",
        ]
        judged = {claim["column"] for claim in document["claims"]}
        for column in document["columns"]:
            if column["name"] in judged and column["averaged"] and not column["resampled"]:
                lines += [
                    f"The intervals of {column['name']} come from the seeds alone: they do not say how much other "
                    "test examples would change the figures.",
                    "",
                ]
        for claim in document["claims"]:
            lines += [*_claim(claim), *([""] if claim["differences"] else [])]
    if document["differs"]:
        lines += ["## What differs from the paper", ""]
        lines += [f"- {' '.join(text.split())}" for text in document["differs"]] + [""]
    if document["command"]:
        lines += ["## How it was made", "", *_command(document["command"]), ""]
    minutes = document["seconds"] / 60
    lines += [f"simcse_hf {document['version']}; the runs took {minutes:.0f} minutes in all."]
    return "\n".join(lines) + "\n"


def _figures(document: dict[str, Any], rows: list[dict[str, Any]], columns: list[int]) -> list[str]:
    """Format the figures in tables of at most three columns of the paper, which are as wide as a page."""
    lines = []
    for first in range(0, len(columns), WIDEST):
        lines += [*_table(document, rows, columns[first : first + WIDEST]), ""]
    return lines


def _table(document: dict[str, Any], rows: list[dict[str, Any]], columns: list[int]) -> list[str]:
    header = [""]
    lines = [[row["name"]] for row in rows]
    for column in columns:
        name = document["columns"][column]["name"]
        is_of_paper = any(row["cells"][column]["paper"] is not None for row in rows)
        header += [f"{name}, paper", "ours", "difference"] if is_of_paper else [f"{name}, ours"]
        for line, row in zip(lines, rows, strict=True):
            cell = row["cells"][column]
            paper = "" if cell["paper"] is None else str(cell["paper"])
            difference = "" if cell["difference"] is None else f"{cell['difference']:+.2f}"
            line += [paper, _mean(cell), difference] if is_of_paper else [_mean(cell)]
    header.append("seeds")
    for line, row in zip(lines, rows, strict=True):
        shown = [row["cells"][column] for column in columns]
        line.append(", ".join(dict.fromkeys(_seeds(cell) for cell in shown if cell["figures"])))
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *lines)]


def _command(words: list[str]) -> list[str]:
    """Format a command as lines of code, of which none is wider than a page; an option and its value share a line."""
    first, *options = re.split(r" (?=--)", " ".join(words))
    lines = [f"    {first}"]
    for option in options:
        if len(lines[-1]) + len(option) < WIDTH:
            lines[-1] += f" {option}"
        else:
            lines[-1] += " \\"
            lines.append(f"        {option}")
    return lines


def _shown(document: dict[str, Any]) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows and the numbers of the columns that hold a figure or a failure; all, if none does."""
    rows, columns = document["rows"], range(len(document["columns"]))
    measured = [column for column in columns if any(row["cells"][column]["figures"] for row in rows)]
    tried = [row for row in rows if row["failure"] or any(cell["figures"] for cell in row["cells"])]
    return (tried, measured) if measured else (rows, list(columns))


def _left_out(document: dict[str, Any], rows: list[dict[str, Any]], columns: list[int]) -> list[str]:
    """Name the rows and columns that were not run and are not shown."""
    names = [column["name"] for number, column in enumerate(document["columns"]) if number not in columns]
    lines = [f"These columns were not run: {'; '.join(names)}", ""] if names else []
    names = [row["name"] for row in document["rows"] if row not in rows]
    return [*lines, *([f"These rows were not run: {'; '.join(names)}", ""] if names else [])]


def _seeds(cell: dict[str, Any]) -> str:
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
        `str`: The distinct runs, one line for the seeds of a row, what they cost, and what is missing.
    """
    runs = {run["key"]: run for run in reversed(document["runs"])}  # of equal runs the first
    columns = {run["column"] for run in runs.values()}
    lines: dict[str, list[str]] = {}
    for run in reversed(runs.values()):
        settings = " ".join(f"{name}={value}" for name, value in run["settings"].items())
        work = "measured as it is"
        if run["batch"]:
            work = f"{run['steps'] or 'all'} steps of {run['batch']} rows"
        row = f"{run['row']}{settings and f' ({settings})'}: {work}; seeds"
        if len(columns) > 1:
            row = f"{run['column']}, {row}"
        lines.setdefault(row, []).append(f"{run['seed']} (done)" if run["done"] else str(run["seed"]))
    done = sum(run["done"] for run in runs.values())
    text = [f"{row} {', '.join(seeds)}" for row, seeds in lines.items()]
    text += ["", f"{document['table']}, scale {document['scale']}: {len(runs)} runs, of which {done} are done."]
    cost = describe_cost([run for run in runs.values() if not run["done"]])
    if cost and document["scale"] == "paper":
        text.append(cost)
    if document["missing"]:
        text += ["Missing:", *(f"  {each}" for each in document["missing"])]
    return "\n".join(text)
