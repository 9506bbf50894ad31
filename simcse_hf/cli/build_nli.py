"""The command `simcse-hf build-nli`."""

import argparse

from .common import (
    TEXT_FILE_HELP,
    add_general_options,
    add_output_options,
    command_parser,
    report,
)
from .outputs import TABLE_SUFFIXES, check_table_file, write_table

_LABELS = ("entailment", "neutral", "contradiction")


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("build-nli", "Build (premise, entailed, contradictory) triplets from NLI pairs.")
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help=TEXT_FILE_HELP)
    parser.add_argument("--seed", type=int, default=42, help="seed of the draw of hard negatives; default: 42")
    parser.add_argument(
        "--hard_negatives_per_pair",
        type=int,
        default=1,
        help="hard negatives of an entailment pair; 0 keeps pairs without any; default: 1",
    )
    parser.add_argument(
        "--negatives",
        nargs="+",
        default=["contradiction"],
        choices=_LABELS,
        help="labels that hard negatives may have; default: contradiction",
    )
    parser.add_argument(
        "--positives",
        nargs="+",
        default=["entailment"],
        choices=_LABELS,
        help="labels that positives may have; default: entailment",
    )
    parser.add_argument("--max_rows", type=int, help="keep a random sample of at most this many rows")
    add_output_options(parser, f"file to write, ending in {', '.join(TABLE_SUFFIXES)}")
    add_general_options(parser)
    return parser


def build_nli_main(argv: list[str]) -> int:
    """Run `simcse-hf build-nli`: write the rows of `build_nli_triplets` to a file.

    Args:
        argv (`list[str]`): The words after `simcse-hf build-nli`.

    Returns:
        `int`: The exit status.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_table_file(parser, arguments)

    from ..data.nli import build_nli_triplets

    try:
        triplets = build_nli_triplets(
            arguments.input,
            seed=arguments.seed,
            hard_negatives_per_pair=arguments.hard_negatives_per_pair,
            negatives=arguments.negatives,
            positives=arguments.positives,
            max_rows=arguments.max_rows,
        )
    except ValueError as error:
        parser.error(str(error))
    write_table(triplets, arguments.output)
    columns = triplets.column_names
    document = {"output": arguments.output, "rows": triplets.num_rows, "columns": columns}
    report(arguments, document, f"{arguments.output}: {triplets.num_rows} rows of {', '.join(columns)}")
    return 0
