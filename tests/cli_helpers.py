"""Helpers of the tests of the command line."""

from functools import partial

import torch
from conftest import tiny_config

from simcse_hf import AutoModelForCL
from simcse_hf.cli.main import COMMANDS, main
from simcse_hf.cli.options import run_command


def run_named(name, words):
    """Run a command with a list of words; its errors are raised."""
    run_command(name, COMMANDS[name], words)
    return 0


# Partial functions, because those that are launched in several processes are pickled.
encode_main = partial(run_named, "encode")
postprocess_main = partial(run_named, "postprocess")
export_main = partial(run_named, "export")
card_main = partial(run_named, "card")
push_main = partial(run_named, "push")


def save_model(folder, tokenizer):
    """Save a tiny model with the pooler avg, the same in every run, and return the folder."""
    torch.manual_seed(1)
    AutoModelForCL.from_config(tiny_config(), pooler_type="avg").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def status(*words):
    """The exit status of a command, also if its parser ends it."""
    try:
        return main(list(words))
    except SystemExit as ended:
        return ended.code
