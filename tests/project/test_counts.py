"""Counts of the package that a reader notices: long functions, lines that only refuse, templates."""

import ast

from test_layout import FILES, PACKAGE

#: Lines of a function without its docstring, blank lines and comments. One that is read from top to bottom in numbered
#: paragraphs may be long; beyond this length it has two jobs.
LONG = 95
MOST_REFUSING_SHARE = 0.08
MOST_JINJA_TAGS = 120

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def code_lines(path, node):
    """The numbers of the lines of a function or a module that hold code."""
    documented = set()
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(inner) is not None:
            docstring = inner.body[0]
            documented.update(range(docstring.lineno, docstring.end_lineno + 1))
    lines = path.read_text(encoding="utf-8").splitlines()
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", len(lines))
    numbers = [number for number in range(first, last + 1) if number not in documented]
    return [
        number for number in numbers if lines[number - 1].strip() and not lines[number - 1].strip().startswith("#")
    ]


def refusing_lines(tree):
    """The numbers of the lines that raise an error, with the `if` that does nothing else."""
    numbers = set()
    for node in ast.walk(tree):
        only_raises = isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Raise)
        if isinstance(node, ast.Raise) or (only_raises and not node.orelse):
            numbers.update(range(node.lineno, node.end_lineno + 1))
    return numbers


def test_no_function_is_too_long_to_be_read():
    found = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and len(code_lines(path, node)) > LONG:
                found.append(f"{path.name}:{node.name}")
    assert found == []


def test_few_lines_only_refuse():
    refusing = sum(len(refusing_lines(tree)) for tree in TREES.values())
    lines = sum(len(code_lines(path, tree)) for path, tree in TREES.items())
    assert refusing / lines <= MOST_REFUSING_SHARE


def test_the_templates_have_few_tags():
    templates = [path for path in PACKAGE.rglob("*") if path.suffix in (".md", ".txt")]
    assert sum(path.read_text(encoding="utf-8").count("{%") for path in templates) <= MOST_JINJA_TAGS
