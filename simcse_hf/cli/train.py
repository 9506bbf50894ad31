"""The command `simcse-hf train`: unsupervised, supervised and masked-LM training.

The training functions have their own parsers, over the argument classes of `simcse_hf.training`, so the words after
the method are passed on as they are. The same words work under `accelerate launch -m simcse_hf train ...`.
"""

import argparse
import os
import sys

from ..ops.messages import show_messages
from .options import CommandParser

_METHODS = {
    "unsup": "train on sentences, each with another view of itself: by default another dropout mask",
    "sup": "train on anchors with positives and any number of hard negatives, or on labelled texts",
    "mlm": "pretrain an encoder for a domain or language by masked language modelling",
}


def train_main(argv: list[str]) -> int:
    """Run `simcse-hf train`.

    Args:
        argv (`list[str]`): The words after `simcse-hf train`.

    Returns:
        `int`: The exit status.
    """
    listing = "\n".join(f"  {name:<6} {text}" for name, text in _METHODS.items())
    parser = CommandParser(
        prog="simcse-hf train",
        usage="%(prog)s METHOD [RECIPE] [options]",
        description="Train a model. Options may stand in a recipe: a YAML file, or the name of one that the package\n"
        "has. Options on the command line take precedence.\n"
        "Without options, it trains offline on the sample of the package.",
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
        from .train_help import print_help

        print_help(method, _METHODS[method], argv[1])
        return 0
    from ..training.pretraining import pretrain
    from ..training.recipe import Recipe

    show_messages()
    words = sys.argv
    sys.argv = [f"simcse-hf train {method}", *argv[1:]]  # what `--help` and results.json call the program
    try:
        recipe = Recipe.read(method, argv[1:])
        if method == "mlm":
            shown = str(pretrain(recipe.completed().given))
        else:
            results = recipe.train()
            # The trainer has said the verdict of one run.
            shown = results.where() if results.seeds is None else str(results)
    finally:
        sys.argv = words
    if int(os.environ.get("RANK", "0")) == 0:
        print(shown)
        if recipe.is_sample and method != "mlm" and results.seeds is None:
            from ..training.sample_run import describe_sample_run

            print(describe_sample_run(results.folder))
    return 0
