"""Read arguments of dataclasses from a command line and a YAML file on it."""

import os
import re
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

from ..data.table import SUFFIX
from ..models.settings import Values
from ..objectives import OBJECTIVES, describe_options, import_objective, objective_class, part_weights
from ..runtime.errors import did_you_mean

#: The defaults of the commands by the name of the method, and words for arguments of transformers.
DEFAULTS: dict[str, Values] = yaml.safe_load(Path(__file__).with_name("defaults.yaml").read_text("utf-8"))
#: Folder of the recipes that a name stands for.
RECIPES = Path(__file__).parent / "recipes"

#: The arguments that name the training texts.
TEXTS = {"train_file", "dataset_name"}
#: Arguments that are words on a command line, and a table or list in a YAML file: of numbers, and of texts.
_NUMBERS = ("objective_options", "matryoshka_dims")
_STRUCTURED = (*_NUMBERS, "prompts")
#: More letters than a help shows before the text of an option.
_LONG = 50
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)e[-+]?\d+", re.IGNORECASE)


class _Loader(yaml.SafeLoader):
    """Read YAML with dates as texts: no option takes a date, and a name such as 2024-13-45 is an impossible one."""


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


def option(default: Any, text: str, **metadata: Any) -> Any:
    """Return the field of an argument.

    Args:
        default (`Any`): The default, or `list` for an empty list.
        text (`str`): The text for `--help`.
        metadata (`Any`): Further keywords of the parser, such as `choices`.

    Returns:
        `Any`: The field, typed so that any annotation fits it.
    """
    content = {"help": text, **metadata}
    if default is list:
        return field(default_factory=list, metadata=content)
    return field(default=default, metadata=content)


def argument_names(classes: Sequence[type]) -> set[str]:
    """Return the names of all arguments."""
    return {argument.name for each in classes for argument in fields(each) if argument.init}


def read_recipe(name: str, classes: Sequence[type]) -> Values:
    """Read the arguments of a recipe.

    Args:
        name (`str`): A YAML file of argument names and values, or a recipe of this package, with or without `.yaml`.
            A file of the user goes before a recipe of the same name.
        classes (`Sequence[type]`): Argument dataclasses.

    Returns:
        `Values`: Values by argument name, without any defaults.

    Raises:
        ValueError: If there is no such file or recipe, or it is no table of known arguments.
    """
    recipes = {path.stem: str(path) for path in sorted(RECIPES.glob("*.yaml"))}
    path = name if Path(name).is_file() else recipes.get(name.removesuffix(".yaml"), name)
    if not Path(path).is_file() and not name.endswith((".yaml", ".yml")):
        raise ValueError(
            f"{name!r} is neither a YAML file nor a recipe of the package{did_you_mean([name], recipes)}; the recipes "
            f"are {', '.join(recipes)}"
        )
    return read_yaml(path, classes)


def read_words(argv: Sequence[str], classes: Sequence[type], defaults: Mapping[str, Any]) -> Values:
    """Return the arguments that a command line names, without any defaults.

    Args:
        argv (`Sequence[str]`): Command line without the program's name. A first argument without `--` names a recipe,
            see [`read_recipe`], over which the command line takes precedence.
        classes (`Sequence[type]`): Argument dataclasses.
        defaults (`Mapping[str, Any]`): Defaults that `--help_all` shows in place of the dataclasses'.

    Returns:
        `Values`: Values by argument name.

    Raises:
        ValueError: If the recipe cannot be read.
    """
    words = list(argv)
    recipe = {}
    if words and not words[0].startswith("-"):
        recipe = read_recipe(words.pop(0), classes)
    shows_all = "--help_all" in words
    parser = _make_parser(classes)
    for action in parser._actions:
        action.default = SUPPRESS
        action.required = False
    typed, unknown = parser.parse_known_args([word for word in words if word != "--help_all"])
    if unknown:
        wrong = [word.partition("=")[0] for word in unknown]
        hint = did_you_mean(wrong, parser._option_string_actions)
        parser.error(f"unknown argument(s): {' '.join(unknown)}{hint}")
    given = over(recipe, vars(typed))
    if shows_all:
        _print_all(classes, defaults, given)
        parser.exit()
    return given


