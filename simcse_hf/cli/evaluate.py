"""The command lines `simcse-hf evaluate` and `simcse-hf compare`."""

import argparse
import json
from pathlib import Path

from accelerate import PartialState

from ..evaluation.classifier import SEED
from ..evaluation.compare import compare_evaluations, format_comparison
from ..evaluation.mteb import evaluate_mteb
from ..evaluation.report import describe_protocol, format_table, read_results, versions, write_results
from ..evaluation.run import Evaluation, Protocol, read_tasks, score_tasks
from ..evaluation.sts import AGGREGATIONS, METRICS
from ..evaluation.sts_data import read_pairs_argument
from ..evaluation.tasks import ALL_TASKS, MODES, TASK_SETS, default_tasks
from ..evaluation.transfer import CLASSIFIER_CONFIGS
from ..evaluation.vectors import SentenceVectors
from .loading import load_model

MODEL_HELP = (
    "checkpoint folder, hub id, sentence-transformers folder, GloVe or word2vec text file, or module:function that "
    "returns an object with encode(list of texts)"
)


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--task_set", choices=TASK_SETS, help="default: sts")
    which.add_argument("--tasks", help=f"comma-separated names out of {', '.join(ALL_TASKS)}")
    parser.add_argument(
        "--data_dir",
        help="SentEval's `downstream` folder; for STS also a folder of plain tables, or `hub` to fetch data sets",
    )
    parser.add_argument(
        "--pairs", nargs="+", default=[], help="further files of scored pairs, or hub data sets as name:split"
    )
    parser.add_argument("--mode", choices=MODES, default="test", help="default: test")
    parser.add_argument("--aggregation", choices=AGGREGATIONS, default="all", help="of STS12 to STS16; default: all")
    parser.add_argument("--metric", choices=tuple(METRICS), default="spearman", help="default: spearman")
    parser.add_argument("--regressor", action="store_true", help="score STS-B and SICK-R by a trained regressor")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the classifiers; default: {SEED}")
    parser.add_argument("--pooler", help="pooler, where it is not to be the one the checkpoint names")
    parser.add_argument("--max_length", type=int, help="number of tokens a text is cut to; default: the checkpoint's")
    parser.add_argument("--no_postprocess", action="store_true", help="leave a checkpoint's whitening or flow aside")
    parser.add_argument("--device", help="default: a GPU where there is one")
    parser.add_argument("--output", help="JSON file to write")


def _evaluate_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simcse-hf evaluate", description="Evaluates sentence vectors on STS and transfer tasks."
    )
    parser.add_argument("--model", required=True, help=MODEL_HELP)
    _add_common_arguments(parser)
    parser.add_argument("--geometry", action="store_true", help="alignment, uniformity and spectrum on STS-B")
    parser.add_argument(
        "--mteb", nargs="+", default=[], metavar="TASK", help="MTEB data sets or categories, fetched; `all` for the 56"
    )
    parser.add_argument("--verbose", action="store_true", help="list every subset and split")
    return parser


def _compare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simcse-hf compare",
        description="Compares models or result files with the first one, with paired bootstrap intervals.",
    )
    parser.add_argument("models", nargs="+", help=f"result files (.json) of `simcse-hf evaluate`, or: {MODEL_HELP}")
    _add_common_arguments(parser)
    parser.add_argument("--resamples", type=int, default=1000, help="default: 1000")
    parser.add_argument("--confidence", type=float, default=0.95, help="default: 0.95")
    return parser


def _protocol(arguments: argparse.Namespace) -> Protocol:
    return Protocol(arguments.mode, arguments.aggregation, arguments.metric, arguments.regressor, seed=arguments.seed)


