"""Documents and examples use what is public: what `simcse_hf` exports, and in examples also what docs/api.md lists."""

import json
import re

import pytest
from docs_helpers import ROOT, SKILLS, public_names, text_of

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *SKILLS]
#: An import in a block of Python, also of a notebook, and in `code` of a sentence.
IMPORT = re.compile(r"from simcse_hf(?:\.([\w.]+))? import (\([^)]*\)|[\w, ]+)")


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS, *EXAMPLES], ids=lambda path: path.name)
def test_a_page_imports_what_the_package_exports_and_an_example_public_names(path):
    text = text_of(path)
    if path in NOTEBOOKS:
        text = "".join(line for cell in json.loads(text)["cells"] for line in [*cell["source"], "\n"])
    for module, names in IMPORT.findall(text):
        for name in re.findall(r"\w+", names):
            assert (module, name) in public_names() and (not module or path in EXAMPLES), name
