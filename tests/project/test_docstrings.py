"""The docstring dialect: transformers' style, with the type of each argument in backquotes.

Ruff checks the sections (rules D and DOC in pyproject.toml); this file checks what ruff has no rule for.
"""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "simcse_hf"
FILES = sorted(PACKAGE.rglob("*.py"))
SECTIONS = ("Args:", "Returns:", "Yields:", "Raises:")
ENTRY = {
    "Args:": re.compile(
        r"\*{0,2}\w+(, \*{0,2}\w+)* "  # name, or several names
        r"\(`[^`]+`(( or|,) `[^`]+`)*(, \*optional\*)?(, defaults to `[^`]*`)?\):"  # types and default
    ),
    "Raises:": re.compile(r"`?\w+(\.\w+)*`?: "),
}


def entries(docstring):
    """(section, line) of each entry of a docstring's sections: the lines indented by one step below the heading."""
    section, indent = None, 0
    for line in docstring.splitlines():
        text, depth = line.strip(), len(line) - len(line.lstrip())
        if text in SECTIONS:
            section, indent = text, depth
        elif text and depth <= indent:
            section = None
        elif section and text and depth == indent + 4:
            yield section, text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_arguments_have_their_type_in_backquotes(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            continue
        for section, line in entries(ast.get_docstring(node) or ""):
            if section in ENTRY:
                assert ENTRY[section].match(line), f"{path.name}: {getattr(node, 'name', 'module')}: {section} {line}"
