"""The commands `simcse-hf evaluate` and `simcse-hf compare`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import (
    MODEL_HELP,
    add_general_options,
    add_model_options,
    add_output_options,
    add_task_option,
    command_parser,
    load_encoder,
    positive_int,
    report,
)
from .outputs import check_output_file

if TYPE_CHECKING:
    from ..evaluation import Evaluation, Protocol
    from ..evaluation.user_tasks import UserTask

TASK_SETS = ("sts", "transfer", "full")
STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC", "SST5")
MODES = ("test", "dev", "fasttest")
AGGREGATIONS = ("all", "mean", "wmean")
METRICS = ("spearman", "pearson")
SEED = 1111


def add_protocol_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say on what models are scored, and how."""
    group = parser.add_argument_group("tasks and protocol")
    tasks = group.add_mutually_exclusive_group()
    tasks.add_argument("--task_set", choices=TASK_SETS, help="default: sts")
    tasks.add_argument("--tasks", help=f"comma-separated names out of {', '.join(STS_TASKS + TRANSFER_TASKS)}")
    group.add_argument(
        "--data_dir",
        metavar="FOLDER",
        help="SentEval's `downstream` folder; for STS also a folder of plain tables, or `hub` to download data sets",
    )
    group.add_argument(
        "--pairs", nargs="+", default=[], metavar="FILE", help="files of scored pairs, or hub data sets as name:split"
    )
    add_task_option(group)
    group.add_argument("--mode", choices=MODES, default="test", help="which splits are scored; default: test")
    group.add_argument(
        "--aggregation", choices=AGGREGATIONS, default="all", help="how STS12 to STS16 make one figure; default: all"
    )
    group.add_argument("--metric", choices=METRICS, default="spearman", help="default: spearman")
    group.add_argument("--seed", type=int, default=SEED, help=f"seed of the classifiers; default: {SEED}")


def add_bootstrap_options(parser: argparse.ArgumentParser) -> None:
    """Add `--resamples` and `--confidence`."""
    parser.add_argument("--resamples", type=positive_int, default=1000, help="bootstrap resamples; default: 1000")
    parser.add_argument("--confidence", type=float, default=0.95, help="level of the intervals; default: 0.95")


def _evaluate_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "evaluate", "Score a model's sentence embeddings on STS, transfer tasks and tasks from your own files."
    )
    add_model_options(parser)
    add_protocol_options(parser)
    parser.add_argument("--geometry", action="store_true", help="add alignment, uniformity and spectrum on STS-B")
    parser.add_argument(
        "--mteb",
        nargs="+",
        default=[],
        metavar="TASK",
        help="MTEB data sets or categories, which are downloaded; `all` for the 56 English ones",
    )
    parser.add_argument("--verbose", action="store_true", help="list every subset and split")
    add_output_options(parser, "JSON file of the results, which `compare` and `card` read", required=False)
    add_general_options(parser)
    return parser


def _compare_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "compare",
        "Compare models or result files with the first one named, with confidence intervals from a paired bootstrap.",
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help=f"result file (.json) of `simcse-hf evaluate`, or {MODEL_HELP}"
    )
    add_model_options(parser, model=None)
    add_protocol_options(parser)
    add_bootstrap_options(parser)
    add_output_options(parser, "JSON file of the comparison", required=False)
    add_general_options(parser)
    return parser


def evaluate_main(argv: list[str]) -> int:
    """Run `simcse-hf evaluate`: print a table, and write the results to `--output`.

    Args:
        argv (`list[str]`): The words after `simcse-hf evaluate`.

    Returns:
        `int`: The exit status.
    """
    parser = _evaluate_parser()
    arguments = parser.parse_args(argv)
    if not (names_data(arguments) or arguments.mteb):
        parser.error("there is nothing to evaluate: give --data_dir, --pairs, --task or --mteb")
    check_output_file(parser, arguments)

    from accelerate import PartialState

    from ..evaluation import Evaluation
    from ..evaluation.report import format_table, write_results

    model = _load(arguments.model, arguments)
    evaluation: Evaluation | None = Evaluation({}, {})
    if names_data(arguments):
        evaluation = _evaluate(model, arguments, arguments.geometry)
    if arguments.mteb:
        from ..evaluation.mteb import evaluate_mteb, mteb_averages

        scores = evaluate_mteb(model, arguments.mteb, arguments.model, getattr(model, "revision", None))
        if evaluation is not None:
            evaluation.results |= {"mteb": scores, "mteb_averages": mteb_averages(scores)}
    if evaluation is None or not PartialState().is_main_process:
        return 0
    protocol = chosen_protocol(arguments)
    document = describe_model(arguments.model, model, protocol) | {"results": evaluation.results}
    table = format_table(evaluation.results, protocol.mode, protocol.aggregation, protocol.metric, arguments.verbose)
    report(arguments, document, table)
    if arguments.output:
        write_results(arguments.output, document, evaluation.scores)
    return 0


