"""A hook of mkdocs that writes the reference from the package itself.

A line `<!-- reference objectives -->` becomes a section for each objective, with its options, their defaults and its
papers, from the classes; `views`, `poolers` and `training_arguments` become tables, and `commands` what `--help` of
each command prints.
"""

import contextlib
import inspect
import io
import os
import re
import sys
from pathlib import Path

MARK = re.compile(r"^<!-- reference (\w+) -->$", re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+) \(`[^`]*`[^)]*\): (.*(?:\n        .*)*)", re.MULTILINE)
_ROWS = {
    "texts": "sentences, pairs or triplets",
    "nli": "premises with labelled hypotheses",
    "spans": "documents",
    "scored_pairs": "pairs with a score",
    "classes": "texts with a class, or anchors with a list of positives",
}


def on_page_markdown(markdown, page, config, files):
    """Fill the marks of a page."""
    return fill(markdown)


def on_post_build(config):
    """Fill the marks of the Markdown copies, which docs/site_hooks.py has made."""
    for page in Path(config.docs_dir).glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if MARK.search(text):
            (Path(config.site_dir) / page.name).write_text(fill(text), encoding="utf-8")


def fill(markdown):
    """Replace the marks of a page by the parts of the reference."""
    return MARK.sub(lambda match: globals()[match[1]](), markdown)


def _table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def objectives():
    """Describe each objective: what it reads, its paper's settings and papers, and its options."""
    from simcse_hf.objectives import OBJECTIVES
    from simcse_hf.publishing.papers import PAPERS

    parts = []
    for name, objective in OBJECTIVES.items():
        papers = ", ".join(f"[{PAPERS[each].key}]({PAPERS[each].url})" for each in objective.papers)
        facts = [f"Rows: {_ROWS[objective.rows]}", f"GradCache: {'yes' if objective.supports_gradcache else 'no'}"]
        if objective.defaults:
            facts.append("Its paper's settings: " + ", ".join(f"`{k}={v}`" for k, v in objective.defaults.items()))
        parts += [
            f"### `{name}`",
            f"{objective.summary[:1].upper()}{objective.summary[1:]}. {papers}.",
            ". ".join(facts) + ".",
        ]
        described = {}
        for cls in reversed(inspect.getmro(objective)):
            for option, text in _ARGUMENT.findall(inspect.cleandoc(cls.__doc__ or "")):
                if option not in described or not text.startswith("See ["):  # as of the class that it comes from
                    described[option] = _spelled_out(text, cls)
        rows = []
        for option, default in objective.options.items():
            rows.append([f"`{option}`", f"`{default}`", described.get(option, "")])
        if rows:
            parts.append(_table(["option", "default", "meaning"], rows))
    return "\n\n".join(parts)


def _spelled_out(text, cls):
    """Return a description in one line, with the values of constants such as `LOSSES`."""
    module = vars(sys.modules[cls.__module__])
    text = re.sub(r"\[`(\w+)`\]", r"`\1`", " ".join(text.split()))
    return re.sub(r"`([A-Z]+)`", lambda match: ", ".join(f"`{value}`" for value in module.get(match[1], ())), text)


def views():
    """List the views with their rates and papers."""
    from simcse_hf.data.views import VIEW_CLASSES, view_rate
    from simcse_hf.publishing.papers import PAPERS

    rows = []
    for name, view in VIEW_CLASSES.items():
        rate = view_rate(name, None)
        link = f"[{PAPERS[view.paper].key}]({PAPERS[view.paper].url})"
        rows.append([f"`{name}`", view.words, "" if rate is None else f"{rate:g}", link])
    return _table(["`--view`", "the positive of a sentence", "`--view_rate`", "paper"], rows)


def poolers():
    """List the poolers as model cards describe them."""
    from simcse_hf.models.pooling import POOLERS

    rows = [[f"`{name}`", pooler.words] for name, pooler in POOLERS.items()]
    return _table(["`--pooler_type`", "the embedding"], rows)


def training_arguments():
    """List the fields of `SimCSETrainingArguments` that transformers' class does not have, from their metadata."""
    from dataclasses import fields

    from simcse_hf import SimCSETrainingArguments

    rows = []
    for field in fields(SimCSETrainingArguments):
        if field.name in SimCSETrainingArguments.__annotations__:
            rows.append([f"`{field.name}`", f"`{field.default}`", field.metadata["help"]])
    return _table(["argument", "default", "meaning"], rows)


def commands():
    """Show what `--help` of each command prints."""
    from simcse_hf.cli.main import COMMANDS, main

    words = []
    for command in COMMANDS:
        words += [["train", method] for method in ("unsup", "sup", "mlm")] if command == "train" else [[command]]
    words.insert(words.index(["postprocess"]) + 1, ["postprocess", "fit"])
    words.remove(["postprocess"])
    parts = []
    for each in words:
        printed = io.StringIO()
        columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "100"
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([*each, "--help"])
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
        parts.append(f"## {' '.join(each)}\n\n```text\n{printed.getvalue().rstrip()}\n```")
    return "\n\n".join(parts)
