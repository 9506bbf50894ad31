r"""From a function to a command: its parameters are the options, and its docstring is the help.

The signature and docstring are read from the source file, because importing the function would import torch, and
`simcse-hf COMMAND --help` must answer at once. The function itself is imported when it is called.

| parameter | option |
|---|---|
| `x: str` | `--x X`, which must be given |
| `x: int = 5` | `--x X` |
| `x: bool = False` and `x: bool = True` | `--x` and `--no_x` |
| `x: Literal["a", "b"]`, or the name of such a type in `simcse_hf.names` | `--x {a,b}` |
| `x: Sequence[str]` | `--x A B`, or `--x A --x B` |
| `x: Mapping[str, str]` and `x: Sequence[tuple[str, str]]` | `--x KEY=VALUE`, repeatable |
| `x: float \| Literal["saved"]` | `--x X`: the first type that reads the word |
| `**options: Unpack[T]`, with a `TypedDict` of `simcse_hf.names` | the keys of `T` |

Types that are not listed, such as the class of a model, are read as text. `show_progress_bar` is no option: it is off
with `--quiet`. Help is the entry in `Args` and the default, unless the entry says what the default is.
"""

import ast
import importlib
import json
import os
import re
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_args

from .. import names
from ..ops.launch import check_together
from ..ops.suggestions import did_you_mean

PACKAGE = Path(__file__).parents[1]
REQUIRED = object()
_PLAIN: dict[str, Callable[[str], Any]] = {"int": int, "float": float}
#: Shorter names of options.
_FLAGS = {"pooler_type": ("--pooler_type", "--pooler")}


@dataclass(frozen=True)
class Command:
    """A function as a command.

    Args:
        function (`str`): Its module in this package and its name, such as `"data.nli_pairs:build_nli"`.
        positional (`tuple[str, ...]`, *optional*): Parameters that are given without the name of an option.
        flags (`Mapping[str, tuple[str, ...]]`, *optional*): Parameters whose options have other names, such as
            `{"columns": ("--column", "--columns")}`.
        action (`str`, *optional*): A word that must follow the command, such as `"fit"`.
        verbose (`str`, *optional*): Help of `--verbose`, for results that have more to show.
        together (`bool`, *optional*, defaults to `False`): Whether several processes share the work.
        then (`str`, *optional*): A function that is called with the printed result, such as
            `"publishing.refresh:refresh_card"`.
    """

    function: str
    positional: tuple[str, ...] = ()
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    action: str | None = None
    verbose: str | None = None
    together: bool = False
    then: str | None = None


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function: the expression of its type, its default or `REQUIRED`, and its words in `Args`."""

    name: str
    annotation: ast.expr
    default: Any
    words: str
    group: str = "options"


class CommandParser(ArgumentParser):
    """A parser whose errors suggest the options and commands that mistyped words are near to."""

    _words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and remember the words for `error`."""
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End with a message, and with suggestions for the words that begin no option and are no choice."""
        known = list(self._option_string_actions)
        for action in self._get_positional_actions():
            known.extend(action.choices or ())
        wrong = []
        for number, word in enumerate(self._words):
            name = word.partition("=")[0]
            is_name = number == 0 or word.startswith("--")
            if is_name and not any(other.startswith(name) for other in known):
                wrong.append(name)
        if "the following arguments are required" in message:  # an option with a typo may be the one that is missing
            known = re.findall(r"--\w+", message)
        super().error(message + did_you_mean(wrong, known))


def run_command(name: str, command: Command, words: Sequence[str]) -> None:
    """Parse the words of a command line, call the function, and print its result.

    Args:
        name (`str`): The command, such as `"build-nli"`.
        command (`Command`): Its function.
        words (`Sequence[str]`): The words after the command.
    """
    if not command.together:
        check_together(1, alone=name)
    parser, takes_progress_bar = make_parser(name, command)
    given = vars(parser.parse_args(words))
    given.pop("action", None)
    as_json, quiet, verbose = given.pop("json"), given.pop("quiet"), given.pop("verbose", False)
    if takes_progress_bar:
        given["show_progress_bar"] = not quiet
    result = _import(command.function)(**given)
    if command.together:
        from accelerate import PartialState

        if not PartialState().is_main_process:
            return
    for each in result if isinstance(result, Iterator) else [result]:
        text = each.details() if verbose else str(each)
        if as_json:
            text = json.dumps(each.to_dict(), ensure_ascii=False, default=os.fspath)
        print(text, flush=True)
        if command.then is not None:
            _import(command.then)(each)
        each.wait()


def _import(function: str) -> Callable[..., Any]:
    """Import a function by its module in this package and its name."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(f"simcse_hf.{module}"), name)


