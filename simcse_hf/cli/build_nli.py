"""The command `simcse-hf build-nli`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from ..data.nli import LABELS, build_nli_triplets


def build_nli_main(argv: Sequence[str]) -> int:
    """The command `simcse-hf build-nli`: writes the rows of `build_nli_triplets` to a file.

    Args:
        argv: The arguments behind the command's name.

    Returns:
        The exit status: 0, or 2 after a message for bad input.
    """
    parser = argparse.ArgumentParser(
        prog="simcse-hf build-nli", description="Build (premise, entailed, contradictory) triplets from NLI pairs."
    )
    parser.add_argument("--input", nargs="+", required=True, help="csv, tsv, json, jsonl or parquet file(s), or gz")
    parser.add_argument("--output", required=True, type=Path, help=".csv, .jsonl or .parquet file to write")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--hard_negatives_per_pair", type=int, default=1, help="0 writes all entailment pairs")
    parser.add_argument(
        "--negatives", nargs="+", default=["contradiction"], choices=LABELS[1:], help="labels of the hard negatives"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")
    options = parser.parse_args(argv)
    writers = {".csv": Dataset.to_csv, ".jsonl": Dataset.to_json, ".parquet": Dataset.to_parquet}
    if options.output.suffix not in writers:
        parser.error(f"--output must end in {', '.join(writers)}, got {options.output}")
    if options.output.exists() and not options.overwrite:
        parser.error(f"{options.output} exists; give another name, or --overwrite")
    try:
        triplets = build_nli_triplets(
            options.input,
            seed=options.seed,
            hard_negatives_per_pair=options.hard_negatives_per_pair,
            negatives=options.negatives,
        )
    except ValueError as error:
        parser.error(str(error))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    partial = options.output.with_name(f"{options.output.name}.partial")
    writers[options.output.suffix](triplets, str(partial))
    partial.replace(options.output)
    print(f"{options.output}: {triplets.num_rows} rows of {', '.join(triplets.column_names)}")
    return 0
