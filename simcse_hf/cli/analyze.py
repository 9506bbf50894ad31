"""The command `simcse-hf analyze`."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import (
    TEXT_FILE_HELP,
    add_general_options,
    add_model_options,
    add_output_options,
    command_parser,
    report,
)
from .evaluate import (
    MODEL_HELP,
    add_bootstrap_options,
    add_protocol_options,
    chosen_protocol,
    chosen_tasks,
    describe_model,
    extra_tasks,
    is_result_file,
    names_data,
    read_result_file,
)
from .outputs import output_folder

if TYPE_CHECKING:
    from ..publishing.analysis.document import Analysis
    from ..publishing.analysis.models import AnalysisData, MeasuredModel
    from ..publishing.analysis.runs import Run


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "analyze",
        "Draw pictures of models, training runs and searches, write the numbers behind them as CSV, and put them with "
        "tables and nearest neighbours into one HTML report. Needs the extra `plot`.",
    )
    group = parser.add_argument_group("what to analyse; at least one of")
    group.add_argument(
        "--model",
        nargs="+",
        default=[],
        metavar="MODEL",
        help=f"models, the baseline first: result file (.json) of `simcse-hf evaluate`, or {MODEL_HELP}. The output "
        "folder of a training run is also analysed as a run",
    )
    group.add_argument("--run", nargs="+", default=[], metavar="FOLDER", help="output folders of training runs")
    group.add_argument(
        "--grid",
        nargs="+",
        default=[],
        metavar="PATH",
        help="searches, drawn as heat maps: output folders of `simcse-hf reproduce`, or JSON files of runs",
    )
    group.add_argument(
        "--names", nargs="+", metavar="NAME", help="names of the models, in their order; default: from their paths"
    )
    add_model_options(parser, model=None)
    add_protocol_options(parser)
    add_bootstrap_options(parser)
    group = parser.add_argument_group("nearest neighbours")
    group.add_argument("--sentences", metavar="FILE", help=f"{TEXT_FILE_HELP}; default: the sentences of STS-B")
    group.add_argument("--column", metavar="NAME", help="column of texts, if the file has several")
    add_output_options(parser, "folder for report.html, the pictures and their numbers")
    add_general_options(parser)
    return parser


def analyze_main(argv: list[str]) -> int:
    """Run `simcse-hf analyze`.

    Args:
        argv (`list[str]`): The words after `simcse-hf analyze`.

    Returns:
        `int`: The exit status; 1 if a model could not be measured and the report shows the others.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    _check(parser, arguments)

    from ..evaluation.report import versions
    from ..ops.secrets import hide_secrets
    from ..publishing.analysis.document import analyse
    from ..publishing.analysis.drawing import check_installed
    from ..publishing.analysis.grids import read_grid
    from ..publishing.analysis.report import DOCUMENT, write_analysis
    from ..publishing.analysis.runs import is_run, read_run

    check_installed()
    names = dict(zip(arguments.names or unique_names(arguments.model), arguments.model, strict=True))
    folders = {name: path for name, path in names.items() if is_run(path)}
    folders |= dict(zip(unique_names(arguments.run), arguments.run, strict=True))
    runs = [read_run(folder, name) for name, folder in folders.items()]
    grids = [read_grid(path) for path in arguments.grid]
    with output_folder(
        arguments.output, overwrite=arguments.overwrite, marker=DOCUMENT, sources=[*arguments.model, *arguments.run]
    ) as folder:
        omitted: dict[str, str] = {}
        models, failed = _measure(names, arguments, omitted)
        analysis = analyse(
            models, runs, grids, chosen_protocol(arguments), arguments.resamples, arguments.confidence, omitted
        )
        folder.mkdir()
        command = shlex.join(hide_secrets(["simcse-hf", "analyze", *argv]))
        write_analysis(folder, analysis, models, command, versions())
    report(arguments, analysis.document, _text(arguments.output, analysis, runs))
    return 1 if failed else 0


