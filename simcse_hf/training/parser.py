"""Words, a YAML file or a table become values of argument dataclasses: one way for all three."""

import os
import re
from argparse import SUPPRESS, Action, ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool
from yaml.constructor import ConstructorError

from ..data.table import SUFFIX
from ..models.settings import Values
from ..runtime.errors import SettingError, did_you_mean, suggest_choice
from ..runtime.files import StrPath

#: The defaults of the commands by the name of the method, and words for arguments of transformers.
DEFAULTS: dict[str, Values] = yaml.safe_load(Path(__file__).with_name("defaults.yaml").read_text("utf-8"))
#: Folder of the recipes that a name stands for.
RECIPES = Path(__file__).parent / "recipes"

#: The arguments that name the training texts.
TEXTS = {"train_file", "dataset_name"}
#: Arguments that are words on a command line, and may be a table in a YAML file or a program.
_TABLES = ("objective_options", "prompts", "max_seq_length")
#: A number that YAML 1.1 takes for a text, such as 5e-3.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)e[-+]?\d+$", re.IGNORECASE)


class _Written(str):
    """A value of a YAML file as it was written, such as `no` or `007`; `value` is what YAML takes it for."""

    value: Any


class _Loader(yaml.SafeLoader):
    """Read YAML as it was written, and dates as texts, because no option takes a date."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return tables and lists of what was written; `None` stays `None`."""
        value = super().construct_object(node, deep)
        if value is None or not isinstance(node, yaml.ScalarNode):
            return value
        written = _Written(node.value)
        written.value = value
        return written

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """Return a table, and refuse a name that occurs twice, of which PyYAML would drop the first value."""
        names = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and str(key.value) in names:
                raise ConstructorError(None, None, f"{key.value} occurs twice in one table", key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: Any) -> Any:
    """Return the decimal number that a person reads; YAML 1.1 also takes 010 for 8 and 1:30 for 90."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(node.value)
    return node.value


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("+-.0123456789"))


def lengths(word: str) -> int | dict[str, int]:
    """Read one length for all columns, or `anchor=32,positive=256`."""
    if "=" not in word:
        return int(word)
    pairs = [part.split("=") for part in word.split(",")]
    return {column: int(length) for column, length in pairs}


class WordParser(HfArgumentParser):
    """The options of argument dataclasses. It reads only what is given, and raises its errors.

    Args:
        classes (`Sequence[type]`): Argument dataclasses.
    """

    def __init__(self, classes: Sequence[type]):
        types: Any = classes
        super().__init__(types, allow_abbrev=False, add_help=False)
        # --unpadded has a type, --no_unpadded after it has none.
        self.by_name = {action.dest: action for action in reversed(self._actions)}
        self.hints: dict[str, str] = {}
        for cls in classes:
            self.hints |= {name: str(hint) for name, hint in get_type_hints(cls).items()}
        for action in self._actions:
            action.default = SUPPRESS
            action.required = False
            if action.dest == "max_seq_length" and "prompts" in self.by_name:
                action.type = lengths
            if action.type is string_to_bool and action.nargs is None:  # `bool | None`: `--do_mlm` alone sets it
                action.nargs = "?"
                action.const = True

    def error(self, message: str) -> NoReturn:
        """Raise an error in place of ending the program."""
        raise SettingError(message + suggest_choice(message))

    def read(self, *sources: Any) -> Values:
        """Read arguments from several sources, of which the later ones take precedence.

        Args:
            sources (`str`, `Mapping` or `Sequence[str]`): Each the name of a recipe (see [`read_recipe`]), a table of
                arguments, or the words of a command line, of which the first may be such a name.

        Returns:
            `Values`: Values by argument name, without any defaults.

        Raises:
            SettingError: If there is no such file or recipe, or an argument is unknown or of another type.
        """
        # 1. A table for each source, and for the recipe that words begin with.
        tables = []
        for source in sources:
            if isinstance(source, Mapping):
                tables.append(self.read_table("the arguments", source))
                continue
            words = [str(source)] if isinstance(source, (str, os.PathLike)) else list(source)
            if words and not words[0].startswith("-"):
                tables.append(self.read_recipe(words.pop(0)))
            typed, unknown = self.parse_known_args(words)
            if unknown:
                wrong = [word.partition("=")[0] for word in unknown]
                hint = did_you_mean(wrong, self._option_string_actions)
                raise SettingError(f"unknown argument(s): {' '.join(unknown)}{hint}")
            tables.append(vars(typed))
            if "datasets" in typed:
                tables[-1] = self.read_table("the arguments", tables[-1] | {"datasets": _table(typed.datasets)})

        # 2. A later table replaces more than the names that it has: texts replace those named in another way, epochs
        # replace steps, and evaluation steps replace saving steps, as in `decide_command`.
        given: Values = {}
        for table in tables:
            replaced = TEXTS if table.keys() & TEXTS else set()
            if "eval_steps" in table:
                replaced = replaced | {"save_steps"}
            if "num_train_epochs" in table:
                replaced = replaced | {"max_steps"}
            given = {name: value for name, value in given.items() if name not in replaced} | table
        return given

    def read_recipe(self, name: str) -> Values:
        """Read the arguments of a recipe.

        Args:
            name (`str`): A YAML file of argument names and values, or a recipe of this package, with or without
                `.yaml`. A file of the user goes before a recipe of the same name.

        Returns:
            `Values`: Values by argument name, without any defaults.

        Raises:
            SettingError: If there is no such file or recipe, or it is no table of known arguments.
        """
        recipes = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
        path = Path(name)
        if not path.is_file():
            path = recipes.get(name.removesuffix(".yaml"), path)
        if not path.is_file() and path.suffix not in (".yaml", ".yml"):
            raise SettingError(
                f"{name!r} is neither a YAML file nor a recipe of the package{did_you_mean([name], recipes)}; the "
                f"recipes are {', '.join(recipes)}"
            )
        return self.read_table(str(path), read_yaml(path))

    def read_table(self, source: str, values: Any) -> Values:
        """Read a table of arguments, of a file or of a program: each as if it had been typed on the command line.

        Args:
            source (`str`): Name of the file, for messages.
            values (`Any`): Values by argument name. Tables, and objects that no command line has, stay as they are.

        Returns:
            `Values`: The values.

        Raises:
            SettingError: If `values` is no table, names an unknown argument, or gives one a value of another type.
        """
        if not isinstance(values, Mapping):
            raise SettingError(f"{source} must hold a table of arguments (name: value)")
        unknown = sorted(map(str, values.keys() - self.by_name.keys()))
        if unknown:
            hint = did_you_mean(unknown, self.by_name)
            raise SettingError(f"{source}: unknown argument(s) {', '.join(unknown)}{hint}")
        try:
            return {str(name): self._read_value(name, value) for name, value in values.items()}
        except (ValueError, ArgumentError) as error:
            raise SettingError(f"{source}: {error}{suggest_choice(str(error))}") from None

    def _read_value(self, name: str, value: Any) -> Any:
        """Read the value of an argument in a table, each word of it as if it had been typed."""
        action = self.by_name[name]
        is_path = isinstance(value, (str, os.PathLike))
        if value is None or (name in ("train_file", "dev_file") and not is_path):  # rows of a Python program
            return value
        if name == "datasets" and isinstance(value, Mapping):
            # The table of a data set may have names of arguments.
            tables = {}
            for dataset, own in value.items():
                tables[str(dataset)] = plain_value(own)
                if isinstance(own, Mapping):
                    known = {each: self._read_value(each, own[each]) for each in own.keys() & self.by_name.keys()}
                    tables[str(dataset)] |= known
            return tables
        if isinstance(value, Mapping):
            if name == "prompts":
                return {str(column): str(text) for column, text in value.items()}
            if action.type is lengths:
                table: dict[str, int] = {}
                for column, length in value.items():
                    table |= self._get_value(action, f"{column}={length}")
                return table
            if name not in _TABLES and "dict" not in self.hints[name]:
                raise SettingError(f"{name} is a table, not a single value")
            return plain_value(value)
        takes_several = action.nargs in ("+", "*")
        if isinstance(value, (list, tuple)):
            if not takes_several and "list" not in self.hints[name]:
                raise SettingError(f"{name} is a list, not a single value")
            return [self._read_word(action, each) for each in value]
        word = self._read_word(action, value)
        return [word] if takes_several else word

    def _read_word(self, action: Action, value: Any) -> Any:
        """Read one value, and leave an object of a Python program, such as a task, as it is."""
        if isinstance(value, _Written) and action.type is string_to_bool:  # such as `on` for true
            value = value.value
        if isinstance(value, Enum):  # such as transformers' IntervalStrategy
            value = value.value
        if not isinstance(value, (str, int, float, os.PathLike)):
            return value
        word = self._get_value(action, str(value))
        self._check_value(action, word)
        return word

    def fill(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Make one object of each dataclass, with the values that it has fields for.

        Args:
            values (`Mapping[str, Any]`): Values by argument name.

        Returns:
            `tuple[Any, ...]`: The objects.

        Raises:
            SettingError: If values contradict each other.
        """
        try:
            return self.parse_dict(dict(values), allow_extra_keys=True)
        except (TypeError, ValueError) as error:  # Raised here, it is reported in one line, like our own errors.
            raise SettingError(str(error)) from error


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


