"""The signature and the docstring of a function, read from its source: importing it would import torch."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from .. import names

PACKAGE = Path(__file__).parents[1]
#: The default of a parameter that must be given.
REQUIRED = object()
#: The types that the words of a command line become. Any other, such as the class of a model, is read as text.
_TYPES: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "tuple": tuple,
    "None": NoneType,
    "Sequence": Sequence,
    "Iterable": Sequence,
    "Mapping": Mapping,
    **vars(names),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function.

    Args:
        name (`str`): Its name.
        type (`Any`): Its type, as [`read_type`] reads it.
        default (`Any`): Its default, or `REQUIRED`.
        words (`str`): Its entry in the section `Args` of the docstring.
        group (`str`, *optional*, defaults to `"options"`): The heading under which `--help` shows it.
    """

    name: str
    type: Any
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
    defaults: list[ast.expr | None] = [*node.args.defaults, *node.args.kw_defaults]
    while len(defaults) < len(arguments):
        defaults.insert(0, None)
    parameters = []
    for argument, default in zip(arguments, defaults, strict=True):
        assert argument.annotation is not None
        value = REQUIRED if default is None else ast.literal_eval(default)
        parameters.append(Parameter(argument.arg, read_type(argument.annotation), value, words.get(argument.arg, "")))
    options = node.args.kwarg and node.args.kwarg.annotation
    if isinstance(options, ast.Subscript):  # Unpack[...]
        parameters += _read_typed_dict(ast.unparse(options.slice))
    description = re.split(r"\n\n(?=[A-Z]\w+:\n)", ast.get_docstring(node) or "")[0]
    return description, parameters


def summary_of(function: str) -> str:
    """Return the first line of a function's docstring as one clause, without parsing the whole module."""
    module, _, name = function.partition(":")
    source = _file_of(module).read_text(encoding="utf-8")
    found = re.search(rf'^def {name}\(.*?"""(.+?)\.?$', source, re.MULTILINE | re.DOTALL)
    assert found is not None, function
    return found[1][:1].lower() + found[1][1:]


def find_definition(name: str) -> ast.FunctionDef | ast.ClassDef:
    """Return the definition of a function or class, which is named by its module in this package and its name."""
    module, _, wanted = name.partition(":")
    for node in ast.parse(_file_of(module).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == wanted:
            return node
    raise LookupError(f"{module} defines no {wanted}")


def read_fields(name: str) -> dict[str, tuple[Any, str]]:
    """Read the arguments that a dataclass of this package adds: its default, if that is a literal, and its help."""
    found = {}
    for field in find_definition(name).body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
            default, words = field.value.args
            value = default.value if isinstance(default, ast.Constant) else None
            found[ast.unparse(field.target)] = value, ast.literal_eval(words)
    return found


def _file_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def read_type(annotation: ast.expr) -> Any:
    """Return the type of an annotation: a plain type, a `Literal`, a union, a `Sequence`, a `Mapping` or a tuple."""
    if isinstance(annotation, ast.BinOp):
        return read_type(annotation.left) | read_type(annotation.right)
    if not isinstance(annotation, ast.Subscript):
        return _TYPES.get(ast.unparse(annotation), str)
    name = ast.unparse(annotation.value)
    if name == "Literal":
        return Literal[ast.literal_eval(annotation.slice)]
    inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    return _TYPES[name][tuple(map(read_type, inner))]


def _read_typed_dict(name: str) -> list[Parameter]:
    """Return the keys of a `TypedDict` in `simcse_hf.names`; those of type bool are true by default."""
    node = find_definition(f"names:{name}")
    assert isinstance(node, ast.ClassDef)
    parameters = []
    for base in map(ast.unparse, node.bases):
        if base != "TypedDict":
            parameters += _read_typed_dict(base)
    words = _read_args(node)
    for key in node.body:
        if isinstance(key, ast.AnnAssign):
            option = ast.unparse(key.target)
            kind = read_type(key.annotation)
            parameters.append(Parameter(option, kind, kind is bool or None, words[option], "model"))
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
