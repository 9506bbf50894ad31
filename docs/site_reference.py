"""A hook of mkdocs that puts what `--help` of each command prints in place of a line `<!-- reference commands -->`."""

import contextlib
import io
import os
import re
from pathlib import Path

MARK = re.compile(r"^<!-- reference commands -->$", re.MULTILINE)


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
    """Replace the mark of a page by the help of all commands."""
    return MARK.sub(lambda match: commands(), markdown)


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
