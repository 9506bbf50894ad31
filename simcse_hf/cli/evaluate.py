"""The commands `simcse-hf evaluate` and `simcse-hf compare`."""

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..names import TASK_SETS
from .common import (
    MODEL_HELP,
    add_model_options,
    add_output_options,
    add_task_option,
    check_output_file,
    command_parser,
    load_encoder,
    positive_int,
    report,
)

if TYPE_CHECKING:
    from ..evaluation import Evaluation, Protocol
    from ..inference.simcse import SimCSE

TASKS = "STS12, STS13, STS14, STS15, STS16, STSBenchmark, SICKRelatedness, MR, CR, SUBJ, MPQA, SST2, TREC, MRPC, SST5"
SEED = 1111


def _add_protocol_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say on what models are scored, and how."""
    group = parser.add_argument_group("tasks and protocol")
    tasks = group.add_mutually_exclusive_group()
    tasks.add_argument("--task_set", choices=TASK_SETS, help="default: sts")
    tasks.add_argument("--tasks", help=f"comma-separated names out of {TASKS}")
    group.add_argument(
        "--data_dir",
        metavar="FOLDER",
        help="SentEval's `downstream` folder; for STS also a folder of plain tables, or `hub` to download data sets",
    )
    group.add_argument(
        "--pairs", nargs="+", default=[], metavar="FILE", help="files of scored pairs, or hub data sets as name:split"
    )
    add_task_option(group)
    group.add_argument("--mode", default="test", help="test, dev or fasttest: which splits are scored; default: test")
    group.add_argument(
        "--aggregation", default="all", help="all, mean or wmean: how STS12 to STS16 make one score; default: all"
    )
    group.add_argument("--metric", default="spearman", help="spearman or pearson; default: spearman")
    group.add_argument("--seed", type=int, default=SEED, help=f"seed of the classifiers; default: {SEED}")


def _evaluate_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "evaluate", "Score a model's sentence embeddings on STS, transfer tasks and tasks from your own files."
    )
    add_model_options(parser)
    _add_protocol_options(parser)
    parser.add_argument(
        "--threshold",
        type=_goal,
        metavar="GOAL",
        help="choose the cosine from which the pairs of --task pairs=FILE are similar: f1, or e.g. precision=0.95",
    )
    parser.add_argument(
        "--save_threshold", action="store_true", help="write the threshold into config.json and card of the model"
    )
    parser.add_argument("--geometry", action="store_true", help="add alignment, uniformity and spectrum on STS-B")
    parser.add_argument("--mteb", nargs="+", default=[], metavar="TASK", help="MTEB data sets or categories, or `all`")
    parser.add_argument("--verbose", action="store_true", help="list every subset and split")
    add_output_options(parser, "JSON file of the results, which `compare` and `card` read", required=False)
    return parser


def _goal(text: str) -> str | float:
    """Read a goal of `--threshold`: `"f1"`, or the least precision."""
    if text == "f1":
        return text
    name, _, value = text.partition("=")
    if name == "precision":
        with suppress(ValueError):
            if 0 < float(value) <= 1:
                return float(value)
    raise argparse.ArgumentTypeError(f"must be f1, or precision=P with P above 0 and at most 1, got {text!r}")


def _save_threshold(model: "SimCSE", threshold: dict[str, Any]) -> str:
    """Write a threshold into the config.json of a local model, and into its card if this package wrote one.

    Returns:
        `str`: What was written, and what was not.
    """
    from ..models.settings import THRESHOLD
    from ..ops.files import read_json_object, write_json
    from ..publishing.card import CARD, is_written_by_hand, write_card

    folder = Path(model.name_or_path).expanduser()
    card = folder / CARD
    config = read_json_object(folder / "config.json")
    write_json(folder / "config.json", config | {THRESHOLD: threshold | {"probe": model.probe_cosines()}})
    wrote = f"threshold: written into {folder / 'config.json'}"
    if not card.exists():
        return f"{wrote}; there is no card, and none was made"
    if is_written_by_hand(card):
        return f"{wrote}; not into {card}, which this package did not write"
    write_card(folder)
    return f"{wrote} and {card}"


def _compare_parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "compare",
        "Compare models or result files with the first, with confidence intervals from a paired bootstrap.",
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help=f"result file (.json) of `simcse-hf evaluate`, or {MODEL_HELP}"
    )
    add_model_options(parser, model=False)
    _add_protocol_options(parser)
    parser.set_defaults(geometry=False)
    parser.add_argument("--resamples", type=positive_int, default=1000, help="bootstrap resamples; default: 1000")
    parser.add_argument("--confidence", type=float, default=0.95, help="level of the intervals; default: 0.95")
    add_output_options(parser, "JSON file of the comparison", required=False)
    return parser


def evaluate_main(argv: list[str]) -> int:
    """Run `simcse-hf evaluate`: print a table, and write the results to `--output`.

    Args:
        argv (`list[str]`): The words after `simcse-hf evaluate`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If options do not fit together, or there is nothing to evaluate.
    """
    arguments = _evaluate_parser().parse_args(argv)

    # 1. Refuse options that do not fit together.
    if not (_names_data(arguments) or arguments.mteb):
        raise ValueError("there is nothing to evaluate: give --data_dir, --pairs, --task or --mteb")
    if arguments.threshold is not None and sum(kind == "pairs" for kind, _ in arguments.task) != 1:
        raise ValueError("--threshold needs the labelled pairs of one file: add --task pairs=FILE")
    if arguments.save_threshold:
        if arguments.threshold is None:
            raise ValueError("--save_threshold needs a goal: add --threshold f1 or --threshold precision=0.95")
        folder = Path(arguments.model).expanduser()
        if not (folder / "config.json").is_file():
            raise ValueError(f"--save_threshold writes into the model's folder, but {arguments.model} is none")
        if (folder / "manifest.json").exists():
            raise ValueError(f"{arguments.model} is a checkpoint, whose files must stay: name the saved model")
    check_output_file(arguments)

    from accelerate import PartialState

    from ..evaluation.report import describe_protocol, format_table, versions, write_results
    from ..evaluation.sts import HUB, HUB_REVISIONS
    from ..evaluation.threshold import choose_threshold, describe_threshold

    # 2. Score the model.
    protocol, evaluate = _read_data(arguments)
    model = load_encoder(arguments.model, arguments)
    if arguments.threshold is not None and model.similarity_fn_name != "cosine":
        raise ValueError(f"--threshold chooses a cosine, and {arguments.model} compares by {model.similarity_fn_name}")
    evaluation = evaluate(model)
    results = evaluation.results
    if arguments.mteb:
        from ..evaluation.mteb import evaluate_mteb, mteb_averages

        scores = evaluate_mteb(model, arguments.mteb, arguments.model, model.revision)
        results |= {"mteb": scores, "mteb_averages": mteb_averages(scores)}
    if not PartialState().is_main_process:
        return 0

    # 3. Report the scores.
    transform = model.postprocessing
    document = {
        "model": arguments.model,
        "revision": model.revision,
        "pooler": model.pooler_type,
        "max_length": model.max_length,
        "long_texts": model.long_texts,
        "postprocessing": None if transform is None else transform.method,
        "similarity": model.similarity_fn_name,
        "protocol": describe_protocol(protocol),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dataset_revisions": HUB_REVISIONS if arguments.data_dir == HUB else {},
        "results": results,
    }
    table = format_table(results, protocol, arguments.verbose)
    try:
        if arguments.threshold is not None:
            precision = None if arguments.threshold == "f1" else arguments.threshold
            threshold = choose_threshold(evaluation.scores["pairs"]["pairs"], precision, results["pairs"]["source"])
            document["threshold"] = threshold
            table += f"\n\nthreshold: {describe_threshold(threshold)}"
    finally:  # the results, which may have taken long, are also written without a threshold
        report(arguments, document, table)
        if arguments.output:
            write_results(arguments.output, document, evaluation.scores)
    if arguments.save_threshold:
        saved = _save_threshold(model, document["threshold"])
        if not arguments.quiet:
            print(saved, file=sys.stderr)
    return 0


def compare_main(argv: list[str]) -> int:
    """Run `simcse-hf compare`: print the models side by side, with the intervals of their differences.

    Args:
        argv (`list[str]`): The words after `simcse-hf compare`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If a result file was made in another mode than that of the command line.
    """
    arguments = _compare_parser().parse_args(argv)
    if len(set(arguments.models)) < 2:
        raise ValueError("give at least two different models or result files")
    models = []
    for name in arguments.models:
        if not name.endswith(".json"):
            models.append(name)
        elif not Path(name).is_file():
            raise ValueError(f"{name}: there is no such file")
    if models and not _names_data(arguments):
        raise ValueError(f"{models[0]} is a model (no .json file): give --data_dir, --pairs or --task to evaluate it")
    if not models and (_names_data(arguments) or arguments.tasks or arguments.task_set):
        raise ValueError("result files have their tasks: leave out --data_dir, --pairs, --task, --tasks, --task_set")
    check_output_file(arguments)

    from accelerate import PartialState

    from ..evaluation import Evaluation
    from ..evaluation.compare import compare_evaluations, format_comparison
    from ..evaluation.report import read_results, write_results

    protocol, evaluate = _read_data(arguments)
    evaluations = {}
    for name in arguments.models:
        if name in models:
            evaluations[name] = evaluate(load_encoder(name, arguments))
            continue
        document, scores = read_results(name)
        mode = document["protocol"]["mode"]
        if mode != protocol.mode:
            raise ValueError(
                f"{name} was evaluated with mode {mode!r}, not {protocol.mode!r}: give the same --mode for all."
            )
        evaluations[name] = Evaluation(document["results"], scores)
    if not PartialState().is_main_process:
        return 0
    comparison = compare_evaluations(evaluations, protocol, arguments.resamples, arguments.confidence)
    report(arguments, comparison, format_comparison(comparison))
    if arguments.output:
        write_results(arguments.output, comparison, {})
    return 0


def _names_data(arguments: argparse.Namespace) -> bool:
    return arguments.data_dir is not None or bool(arguments.pairs or arguments.task)


def _read_data(arguments: argparse.Namespace) -> tuple["Protocol", Callable[["SimCSE"], "Evaluation"]]:
    """Read the data of all tasks; return the protocol, and a function that evaluates a model on them."""
    from accelerate import PartialState

    from ..evaluation import Evaluation
    from ..evaluation.embeddings import SentenceEmbeddings
    from ..evaluation.protocol import Protocol
    from ..evaluation.scoring import default_tasks, read_tasks, score_tasks
    from ..evaluation.sts import read_scored_pairs

    protocol = Protocol(arguments.mode, arguments.aggregation, arguments.metric, arguments.seed)
    tasks: tuple[str, ...] = ()
    if arguments.tasks is not None:
        tasks = tuple(arguments.tasks.replace(",", " ").split())
    elif arguments.data_dir is not None:
        tasks = default_tasks(arguments.task_set or "sts", protocol.mode)
    own = {}
    if arguments.task:
        from ..evaluation.user_tasks import name_tasks, read_task  # scikit-learn takes a second to import

        own = name_tasks(read_task(kind, path) for kind, path in arguments.task)
    pairs = tuple(map(read_scored_pairs, arguments.pairs))
    data = read_tasks(tasks, arguments.data_dir, protocol, pairs, arguments.geometry, own)

    def evaluate(model: "SimCSE") -> "Evaluation":
        prompted = data.prompted_for(model)
        vectors = SentenceEmbeddings(model, prompted.texts(), show_progress_bar=not arguments.quiet)
        if not PartialState().is_main_process:  # the others encode with it and score nothing
            return Evaluation({}, {})
        return score_tasks(prompted, vectors, tasks, protocol, arguments.device)

    return protocol, evaluate