def read_yaml(path: StrPath) -> Any:
    """Read a YAML file as it was written; see [`plain_value`] for what YAML takes its values for.

    Args:
        path (`str` or `os.PathLike`): The file.

    Returns:
        The content: tables and lists of words.

    Raises:
        SettingError: If it cannot be read, or is not YAML.
    """
    try:
        return _Loader(Path(path).read_text(encoding="utf-8")).get_single_data()
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also for other encodings
        raise SettingError(f"{path} is not valid YAML in UTF-8: {error}") from None


def check_files(files: Iterable[tuple[str, StrPath]]) -> None:
    """Refuse files that are not there, before anything is deleted or loaded.

    Args:
        files (`Iterable[tuple[str, StrPath]]`): Options with their file, or the name of a data set on the hub.

    Raises:
        SettingError: If a name ends like that of a text file, and there is no such file.
    """
    for name, path in files:
        if SUFFIX.search(str(path)) and not Path(path).exists():
            raise SettingError(f"{name} {path}: there is no such file in {Path.cwd()}")


def read_value(word: str) -> Any:
    """Return what a word of a command line would be as a value in YAML."""
    return plain_value(_Loader(word).get_single_data())


def _table(word: str) -> Any:
    """Read a table from a command line, as it would be in a YAML file; JSON is YAML."""
    try:
        table = _Loader(word).get_single_data()
    except yaml.YAMLError:
        table = None
    if not isinstance(table, Mapping):
        raise SettingError(
            "--datasets takes a table of data sets in JSON, such as "
            f'\'{{"a": {{"train_file": "a.csv"}}}}\', got {word!r}: write it so, or in a YAML file'
        )
    return table


def plain_value(value: Any) -> Any:
    """Return a table or list of a YAML file with what YAML takes its values for."""
    if isinstance(value, _Written):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): plain_value(own) for name, own in value.items()}
    if isinstance(value, list):
        return [plain_value(each) for each in value]
    return value
