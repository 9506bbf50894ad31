"""The docstring dialect: transformers' style, with the type of each argument in backquotes.

Ruff checks the sections (rules D and DOC in pyproject.toml); this file checks what ruff has no rule for.
"""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "simcse_hf"
FILES = sorted(PACKAGE.rglob("*.py"))
ENTRY = {
    "Args:": re.compile(
        r"\*{0,2}\w+(, \*{0,2}\w+)* "  # name, or several names
        r"\(`[^`]+`(( or|,) `[^`]+`)*(, \*optional\*)?(, defaults to `[^`]*`)?\):"  # types and default
    ),
    "Raises:": re.compile(r"`?\w+(\.\w+)*`?: "),
}


#: A section with its entries, which are indented by one step below its heading.
SECTION = re.compile(r"^( *)(Args:|Raises:)\n((?:\1 .*\n|\n)*)", re.MULTILINE)


DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())


def docstrings(path):
    """The documented functions and classes of a file, and the docstring of each."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED):
            yield node, ast.get_docstring(node) or ""


@EACH_FILE
def test_arguments_have_their_type_in_backquotes(path):
    for node, text in docstrings(path):
        for indent, section, lines in SECTION.findall(text + "\n"):
            for line in re.findall(rf"^{indent}    (\S.*)", lines, re.MULTILINE):
                assert ENTRY[section].match(line), f"{path.name}: {getattr(node, 'name', 'module')}: {section} {line}"
