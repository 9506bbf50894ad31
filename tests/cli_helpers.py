"""Helpers of the tests of the command line."""

import torch
from conftest import tiny_config

from simcse_hf import AutoModelForCL
from simcse_hf.cli.main import COMMANDS, main
from simcse_hf.cli.options import run_command


def encode_main(words):
    """Run `simcse-hf encode`; its errors are raised."""
    run_command("encode", COMMANDS["encode"], words)
    return 0


def postprocess_main(words):
    """Run `simcse-hf postprocess`; its errors are raised."""
    run_command("postprocess", COMMANDS["postprocess"], words)
    return 0


def export_main(words):
    """Run `simcse-hf export`; its errors are raised."""
    run_command("export", COMMANDS["export"], words)
    return 0


def card_main(words):
    """Run `simcse-hf card`; its errors are raised."""
    run_command("card", COMMANDS["card"], words)
    return 0


def push_main(words):
    """Run `simcse-hf push`; its errors are raised."""
    run_command("push", COMMANDS["push"], words)
    return 0


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
