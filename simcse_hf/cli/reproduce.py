"""The command `simcse-hf reproduce`."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from .common import add_general_options, command_parser, positive_int, report

if TYPE_CHECKING:
    from ..training.reproduction.reproduce import Options

SCALES = ("small", "paper")


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "reproduce",
        "Train and measure the rows of a table of a paper, and say whether the orderings that the paper claims hold.",
        usage="simcse-hf reproduce [TABLE] [options]",
        epilog="Without a table, the command lists all of them. The same command continues an interrupted one, and "
        "several may share an --output.",
    )
    parser.add_argument(
        "table", nargs="?", default="list", metavar="TABLE", help="such as simcse/3, a YAML file, or list"
    )
    group = parser.add_argument_group("runs")
    group.add_argument(
        "--scale",
        choices=SCALES,
        default="small",
        help="small: what two CPU cores do in under an hour; paper: the paper's settings; default: small",
    )
    group.add_argument("--seeds", type=positive_int, default=3, help="runs of each cell; default: 3")
    group.add_argument("--only", nargs="+", default=[], metavar="ROW", help="names of the rows to run; default: all")
    group.add_argument(
        "--model_name_or_path", metavar="START", help="start model of all runs, in place of the scale's"
    )
    group.add_argument(
        "--data_dir",
        default="../shared/data",
        metavar="FOLDER",
        help="folder with wiki/, nli/ and senteval/downstream/; models stand in the folder models beside it; "
        "default: ../shared/data",
    )
    group.add_argument(
        "--dry_run", action="store_true", help="list the runs, their cost and missing data; train nothing"
    )
    group.add_argument(
        "--keep_models", action="store_true", help="keep the trained models, which are deleted otherwise"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        default="outputs/reproduce",
        metavar="FOLDER",
        help="folder for the runs and the tables; default: outputs/reproduce",
    )
    output.add_argument("--write_docs", metavar="FOLDER", help="also write the table's .json and .md there")
    add_general_options(parser)
    return parser


def reproduce_main(argv: list[str]) -> int:
    """Run `simcse-hf reproduce`.

    Args:
        argv (`list[str]`): The words after `simcse-hf reproduce`.

    Returns:
        `int`: The exit status.
    """
    arguments = _parser().parse_args(argv)
    from ..training.reproduction.report import format_dry_run, format_markdown
    from ..training.reproduction.reproduce import Options, dry_run, reproduce, write_document
    from ..training.reproduction.specs import Sources
    from ..training.reproduction.table import load_table
    from .messages import messages_of

    sources = Sources(Path(arguments.data_dir), Path(arguments.output), arguments.model_name_or_path)
    options = Options(sources, arguments.scale, arguments.seeds, tuple(arguments.only), arguments.keep_models)
    if arguments.table == "list":
        return _list(arguments, options)
    table = load_table(arguments.table)
    if arguments.dry_run:
        planned = dry_run(table, options)
        report(arguments, planned, format_dry_run(planned))
        return 0
    command = ["simcse-hf", "reproduce", *map(shlex.quote, argv)]
    with messages_of("simcse_hf.training.reproduction", arguments.quiet):
        document = reproduce(table, options, command)
    if arguments.write_docs:
        write_document(document, options, Path(arguments.write_docs))
    report(arguments, document, format_markdown(document))
    return 0


def _list(arguments: argparse.Namespace, options: "Options") -> int:
    from ..training.reproduction.reproduce import dry_run
    from ..training.reproduction.table import load_table, table_names

    documents, lines = [], []
    for name in table_names():
        table = load_table(name)
        planned = dry_run(table, options)
        done, total = sum(run["done"] for run in planned["runs"]), len(planned["runs"])
        missing = len(planned["missing"])
        state = f"{missing} files or models missing" if missing else "can run here"
        lines.append(f"{name:<18} {table.title}: {total} runs, {done} done, {state}")
        documents.append(
            {"table": name, "title": table.title, "runs": total, "done": done, "missing": planned["missing"]}
        )
    report(arguments, documents, "\n".join(lines))
    return 0
