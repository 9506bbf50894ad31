"""Options that commands share: the same choices as the package, the same words in every command."""

from argparse import ArgumentParser
from typing import get_args

import pytest
from cli_helpers import status

from simcse_hf import names
from simcse_hf.apps.export import INT8_EXPORTS
from simcse_hf.cli.main import COMMANDS
from simcse_hf.encoding.graphs import GRAPHS
from simcse_hf.evaluation.metrics import CORRELATIONS
from simcse_hf.evaluation.tasks import SENTEVAL
from simcse_hf.postprocessing.transform import TRANSFORMS


def test_tables_of_the_package_have_the_names_of_names_py():
    assert set(names.BACKENDS) == {"torch", *GRAPHS}
    assert set(get_args(names.Transform)) == set(TRANSFORMS) and set(get_args(names.Correlation)) == set(CORRELATIONS)
    assert set(get_args(names.Export)) == {"sentence-transformers", *GRAPHS, *INT8_EXPORTS}
    assert set(get_args(names.Int8Method)) == {method for graph in GRAPHS.values() for method in graph.methods}
    assert ", ".join(SENTEVAL) in " ".join(names.EvaluationOptions.__doc__.split())


SHARED = (
    "--pooler_type --max_length --dtype --device --no_postprocess --token_budget --overwrite --json --quiet --top_k "
    "--threshold --truncate_dim --prompt --prompt_name --column"
)


@pytest.fixture(scope="module")
def actions():
    """Every argument of every command, with the name of the command."""
    parsers = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ArgumentParser,
            "print_help",
            lambda parser, file=None: parsers.append(parser),
        )
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


def test_help_says_nothing_that_holds_in_python_only(actions):
    assert [action.help for _, action in actions if "in Python" in (action.help or "")] == []
