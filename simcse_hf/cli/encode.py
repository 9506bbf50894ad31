"""The command `simcse-hf encode`."""

from ..names import FORMATS, PRECISIONS
from .common import (
    TRUNCATE_HELP,
    add_batch_options,
    add_model_options,
    add_output_options,
    add_prompt_options,
    add_text_options,
    command_parser,
    load_encoder,
    positive_int,
    report,
)

#: The options that are arguments of `encode_file`.
_SETTINGS = (
    "column",
    "columns",
    "prompt",
    "prompt_name",
    "truncate_dim",
    "precision",
    "shard_size",
    "token_budget",
    "resume",
    "overwrite",
)


def encode_main(argv: list[str]) -> int:
    """Run `simcse-hf encode`.

    Args:
        argv (`list[str]`): The words after `simcse-hf encode`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If the file of `--ranges` cannot be read.
    """
    parser = command_parser(
        "encode",
        "Encode a file of texts into files of embeddings (shards). Under `accelerate launch` each process writes "
        "every n-th shard.",
    )
    add_model_options(parser)
    add_text_options(parser)
    add_prompt_options(parser)
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="NAME",
        help="encode the texts of these columns row by row, for use as --teacher or --guide in training",
    )
    group = parser.add_argument_group("embeddings")
    group.add_argument("--no_normalize", action="store_true", help="do not scale embeddings to unit length")
    group.add_argument("--truncate_dim", type=positive_int, help=TRUNCATE_HELP)
    group.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="type of the embeddings; default: float32"
    )
    group.add_argument(
        "--ranges",
        metavar="FILE",
        help="npy file of shape (2, dim), for int8 and uint8; default: those of the first 10,000 embeddings",
    )
    group.add_argument("--shard_size", type=positive_int, default=50_000, help="embeddings per shard; default: 50000")
    group.add_argument("--format", choices=FORMATS, default="npy", help="format of a shard; default: npy")
    add_batch_options(parser)
    add_output_options(parser, "folder for the shards and their manifest")
    parser.add_argument("--resume", action="store_true", help="write the shards that an interrupted run left out")
    arguments = parser.parse_args(argv)

    from accelerate import PartialState

    from ..inference.shards import encode_file, read_manifest
    from ..ops.files import ARRAY_DAMAGE, read_npy

    ranges = None
    if arguments.ranges is not None:
        try:
            ranges = read_npy(arguments.ranges)
        except ARRAY_DAMAGE as error:
            raise ValueError(f"--ranges {arguments.ranges}: not a readable npy file: {error}") from error
    settings = {name: getattr(arguments, name) for name in _SETTINGS}
    if arguments.no_normalize:
        settings["normalize_embeddings"] = False
    paths = encode_file(
        load_encoder(arguments.model, arguments),
        arguments.input,
        arguments.output,
        ranges=ranges,
        file_format=arguments.format,
        show_progress_bar=not arguments.quiet,
        **settings,
    )
    if PartialState().is_main_process:
        rows = read_manifest(arguments.output)["input"]["rows"]
        document = {"output": arguments.output, "texts": rows, "shards": [path.name for path in paths]}
        report(arguments, document, f"{rows} texts in {len(paths)} shard(s) under {arguments.output}")
    return 0
