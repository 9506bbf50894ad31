"""Write the reference of objectives, views, poolers and training arguments into docs/api.md, from the classes.

    python tools/write_reference.py

What stands between `<!-- from the classes: views -->` and `<!-- end -->` is replaced. A test compares the page with
what this program writes.
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from simcse_hf import SimCSETrainingArguments
from simcse_hf.data.views import VIEW_CLASSES, view_rate
from simcse_hf.models.pooling import POOLERS
from simcse_hf.objectives import OBJECTIVES, describe_options
from simcse_hf.publishing.card_text import PAPERS

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
#: A generated part of the page: its first line, the name in it, and the rest without the last line.
PART = re.compile(r"(<!-- from the classes: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
ROWS = {
    "texts": "sentences, pairs or triplets",
    "nli": "premises with labelled hypotheses",
    "spans": "documents",
    "scored_pairs": "pairs with a score",
    "classes": "texts with a class, or anchors with a list of positives",
}


def write(page: str) -> str:
    """Replace the generated parts of a page."""
    return PART.sub(lambda match: f"{match[1]}\n{globals()[match[2]]()}\n\n", page)


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def link(paper: str) -> str:
    if paper not in PAPERS:
        raise SystemExit(f"simcse_hf/publishing/papers.bib has no entry {paper!r}: add it below a line % {paper}")
    return f"[{cite(PAPERS[paper].bibtex)}]({PAPERS[paper].url})"


def cite(bibtex: str) -> str:
    """Cite an entry by its authors and year, such as "Gao et al. 2021"."""
    authors, year = (re.search(rf"^  {field} = {{(.*)}}", bibtex, re.MULTILINE)[1] for field in ("author", "year"))
    names = [author.partition(",")[0] for author in authors.split(" and ")]
    if len(names) > 2:
        return f"{names[0]} et al. {year}"
    return f"{' and '.join(names)} {year}"


def objectives() -> str:
    """Describe each objective: what it reads, its paper's settings and papers, and its options."""
    parts = []
    for name, objective in sorted(OBJECTIVES.items()):
        if not objective.__module__.startswith("simcse_hf."):  # somebody's own, which a test has imported
            continue
        facts = [
            f"Rows: {ROWS[objective.rows]}",
            f"GradCache: {'yes' if objective.supports_gradcache else 'no'}",
        ]
        if objective.defaults:
            settings = ", ".join(f"`{key}={value}`" for key, value in objective.defaults.items())
            facts.append(f"Its paper's settings: {settings}")
        summary = objective.summary[:1].upper() + objective.summary[1:]
        parts.append(f"### `{name}`")
        parts.append(f"{summary}. {', '.join(map(link, objective.papers))}.")
        parts.append(". ".join(facts) + ".")
        words = describe_options(objective)
        options = [[f"`{option}`", f"`{default}`", words[option]] for option, default in objective.options.items()]
        if options:
            parts.append(table(["option", "default", "meaning"], options))
    return "\n\n".join(parts)


def views() -> str:
    """List the views with their rates and papers."""
    rows = []
    for name, view in VIEW_CLASSES.items():
        rate = view_rate(name, None)
        paper = link(view.paper) if view.paper else ""
        rows.append([f"`{name}`", view.words, "" if rate is None else f"{rate:g}", paper])
    return table(["`--view`", "the positive of a sentence", "`--view_rate`", "paper"], rows)


def poolers() -> str:
    """List the poolers as model cards describe them."""
    return table(["`--pooler_type`", "the embedding"], [[f"`{name}`", each.words] for name, each in POOLERS.items()])


def training_arguments() -> str:
    """List the fields of `SimCSETrainingArguments` that transformers' class does not have."""
    rows = []
    for field in fields(SimCSETrainingArguments):
        if field.name in SimCSETrainingArguments.__annotations__:
            rows.append([f"`{field.name}`", f"`{field.default}`", field.metadata["help"]])
    return table(["argument", "default", "meaning"], rows)


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