def make_parser(name: str, command: Command) -> tuple[ArgumentParser, bool]:
    """Make the parser of a command.

    Args:
        name (`str`): The command.
        command (`Command`): Its function.

    Returns:
        `tuple[ArgumentParser, bool]`: The parser, whose result has the options that were given and no others; and
            whether the function takes `show_progress_bar`.
    """
    description, parameters = read_function(command.function)
    parser = CommandParser(prog=f"simcse-hf {name}", description=description, argument_default=SUPPRESS)
    if command.action is not None:
        parser.add_argument("action", choices=(command.action,))
    groups: dict[str, Any] = {"options": parser}
    takes_progress_bar = False
    for parameter in parameters:
        if parameter.name == "show_progress_bar":
            takes_progress_bar = True
            continue
        if parameter.group not in groups:
            groups[parameter.group] = parser.add_argument_group(parameter.group)
        is_positional = parameter.name in command.positional
        flags, settings = option_of(parameter, is_positional, (_FLAGS | {**command.flags}).get(parameter.name, ()))
        hidden = settings.get("choices", ()) if "metavar" in settings else ()
        groups[parameter.group].add_argument(*flags, help=help_of(parameter, hidden), **settings)
    group = parser.add_argument_group("general")
    group.add_argument(
        "--json", action="store_true", default=False, help="print the result as JSON on standard output"
    )
    words = "show no progress bars, and only warnings and errors"
    group.add_argument("--quiet", action="store_true", default=False, help=words)
    if command.verbose is not None:
        group.add_argument("--verbose", action="store_true", default=False, help=command.verbose)
    return parser, takes_progress_bar


def summary_of(command: Command) -> str:
    """Return the first line of a function's docstring, as one clause."""
    module, _, name = command.function.partition(":")
    source = _file_of(module).read_text(encoding="utf-8")
    found = re.search(rf'^def {name}\(.*?"""(.+?)\.?$', source, re.MULTILINE | re.DOTALL)
    assert found is not None, command
    return found[1][:1].lower() + found[1][1:]


def read_function(function: str) -> tuple[str, list[Parameter]]:
    """Read the description and the parameters of a function from its source.

    Args:
        function (`str`): Its module in this package and its name, such as `"data.nli_pairs:build_nli"`.

    Returns:
        `tuple[str, list[Parameter]]`: The docstring before its first section, and the parameters.
    """
    module, _, name = function.partition(":")
    node = find_definition(module, name)
    assert isinstance(node, ast.FunctionDef)
    words, _ = read_args(node)
    arguments = [*node.args.args, *node.args.kwonlyargs]
    defaults: list[ast.expr | None] = [*node.args.defaults, *node.args.kw_defaults]
    while len(defaults) < len(arguments):
        defaults.insert(0, None)
    parameters = []
    for argument, default in zip(arguments, defaults, strict=True):
        assert argument.annotation is not None
        value = REQUIRED if default is None else ast.literal_eval(default)
        parameters.append(Parameter(argument.arg, argument.annotation, value, words.get(argument.arg, "")))
    options = node.args.kwarg and node.args.kwarg.annotation
    if isinstance(options, ast.Subscript):  # Unpack[...]
        parameters += _read_typed_dict(ast.unparse(options.slice))
    description = re.split(r"\n\n(?=Args:|Returns:)", ast.get_docstring(node) or "")[0]
    return description, parameters


def _file_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def find_definition(module: str, name: str) -> ast.FunctionDef | ast.ClassDef:
    """Return the definition of a function or class in a module of this package."""
    file = _file_of(module)
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
    raise LookupError(f"{file} defines no {name}")


def _read_typed_dict(name: str) -> list[Parameter]:
    """Return the keys of a `TypedDict` in `simcse_hf.names`, with the defaults that its docstring names."""
    node = find_definition("names", name)
    assert isinstance(node, ast.ClassDef)
    parameters = []
    for base in map(ast.unparse, node.bases):
        if base != "TypedDict":
            parameters += _read_typed_dict(base)
    words, defaults = read_args(node)
    for key in node.body:
        if isinstance(key, ast.AnnAssign):
            option = ast.unparse(key.target)
            parameters.append(Parameter(option, key.annotation, defaults.get(option), words[option], "model"))
    return parameters


def read_args(node: ast.FunctionDef | ast.ClassDef) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the words of each entry in the section `Args` of a docstring, and the defaults that entries name."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", ast.get_docstring(node) or "", re.MULTILINE)
    words = {}
    defaults = {}
    for entry in re.split(r"^    (?=\S)", section[1] if section else "", flags=re.MULTILINE)[1:]:
        found = re.match(r"(.+?) \(`(.*?)\): (.*)", " ".join(entry.split()))
        assert found is not None, entry
        for name in found[1].split(", "):
            words[name] = found[3]
            if "defaults to" in found[2]:
                defaults[name] = ast.literal_eval(found[2].partition("defaults to ")[2].strip("`"))
    return words, defaults


