"""The command `simcse-hf train`: unsupervised, supervised and masked-LM training.

The training functions have their own parsers, over the argument classes of `simcse_hf.training`, so the words after
the method are passed on as they are. The same words work under `accelerate launch -m simcse_hf train ...`.
"""

import argparse
import importlib
import sys

from .common import command_parser
from .train_help import print_help

_METHODS = {
    "unsup": ("run", "train_unsup", "train with a sentence and another view of it, by default a dropout mask"),
    "sup": ("run", "train_sup", "train with an anchor, its positive and any number of hard negatives, or with labels"),
    "mlm": ("pretraining", "train_mlm", "pretrain an encoder for a domain or language by masked language modelling"),
}


def train_main(argv: list[str]) -> int:
    """Run `simcse-hf train`.

    Args:
        argv (`list[str]`): The words after `simcse-hf train`.

    Returns:
        `int`: The exit status.
    """
    listing = "\n".join(f"  {name:<6} {text}" for name, (_, _, text) in _METHODS.items())
    parser = command_parser(
        "train",
        "Train a model. The options may stand in a recipe: a YAML file, or the name of one of the\n"
        "package. Those on the command line take precedence.\n"
        "Without any option the run is offline, on the sample in the package.",
        usage="simcse-hf train METHOD [RECIPE] [options]",
        epilog=f"methods:\n{listing}\n\n`simcse-hf train METHOD --help` lists the options of a method.\n"
        "On several GPUs: accelerate launch -m simcse_hf train METHOD [RECIPE] [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", choices=_METHODS, metavar="METHOD", help="one of those below")
    if not argv:
        parser.print_help()
        return 0
    method = parser.parse_args(argv[:1]).method
    if {"-h", "--help"} & set(argv[1:]):
        print_help(method, _METHODS[method][2], argv[1])
        return 0
    module, function, _ = _METHODS[method]
    train = getattr(importlib.import_module(f"..training.{module}", __package__), function)
    words = sys.argv
    sys.argv = [f"simcse-hf train {method}", *argv[1:]]  # what `--help` and results.json call the program
    try:
        return train(argv[1:])
    finally:
        sys.argv = words
