"""The command `python -m reproduction`: train and judge the rows of a table of a paper."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from simcse_hf.runtime.messages import show_messages

from .report import format_dry_run, format_markdown
from .reproduce import dry_run, reproduce, write_document
from .rows import Options
from .table import SCALES, load_table, table_names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Train and measure the rows of a table of a paper, and judge the orderings that the paper claims.",
        epilog="The same command continues an interrupted one, and several may share an --output.",
    )
    add = parser.add_argument
    add("table", nargs="?", default="list", metavar="TABLE", help="such as simcse/3, or a YAML file; default: all")
    add("--scale", choices=SCALES, default="small", help="small (the default, for two CPU cores) or the paper's")
    add("--seeds", type=int, default=3, help="runs of each cell; default: 3")
    add("--only", nargs="+", default=[], metavar="ROW", help="names of the rows to run; default: all")
    add("--model_name_or_path", metavar="START", help="start model of all runs, in place of the scale's")
    add("--data_dir", default="../shared/data", metavar="FOLDER", help="default: ../shared/data (see README.md there)")
    add("--dry_run", action="store_true", help="list the runs and missing data; train nothing")
    add("--keep_models", action="store_true", help="keep the trained models")
    add("--output", default="outputs/reproduce", metavar="FOLDER", help="runs and tables; default: outputs/reproduce")
    add("--write_docs", metavar="FOLDER", help="also write the table's .json and .md there")
    add("--json", action="store_true", help="print the result as JSON on standard output")
    add("--quiet", action="store_true", help="show only warnings and errors")
    return parser


def main(argv: list[str]) -> int:
    """Run `python -m reproduction`.

    Args:
        argv (`list[str]`): The words of the command line.

    Returns:
        `int`: The exit status.
    """
    arguments = _parser().parse_args(argv)
    options = Options(
        data_dir=Path(arguments.data_dir),
        output=Path(arguments.output),
        model=arguments.model_name_or_path,
        scale=arguments.scale,
        seeds=arguments.seeds,
        only=tuple(arguments.only),
        keep_models=arguments.keep_models,
    )
    if arguments.table == "list":
        plans = [dry_run(load_table(name), options) for name in table_names()]
        _print(arguments, plans, "\n".join(map(_line, plans)))
        return 0
    table = load_table(arguments.table)
    if arguments.dry_run:
        planned = dry_run(table, options)
        _print(arguments, planned, format_dry_run(planned))
        return 0
    show_messages(arguments.quiet)
    document = reproduce(table, options, ["python", "-m", "reproduction", *map(shlex.quote, argv)])
    if arguments.write_docs:
        write_document(document, options, Path(arguments.write_docs))
    _print(arguments, document, format_markdown(document))
    return 0


def _print(arguments: argparse.Namespace, document: Any, text: str) -> None:
    """Print a result in words or, with `--json`, as one line of JSON."""
    print(json.dumps(document, ensure_ascii=False, default=str) if arguments.json else text, flush=True)


def _line(planned: dict[str, Any]) -> str:
    runs = {run["key"]: run["done"] for run in planned["runs"]}
    missing = len(planned["missing"])
    state = f"{missing} files or models missing" if missing else "can run here"
    return f"{planned['table']:<18} {planned['title']}: {len(runs)} runs, {sum(runs.values())} done, {state}"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ValueError, FileNotFoundError, ImportError) as error:  # whose message says what to do
        print(f"python -m reproduction: error: {error}", file=sys.stderr)
        sys.exit(2)
