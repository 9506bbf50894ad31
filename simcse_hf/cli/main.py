"""The console script `simcse-hf`: find the command that the first word names, and run it."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from .. import __version__
from .errors import exit_status

#: Each command has its own parser, in a module that is imported only when the command is run.
COMMANDS = {
    "train": ("train", "train_main", "train a model: unsup, sup, or mlm (masked-LM pretraining)"),
    "adapt": ("adapt", "adapt_main", "adapt a model to unlabelled text and say whether it helped"),
    "evaluate": ("evaluate", "evaluate_main", "score a model on STS, transfer tasks and tasks from your own files"),
    "compare": ("evaluate", "compare_main", "compare models or result files, with confidence intervals"),
    "analyze": ("analyze", "analyze_main", "draw pictures of models and runs, and write a report"),
    "encode": ("encode", "encode_main", "encode a file of texts into files of embeddings; resumable"),
    "index": ("search", "index_main", "build a search index over the texts of a file"),
    "search": ("search", "search_main", "find the texts of an index that are nearest to a query"),
    "demo": ("demo", "demo_main", "serve a web page to search an index and compare sentences"),
    "postprocess": ("postprocess", "postprocess_main", "fit a whitening or a flow of a model's embeddings"),
    "mine": ("mine", "mine_main", "mine hard negatives: turn pairs into triplets"),
    "build-nli": ("build_nli", "build_nli_main", "turn SNLI and MultiNLI rows into training triplets"),
    "export": ("publish", "export_main", "write a model for sentence-transformers or ONNX Runtime"),
    "card": ("publish", "card_main", "write the model card from result files"),
    "push": ("publish", "push_main", "upload a model to the Hugging Face hub"),
}


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:<12} {text}" for name, (_, _, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="simcse-hf",
        description="Train, evaluate, publish and use sentence embeddings with contrastive learning.",
        epilog=f"commands:\n{listing}\n\n`simcse-hf COMMAND --help` lists the options of a command.\n"
        "Exit status: 0 for success, 1 for a failed run, 2 for wrong usage or input.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"simcse-hf {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show the Python traceback of an error")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv (`Sequence[str]`, *optional*): The words after `simcse-hf`. By default those of this process.

    Returns:
        `int`: The exit status.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in argv  # before or after the command's name
    argv = [word for word in argv if word != "--traceback"]
    command = _parser().parse_args(argv[:1]).command
    module, function, _ = COMMANDS[command]

    def run() -> int:
        return getattr(importlib.import_module(f"{__package__}.{module}"), function)(argv[1:])

    return exit_status(run, f"simcse-hf {command}", show_traceback=show_traceback)


if __name__ == "__main__":
    sys.exit(main())
