"""The documentation site builds without a warning and leaves no page out."""

import pytest
from conftest import ROOT

mkdocs_config = pytest.importorskip("mkdocs.config", reason="needs the docs extra")

DOCS = ROOT / "docs"
#: The pages of the navigation. Those in docs/results are linked from them.
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


@pytest.fixture(scope="module")
def site(module_path):
    from mkdocs.commands.build import build

    build(mkdocs_config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(module_path), strict=True))
    return module_path


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
