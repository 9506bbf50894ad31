"""Parse argument dataclasses from a command line over a YAML file over defaults."""

import inspect
from argparse import SUPPRESS, Action, ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

#: Arguments that are words on a command line, and a table or list in a YAML file.
_STRUCTURED = ("objective_options", "matryoshka_dims")


def split_config(argv: Sequence[str], classes: Sequence[type]) -> tuple[list[str], dict[str, Any]]:
    """Separate a YAML file on the command line from the other arguments.

    Args:
        argv (`Sequence[str]`): Command line; a first argument that ends in .yaml or .yml, or `--config FILE`, names
            the file.
        classes (`Sequence[type]`): Argument dataclasses whose names the file may use.

    Returns:
        `tuple[list[str], dict[str, Any]]`: The other arguments and the file's values.

    Raises:
        ValueError: If `--config` has no value, or the file is no table of known arguments.
    """
    argv = list(argv)
    if argv and argv[0].endswith((".yaml", ".yml")):
        return argv[1:], read_yaml(argv[0], classes)
    if "--config" not in argv:
        return argv, {}
    position = argv.index("--config")
    if position + 1 == len(argv):
        raise ValueError("--config needs the path of a YAML file")
    return argv[:position] + argv[position + 2 :], read_yaml(argv[position + 1], classes)


def explicit_arguments(argv: Sequence[str], classes: Sequence[type]) -> dict[str, Any]:
    """Return the arguments that a command line names, without any defaults."""
    parser = make_parser(classes)
    for action in parser._actions:
        action.default, action.required = SUPPRESS, False
    # The parser of all values answers --help, because it knows the defaults.
    return vars(parser.parse_known_args([word for word in argv if word not in ("-h", "--help")])[0])


def parse_over(values: dict[str, Any], classes: Sequence[type], argv: Sequence[str]) -> tuple[Any, ...]:
    """Parse a command line over default values.

    Args:
        values (`dict[str, Any]`): Defaults by argument name.
        classes (`Sequence[type]`): Argument dataclasses.
        argv (`Sequence[str]`): Command line, without a YAML file.

    Returns:
        `tuple[Any, ...]`: One object of each dataclass.

    Raises:
        ValueError: If values contradict each other.
    """
    parser = make_parser(classes)
    # Strings pass through the argument's type, as if typed on the command line: YAML reads 3e-5 as a string.
    parser.set_defaults(**{name: str(v) if isinstance(v, float) else v for name, v in values.items()})
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            list(argv), return_remaining_strings=True, look_for_args_file=False
        )
    except ValueError as error:  # Raised here, it is reported in one line, like this package's own errors.
        raise ValueError(str(error)) from error
    if unknown:
        parser.error(f"unknown argument(s): {' '.join(unknown)}")
    return tuple(parsed)


def make_parser(classes: Sequence[type]) -> HfArgumentParser:
    """Make a parser whose help shows this package's arguments first and transformers' last."""
    parser = HfArgumentParser(
        cast(Any, classes), usage="%(prog)s [recipe.yaml] [--name value ...]", allow_abbrev=False
    )
    inherited = {f.name for f in fields(TrainingArguments)}
    ours = parser.add_argument_group("arguments of this package")
    theirs = parser.add_argument_group("arguments of transformers.TrainingArguments")
    options = [group for group in parser._action_groups if group not in (ours, theirs)]
    actions: list[Action] = [action for action in parser._actions if action.dest != "help"]
    for action in actions:
        if action.type is string_to_bool and action.nargs is None:  # `bool | None`: `--do_mlm` alone sets it
            action.nargs, action.const = "?", True
    for group in options:
        group._group_actions = [action for action in group._group_actions if action.dest == "help"]
    ours._group_actions = [action for action in actions if action.dest not in inherited]
    theirs._group_actions = [action for action in actions if action.dest in inherited]
    return parser


def read_yaml(path: str, classes: Sequence[type]) -> dict[str, Any]:
    """Read arguments from a YAML file.

    Args:
        path (`str`): The file.
        classes (`Sequence[type]`): Argument dataclasses whose names the file may use.

    Returns:
        `dict[str, Any]`: Values by argument name.

    Raises:
        ValueError: If the file cannot be read, is no YAML table, names an unknown argument, or gives one a value of
            another type.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the recipe {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also for impossible dates and other encodings
        raise ValueError(f"{path} is not valid YAML in UTF-8: {error}") from None
    return convert_values(path, values, classes)


def convert_values(source: str, values: Any, classes: Sequence[type]) -> dict[str, Any]:
    """Check arguments that were read from a file, and convert them as if they had been typed on the command line.

    Args:
        source (`str`): Name of the file, for messages.
        values (`Any`): Values by argument name.
        classes (`Sequence[type]`): Argument dataclasses whose names the file may use.

    Returns:
        `dict[str, Any]`: The converted values.

    Raises:
        ValueError: If `values` is no table, names an unknown argument, or gives one a value of another type.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{source} must hold a table of arguments (name: value)")
    if "pooler" in values:
        values["pooler_type"] = values.pop("pooler")
    unknown = sorted(set(values) - {f.name for cls in classes for f in fields(cls) if f.init}, key=str)
    if unknown:
        raise ValueError(f"{source}: unknown argument(s) {', '.join(map(str, unknown))}")
    actions, types = _argument_types(tuple(classes))
    return {name: _convert(source, name, value, actions[name], types[name]) for name, value in values.items()}


@cache
def _argument_types(classes: tuple[type, ...]) -> tuple[dict[str, Action], dict[str, str]]:
    """Return the parser's action and the annotation of each argument, by its name."""
    actions = {action.dest: action for action in make_parser(classes)._actions}
    bases = [base for cls in classes for base in reversed(cls.__mro__)]  # HfArgumentParser changes `Field.type`
    return actions, {name: str(t) for base in bases for name, t in inspect.get_annotations(base).items()}


def _convert(path: str, name: str, value: Any, action: Action, type_name: str) -> Any:
    """Convert a value of a YAML file as if it had been typed on the command line, and refuse one of another type."""
    if value is None or name in _STRUCTURED or (isinstance(value, dict) and "dict" in type_name):
        return value
    if isinstance(value, list) and (action.nargs in ("+", "*") or "list" in type_name):
        return [_convert(path, name, item, action, "") for item in value]
    if isinstance(value, (dict, list)):
        raise ValueError(f"{path}: {name} is a {'table' if isinstance(value, dict) else 'list'}, not a single value")
    convert = cast(Callable[[str], Any], action.type or str)
    try:
        return convert(str(value))
    except (ValueError, TypeError, ArgumentTypeError):
        expected = {int: "a whole number", float: "a number", string_to_bool: "true or false"}
        raise ValueError(f"{path}: {name} is {value!r}, but must be {expected.get(convert, type_name)}") from None
