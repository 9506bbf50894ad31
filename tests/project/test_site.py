"""The documentation site builds without a warning and leaves no page out."""

import json
import runpy
from pathlib import Path

import pytest

mkdocs_config = pytest.importorskip("mkdocs.config", reason="needs the docs extra")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: The pages of the navigation. Those in docs/results are linked from them.
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    from mkdocs.commands.build import build

    folder = tmp_path_factory.mktemp("site")
    build(mkdocs_config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


@pytest.mark.slow
def test_every_page_is_built_and_has_a_markdown_copy(site):
    for page in PAGES:
        name = page.removesuffix(".md")
        assert (site / ("index.html" if name == "index" else f"{name}/index.html")).is_file(), page
        text = (site / page).read_text()
        assert text == (DOCS / page).read_text() or page in ("api.md", "cli.md"), page
        assert "<!-- " not in text, "a copy holds the tables and the reference themselves"


def test_a_table_shows_our_scores_beside_the_papers_once_they_are_reproduced(tmp_path):
    fill_tables = runpy.run_path(str(DOCS / "site_results.py"))["fill_tables"]
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    cell = {"paper": 82.5, "mean": 80.123, "sd": 0.2, "difference": -2.4, "figures": {}}
    claim = {"verdict": "within noise", "says": "dropout is best", "reason": "0 of 1 differences are above 0"}
    document = {
        "title": "Dropout rates", "figure": "STS-B dev", "scale": "small", "seeds": 3, "start": "models/tiny",
        "columns": [{"name": "dev"}], "rows": [{"name": "p = 0.1", "cells": [cell]}], "claims": [claim],
    }  # fmt: skip
    (docs / "results/simcse-3.json").write_text(json.dumps(document))
    text = fill_tables("before\n\n<!-- table simcse/3 -->\n\nafter", docs)
    assert "| p = 0.1 | 82.5 | 80.12 ± 0.20 |" in text and "over 3 seeds" in text and "`tiny`" in text
    assert "- **Within noise**: “dropout is best” (0 of 1 differences are above 0)." in text
    assert "results/simcse-3.md" not in text, "there is no such page"
    assert "not among the tables" in fill_tables("<!-- table simcse/99 -->", docs)
