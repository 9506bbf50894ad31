"""Options that commands share: the same choices as the package, the same words in every command."""

from argparse import ArgumentParser, Namespace
from typing import get_args

import pytest
from cli_helpers import status

from simcse_hf import names
from simcse_hf.cli import common
from simcse_hf.cli.main import COMMANDS
from simcse_hf.evaluation import compare, evaluate, scoring
from simcse_hf.evaluation.metrics import METRICS
from simcse_hf.evaluation.user_tasks import KINDS
from simcse_hf.inference.exported import GRAPHS
from simcse_hf.postprocessing.transform import METHODS
from simcse_hf.publishing.export import EXPORTS
from simcse_hf.publishing.export_int8 import INT8_EXPORTS


def test_tables_of_the_package_have_the_names_of_names_py():
    assert set(names.BACKENDS) == {"torch", *GRAPHS}
    assert set(get_args(names.Transform)) == set(METHODS) and set(get_args(names.Metric)) == set(METRICS)
    assert set(names.TASK_KINDS) == set(KINDS)
    assert set(get_args(names.Export)) == {*EXPORTS, *INT8_EXPORTS}
    for function in (evaluate, compare):
        assert ", ".join(scoring.ALL_TASKS) in " ".join(function.__doc__.split())


SHARED = (
    "--pooler_type --max_length --dtype --device --no_postprocess --token_budget --overwrite --json --quiet --top_k "
    "--threshold --truncate_dim --prompt --prompt_name --column"
)


@pytest.fixture(scope="module")
def actions():
    """Every argument of every command, with the name of the command."""
    parsers = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArgumentParser, "print_help", lambda parser, file=None: parsers.append(parser))
        for command in COMMANDS:
            assert status(command, "--help") == 0
    return [(parser.prog, action) for parser in parsers for action in parser._actions]


@pytest.mark.parametrize("option", SHARED.split())
def test_an_option_has_one_meaning_in_every_command(actions, option):
    declared = {}
    for command, action in actions:
        # `evaluate --threshold` takes the goal for which a threshold is chosen; the others take the threshold.
        is_goal = (command, option) == ("simcse-hf evaluate", "--threshold")
        takes_several = option == "--column" and action.nargs is not None
        if option in action.option_strings and not is_goal and not takes_several:
            choices = action.choices and tuple(action.choices)
            declared[command] = (action.help, choices)
    assert declared and len(set(declared.values())) == 1, declared


# --- folders that are written ----------------------------------------------------------------------------------------


def _replace(folder, sources=()):
    with common.output_folder(Namespace(output=str(folder), overwrite=True), "done", sources) as new:
        new.mkdir()


@pytest.mark.parametrize(
    "files, sources, message",
    [
        ("thesis.tex", [], "holds something else"),
        ("done", ["model"], "holds the model that is read"),
        ("checkpoint-500 done", [], r"holds more than an earlier output \(checkpoint-500\)"),
        ("trainer_state.json done", [], r"holds more than an earlier output \(trainer_state.json\)"),
        ("results.json done", [], r"holds more than an earlier output \(results.json\)"),
        (".git done", [], r"holds more than an earlier output \(.git\)"),
    ],
)
def test_a_folder_of_something_else_is_never_replaced(files, sources, message, tmp_path):
    folder = tmp_path / "output"
    (folder / "model").mkdir(parents=True)
    for name in files.split():
        (folder / name).write_text("precious")
    with pytest.raises(ValueError, match=message):
        _replace(folder, [str(folder / source) for source in sources])
    assert all((folder / name).read_text() == "precious" for name in files.split())


def test_the_current_folder_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"--output \. is the current folder"):
        _replace(".")
    assert not list(tmp_path.iterdir()), "the block must not run"