def _tasks(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.data_dir is None:
        return ()
    if arguments.tasks is not None:
        return tuple(name.strip() for name in arguments.tasks.split(",") if name.strip())
    return default_tasks(arguments.task_set or "sts", arguments.mode)


def _load(name: str, arguments: argparse.Namespace):
    # Under `accelerate launch` this joins the processes; the encoder then shards its batches over them.
    state = PartialState()
    device = arguments.device or (str(state.device) if state.num_processes > 1 else None)
    return load_model(name, arguments.pooler, device, arguments.max_length, not arguments.no_postprocess)


def _evaluate(model, arguments: argparse.Namespace, geometry: bool = False) -> Evaluation | None:
    """Evaluates `model`; `None` in every process but the main one, which scores alone."""
    protocol, tasks = _protocol(arguments), _tasks(arguments)
    pairs = tuple(read_pairs_argument(argument) for argument in arguments.pairs)
    data = read_tasks(tasks, arguments.data_dir, protocol, pairs, geometry)
    vectors = SentenceVectors(model, data.texts())
    if not PartialState().is_main_process:
        return None
    return score_tasks(data, vectors, tasks, protocol, arguments.device)


def evaluate_main(argv: list[str]) -> int:
    """Runs `simcse-hf evaluate`: prints a table and writes the results with `--output`.

    Args:
        argv (`list[str]`): The words after `simcse-hf evaluate`.

    Returns:
        `int`: The exit status, 0.

    Raises:
        ValueError, FileNotFoundError, ImportError: Saying what to do, for a model, data or settings that are wrong
            (`simcse-hf` prints them in one line).
        SystemExit: With status 2, for a wrong command line.
    """
    parser = _evaluate_parser()
    arguments = parser.parse_args(argv)
    if arguments.data_dir is None and not arguments.pairs and not arguments.mteb:
        parser.error("nothing to evaluate: give --data_dir, --pairs or --mteb")
    model = _load(arguments.model, arguments)
    evaluation = Evaluation({}, {})
    if arguments.data_dir is not None or arguments.pairs:
        evaluation = _evaluate(model, arguments, arguments.geometry)
    revision = getattr(model, "revision", None)
    if arguments.mteb:
        scores = evaluate_mteb(model, arguments.mteb, arguments.model, revision)
        if evaluation is not None:
            evaluation.results["mteb"] = scores
    if evaluation is None or not PartialState().is_main_process:
        return 0
    protocol = _protocol(arguments)
    print(format_table(evaluation.results, protocol.mode, protocol.aggregation, protocol.metric, arguments.verbose))
    if arguments.output:
        document = {
            "model": arguments.model,
            "revision": revision,
            "pooler": getattr(model, "pooler_type", None),
            "max_length": getattr(model, "max_length", None),
            "postprocessing": getattr(getattr(model, "postprocessing", None), "method", None),
            "protocol": describe_protocol(protocol, CLASSIFIER_CONFIGS[protocol.mode]),
            "versions": versions(),
            "results": evaluation.results,
        }
        write_results(arguments.output, document, evaluation.scores)
    return 0


def compare_main(argv: list[str]) -> int:
    """Runs `simcse-hf compare`: prints the models side by side and the intervals of their differences.

    Args:
        argv (`list[str]`): The words after `simcse-hf compare`.

    Returns:
        `int`: The exit status, 0.

    Raises:
        ValueError, FileNotFoundError, ImportError, SystemExit: As `evaluate_main`.
    """
    parser = _compare_parser()
    arguments = parser.parse_args(argv)
    if len(set(arguments.models)) < 2:
        parser.error("give at least two different models or result files")
    models = [name for name in arguments.models if not _is_result_file(name)]
    if models and arguments.data_dir is None and not arguments.pairs:
        parser.error(f"{models[0]} is a model (no .json file): give --data_dir or --pairs to evaluate it")
    named = {name: _evaluation_of(name, arguments) for name in arguments.models}
    if not PartialState().is_main_process:
        return 0
    comparison = compare_evaluations(named, _protocol(arguments), arguments.resamples, arguments.confidence)
    print(format_comparison(comparison))
    if arguments.output:
        path = Path(arguments.output)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(comparison, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def _is_result_file(name: str) -> bool:
    return name.endswith(".json") and Path(name).is_file()


def _evaluation_of(name: str, arguments: argparse.Namespace) -> Evaluation | None:
    if not _is_result_file(name):
        return _evaluate(_load(name, arguments), arguments)
    document, scores = read_results(name)
    for key in ("mode", "regressor"):
        if document["protocol"][key] != getattr(arguments, key):
            raise ValueError(
                f"{name} was evaluated with {key} {document['protocol'][key]!r}, not {getattr(arguments, key)!r}: "
                f"give the same --{key} for all."
            )
    return Evaluation(document["results"], scores)
