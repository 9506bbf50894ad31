"""What a release says about itself, and whether the installed versions of packages work together."""

from pathlib import Path

import yaml
from conftest import NEEDS_PEFT

import simcse_hf

ROOT = Path(__file__).parents[2]


def test_the_versions_of_peft_and_transformers_work_together():
    # Where they do not, the tests of adapters are skipped. Something has to fail then.
    is_broken, reason = NEEDS_PEFT.args[0], NEEDS_PEFT.kwargs["reason"]
    assert not is_broken, reason


def test_the_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == simcse_hf.__version__
