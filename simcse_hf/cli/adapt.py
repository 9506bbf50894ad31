"""The command `simcse-hf adapt`."""

from dataclasses import fields
from typing import Any

from .common import (
    COLUMN_HELP,
    MODEL_HELP,
    TEXT_FILE_HELP,
    add_output_options,
    add_pooler_option,
    add_task_option,
    command_parser,
    messages_of,
    positive_int,
    report,
)

_LABELS_HELP = (
    "triplets, pairs, scored pairs (sentence1, sentence2, score) or texts with a class (text, label) to train on; "
    "repeatable: files are trained on one after the other"
)
_ARMS_HELP = (
    "arms to try: untrained, labels, simcse, and with --pretrained pretrained-labels, mlm-labels, tsdae-labels, "
    "simcse-labels; default: all"
)


def adapt_main(argv: list[str]) -> int:
    """Run `simcse-hf adapt`.

    Args:
        argv (`list[str]`): The words after `simcse-hf adapt`.

    Returns:
        `int`: The exit status.
    """
    parser = command_parser(
        "adapt",
        "Adapt a model to a domain: try a fixed list of arms with the same number of steps, choose one on a third of "
        "your task, and judge it on the rest. The chosen model is kept only if it helps.",
        usage="simcse-hf adapt CORPUS --model MODEL --task KIND=FILE --output FOLDER [options]",
        epilog="The same command continues an interrupted adaptation; finished runs are not repeated.",
    )
    parser.add_argument("corpus", metavar="CORPUS", help=TEXT_FILE_HELP)
    parser.add_argument("--column", metavar="NAME", help=COLUMN_HELP)
    parser.add_argument("--model", required=True, help=f"the present model: {MODEL_HELP}")
    add_pooler_option(parser)
    add_task_option(parser)
    group = parser.add_argument_group("arms")
    group.add_argument("--labels", action="append", default=[], metavar="FILE", help=_LABELS_HELP)
    group.add_argument(
        "--pretrained",
        metavar="NAME",
        help="encoder that is not yet a sentence encoder, to train on CORPUS, then labels",
    )
    group.add_argument("--arms", nargs="+", default=[], metavar="ARM", help=_ARMS_HELP)
    group.add_argument("--steps", type=positive_int, default=400, help="training steps of an arm; default: 400")
    group.add_argument("--batch_size", type=positive_int, default=16, help="rows in a step; default: 16")
    group.add_argument(
        "--seeds", type=positive_int, default=3, help="new runs for the verdict, each with another seed; default: 3"
    )
    group.add_argument(
        "--budget",
        type=positive_int,
        default=40,
        help="minutes that everything may take; arms that would not fit are left out before training; default: 40",
    )
    words = "before mlm-labels, make the N most frequent words that the tokenizer splits whole tokens"
    group.add_argument("--extend_tokenizer", type=positive_int, metavar="N", help=words)
    group.add_argument("--bf16", action="store_true", help="train in bfloat16")
    add_output_options(parser, "folder for the verdict, a picture of the arms, and the model")
    arguments = parser.parse_args(argv)
    from ..training.adaptation.adaptation import AdaptationSettings, adapt

    arguments.tasks = arguments.task
    settings: dict[str, Any] = {field.name: getattr(arguments, field.name) for field in fields(AdaptationSettings)}
    with messages_of("simcse_hf.training.adaptation", arguments.quiet):
        result = adapt(AdaptationSettings(**settings), overwrite=arguments.overwrite)
    lines = [result["summary"]]
    for each in result["comparisons"]:
        if each["task"] != result["task"]:
            lines.append("  also {task} ({metric}): {difference:+.2f} over {against}".format(**each))
    kept = "the adapted model" if result["verdict"] == "gain" else "the present model, unchanged"
    lines.append(f"{arguments.output}/model holds {kept}; {arguments.output}/arms.png shows the arms.")
    report(arguments, result, "\n".join(lines))
    return 0
