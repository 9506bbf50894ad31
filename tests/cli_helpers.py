"""Helpers of the tests of the command line."""

import torch
from conftest import tiny_config

from simcse_hf import AutoModelForCL
from simcse_hf.cli.main import COMMANDS, main
from simcse_hf.cli.options import run_command


def command_main(name):
    """A function that runs a command with a list of words; its errors are raised."""

    def run(words):
        run_command(name, COMMANDS[name], words)
        return 0

    return run


encode_main = command_main("encode")
postprocess_main = command_main("postprocess")
export_main = command_main("export")
card_main = command_main("card")
push_main = command_main("push")


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
