"""The command `simcse-hf train`: unsupervised, supervised and masked-LM training.

The training functions have their own parsers, over the argument classes of `simcse_hf.training`, so the words after
the method are passed on as they are. The same words work under `accelerate launch -m simcse_hf train ...`.
"""

import argparse
import json
import os
import sys
from contextlib import nullcontext, redirect_stdout

from ..runtime.messages import show_messages
from .options import CommandParser, listing, paragraph

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
    parser = CommandParser(
        prog="simcse-hf train",
        usage="%(prog)s METHOD [RECIPE] [options]",
        description=paragraph(
            "Train a model. Options may stand in a recipe: a YAML file, or the name of one that the package has. "
            "Options on the command line take precedence. Without options, it trains offline on the package's sample."
        ),
        epilog=f"methods:\n{listing(_METHODS)}\n\n`simcse-hf train METHOD --help` lists the options of a method.\n"
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

        print_help(method, _METHODS[method], argv[1:])
        return 0
    from ..apps.pretraining import pretrain
    from ..training.recipe import Recipe
    from ..training.run_results import Results
    from ..training.watch import RunLog

    as_json, quiet = "--json" in argv, "--quiet" in argv
    argv = [word for word in argv if word not in ("--json", "--quiet")]
    show_messages(quiet)
    RunLog.is_shown = not quiet
    words = sys.argv
    sys.argv = [f"simcse-hf train {method}", *argv[1:]]  # what `--help` and results.json call the program
    try:
        # The trainer says the verdict of one run.
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            recipe = Recipe.read(method, argv[1:])
            results = pretrain(recipe.completed().given) if method == "mlm" else recipe.train()
    finally:
        sys.argv = words
    if int(os.environ.get("RANK", "0")) > 0:
        return 0
    if as_json:
        print(json.dumps(results.to_dict(), ensure_ascii=False))
    elif isinstance(results, Results) and results.seeds is None:
        print(results.where())
        if recipe.is_sample:
            from ..training.sample_run import describe_sample_run

            print(describe_sample_run(results.folder))
    else:
        print(results)
    return 0
