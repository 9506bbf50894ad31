"""Every command is a function: its options are the parameters, with the same defaults and the words of `Args`."""

import importlib
import inspect
import re
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

import simcse_hf
from simcse_hf.cli import signature
from simcse_hf.cli.main import COMMANDS
from simcse_hf.cli.options import Command, make_parser, run_command
from simcse_hf.cli.signature import REQUIRED, read_function
from simcse_hf.names import Transform
from simcse_hf.runtime.outputs import Result

FUNCTIONS = {name: command for name, command in COMMANDS.items() if command.read is None}


def function_of(command):
    module, _, name = command.function.partition(":")
    return getattr(importlib.import_module(f"simcse_hf.{module}"), name)


def test_every_command_is_a_public_function():
    assert set(COMMANDS) - set(FUNCTIONS) == {"train"}
    for command in COMMANDS.values():
        function = function_of(command)
        assert getattr(simcse_hf, function.__name__) is function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_the_parameters_of_the_function(name):
    command = FUNCTIONS[name]
    signature = inspect.signature(function_of(command)).parameters
    _, parameters = read_function(command.function)
    own = {each.name: each for each in parameters if each.name in signature}
    assert list(own) == [each for each in signature if signature[each].kind is not inspect.Parameter.VAR_KEYWORD]
    for each in own.values():
        default = signature[each.name].default
        assert each.default == (REQUIRED if default is inspect.Parameter.empty else default)
    assert all(each.words for each in parameters if each.name != "show_progress_bar")
    parser = make_parser(name, command)
    destinations = {action.dest for action in parser._actions if action.default is SUPPRESS} - {"help", "action"}
    assert destinations == {each.name for each in parameters} - {"show_progress_bar"}


# --- types and help, on a function of this file ----------------------------------------------------------------------

CALLS = []


def example(
    model: object,
    words: Sequence[str] = (),
    *,
    count: int = 3,
    kind: Transform = "flow",
    threshold: float | Literal["saved"] | None = None,
    filters: Mapping[str, str] | None = None,
    normalize: bool = True,
    overwrite: bool = False,
    show_progress_bar: bool = True,
) -> Result:
    """Show what each type becomes.

    More about it.

    Args:
        model (`str` or `SimCSE`): Folder of a model.
        words (`Sequence[str]`, *optional*): Words to read.
        count (`int`, *optional*, defaults to `3`): How many, of 100%. 0 is none.
        kind (`str`, *optional*, defaults to `"flow"`): A kind.
        threshold (`float` or `str`, *optional*): The lowest score. The default is none.
        filters (`Mapping`, *optional*): Conditions, see `count`.
        normalize (`bool`, *optional*, defaults to `True`): Scale embeddings
            to unit length.
        overwrite (`bool`, *optional*, defaults to `False`): Replace it.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a bar.

    Returns:
        `Result`: Nothing.
    """
    CALLS.append(locals())
    return Result()


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(signature, "PACKAGE", Path(__file__).parent)
    monkeypatch.setitem(sys.modules, "simcse_hf.test_options", sys.modules[__name__])
    return Command("test_options:example", positional=("model", "words"))


def call(command, words):
    """The arguments that the function was called with."""
    run_command("example", command, words.split())
    return CALLS.pop()


def test_what_is_not_given_keeps_the_default_of_the_function(command):
    given = call(command, "m --quiet")
    defaults = {name: each.default for name, each in inspect.signature(example).parameters.items()}
    assert given == defaults | {"model": "m", "show_progress_bar": False}


def test_words_become_values_of_the_types(command):
    given = call(
        command,
        "m one two --count 5 --kind whitening --threshold 0.5 --filter year=2001 --filter by=a=b --no_normalize "
        "--overwrite",
    )
    assert given == {
        "model": "m",
        "words": ["one", "two"],
        "count": 5,
        "kind": "whitening",
        "threshold": 0.5,
        "filters": {"year": "2001", "by": "a=b"},
        "normalize": False,
        "overwrite": True,
        "show_progress_bar": True,
    }
    assert call(command, "m --threshold saved")["threshold"] == "saved"


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "the following arguments are required: model"),
        ("m --cuont 5", "did you mean --count"),
        ("m --threshold low", "--threshold: invalid"),
        ("m --filter year", "must be KEY=VALUE, got 'year'"),
        ("m --filter a=1 --filter a=2", "--filter names a twice"),
    ],
)
def test_words_that_do_not_fit_are_refused(command, words, message, capsys):
    with pytest.raises(SystemExit):
        call(command, words)
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_help_is_the_docstring(command, capsys):
    with pytest.raises(SystemExit):
        call(command, "--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Show what each type becomes. More about it. positional arguments" in shown
    for words in (
        "words Words to read",
        "--count COUNT How many, of 100%. 0 is none; default: 3",
        "--kind {whitening,flow} A kind; default: flow",
        "--threshold THRESHOLD The lowest score; default: none",
        "--filter KEY=VALUE Conditions, see --count",
        "--no_normalize Do not scale embeddings to unit length",
    ):
        assert words in shown, words
    assert "Returns" not in shown and "progress_bar" not in shown
