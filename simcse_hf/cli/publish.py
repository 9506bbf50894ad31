"""The commands `simcse-hf push`, `simcse-hf export` and `simcse-hf card`."""

import argparse
from pathlib import Path

from ..inference.simcse import SimCSE
from ..models.poolers import POOLER_TYPES
from ..publishing import CARD, write_card
from ..publishing.export import EXPORTS
from ..publishing.hub import check_repo_id, files_to_push, push_model


def push_main(argv: list[str]) -> int:
    """Runs `simcse-hf push`: uploads a saved model and prints where it is.

    Args:
        argv: the words after `simcse-hf push`.

    Raises:
        ValueError: as [`push_model`].
    """
    parser = argparse.ArgumentParser(
        prog="simcse-hf push",
        description="Pushes a saved model with its tokenizer and card, in one commit.",
        epilog="The access token is taken from HF_TOKEN or `hf auth login`.",
    )
    parser.add_argument("directory", help="the model, as saved by training")
    parser.add_argument("repo_id", metavar="org/name")
    parser.add_argument("--private", action="store_true", default=None, help="of a new repository")
    parser.add_argument("--revision", help="branch, made where it is not there; default: main")
    parser.add_argument("--create_pr", action="store_true", help="propose the commit in place of making it")
    parser.add_argument("--commit_message", default="Upload model")
    parser.add_argument("--dry_run", action="store_true", help="list what would be pushed, and push nothing")
    arguments = parser.parse_args(argv)
    if arguments.dry_run:
        check_repo_id(arguments.repo_id)
        directory, paths = Path(arguments.directory), files_to_push(arguments.directory)
        for path in paths:
            print(f"{(directory / path).stat().st_size:>13,}  {path}")
        if CARD not in paths:
            print(f"{'to be made':>13}  {CARD}")
        print(f"to {arguments.repo_id}, {arguments.revision or 'main'}; nothing was pushed")
        return 0
    url = push_model(
        arguments.directory,
        arguments.repo_id,
        private=arguments.private,
        revision=arguments.revision,
        create_pr=arguments.create_pr,
        commit_message=arguments.commit_message,
    )
    print(url)
    return 0


def export_main(argv: list[str]) -> int:
    """Runs `simcse-hf export`: writes a directory for another runtime.

    Args:
        argv: the words after `simcse-hf export`.

    Raises:
        ValueError, ImportError: as [`export_onnx`] and [`SimCSE`] say.
    """
    parser = argparse.ArgumentParser(prog="simcse-hf export", description="Writes a model for another runtime.")
    parser.add_argument("model", help="checkpoint directory or hub name")
    parser.add_argument("--to", required=True, choices=tuple(EXPORTS))
    parser.add_argument("--output", required=True, help="directory to write, absent or empty")
    parser.add_argument("--pooler", choices=POOLER_TYPES, help="default: what the checkpoint names")
    parser.add_argument("--no_postprocess", action="store_true", help="leave the model's whitening or flow aside")
    arguments = parser.parse_args(argv)
    simcse = SimCSE(
        arguments.model, pooler_type=arguments.pooler, device="cpu", postprocess=not arguments.no_postprocess
    )
    print(f"{EXPORTS[arguments.to](simcse, arguments.output)}: vectors of pooler {simcse.pooler_type!r}")
    return 0


def card_main(argv: list[str]) -> int:
    """Runs `simcse-hf card`: writes the card of a saved model.

    Args:
        argv: the words after `simcse-hf card`.

    Raises:
        ValueError: as [`write_card`].
    """
    parser = argparse.ArgumentParser(prog="simcse-hf card", description="Writes the card of a saved model.")
    parser.add_argument("directory", help="the model, as saved by training")
    parser.add_argument(
        "--results",
        nargs="+",
        help="files of `simcse-hf evaluate --output`; default: evaluation*.json in the directory",
    )
    parser.add_argument("--repo_id", metavar="org/name", help="for the usage examples")
    parser.add_argument("--language", nargs="+", help="codes of the languages, such as en")
    parser.add_argument("--license", help="name of the licence, such as apache-2.0")
    parser.add_argument("--datasets", nargs="+", help="hub names of the training data")
    arguments = parser.parse_args(argv)
    path = write_card(
        arguments.directory,
        arguments.results,
        repo_id=arguments.repo_id,
        language=arguments.language,
        license=arguments.license,
        datasets=arguments.datasets,
    )
    print(path)
    return 0
