"""Documents and examples use what is public: what `simcse_hf` exports, and in examples also what docs/api.md lists."""

import ast
import json
import re
from importlib import import_module

import pytest
from docs_workspace import ROOT
from test_layout import public_names

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "skills").rglob("*.md"))
#: An import in a block of Python, also of a notebook, and in `code` of a sentence.
IMPORT = re.compile(r"from simcse_hf(?:\.([\w.]+))? import ([\w, ]+)")


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_a_page_imports_what_the_package_exports(path):
    text = path.read_text("utf-8")
    if path in NOTEBOOKS:
        text = "".join(line for cell in json.loads(text)["cells"] for line in [*cell["source"], "\n"])
    found = [(module, name) for module, names in IMPORT.findall(text) for name in names.replace(" ", "").split(",")]
    assert {(module, name) for module, name in found if module or ("", name) not in public_names()} == set()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_imports_public_names(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "simcse_hf":
            module = node.module.removeprefix("simcse_hf").strip(".")
            found |= {(module, alias.name) for alias in node.names}
    assert found <= public_names()


def test_what_the_reference_lists_exists():
    for module, name in public_names():
        assert hasattr(import_module(f"simcse_hf.{module}".rstrip(".")), name), f"{module}.{name}"
