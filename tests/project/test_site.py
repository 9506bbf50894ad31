"""The documentation site builds without a warning and leaves no page out."""

import re
from pathlib import Path

import pytest

mkdocs_config = pytest.importorskip("mkdocs.config", reason="needs the docs extra")

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    from mkdocs.commands.build import build

    folder = tmp_path_factory.mktemp("site")
    build(mkdocs_config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_every_page_is_built_and_has_a_markdown_copy(site):
    for page in PAGES:
        name = page.removesuffix(".md")
        assert (site / ("index.html" if name == "index" else f"{name}/index.html")).is_file(), page
        assert (site / page).read_text() == (ROOT / "docs" / page).read_text()


def test_llms_txt_links_to_every_page(site):
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert sorted(links) == PAGES


def test_no_link_leaves_the_site_for_a_file_of_the_repository(site):
    for page in site.rglob("index.html"):
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
            if "://" not in target and not target.startswith(("mailto:", "data:", "javascript:", "/")):
                assert (page.parent / target).resolve().is_relative_to(site), f"{page}: {target}"


def test_the_api_page_shows_arguments_and_their_types(site):
    text = (site / "api/index.html").read_text()
    for phrase in ("load_text_dataset", "SimCSETrainer", "truncate_dim", "max_seq_length"):
        assert phrase in text
