"""The commands `simcse-hf export`, `simcse-hf card` and `simcse-hf push`."""

from pathlib import Path
from typing import Any

from ..names import INSTRUCTIONS
from .common import (
    MODEL_HELP,
    TEXT_FILE_HELP,
    add_general_options,
    add_model_options,
    add_output_options,
    command_parser,
    load_encoder,
    output_folder,
    report,
)

EXPORTS = ("sentence-transformers", "onnx", "openvino")
INT8_EXPORTS = ("int8", "onnx-int8", "openvino-int8")
_OF_INT8 = ("texts", "data_dir", "calibrate", "max_loss", "allow_slow", "instructions")


def export_main(argv: list[str]) -> int:
    """Run `simcse-hf export`.

    Args:
        argv (`list[str]`): The words after `simcse-hf export`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If options do not fit `--to`.
    """
    parser = command_parser("export", "Write a model in the form that another library or runtime reads.")
    parser.add_argument("model", help=MODEL_HELP)
    parser.add_argument(
        "--to",
        "--format",
        required=True,
        choices=EXPORTS + INT8_EXPORTS,
        help="what shall read the model; int8 chooses the runtime",
    )
    add_model_options(parser, model=False, runtime=False)
    group = parser.add_argument_group("int8, which is measured against float32 before anything is written")
    group.add_argument("--texts", metavar="FILE", help=f"{TEXT_FILE_HELP}; the first 1,000 are encoded")
    group.add_argument("--data_dir", metavar="FOLDER", help="SentEval's downstream folder, to compare STS scores")
    group.add_argument(
        "--calibrate",
        metavar="FILE",
        help="texts like yours, the first 300 of which give the ranges of activations; default: texts of --texts",
    )
    group.add_argument(
        "--max_loss",
        type=float,
        default=0.5,
        metavar="POINTS",
        help="largest loss: points of the STS average or, without --data_dir, 100 * (1 - mean cosine); default: 0.5",
    )
    group.add_argument("--allow_slow", action="store_true", help="write int8 that is not 1.2 times as fast as float32")
    group.add_argument(
        "--instructions", choices=INSTRUCTIONS, help="processor instructions to export for; default: those here"
    )
    add_output_options(parser, "folder to write")
    arguments = parser.parse_args(argv)
    to_int8 = arguments.to in INT8_EXPORTS
    if to_int8 and arguments.texts is None and arguments.data_dir is None:
        raise ValueError(f"--to {arguments.to} measures what is lost: give --texts FILE, --data_dir FOLDER or both")
    unused = [f"--{name}" for name in _OF_INT8 if getattr(arguments, name) != parser.get_default(name)]
    if unused and not to_int8:
        raise ValueError(f"{', '.join(unused)}: only for --to {', '.join(INT8_EXPORTS)}")

    from ..publishing.export import EXPORTS as EXPORTERS
    from ..publishing.export_int8 import Checks, describe_form, export_int8

    measured: dict[str, Any] = {}
    with output_folder(arguments, "config.json", [arguments.model]) as new:
        model = load_encoder(arguments.model, arguments, device=arguments.device or "cpu")
        if to_int8:
            checks = Checks(arguments.texts, arguments.data_dir, arguments.calibrate)
            path, measured = export_int8(
                model,
                new,
                arguments.to,
                checks,
                max_loss=arguments.max_loss,
                allow_slow=arguments.allow_slow,
                instructions=arguments.instructions,
            )
        else:
            path = EXPORTERS[arguments.to](model, new)
    path = Path(arguments.output).expanduser() / path.relative_to(new)
    document = {"output": path, "to": arguments.to, "pooler_type": model.pooler_type} | measured
    text = f"{path}: embeddings of pooler {model.pooler_type!r}"
    if measured:
        text += f"\n{describe_form(measured)}"
    report(arguments, document, text)
    return 0


