r"""From a function to a command: its parameters are the options, and its docstring is the help.

| parameter | option |
|---|---|
| `x: str` | `--x X`, which must be given |
| `x: int = 5` | `--x X` |
| `x: bool = False` and `x: bool = True` | `--x` and `--no_x` |
| `x: PoolerType`, or another type of `simcse_hf.names` | `--x {cls,avg}` |
| `x: Sequence[str]` | `--x A B`, or `--x A --x B` |
| `x: Mapping[str, str]` | `--x KEY=VALUE`, repeatable |
| `x: float \| Literal["saved"]` | `--x X`: a number or the word |
| `**options: Unpack[T]`, with a `TypedDict` of `simcse_hf.names` | the keys of `T` |

Types that are not listed, such as the class of a model, are read as text. `show_progress_bar` is no option: it is off
with `--quiet`. Help is the entry in `Args` and the default, unless the entry says what the default is.
"""

import json
import os
import re
import shutil
import sys
from argparse import SUPPRESS, Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from textwrap import fill
from typing import Any, NoReturn, TextIO, get_args

from .. import names
from ..runtime.errors import did_you_mean, suggest_choice
from ..runtime.messages import check_together, show_messages
from .signature import REQUIRED, Parameter, read_function

#: Other names of options, in every command.
_FLAGS = {"pooler_type": ("--pooler_type", "--pooler"), "filters": ("--filter",), "to": ("--to", "--format")}


@dataclass(frozen=True)
class Command:
    """A function as a command.

    Args:
        function (`str`): Its module in this package and its name, such as `"apps.build_nli:build_nli"`.
        positional (`tuple[str, ...]`, *optional*): Parameters that are given without the name of an option.
        flags (`Mapping[str, tuple[str, ...]]`, *optional*): Parameters whose options have other names in this command,
            such as `{"columns": ("--column", "--columns")}`.
        action (`str`, *optional*): A word that must follow the command, such as `"fit"`.
        verbose (`str`, *optional*): Help of `--verbose`, for results that have more to show.
        together (`bool`, *optional*, defaults to `False`): Whether several processes share the work.
        says_steps (`bool`, *optional*, defaults to `False`): Whether to show what the package logs on the way.
        lines (`str`, *optional*): The parameter whose texts are the lines of standard input if none is given.
        then (`str`, *optional*): A function that is called with the printed result, such as
            `"publishing.card:refresh_card"`.
        read (`str`, *optional*): A function that reads the words, in place of a parser of the function's parameters.
    """

    function: str
    positional: tuple[str, ...] = ()
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    action: str | None = None
    verbose: str | None = None
    together: bool = False
    says_steps: bool = False
    lines: str | None = None
    then: str | None = None
    read: str | None = None


class CommandParser(ArgumentParser):
    """A parser whose errors suggest the options and commands that mistyped words are near to."""

    def error(self, message: str) -> NoReturn:
        """End with a message, and with suggestions for the options and choices in it that do not exist."""
        known = list(self._option_string_actions)
        said = re.findall(r"--\w+", message.partition("invalid choice")[0])
        hint = did_you_mean([word for word in said if word not in known], known)
        super().error(message + (hint or suggest_choice(message)))


def paragraph(text: str, first: str = "") -> str:
    """Break text into lines of the width of the terminal, beside what stands before the first line."""
    width = shutil.get_terminal_size().columns
    return fill(text, width, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False)


