"""The command `simcse-hf build-nli`."""

import argparse
from pathlib import Path

from .common import (
    TEXT_FILE_HELP,
    add_general_options,
    add_output_options,
    check_output_file,
    command_parser,
    report,
)

_SUFFIXES = (".csv", ".jsonl", ".parquet")
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
    add_output_options(parser, f"file to write, ending in {', '.join(_SUFFIXES)}")
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
    output = Path(arguments.output)
    if output.suffix not in _SUFFIXES:
        parser.error(f"--output must end in {', '.join(_SUFFIXES)}, got {output}")
    check_output_file(parser, arguments)

    from datasets import Dataset

    from ..data.nli import build_nli_triplets
    from ..ops.files import write_atomically

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
    writer = {".csv": Dataset.to_csv, ".jsonl": Dataset.to_json, ".parquet": Dataset.to_parquet}[output.suffix]
    output.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(output) as temporary:
        writer(triplets, str(temporary))
    document = {"output": output, "rows": triplets.num_rows, "columns": triplets.column_names}
    report(arguments, document, f"{output}: {triplets.num_rows} rows of {', '.join(triplets.column_names)}")
    return 0