def card_main(argv: list[str]) -> int:
    """Run `simcse-hf card`.

    Args:
        argv (`list[str]`): The words after `simcse-hf card`.

    Returns:
        `int`: The exit status.
    """
    parser = command_parser(
        "card",
        "Write the card of a saved model. A card that this command or the training wrote is replaced; a README.md "
        "written by hand is not.",
    )
    parser.add_argument("directory", help="folder in which training saved the model")
    parser.add_argument(
        "--results",
        nargs="+",
        metavar="FILE",
        help="result files of `simcse-hf evaluate`; default: evaluation*.json in the folder",
    )
    parser.add_argument(
        "--comparison",
        nargs="+",
        metavar="FILE",
        help="JSON files of `simcse-hf compare`, whose tables the card shows; default: comparison*.json in the folder",
    )
    parser.add_argument("--repo_id", metavar="OWNER/NAME", help="name on the hub, for the usage examples")
    parser.add_argument("--language", nargs="+", metavar="CODE", help="codes of the languages, such as en")
    parser.add_argument("--license", metavar="NAME", help="name of the licence, such as apache-2.0")
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="hub names of the training data")
    add_general_options(parser)
    arguments = parser.parse_args(argv)

    from ..publishing import write_card

    path = write_card(
        arguments.directory,
        arguments.results,
        comparisons=arguments.comparison,
        repo_id=arguments.repo_id,
        language=arguments.language,
        license=arguments.license,
        datasets=arguments.datasets,
    )
    report(arguments, {"card": path}, str(path))
    return 0


def push_main(argv: list[str]) -> int:
    """Run `simcse-hf push`: upload a saved model and print where it is.

    Args:
        argv (`list[str]`): The words after `simcse-hf push`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If the name of the repository has no owner.
    """
    parser = command_parser(
        "push",
        "Upload a saved model with its tokenizer and card to the Hugging Face hub, in one commit.",
        epilog="The access token is read from HF_TOKEN, or from what `hf auth login` saved.",
    )
    parser.add_argument("directory", help="folder in which training saved the model")
    parser.add_argument("repo_id", metavar="OWNER/NAME", help="user or organisation, and name of the repository")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument("--revision", metavar="BRANCH", help="branch, made if it does not exist; default: main")
    parser.add_argument("--create_pr", action="store_true", help="propose the commit as a pull request")
    parser.add_argument("--commit_message", default="Upload model", help="default: Upload model")
    parser.add_argument("--dry_run", action="store_true", help="list what would be uploaded, and upload nothing")
    add_general_options(parser)
    arguments = parser.parse_args(argv)
    # Without an owner the name would end up in the card's usage examples, where it means another repository.
    if "/" not in arguments.repo_id:
        raise ValueError(f"{arguments.repo_id!r} names no owner: give OWNER/NAME, as in your-name/{arguments.repo_id}")

    from ..publishing import CARD
    from ..publishing.hub import check_push, push_model

    if not arguments.dry_run:
        url = push_model(
            arguments.directory,
            arguments.repo_id,
            private=arguments.private,
            revision=arguments.revision,
            create_pr=arguments.create_pr,
            commit_message=arguments.commit_message,
        )
        report(arguments, {"repo_id": arguments.repo_id, "url": url, "pushed": True}, url)
        return 0

    # Make all checks of a push, and list the files that it would upload.
    sizes = {}
    lines = []
    for path in check_push(arguments.directory, arguments.repo_id):
        sizes[path] = Path(arguments.directory, path).stat().st_size
        lines.append(f"{sizes[path]:>13,}  {path}")
    if CARD not in sizes:
        lines.append(f"{'to be written':>13}  {CARD}")
    lines.append(f"to {arguments.repo_id}, {arguments.revision or 'main'}; nothing was pushed")
    report(arguments, {"repo_id": arguments.repo_id, "files": sizes, "pushed": False}, "\n".join(lines))
    return 0
