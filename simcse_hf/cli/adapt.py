"""The command `simcse-hf adapt`."""

import argparse
from logging import WARNING

from .common import (
    MODEL_HELP,
    POOLER_TYPES,
    TEXT_FILE_HELP,
    add_general_options,
    add_output_options,
    add_task_option,
    command_parser,
    messages_of,
    positive_int,
    report,
)


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of minutes above 0, got {text}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "adapt",
        "Adapt a model to unlabelled text. A search within a time budget tries poolers, whitening, masked-LM, TSDAE "
        "and contrastive training. The best model is judged on held-out data, and is kept only if it helps.",
        usage="simcse-hf adapt CORPUS --model MODEL --output FOLDER [options]",
        epilog="The same command continues an interrupted adaptation; finished runs are not repeated.",
    )
    parser.add_argument("corpus", metavar="CORPUS", help=TEXT_FILE_HELP)
    parser.add_argument("--column", metavar="NAME", help="column of texts, if the file has several")
    parser.add_argument("--model", required=True, help=MODEL_HELP)
    parser.add_argument(
        "--pooler_type",
        "--pooler",
        choices=POOLER_TYPES,
        metavar="POOLER",
        help=f"how token states become one embedding: {', '.join(POOLER_TYPES)}; default: what the model names",
    )
    group = parser.add_argument_group("search")
    group.add_argument("--budget", type=_minutes, default=20.0, help="minutes that everything may take; default: 20")
    group.add_argument(
        "--seeds", type=positive_int, default=3, help="runs of the best training, each with another seed; default: 3"
    )
    group.add_argument(
        "--max_texts", type=positive_int, default=100_000, help="number of texts to draw from CORPUS; default: 100000"
    )
    group.add_argument("--bf16", action="store_true", help="train in bfloat16")
    add_task_option(parser)
    parser.add_argument(
        "--keep_overlap", action="store_true", help="train on texts of CORPUS that also occur in the tasks"
    )
    add_output_options(parser, "folder for the verdict, a picture of the search, and the model")
    add_general_options(parser)
    return parser


def adapt_main(argv: list[str]) -> int:
    """Run `simcse-hf adapt`.

    Args:
        argv (`list[str]`): The words after `simcse-hf adapt`.

    Returns:
        `int`: The exit status.
    """
    arguments = _parser().parse_args(argv)
    from ..training.adaptation.adaptation import AdaptationSettings, adapt

    settings = AdaptationSettings(
        corpus=arguments.corpus,
        model=arguments.model,
        output=arguments.output,
        budget=arguments.budget,
        seeds=arguments.seeds,
        tasks=tuple(arguments.task),
        column=arguments.column,
        pooler_type=arguments.pooler_type,
        max_texts=arguments.max_texts,
        keep_overlap=arguments.keep_overlap,
        bf16=arguments.bf16,
    )
    levels = {"simcse_hf.evaluation.user_tasks": WARNING}
    with messages_of("simcse_hf.training.adaptation", arguments.quiet, levels):
        result = adapt(settings, overwrite=arguments.overwrite)
    lines = [result["summary"]]
    lines += [f"  also: {task['summary']}" for task in result["tasks"][1:]]
    if result["weak_evidence"]:
        lines.append("The tasks were drawn from the text itself, which is weak evidence.")
    kept = "the adapted model" if result["verdict"] == "gain" else "the start model, unchanged"
    lines.append(f"{arguments.output}/model holds {kept}; {arguments.output}/trials.png shows the search.")
    report(arguments, result, "\n".join(lines))
    return 0