def unique_names(paths: Sequence[str]) -> list[str]:
    """Name paths by their last parts, as many as tell them apart.

    Args:
        paths (`Sequence[str]`): Paths or hub names.

    Returns:
        `list[str]`: Their names in the same order. The ending `.json` is left out.

    Raises:
        ValueError: If a path occurs twice.
    """
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"{twice} is named twice: name each model and run once")
    parts = [Path(path.removesuffix(".json")).expanduser().parts for path in paths]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return list(paths)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if not (arguments.model or arguments.run or arguments.grid):
        parser.error("there is nothing to analyse: give --model, --run or --grid")
    models = [name for name in arguments.model if not is_result_file(name)]
    if models and not names_data(arguments):
        parser.error(f"{models[0]} is a model (no .json file): give --data_dir, --pairs or --task to evaluate it")
    if arguments.names is not None and len(set(arguments.names)) != len(arguments.model):
        parser.error(f"--names must give {len(arguments.model)} different names, one for each model")
    if not 0 < arguments.confidence < 1:
        parser.error(f"--confidence must lie between 0 and 1, got {arguments.confidence}")


def _measure(
    names: dict[str, str], arguments: argparse.Namespace, omitted: dict[str, str]
) -> "tuple[dict[str, MeasuredModel], bool]":
    """Measure the models or read their results. One that fails is told and left out, so that no work is lost."""
    from transformers.utils import logging

    models: dict[str, MeasuredModel] = {}
    failures: dict[str, ValueError] = {}
    data = _prepare(arguments) if any(not is_result_file(path) for path in names.values()) else None
    for name, path in names.items():
        try:
            models[name] = _measure_one(path, data, arguments)
        except ValueError as error:
            failures[name] = error
            omitted[f"model {name}"] = str(error).rstrip(".")
            logging.get_logger(__name__).warning(f"{name} is left out: {error}")
    if failures and not models:
        raise ValueError(str(next(iter(failures.values()))))
    if data is not None:
        omitted |= data.notes
    return models, bool(failures)


def _prepare(arguments: argparse.Namespace) -> "AnalysisData":
    from ..data.texts import stream_texts
    from ..evaluation.sts_data import read_pairs_argument
    from ..publishing.analysis.models import prepare_data

    sentences = None
    if arguments.sentences is not None:
        sentences = [text for _, text in stream_texts(arguments.sentences, arguments.column) if text.strip()]
    return prepare_data(
        chosen_tasks(arguments),
        arguments.data_dir,
        chosen_protocol(arguments),
        sentences,
        pairs=tuple(read_pairs_argument(argument) for argument in arguments.pairs),
        user_tasks=extra_tasks(arguments),
    )


def _measure_one(path: str, data: "AnalysisData | None", arguments: argparse.Namespace) -> "MeasuredModel":
    from ..publishing.analysis.models import MeasuredModel, measure_model
    from .loading import load_model

    if data is None or is_result_file(path):
        evaluation, document = read_result_file(path, arguments)
        return MeasuredModel(evaluation, {k: v for k, v in document.items() if k not in ("results", "scores")}, [])
    protocol = chosen_protocol(arguments)
    model = load_model(path, arguments)
    description = describe_model(path, model, protocol)
    return measure_model(model, data, description, protocol)


def _text(output: str, analysis: "Analysis", runs: "Sequence[Run]") -> str:
    from ..evaluation.compare import format_comparison

    lines: list[Any] = []
    if analysis.document["comparison"]:
        lines += [format_comparison(analysis.document["comparison"]), ""]
    lines += [f"{output}/{picture.name}.png: {picture.title}" for picture in analysis.pictures]
    lines += [f"not shown: {what}: {reason}" for what, reason in analysis.document["omitted"].items()]
    return "\n".join([*lines, f"{output}/report.html has everything on one page."])
