"""The command `simcse-hf train`: unsupervised, supervised and masked-LM training.

The training functions have their own parsers, over the argument classes of `simcse_hf.training`, so the words after
the method are passed on as they are. The same words work under `accelerate launch -m simcse_hf train ...`.
"""

import argparse
import importlib
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

from .common import command_parser

_METHODS = {
    "unsup": ("run", "train_unsup", "train with a sentence and another view of it, by default a dropout mask"),
    "sup": ("run", "train_sup", "train with an anchor, its positive and any number of hard negatives, or with labels"),
    "mlm": ("pretraining", "train_mlm", "pretrain an encoder for a domain or language by masked language modelling"),
}
#: The options that people use most, with their default, or those of unsup, sup and mlm. tests/cli/test_train.py
#: compares them with the defaults of training: importing these takes seconds.
_OPTIONS: dict[str, tuple[str, Any]] = {
    "model_name_or_path": ("encoder to start from: a folder, or a name on the hub; also --model", None),
    "train_file": ("file of texts: txt, csv, tsv, json, jsonl or parquet, also .gz", None),
    "dev_file": ("file of scored pairs, or a data set on the hub, such as mteb/stsbenchmark-sts:validation", None),
    "output_dir": ("folder of the model and its results", ("outputs/unsup", "outputs/sup", "outputs/pretrained")),
    "overwrite_output_dir": ("delete the earlier run in --output_dir", False),
    "resume_from_checkpoint": ("continue the run in --output_dir: true, or the folder of a checkpoint", None),
    "objective": ("training objective; its paper's settings replace the defaults below", "simcse"),
    "pooler_type": ("how token states become an embedding: cls, avg, ...; default: the checkpoint's, or cls", None),
    "temp": ("temperature of the contrastive softmax; default: 0.05, or 1 for dot products", None),
    "max_seq_length": ("number of tokens to which longer texts are cut", (32, 32, 128)),
    "learning_rate": ("highest learning rate", (3e-5, 5e-5, 5e-4)),
    "per_device_train_batch_size": ("rows of a batch on each device", (64, 512, 128)),
    "gradcache_chunk_size": ("rows of a chunk in which a batch is encoded, to save memory", None),
    "num_train_epochs": ("passes over the texts", (1, 3, 1)),
    "max_steps": ("steps in place of epochs, if above 0", -1),
    "eval_steps": ("steps between two evaluations on --dev_file", (125, 125, None)),
    "bf16": ("train in bfloat16", False),
    "seed": ("seed of the order, dropout and new weights", 42),
    "seeds": ("train several times: a number of runs, or a list of seeds", None),
    "train_tokenizer": ("train a tokenizer on the texts, for a new encoder", False),
    "extend_tokenizer": ("with --model: add the N most frequent words that its tokenizer splits", None),
}
#: Those that masked-LM pretraining does not have.
_CONTRASTIVE = {"dev_file", "objective", "pooler_type", "temp", "gradcache_chunk_size", "eval_steps", "seeds"}
#: Those that it alone has.
_MASKED_LM = {"train_tokenizer", "extend_tokenizer"}
_RECIPES = Path(__file__).parents[1] / "training" / "recipes"


def _method_parser(method: str, recipe: str = "") -> argparse.ArgumentParser:
    """Make the parser that prints the short help of a method, and what a recipe sets."""
    recipes = []
    for path in sorted(_RECIPES.glob("*.yaml")):
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        if f"train {method} " in title:
            recipes.append(path.stem)
    sets = ""
    for path in (Path(recipe), _RECIPES / f"{recipe.removesuffix('.yaml')}.yaml"):  # a file of the user goes first
        if path.is_file() and not sets:
            sets = f"\n\n{recipe} sets:\n" + textwrap.indent(path.read_text(encoding="utf-8"), "  ")
    wrap = partial(textwrap.fill, width=80, break_on_hyphens=False)
    parser = command_parser(
        f"train {method}",
        wrap(
            f"{_METHODS[method][2].capitalize()}. Without a model and texts, the run is offline on the sample in "
            "the package, with a learning rate, a batch size and a number of steps of its own."
        ),
        usage=f"simcse-hf train {method} [RECIPE] [--name value ...]",
        epilog=wrap(f"RECIPE is a YAML file of options, or one of the package: {', '.join(recipes)}.") + sets,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--help_all", action="store_true", help="list all options, those of transformers too")
    others = _CONTRASTIVE if method == "mlm" else _MASKED_LM
    for name, (text, default) in _OPTIONS.items():
        if name in others:
            continue
        if isinstance(default, tuple):
            default = default[list(_METHODS).index(method)]
        if default is not None:
            text += "; default: %(default)s"
        parser.add_argument(f"--{name}", metavar="", default=default, help=text)
    return parser


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
    method = parser.parse_args(argv[:1]).method
    if {"-h", "--help"} & set(argv[1:]):
        _method_parser(method, argv[1]).parse_args(["--help"])
    module, function, _ = _METHODS[method]
    train = getattr(importlib.import_module(f"..training.{module}", __package__), function)
    words = sys.argv
    sys.argv = [f"simcse-hf train {method}", *argv[1:]]  # what `--help` and results.json call the program
    try:
        return train(argv[1:])
    finally:
        sys.argv = words
