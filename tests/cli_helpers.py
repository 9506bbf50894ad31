"""Helpers of the tests of the command line."""

import argparse

from simcse_hf.cli.common import add_general_options, add_model_options


def model_options(*words):
    """The options of a model as a command parses them, such as `model_options("--device", "cpu")`."""
    parser = argparse.ArgumentParser()
    add_model_options(parser, model=False)
    add_general_options(parser)
    return parser.parse_args(words)