def choice_parser(
    program: str, usage: str, choices: Mapping[str, str], description: str, epilog: str
) -> CommandParser:
    """Make a parser of one word, whose help lists what each choice is.

    Args:
        program (`str`): The words before it.
        usage (`str`): What follows them.
        choices (`Mapping[str, str]`): The choices, and what each one is.
        description (`str`): What the program does.
        epilog (`str`): What stands below the list.

    Returns:
        `CommandParser`: The parser.
    """
    metavar = usage.split()[0]
    width = max(map(len, choices))
    listing = "\n".join(paragraph(text, f"  {name:<{width}}  ") for name, text in choices.items())
    parser = CommandParser(
        prog=program,
        usage=f"%(prog)s {usage}",
        description=paragraph(description),
        epilog=f"{metavar.lower()}s:\n{listing}\n\n`{program} {metavar} --help` lists its options.\n{epilog}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(metavar.lower(), choices=choices, metavar=metavar, help="One of those below")
    return parser


def run_command(name: str, command: Command, words: Sequence[str]) -> int:
    """Parse the words of a command line, call the function, and print its result.

    Args:
        name (`str`): The command, such as `"build-nli"`.
        command (`Command`): Its function.
        words (`Sequence[str]`): The words after the command.

    Returns:
        `int`: The exit status, which the result knows.
    """
    if not command.together:
        check_together(1, alone=name)
    if command.read is None:
        given = vars(make_parser(name, command).parse_args(words))
    else:
        given = resolve_name(f"simcse_hf.{command.read}")(words)
    as_json, quiet, verbose = given.pop("json"), given.pop("quiet"), given.pop("verbose")
    given.pop("action", None)
    if command.says_steps:
        show_messages(quiet)
    if "show_progress_bar" in given:
        given["show_progress_bar"] = not quiet
    if command.lines is not None and command.lines not in given:
        given[command.lines] = typed_lines(sys.stdin)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        result = resolve_name(f"simcse_hf.{command.function}")(**given)
    if command.together:
        from accelerate import PartialState

        if not PartialState().is_main_process:
            return 0
    status = 0
    for each in result if isinstance(result, (Iterator, list)) else [result]:
        text = each.details() if verbose else str(each)
        if as_json:
            text = json.dumps(each.to_dict(), ensure_ascii=False, default=os.fspath)
        if as_json or not (quiet and str(given.get("output")).endswith(".json")):
            print(text, flush=True)
        if command.then is not None:
            resolve_name(f"simcse_hf.{command.then}")(each)
        each.wait()
        status = max(status, each.exit_status)
    return status


def typed_lines(stream: TextIO) -> Iterator[str]:
    """Yield the lines that are not blank; a person sees on standard error what to type."""
    from ..data.table import checked_lines  # imports Arrow

    if stream.isatty():
        print("Type a text and press Enter; Ctrl-D ends.", file=sys.stderr)
    for _, line in checked_lines(stream, "standard input"):
        if line.strip():
            yield line.removesuffix("\n").removesuffix("\r")


def make_parser(name: str, command: Command) -> ArgumentParser:
    """Make the parser of a command.

    Args:
        name (`str`): The command.
        command (`Command`): Its function.

    Returns:
        `ArgumentParser`: The parser. Its result has the options that were given, those of the group `general`, and
            `show_progress_bar` if the function takes it.
    """
    description, parameters = read_function(command.function)
    parser = CommandParser(prog=f"simcse-hf {name}", description=description, argument_default=SUPPRESS)
    if command.action is not None:
        parser.add_argument("action", choices=(command.action,), help="The only action")
    groups: dict[str, Any] = {"options": parser}
    for parameter in parameters:
        if parameter.name == "show_progress_bar":
            parser.set_defaults(show_progress_bar=True)
            continue
        if parameter.name == command.lines:
            words = f"{parameter.words.removesuffix('.')}; default: the lines of standard input"
            parameter = replace(parameter, default=(), words=words)
        if parameter.group not in groups:
            groups[parameter.group] = parser.add_argument_group(parameter.group)
        flags, settings = option_of(parameter, command)
        groups[parameter.group].add_argument(*flags, **settings)
    add_general(parser, command.verbose)
    return parser


def add_general(parser: ArgumentParser, verbose: str | None = None) -> None:
    """Add the options that every command has, and `--verbose` with its help where there is more to show."""
    parser.set_defaults(json=False, quiet=False, verbose=False)
    general = parser.add_argument_group("general")
    general.add_argument("--json", action="store_true", help="Print the result as JSON on standard output")
    words = "Show warnings and errors only, and the result, unless --output writes it as JSON"
    general.add_argument("--quiet", action="store_true", help=words)
    if verbose is not None:
        general.add_argument("--verbose", action="store_true", help=verbose)


def option_of(parameter: Parameter, command: Command) -> tuple[Sequence[str], dict[str, Any]]:
    """Return the arguments of argparse's `add_argument` for a parameter.

    Args:
        parameter (`Parameter`): The parameter.
        command (`Command`): Its command.

    Returns:
        `tuple[Sequence[str], dict[str, Any]]`: The names of the option, and the keyword arguments.
    """
    name = parameter.name
    flags = (_FLAGS | {**command.flags}).get(name, (f"--{name}",))
    kinds = re.findall(r"\w+", parameter.kind)
    choices = [choice for kind in kinds for choice in get_args(getattr(names, kind, None))]
    is_list = "Sequence" in kinds or "Iterable" in kinds
    settings: dict[str, Any] = {}
    if parameter.default is True:
        flags = (f"--no_{name}",)
        settings["action"] = "store_false"
    elif "bool" in kinds:
        settings["action"] = "store_true"
    elif "Mapping" in kinds:
        settings = {"action": _AddPair, "metavar": "KEY=VALUE"}
    elif "saved" in kinds:
        settings["type"] = number_or_saved
    elif "int" in kinds:
        settings["type"] = int
    elif "float" in kinds:
        settings["type"] = float
    elif choices:
        settings["choices"] = choices
    if is_list:
        settings |= {"action": "extend", "nargs": "+"}
    is_long = len(choices) > 5 or is_list
    if choices and is_long:
        settings["metavar"] = "NAME"
    settings["help"] = help_of(parameter, choices if is_long else ())
    is_required = parameter.default is REQUIRED
    if name in command.positional:
        if not is_required:
            settings["nargs"] = "*" if is_list else "?"
        return (name,), settings
    return flags, settings | {"dest": name, "required": is_required}


def help_of(parameter: Parameter, choices: Sequence[str] = ()) -> str:
    """Return the help of an option: the words of `Args`, choices, and the default."""
    words = parameter.words.partition("; in Python")[0].removesuffix(".")
    words = re.sub(r"`([a-z_]+)`", r"--\1", words)  # another parameter
    words, _, default = words.partition(". The default is ")
    if choices:
        words += f": {', '.join(choices)}"
    value = parameter.default
    if value is True:
        words = f"Do not {words[:1].lower()}{words[1:]}"
    elif isinstance(value, tuple):
        default = default or " ".join(map(str, value))
    elif value is not False and value not in (REQUIRED, None):
        default = default or value
    if default:
        words += f"; default: {default}"
    return words.replace("%", "%%")


def number_or_saved(word: str) -> float | str:
    """Read a number, or the word "saved"."""
    return word if word == "saved" else float(word)


class _AddPair(Action):
    """Collects words of the form KEY=VALUE in a dictionary."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        """Add a pair."""
        key, equals, value = values.partition("=")
        pairs = getattr(namespace, self.dest, {})
        if not (key and equals):
            parser.error(f"{option_string} must be KEY=VALUE, got {values!r}")
        if key in pairs:
            parser.error(f"{option_string} names {key} twice: give it one value")
        setattr(namespace, self.dest, pairs | {key: value})
