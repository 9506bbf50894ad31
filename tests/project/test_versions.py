"""What a release says about itself, and whether the installed versions of packages work together."""

import re
import runpy
import shutil
import tomllib
from pathlib import Path

import yaml
from conftest import NEEDS_PEFT

import simcse_hf

ROOT = Path(__file__).parents[2]
ADDRESS = "https://example.org/someone/simcse_hf"


def test_the_versions_of_peft_and_transformers_work_together():
    # Where they do not, the tests of adapters are skipped. Something has to fail then.
    is_broken, reason = NEEDS_PEFT.args[0], NEEDS_PEFT.kwargs["reason"]
    assert not is_broken, reason


def test_the_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == simcse_hf.__version__


def test_a_release_names_the_address_of_the_repository(tmp_path):
    for name in ("README.md", "pyproject.toml", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    runpy.run_path(str(ROOT / "tools/name_address.py"))["name_address"](tmp_path, ADDRESS, "v1")

    links = re.findall(r"\]\(([^)#]+)", (tmp_path / "README.md").read_text(encoding="utf-8"))
    assert all(link.startswith("https://") for link in links)
    assert f"{ADDRESS}/raw/v1/docs/training.png" in links
    for link in links:
        if link.startswith(ADDRESS):
            assert (ROOT / re.sub(r".*?/(raw|blob)/v1/", "", link)).exists(), link
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Repository"] == ADDRESS and urls["Paper"].startswith("https://")
    assert yaml.safe_load((tmp_path / "CITATION.cff").read_text(encoding="utf-8"))["repository-code"] == ADDRESS
