"""The command `simcse-hf train`: unsupervised, supervised and masked-LM training.

The training functions have their own parsers, over the argument classes of `simcse_hf.training`, so the words after
the method are passed on as they are. The same words work under `accelerate launch -m simcse_hf train ...`.
"""

import argparse
import os
import sys

from ..ops.messages import show_messages
from .common import command_parser
from .train_help import print_help

_METHODS = {
    "unsup": "train with a sentence and another view of it, by default a dropout mask",
    "sup": "train with an anchor, its positive and any number of hard negatives, or with labels",
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
            _show_neighbours(results.folder)
    return 0


#: A sentence of the sample's test set, which is searched before and after training.
_QUERY = "The exhausted percussionist lost the lute at the auditorium."


def _show_neighbours(folder: str) -> None:
    """Show the sentences nearest to one of the sample before and after training, and the next commands."""
    from ..data.sample import sample_files
    from ..data.scored_pairs import read_scored_pairs
    from ..inference.simcse import SimCSE
    from ..names import POOLER_TYPES
    from ..search import SentenceIndex

    corpus, encoder = sample_files()
    trained = SimCSE(folder, device="cpu")
    if trained.pooler_type not in POOLER_TYPES:  # the start has no templates and no filters
        return
    # The sample's encoder has no head of its own.
    pooler = "cls_before_pooler" if trained.pooler_type == "cls" else trained.pooler_type
    start = SimCSE(encoder, pooler_type=pooler, device="cpu")
    texts = set(read_scored_pairs(corpus.test).texts) - {_QUERY}
    for when, model in (("before", start), ("after", trained)):
        print(f"\nNearest to {_QUERY!r} {when} training, of {len(texts):,} sentences:")
        for match in SentenceIndex.build(model, sorted(texts)).search(_QUERY, top_k=3):
            print(f"  {match.score:.4f}  {match.sentence}")
    print(
        "\nNext, search your own sentences, or train on them:\n"
        f"  simcse-hf index --model {folder} --input sentences.txt --output my-index\n"
        "  simcse-hf search --index my-index\n"
        "  simcse-hf train unsup --model bert-base-uncased --train_file sentences.txt"
    )
