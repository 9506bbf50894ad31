"""The command `simcse-hf build-pairs`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .common import (
    TEXT_FILE_HELP,
    add_general_options,
    add_output_options,
    command_parser,
    positive_int,
    report,
)
from .outputs import TABLE_SUFFIXES, check_table_file, write_table

if TYPE_CHECKING:
    from ..data.row_filter import Condition


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "build-pairs",
        "Build training pairs from files of paraphrases or duplicate questions (two texts in a row), or of captions "
        "(any two texts of a group are a pair).",
    )
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help=TEXT_FILE_HELP)
    parser.add_argument(
        "--column",
        "--columns",
        nargs="+",
        required=True,
        metavar="NAME",
        help="columns of texts; any two texts of a row, or of the rows of a group, are a pair",
    )
    parser.add_argument(
        "--group_column", metavar="NAME", help="column that says which rows are a group; default: none"
    )
    parser.add_argument(
        "--column_names",
        nargs="+",
        metavar="NAME",
        help="names for the columns of files without a header, with tabs between the cells and no quoting",
    )
    parser.add_argument(
        "--where",
        nargs="+",
        default=[],
        metavar="CONDITION",
        help="keep the rows that fulfil all conditions, such as is_duplicate=1 or 'score>=0.4'",
    )
    parser.add_argument(
        "--exclude",
        nargs="+",
        default=[],
        metavar="PATH",
        help="leave out pairs with a text that stands in these files, or in the STS tasks of SentEval's `downstream` "
        "folder",
    )
    parser.add_argument("--max_rows", type=positive_int, help="keep a random sample of at most this many pairs")
    parser.add_argument("--seed", type=int, default=42, help="seed of the sample; default: 42")
    add_output_options(parser, f"file to write, ending in {', '.join(TABLE_SUFFIXES)}")
    add_general_options(parser)
    return parser


def build_pairs_main(argv: list[str]) -> int:
    """Run `simcse-hf build-pairs`: write the pairs of `build_positive_pairs` to a file.

    Args:
        argv (`list[str]`): The words after `simcse-hf build-pairs`.

    Returns:
        `int`: The exit status.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_table_file(parser, arguments)

    from ..data.overlap import mean_word_f1
    from ..data.positive_pairs import build_positive_pairs

    pairs = build_positive_pairs(
        arguments.input,
        arguments.column,
        group_column=arguments.group_column,
        column_names=arguments.column_names,
        where=_conditions(parser, arguments),
        exclude=[text for path in arguments.exclude for text in _texts_of(Path(path))],
        max_rows=arguments.max_rows,
        seed=arguments.seed,
    )
    write_table(pairs, arguments.output)
    overlap = mean_word_f1(zip(pairs["sent0"], pairs["sent1"], strict=True))
    document = {"output": arguments.output, "rows": pairs.num_rows, "lexical_overlap": overlap}
    report(
        arguments,
        document,
        f"{arguments.output}: {pairs.num_rows} rows of {', '.join(pairs.column_names)}; lexical overlap of a pair "
        f"{overlap:.1%} (F1 of the words)",
    )
    return 0


def _conditions(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> "list[Condition]":
    from ..data.row_filter import parse_condition

    try:
        return [parse_condition(text) for text in arguments.where]
    except ValueError as error:
        parser.error(f"--where: {error}")


def _texts_of(path: Path) -> list[str]:
    """Return the texts of a file, or those of the STS tasks that a SentEval folder has."""
    from ..data.read import stream_texts

    if not path.is_dir():
        return [text for _, text in stream_texts(path)]
    from ..evaluation.sts_data import read_sts_texts

    return read_sts_texts(path)
