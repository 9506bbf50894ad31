"""The signature and the docstring of a function, read from its source: importing it would import torch."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
#: The default of a parameter that must be given.
REQUIRED = object()


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function, or a field of a class of arguments.

    Args:
        name (`str`): Its name.
        kind (`str`): Its type, as it is written.
        default (`Any`): Its default, or `REQUIRED`.
        words (`str`): What it means.
        group (`str`, *optional*, defaults to `"options"`): The heading under which `--help` shows it.
    """

    name: str
    kind: str
    default: Any
    words: str
    group: str = "options"


def read_function(function: str) -> tuple[str, list[Parameter]]:
    """Read the description and the parameters of a function.

    Args:
        function (`str`): Its module in this package and its name, such as `"apps.build_nli:build_nli"`.

    Returns:
        `tuple[str, list[Parameter]]`: The docstring before its first section, and the parameters.
    """
    node = find_definition(function)
    assert isinstance(node, ast.FunctionDef)
    words = _read_args(node)
    arguments = [*node.args.args, *node.args.kwonlyargs]
    given = [*node.args.defaults, *node.args.kw_defaults]
    defaults = [None] * (len(arguments) - len(given)) + given
    parameters = []
    for argument, default in zip(arguments, defaults, strict=True):
        assert argument.annotation is not None
        kind = ast.unparse(argument.annotation)
        value = REQUIRED if default is None else ast.literal_eval(default)
        parameters.append(Parameter(argument.arg, kind, value, words.get(argument.arg, "")))
    options = node.args.kwarg and node.args.kwarg.annotation
    if isinstance(options, ast.Subscript):  # Unpack[...]
        parameters += _read_typed_dict(ast.unparse(options.slice))
    description = re.split(r"\n\n(?=[A-Z]\w+:\n)", ast.get_docstring(node) or "")[0]
    return description, parameters


def find_definition(name: str) -> ast.FunctionDef | ast.ClassDef:
    """Return the definition of a function or class, which is named by its module in this package and its name."""
    module, _, wanted = name.partition(":")
    path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == wanted:
            return node
    raise LookupError(f"{module} defines no {wanted}")


def read_fields(name: str) -> list[Parameter]:
    """Read the fields that a dataclass of this package adds; a default that is no literal is read as `None`."""
    parameters = []
    for field in find_definition(name).body:
        if isinstance(field, ast.Assign):
            group = ast.literal_eval(field.value)  # `_argument_group_name`, above the fields
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
            default, words = field.value.args
            value = default.value if isinstance(default, ast.Constant) else None
            kind = ast.unparse(field.annotation)
            parameters.append(Parameter(ast.unparse(field.target), kind, value, ast.literal_eval(words), group))
    return parameters


def _read_typed_dict(name: str) -> list[Parameter]:
    """Return the keys of a `TypedDict` in `simcse_hf.names`; those of type bool are true by default."""
    node = find_definition(f"names:{name}")
    assert isinstance(node, ast.ClassDef)
    parameters = []
    for base in map(ast.unparse, node.bases):
        if base != "TypedDict":
            parameters += _read_typed_dict(base)
    words = _read_args(node)
    group = "options" if name == "EvaluationOptions" else "model"
    for key in node.body:
        if isinstance(key, ast.AnnAssign):
            option = ast.unparse(key.target)
            kind = ast.unparse(key.annotation)
            parameters.append(Parameter(option, kind, kind == "bool" or None, words[option], group))
    return parameters


def _read_args(node: ast.FunctionDef | ast.ClassDef) -> dict[str, str]:
    """Return the words of each entry in the section `Args` of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", ast.get_docstring(node) or "", re.MULTILINE)
    words = {}
    for entry in re.split(r"^    (?=\S)", section[1] if section else "", flags=re.MULTILINE)[1:]:
        found = re.match(r"(.+?) \(`.*?\): (.*)", " ".join(entry.split()))
        assert found is not None, entry
        for name in found[1].split(", "):
            words[name] = found[2]
    return words