def describe_model(name: str, model: Any, protocol: "Protocol") -> dict[str, Any]:
    """Say which model was scored, how, and with which versions of which packages.

    Args:
        name (`str`): What the command line names.
        model (`Any`): The model.
        protocol (`Protocol`): How it was scored.

    Returns:
        `dict[str, Any]`: The entries of a result file beside `results`.
    """
    from ..evaluation.report import describe_protocol, versions
    from ..evaluation.transfer import CLASSIFIER_CONFIGS

    return {
        "model": name,
        "revision": getattr(model, "revision", None),
        "pooler": getattr(model, "pooler_type", None),
        "max_length": getattr(model, "max_length", None),
        "postprocessing": getattr(getattr(model, "postprocessing", None), "method", None),
        "protocol": describe_protocol(protocol, CLASSIFIER_CONFIGS[protocol.mode]),
        "versions": versions(),
    }


def compare_main(argv: list[str]) -> int:
    """Run `simcse-hf compare`: print the models side by side, with the intervals of their differences.

    Args:
        argv (`list[str]`): The words after `simcse-hf compare`.

    Returns:
        `int`: The exit status.
    """
    parser = _compare_parser()
    arguments = parser.parse_args(argv)
    if len(set(arguments.models)) < 2:
        parser.error("give at least two different models or result files")
    models = [name for name in arguments.models if not is_result_file(name)]
    if models and not names_data(arguments):
        parser.error(f"{models[0]} is a model (no .json file): give --data_dir, --pairs or --task to evaluate it")
    check_output_file(parser, arguments)

    from accelerate import PartialState

    from ..evaluation.compare import compare_evaluations, format_comparison

    evaluations = {name: _evaluation_of(name, arguments) for name in arguments.models}
    if not PartialState().is_main_process:
        return 0
    named = {name: evaluation for name, evaluation in evaluations.items() if evaluation is not None}
    comparison = compare_evaluations(named, chosen_protocol(arguments), arguments.resamples, arguments.confidence)
    report(arguments, comparison, format_comparison(comparison))
    if arguments.output:
        from ..evaluation.report import write_results

        write_results(arguments.output, comparison, {})
    return 0


def names_data(arguments: argparse.Namespace) -> bool:
    """Return whether a command line names anything that models can be scored on."""
    return arguments.data_dir is not None or bool(arguments.pairs or arguments.task)


def is_result_file(name: str) -> bool:
    """Return whether a word names a result file of `simcse-hf evaluate`, and not a model."""
    return name.endswith(".json") and Path(name).is_file()


def chosen_protocol(arguments: argparse.Namespace) -> "Protocol":
    """Return the protocol that the options of `add_protocol_options` describe."""
    from ..evaluation import Protocol

    return Protocol(arguments.mode, arguments.aggregation, arguments.metric, arguments.seed)


def chosen_tasks(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of the tasks that are scored on `--data_dir`."""
    from ..evaluation.run import default_tasks

    if arguments.data_dir is None:
        return ()
    if arguments.tasks is not None:
        return tuple(name.strip() for name in arguments.tasks.split(",") if name.strip())
    return default_tasks(arguments.task_set or "sts", arguments.mode)


def extra_tasks(arguments: argparse.Namespace) -> "dict[str, UserTask]":
    """Read the tasks of `--task`."""
    if not arguments.task:
        return {}
    from ..evaluation import user_tasks

    return user_tasks.name_tasks(user_tasks.read_task(kind, path) for kind, path in arguments.task)


def _load(name: str, arguments: argparse.Namespace) -> Any:
    from accelerate import PartialState

    # Under `accelerate launch` this joins the processes, and the encoder divides its batches among them.
    state = PartialState()
    return load_encoder(name, arguments, device=str(state.device) if state.num_processes > 1 else None)


def _evaluate(model: Any, arguments: argparse.Namespace, geometry: bool = False) -> "Evaluation | None":
    """Evaluate a model. Only the main process scores; the others encode with it and return None."""
    from accelerate import PartialState

    from ..evaluation.embeddings import SentenceEmbeddings
    from ..evaluation.run import read_tasks, score_tasks
    from ..evaluation.sts import read_pairs_argument

    protocol, tasks = chosen_protocol(arguments), chosen_tasks(arguments)
    pairs = tuple(read_pairs_argument(argument) for argument in arguments.pairs)
    data = read_tasks(tasks, arguments.data_dir, protocol, pairs, geometry, extra_tasks(arguments)).prompted_for(model)
    vectors = SentenceEmbeddings(model, data.texts())
    if not PartialState().is_main_process:
        return None
    return score_tasks(data, vectors, tasks, protocol, arguments.device)


def _evaluation_of(name: str, arguments: argparse.Namespace) -> "Evaluation | None":
    """Read a result file, or evaluate a model."""
    if is_result_file(name):
        return read_result_file(name, arguments)[0]
    return _evaluate(_load(name, arguments), arguments)


def read_result_file(name: str, arguments: argparse.Namespace) -> "tuple[Evaluation, dict[str, Any]]":
    """Read a result file, and check that it was made by the protocol of the command line.

    Args:
        name (`str`): The JSON file.
        arguments (`argparse.Namespace`): The options of `add_protocol_options`.

    Returns:
        `tuple[Evaluation, dict]`: The evaluation, and the whole document.

    Raises:
        ValueError: If the file is no result file, or its mode is another one.
    """
    from ..evaluation import Evaluation
    from ..evaluation.report import read_results

    document, scores = read_results(name)
    if (mode := document["protocol"]["mode"]) != arguments.mode:
        raise ValueError(
            f"{name} was evaluated with mode {mode!r}, not {arguments.mode!r}: give the same --mode for all."
        )
    return Evaluation(document["results"], scores), document
