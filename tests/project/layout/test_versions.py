"""What a release says about itself, and whether the installed versions of packages work together."""

import re
import runpy
import shutil

import yaml
from conftest import ROOT, takes_adapters
from docs_helpers import text_of

import simcse_hf


def test_the_versions_of_peft_and_transformers_work_together():
    # Where they do not, the tests of adapters are skipped. Something has to fail then.
    assert takes_adapters()


def test_the_citation_names_this_version():
    assert yaml.safe_load(text_of("CITATION.cff"))["version"] == simcse_hf.__version__


def test_a_release_names_the_address_of_the_repository(tmp_path):
    for name in ("README.md", "pyproject.toml", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    address = "https://example.org/someone/simcse_hf"
    runpy.run_path(str(ROOT / "tools/name_address.py"))["name_address"](tmp_path, address, "v1")
    links = re.findall(r"\]\(([^)#]+)", text_of(tmp_path / "README.md"))
    assert f"{address}/raw/v1/docs/training.png" in links
    for link in links:
        assert link.startswith("https://")
        assert not link.startswith(address) or (ROOT / re.sub(r".*?/(raw|blob)/v1/", "", link)).exists(), link
    assert yaml.safe_load(text_of(tmp_path / "CITATION.cff"))["repository-code"] == address
