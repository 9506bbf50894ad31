"""The docstring dialect: transformers' style, with the type of each argument in backquotes.

Ruff checks the sections (rules D and DOC in pyproject.toml); this file checks what ruff has no rule for.
"""

import ast
import re

from conftest import ROOT

PACKAGE = ROOT / "simcse_hf"
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


def test_arguments_have_their_type_in_backquotes():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = (ast.get_docstring(node) or "") if isinstance(node, DOCUMENTED) else ""
            for indent, section, lines in SECTION.findall(text + "\n"):
                for line in re.findall(rf"^{indent}    (\S.*)", lines, re.MULTILINE):
                    assert ENTRY[section].match(line), f"{path}: {getattr(node, 'name', 'module')}: {section} {line}"
