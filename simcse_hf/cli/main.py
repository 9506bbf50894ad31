"""The console script `simcse-hf`: words on a command line become calls of the package."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from .. import __version__
from .errors import exit_status

# Each command parses its own arguments, in a module that is only imported when it is asked for.
COMMANDS = {
    "evaluate": ("simcse_hf.cli.evaluate", "evaluate_main", "STS and transfer tasks, with the protocol named"),
    "compare": ("simcse_hf.cli.evaluate", "compare_main", "several models or result files side by side"),
    "build-nli": ("simcse_hf.cli.build_nli", "build_nli_main", "SNLI / MNLI rows to training triplets"),
    "postprocess": ("simcse_hf.cli.postprocess", "postprocess_main", "a whitening or flow of a model's vectors"),
    "encode": ("simcse_hf.cli.encode", "encode_main", "a file of texts to shards of vectors, resumable"),
    "index": ("simcse_hf.cli.search", "index_main", "a search index over the texts of a file"),
    "search": ("simcse_hf.cli.search", "search_main", "the texts of an index nearest to a query"),
    "demo": ("simcse_hf.cli.demo", "demo_main", "a web page to search an index and compare sentences"),
    "export": ("simcse_hf.cli.publish", "export_main", "to sentence-transformers or ONNX"),
    "card": ("simcse_hf.cli.publish", "card_main", "a model card from result files"),
    "push": ("simcse_hf.cli.publish", "push_main", "a model folder to the hub"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; its exit status. Errors of the user's making are one line on stderr and status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    listing = "\n".join(f"  {name:<12} {text}" for name, (_, _, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="simcse-hf",
        description="Train, evaluate, publish and use sentence embeddings with contrastive learning.",
        epilog=f"commands:\n{listing}\n\n`simcse-hf COMMAND --help` lists a command's arguments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"simcse-hf {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    arguments = parser.parse_args(argv[:1])
    module, function, _ = COMMANDS[arguments.command]
    return exit_status(
        lambda: getattr(importlib.import_module(module), function)(argv[1:]), f"simcse-hf {arguments.command}"
    )


if __name__ == "__main__":
    sys.exit(main())