def _print_all(classes: Sequence[type], defaults: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Print every option with its default: those of this package, of the objective that is given, of transformers."""
    parser = _make_parser(classes)
    parser.set_defaults(**defaults)
    if "objective" in argument_names(classes):
        parser.epilog = f"Objectives: {', '.join(sorted(OBJECTIVES))}. --objective NAME --help lists its options."
        add_objective(parser, given.get("objective") or "simcse")
    theirs = parser.add_argument_group("training, of transformers' TrainingArguments")
    names = argument_names([TrainingArguments])
    for group in parser._action_groups[:-1]:
        for action in list(group._group_actions):
            # HfArgumentParser spells each name in two ways.
            action.option_strings = [name for name in action.option_strings if "-" not in name.lstrip("-")]
            if action.const is False:  # `--no_x`, which HfArgumentParser describes as `--x`
                action.help = f"Switch {action.dest} off."
            choices = ", ".join(map(str, action.choices or ()))
            if len(choices) > _LONG:  # which would stand twice in one line that is wider than a terminal
                action.metavar, action.help = "NAME", f"{action.help} One of: {choices}."
            if action.const is False or re.search("default: |Defaults to ", action.help or ""):
                action.default = None
            action.default = SUPPRESS if action.default is None else action.default
            if action.dest in names:
                group._group_actions.remove(action)
                theirs._group_actions.append(action)
    parser.print_help()


def add_objective(parser: ArgumentParser, name: str) -> None:
    """Add the options of an objective, or of each part of a sum, to what a parser prints as its help."""
    for part in part_weights(name):
        import_objective(part)
        objective = objective_class(part)
        group = parser.add_argument_group(f"objective {part}, as --objective_options NAME=VALUE")
        for option, words in describe_options(objective).items():
            words = re.sub('[`"]', "", words)
            if objective.options[option] is not None:
                words += f" (default: {objective.options[option]})"
            group.add_argument(option, nargs="?", help=words.replace("%", "%%"))


def over(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Values:
    """Return arguments over earlier ones; texts that are named again take the place of those named in another way.

    Other evaluation steps bring their own saving steps, as in `decide_command`.
    """
    kept = dict(earlier)
    if "eval_steps" in later:
        kept.pop("save_steps", None)
    if later.keys() & TEXTS:
        for name in TEXTS:
            kept.pop(name, None)
    return kept | dict(later)


def check_files(files: Iterable[tuple[str, str | None]]) -> None:
    """Refuse files that are not there, before anything is deleted or loaded.

    Args:
        files (`Iterable[tuple[str, str]]`): Options with their file, the name of a data set on the hub, or `None`.

    Raises:
        ValueError: If a name ends like that of a text file, and there is no such file.
    """
    for name, path in files:
        if path is not None and SUFFIX.search(path) and not Path(path).exists():
            raise ValueError(f"{name} {path}: there is no such file in {Path.cwd()}")


def fill(classes: Sequence[type], values: dict) -> tuple[Any, ...]:
    """Make one object of each dataclass, with the values that it has fields for.

    Args:
        classes (`Sequence[type]`): Argument dataclasses.
        values (`Values`): Values by argument name.

    Returns:
        `tuple[Any, ...]`: The objects.

    Raises:
        ValueError: If a name is unknown, or values contradict each other.
    """
    types: Any = classes
    try:
        return HfArgumentParser(types).parse_dict(values)
    except ValueError as error:  # Raised here, it is reported in one line, like this package's own errors.
        raise ValueError(str(error)) from error


def _make_parser(classes: Sequence[type]) -> HfArgumentParser:
    """Make a parser with an option for each field of the argument classes, class by class."""
    types: Any = classes
    parser = HfArgumentParser(types, usage="%(prog)s [RECIPE] [--name value ...]", allow_abbrev=False)
    by_column = any(action.dest == "prompts" for action in parser._actions)
    for action in parser._actions:
        if action.dest == "max_seq_length" and by_column:
            action.type = _lengths
        if action.type is string_to_bool and action.nargs is None:  # `bool | None`: `--do_mlm` alone sets it
            action.nargs = "?"
            action.const = True
        action.help = DEFAULTS["words"].get(action.dest, action.help)
        if action.help:  # transformers 5.2 writes "20%" where argparse wants "20%%", and names defaults twice
            action.help = re.sub("(?<!%)%(?![%(])", "%%", action.help.replace(" (default)", ""))
    return parser


def read_yaml(path: str, classes: Sequence[type]) -> dict:
    """Read arguments from a YAML file.

    Args:
        path (`str`): The file.
        classes (`Sequence[type]`): Argument dataclasses whose names the file may use.

    Returns:
        `Values`: Values by argument name.

    Raises:
        ValueError: If the file cannot be read, is no YAML table, names an unknown argument, or gives one a value of
            another type.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = _Loader(text).get_single_data()
        written = yaml.BaseLoader(text).get_single_data()
    except OSError as error:
        raise ValueError(f"the recipe {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also for other encodings
        raise ValueError(f"{path} is not valid YAML in UTF-8: {error}") from None
    if isinstance(values, dict):
        actions, _ = _actions_and_types(tuple(classes))
        values = _with_texts(values, written, actions)
    return convert_values(path, values, classes)


def _with_texts(values: dict, written: Mapping[str, Any], actions: Mapping[str, Action]) -> dict:
    """Return the values of a YAML file, with those of options of text as they were written.

    YAML 1.1 takes `no` for false, `2024_11_26`, `007` and `12:30` for numbers, and `1e-5` for a text.
    """
    texts = dict(values)
    for name in written.keys() & values.keys():
        value = values[name]
        words = written[name]
        if name == "datasets" and isinstance(value, dict):
            texts[name] = {}
            for (dataset, own_words), own in zip(words.items(), value.values(), strict=False):
                texts[name][dataset] = _with_texts(own, own_words, actions) if isinstance(own, dict) else own
        elif isinstance(value, dict) and name != "prompts":
            texts[name] = {key: read_number(own) for key, own in value.items()}
        elif name in actions and actions[name].type not in _WORDS and name not in _NUMBERS and value is not None:
            texts[name] = words
    return texts


def read_number(value: object) -> object:
    """Return the number for which a text stands that YAML 1.1 does not take for one, such as 5e-3; else the value."""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    return value


def convert_values(source: str, values: Any, classes: Sequence[type]) -> dict:
    """Check arguments that were read from a file, and convert them as if they had been typed on the command line.

    Args:
        source (`str`): Name of the file, for messages.
        values (`Any`): Values by argument name.
        classes (`Sequence[type]`): Argument dataclasses whose names the file may use.

    Returns:
        `Values`: The converted values.

    Raises:
        ValueError: If `values` is no table, names an unknown argument, or gives one a value of another type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{source} must hold a table of arguments (name: value)")
    actions, types = _actions_and_types(tuple(classes))
    unknown = sorted(map(str, values.keys() - types.keys()))
    if unknown:
        raise ValueError(f"{source}: unknown argument(s) {', '.join(unknown)}{did_you_mean(unknown, types)}")
    converted = {}
    for name, value in values.items():
        converted[name] = _convert(source, name, value, actions[name], types[name])
    return converted


def _lengths(word: str) -> int | dict[str, int]:
    """Read one length for all columns, or `anchor=32,positive=256`."""
    if "=" not in word:
        return int(word)
    lengths = {}
    for part in word.split(","):
        column, length = part.split("=")
        lengths[column] = int(length)
    return lengths


#: What a value of a type is, in words.
_WORDS: dict[Any, str] = {
    int: "a whole number",
    _lengths: "a whole number",
    float: "a number",
    string_to_bool: "true or false",
}


@cache
def _actions_and_types(classes: tuple[type, ...]) -> tuple[dict[str, Action], dict[str, str]]:
    """Return the action of each argument, and its type, which HfArgumentParser changes in `Field.type`."""
    # --unpadded has a type, --no_unpadded after it has none.
    actions = {action.dest: action for action in reversed(_make_parser(classes)._actions)}
    types: dict[str, str] = {}
    for cls in classes:
        hints = get_type_hints(cls)
        types |= {field.name: str(hints[field.name]) for field in fields(cls) if field.init}
    return actions, types


def _convert(source: str, name: str, value: Any, action: Action, type_name: str) -> Any:
    """Convert a value of a YAML file as if it had been typed on the command line, and refuse one of another type."""
    takes_table = "dict" in type_name or action.type is _lengths
    if value is None or name in _STRUCTURED or (isinstance(value, dict) and takes_table):
        return value
    if isinstance(value, list) and (action.nargs in ("+", "*") or "list" in type_name):
        return [_convert(source, name, item, action, "") for item in value]
    if isinstance(value, Enum):  # such as transformers' IntervalStrategy
        value = value.value
    if isinstance(value, (dict, list)):
        kind = "table" if isinstance(value, dict) else "list"
        raise ValueError(f"{source}: {name} is a {kind}, not a single value")
    convert: Any = action.type or str
    if convert is str and not isinstance(value, (str, int, float)):  # an object of a Python program, such as a task
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        return convert(str(value))
    except (ValueError, TypeError, ArgumentTypeError):
        expected = _WORDS.get(convert, type_name)
        raise ValueError(f"{source}: {name} is {value!r}, but must be {expected}") from None
