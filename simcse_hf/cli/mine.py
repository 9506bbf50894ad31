"""The command `simcse-hf mine`."""

from dataclasses import asdict, fields

from ..names import OUTPUT_FORMATS, SAMPLING_STRATEGIES
from .common import (
    TABLE_SUFFIXES,
    add_model_options,
    add_output_options,
    add_text_options,
    check_output_file,
    command_parser,
    load_encoder,
    positive_int,
    report,
    write_table,
)
from .search import BACKEND_HELP

_OUTPUT_HELP = f"file to write, ending in {', '.join(TABLE_SUFFIXES)}"


def mine_main(argv: list[str]) -> int:
    """Run `simcse-hf mine`.

    Args:
        argv (`list[str]`): The words after `simcse-hf mine`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If no pair has enough negatives.
    """
    parser = command_parser(
        "mine", "Turn pairs into triplets: for each anchor, find similar texts that are not its positives."
    )
    add_model_options(parser)
    add_text_options(parser, several_columns=True)
    group = parser.add_argument_group("candidates")
    group.add_argument("--corpus", metavar="FILE", help="file of further candidates beside the positives of all pairs")
    group.add_argument("--corpus_column", metavar="NAME", help="column of texts, if --corpus has several")
    group.add_argument("--backend", default="exact", help=BACKEND_HELP)
    group = parser.add_argument_group("negatives")
    group.add_argument("--num_negatives", type=positive_int, default=1, help="hard negatives of a pair; default: 1")
    group.add_argument(
        "--range_min", type=int, default=0, help="number of the most similar candidates to skip; default: 0"
    )
    group.add_argument(
        "--range_max",
        type=positive_int,
        help="rank at which the search ends; default: range_min + num_negatives, or range_min + 10 * num_negatives "
        "if scores or margins drop candidates",
    )
    group.add_argument("--max_score", type=float, help="drop candidates that are more similar to the anchor")
    group.add_argument("--min_score", type=float, help="drop candidates that are less similar to the anchor")
    group.add_argument(
        "--absolute_margin", type=float, help="drop candidates above the positive's similarity minus this margin"
    )
    group.add_argument(
        "--relative_margin",
        type=float,
        help="drop candidates above the positive's similarity minus this share of it; NV-Retriever recommends 0.05",
    )
    group.add_argument(
        "--sampling_strategy",
        choices=SAMPLING_STRATEGIES,
        default="top",
        help="take the most similar candidates that are left, or draw; default: top",
    )
    group.add_argument("--seed", type=int, default=0, help="seed of --sampling_strategy random; default: 0")
    add_output_options(parser, _OUTPUT_HELP)
    parser.add_argument(
        "--output_format",
        choices=OUTPUT_FORMATS,
        default="n-tuple",
        help="n-tuple: a row for each pair with a column for each negative, pairs with too few are left out; "
        "triplet: a row for each negative; default: n-tuple",
    )
    arguments = parser.parse_args(argv)
    check_output_file(arguments, TABLE_SUFFIXES)

    from ..data.read import load_text_dataset
    from ..data.table import stream_texts
    from ..search.mining import MiningOptions, mine_hard_negatives

    options = MiningOptions(**{field.name: getattr(arguments, field.name) for field in fields(MiningOptions)})
    pairs = load_text_dataset(arguments.input, columns=arguments.column)
    corpus: list[str] = []
    if arguments.corpus is not None:
        corpus = [text for _, text in stream_texts(arguments.corpus, arguments.corpus_column) if text.strip()]
    rows, result = mine_hard_negatives(
        pairs,
        load_encoder(arguments.model, arguments),
        corpus=corpus,
        options=options,
        backend=arguments.backend,
        output_format=arguments.output_format,
        show_progress_bar=not arguments.quiet,
    )
    if not len(rows):
        dropped = ", ".join(f"{count} x {reason}" for reason, count in result.dropped.items())
        raise ValueError(
            f"{arguments.input}: no pair has {options.num_negatives} hard negative(s) left: {dropped}. Raise "
            "--range_max, or loosen the margins and scores."
        )
    write_table(rows, arguments.output)
    similarity = "none" if result.negative_score is None else f"{result.negative_score:.4f}"
    lines = [
        f"{arguments.output}: {result.rows} rows of {', '.join(rows.column_names)}",
        f"{result.pairs} pairs, {result.anchors} distinct anchors, {result.candidates} distinct candidates",
        f"mean similarity of positives {result.positive_score:.4f}, of negatives {similarity}",
        "left out:",
        *(f"  {count:>10}  {reason}" for reason, count in result.dropped.items()),
        f"  {result.pairs_without_negatives:>10}  pairs with too few negatives",
    ]
    document = {"output": arguments.output, "columns": rows.column_names, **asdict(result), "options": asdict(options)}
    report(arguments, document, "\n".join(lines))
    return 0
