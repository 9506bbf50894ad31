"""The documentation site builds without a warning and leaves no page out."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

mkdocs_config = pytest.importorskip("mkdocs.config", reason="needs the docs extra")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: The pages of the navigation. Those in docs/results are linked from them.
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


HOOKS = runpy.run_path(str(DOCS / "site_hooks.py"))


def page(name):
    return SimpleNamespace(file=SimpleNamespace(src_path=name))


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        (
            "<code>evaluate --data_dir D -q</code>",
            '<code>evaluate <span class="option">--data_dir</span> D <span class="option">-q</span></code>',
        ),
        ("<code>simcse-hf wiki-mlm-4x256</code>", None),
        ("<pre><span></span><code>train --seeds 3</code></pre>", None),
        ("<td>80.53 ± 0.12</td>", "<td>80.53&nbsp;±&nbsp;0.12</td>"),
    ],
)
def test_a_browser_breaks_no_option_and_no_score(html, shown):
    assert HOOKS["on_page_content"](html, page("a.md"), None, None) == (shown or html)


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        (
            "[<code>~data.columns.resolve_columns</code>]",
            "<code>resolve_columns</code>",
        ),
        ("<code>[`Results`]</code>", "<code>Results</code>"),
        ("<code>[CLS]</code>", "<code>[CLS]</code>"),
        ("<code>`str`, *optional*</code>", "<code>str, optional</code>"),
    ],
)
def test_the_reference_shows_no_marks_of_docstrings(html, shown):
    assert HOOKS["on_page_content"](html, page("api.md"), None, None) == shown


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("see [the file](../tests/a.py)", "see the file (`tests/a.py`)"),
        ("it holds ([the file](../tests/a.py))", "it holds (the file, `tests/a.py`)"),
        ("see [a.py](../tests/a.py)", "see `tests/a.py`"),
        ("see [`tests/a.py`](../tests/a.py)", "see `tests/a.py`"),
    ],
)
def test_the_site_names_a_file_of_the_checkout_once(link, shown):
    assert HOOKS["on_page_markdown"](link, page("a.md"), None, None) == shown


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
        assert "<!-- reference" not in text and "<!-- table" not in text, (
            "a copy holds the tables and the reference themselves"
        )


@pytest.mark.slow
def test_agents_find_the_pages_and_skills_in_llms_txt(site):
    listed = (site / "llms.txt").read_text()
    skills = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("skills/*/SKILL.md"))
    for path in [*PAGES, *skills]:
        assert f"]({path})" in listed and (site / path).is_file(), path