def help_of(parameter: Parameter, choices: Sequence[str] = ()) -> str:
    """Return the help of an option: the words of `Args` as one clause, choices, and the default."""
    words, _, default = parameter.words.removesuffix(".").partition(". The default is ")
    if words[:2].istitle() or words[1:2] == " ":  # an abbreviation keeps its capital letters
        words = words[:1].lower() + words[1:]
    words = re.sub(r"`([a-z_]+)`", r"--\1", words)  # another parameter
    if choices:
        words += f": {', '.join(choices)}"
    if default:
        words += f"; default: {default}"
    if parameter.default is True:
        words = f"do not {words}"
    elif parameter.default not in (REQUIRED, None, False, ""):
        default = parameter.default
        listed = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        if listed:
            words += f"; default: {listed}"
    return words.replace("%", "%%")


def option_of(parameter: Parameter, is_positional: bool, flags: Sequence[str]) -> tuple[Sequence[str], dict[str, Any]]:
    """Return the arguments of argparse's `add_argument` for a parameter.

    Args:
        parameter (`Parameter`): The parameter.
        is_positional (`bool`): Whether it is given without the name of an option.
        flags (`Sequence[str]`): The names of the option; by default that of the parameter.

    Returns:
        `tuple[Sequence[str], dict[str, Any]]`: The names, and the keyword arguments without `help`.
    """
    types = _members(parameter.annotation)
    is_given = parameter.default is not REQUIRED
    if _name(types[0]) == "bool":
        off = parameter.default is True
        flags = flags or (f"--{'no_' if off else ''}{parameter.name}",)
        return flags, {"action": "store_false" if off else "store_true", "dest": parameter.name}
    settings: dict[str, Any] = {}
    container = _name(types[0])
    pair = re.fullmatch(r"(Mapping|Sequence)\[(?:tuple\[)?(\w+), \w+\]+", ast.unparse(types[0]))
    if pair is not None:
        keys = get_args(getattr(names, pair[2], None))
        settings = {"type": _PairReader(keys), "action": _Pairs if pair[1] == "Mapping" else "append"}
        settings["metavar"] = "KIND=FILE" if keys else "KEY=VALUE"
    else:
        if container == "Sequence":
            assert isinstance(types[0], ast.Subscript)
            types = _members(types[0].slice)
            settings = {"nargs": "*" if is_positional and is_given else "+"}
            if not is_positional:
                settings["action"] = "extend"
        elif is_positional and is_given:
            settings = {"nargs": "?"}
        choices = _choices(types[0])
        if choices and len(types) == 1:
            settings["choices"] = choices
            if len(choices) > 5 or "nargs" in settings:
                settings["metavar"] = "NAME"
        else:
            settings["type"] = _Reader(types)
            settings["metavar"] = {"int": "N", "float": "X"}.get(_name(types[0]), parameter.name.upper())
    if is_positional:
        return (parameter.name,), settings | {"metavar": parameter.name.upper()}
    return flags or (f"--{parameter.name}",), settings | {"dest": parameter.name, "required": not is_given}


def _members(annotation: ast.expr) -> list[ast.expr]:
    """Return the types of a union without `None`."""
    if isinstance(annotation, ast.BinOp):
        return _members(annotation.left) + _members(annotation.right)
    return [] if isinstance(annotation, ast.Constant) and annotation.value is None else [annotation]


def _name(annotation: ast.expr) -> str:
    """Return the name of a type without its parameters."""
    return ast.unparse(annotation).partition("[")[0]


def _choices(annotation: ast.expr) -> tuple[str, ...]:
    """Return the values of a `Literal`, or of the name of one; nothing for any other type."""
    if _name(annotation) == "Literal":
        assert isinstance(annotation, ast.Subscript)
        values = ast.literal_eval(annotation.slice)
        return values if isinstance(values, tuple) else (values,)
    return get_args(getattr(names, _name(annotation), None))


class _Reader:
    """Reads a word as the first of several types that it fits."""

    def __init__(self, types: Sequence[ast.expr]) -> None:
        self.types = types

    def __call__(self, word: str) -> Any:
        """Return the value of the word."""
        wanted = []
        for each in self.types:
            choices = _choices(each)
            if word in choices:
                return word
            wanted += [*choices] or [{"int": "an integer", "float": "a number"}.get(_name(each), "a text")]
            if not choices:
                with suppress(ValueError):
                    return _PLAIN.get(_name(each), str)(word)
        raise ArgumentTypeError(f"must be {' or '.join(wanted)}, got {word}")


class _PairReader:
    """Reads a word of the form KEY=VALUE, whose key may have to be one of some kinds."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys

    def __call__(self, word: str) -> tuple[str, str]:
        """Return the key and the value."""
        key, _, value = word.partition("=")
        if self.keys and (key not in self.keys or not value):
            raise ArgumentTypeError(f"must be KIND=FILE, with KIND one of {', '.join(self.keys)}, got {word!r}")
        if not (key and value):
            raise ArgumentTypeError(f"must be KEY=VALUE, got {word!r}")
        return key, value


class _Pairs(Action):
    """Collects words of the form KEY=VALUE in a dictionary."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        """Add a pair."""
        key, value = values
        pairs = getattr(namespace, self.dest, {})
        if key in pairs:
            parser.error(f"{option_string} names {key} twice: give it one value")
        setattr(namespace, self.dest, pairs | {key: value})
