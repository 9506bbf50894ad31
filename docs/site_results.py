"""A hook of mkdocs that puts the tables of the papers, with our figures beside them, into the pages.

A line `<!-- table simcse/3 -->` becomes the table of `docs/results/simcse-3.json`, which `reproduction` wrote.
Where there is no such file yet, it becomes the paper's figures alone, from the YAML file of the table.
"""

import json
import re
from pathlib import Path

import yaml

MARK = re.compile(r"^<!-- table ([a-z]+)/([A-Z0-9.]+) -->$", re.MULTILINE)
TABLES = Path("reproduction", "tables")
#: A table with more columns shows the first one only.
MOST_COLUMNS = 3


def fill_tables(markdown, docs, depth=1):
    """Replace the marks of a page by tables.

    Args:
        markdown (`str`): The page.
        docs (`Path`): The folder docs/.
        depth (`int`): How many folders below docs/ the page is, for links to the results.

    Returns:
        `str`: The page with tables.
    """

    def replace(match):
        paper, number = match.groups()
        name = f"{paper}-{number}"
        results, table = docs / "results" / f"{name}.json", docs.parent / TABLES / f"{name}.yaml"
        if results.is_file():
            page = docs / "results" / f"{name}.md"
            link = f" [All figures and intervals]({'../' * depth}results/{page.name})." if page.is_file() else ""
            return _reproduced(json.loads(results.read_text(encoding="utf-8"))) + link
        if table.is_file():
            return _paper_only(f"{paper}/{number}", yaml.safe_load(table.read_text(encoding="utf-8")))
        return f"Table {number} is not among the tables of `python -m reproduction` yet."

    return MARK.sub(replace, markdown)


def _table(header, rows):
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def _paper_only(name, table):
    columns = table["columns"] if len(table["columns"]) <= MOST_COLUMNS else table["columns"][:1]
    header = ["", *(f"{column['name']}, the paper" for column in columns), "ours"]
    rows = [
        [row["name"], *(_number(x) for x in (row.get("paper") or [None])[: len(columns)]), "not run yet"]
        for row in table["rows"]
    ]
    return f"{table['title']}: {table['figure']}. Ours: `python -m reproduction {name}`.\n\n{_table(header, rows)}\n"


def _reproduced(document):
    number = len(document["columns"])
    shown = range(number if number <= MOST_COLUMNS else 1)
    header, rows = [""], []
    for column in shown:
        name = document["columns"][column]["name"]
        header += [f"{name}, the paper", f"{name}, ours"]
    for row in document["rows"]:
        cells = [row["cells"][column] for column in shown]
        rows.append([row["name"], *(text for cell in cells for text in (_number(cell["paper"]), _ours(cell)))])
    text = f"{document['title']}: {document['figure']}. Ours: mean ± standard deviation over {document['seeds']} seeds"
    if document["scale"] == "paper":
        text += " at the paper's setting."
    else:
        start = f", from `{Path(document['start']).name}`" if document["start"] else ""
        text += f" at the small setting{start}: compare the order of the rows, and not their level."
    claims = document["claims"]
    verdicts = [f"- **{each['verdict'].capitalize()}**: “{each['says']}” ({each['reason']})." for each in claims]
    parts = [text, _table(header, rows)]
    if verdicts:
        parts += ["What the paper says, and the verdict of our runs:", "\n".join(verdicts)]
    return "\n\n".join(parts) + "\n"


def _number(value):
    return "" if value is None else str(value)


def _ours(cell):
    if cell["mean"] is None:
        return "not run"
    return f"{cell['mean']:.2f}" + ("" if cell["sd"] is None else f" ± {cell['sd']:.2f}")


def on_page_markdown(markdown, page, config, files):
    """Fill the tables of a page."""
    return fill_tables(markdown, Path(config.docs_dir), page.file.src_path.count("/"))


def on_post_build(config):
    """Fill the tables of the Markdown copies, which docs/site_hooks.py has made."""
    docs, site = Path(config.docs_dir), Path(config.site_dir)
    for page in docs.rglob("*.md"):
        name = page.relative_to(docs)
        text = page.read_text(encoding="utf-8")
        if MARK.search(text):
            (site / name).write_text(fill_tables(text, docs, len(name.parts) - 1), encoding="utf-8")
