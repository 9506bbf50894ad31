"""The commands `simcse-hf index` and `simcse-hf search`."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import (
    TRUNCATE_HELP,
    add_general_options,
    add_model_options,
    add_output_options,
    add_prompt_options,
    add_text_options,
    command_parser,
    load_encoder,
    positive_int,
    report,
)

if TYPE_CHECKING:
    from ..inference.simcse import SimCSE
    from ..search import SentenceIndex

BACKEND_HELP = (
    "what searches: exact; or with faiss hnsw (a graph), ivf (an inverted file) or a description for faiss's "
    "index_factory such as IVF4096,SQ8, which may all miss some; default: exact"
)
_PARAMETERS_HELP = "parameters of a faiss index, such as efSearch=256 or nprobe=20"
SAVED = "saved"  # of --threshold
_FIXED = ("backend", "parameters", "truncate_dim", "prompt", "prompt_name", "keep")


def index_main(argv: list[str]) -> int:
    """Run `simcse-hf index`.

    Args:
        argv (`list[str]`): The words after `simcse-hf index`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If the vectors of `--vectors` are not those of `--input`.
    """
    parser = command_parser("index", "Build a search index over the texts of a file, or add texts to an index.")
    add_model_options(parser, default="with --add, the model that the index names")
    add_text_options(parser)
    add_prompt_options(parser)
    group = parser.add_argument_group("index")
    group.add_argument("--vectors", metavar="FOLDER", help="what `simcse-hf encode` wrote for this --input and model")
    group.add_argument("--add", action="store_true", help="add to the index that is in --output")
    group.add_argument("--backend", help=BACKEND_HELP)
    group.add_argument("--parameters", help=_PARAMETERS_HELP)
    group.add_argument("--truncate_dim", type=positive_int, help=TRUNCATE_HELP)
    group.add_argument("--keep", nargs="+", metavar="COLUMN", help="columns of --input to return and to filter by")
    add_output_options(parser, "folder of the index")
    arguments = parser.parse_args(argv)
    folder = Path(arguments.output).expanduser()
    if arguments.add:
        if any(getattr(arguments, name) is not None for name in _FIXED):
            raise ValueError(f"--add keeps the index as it was made: leave out --{', --'.join(_FIXED)}")
    elif arguments.model is None:
        raise ValueError("--model is missing: name the model that encodes the texts")
    elif (folder / "index.json").exists() and not arguments.overwrite:
        raise ValueError(f"--output {folder} holds an index: add to it with --add or replace it with --overwrite")

    from ..inference.shards import read_manifest, read_shards
    from ..ops.files import digest
    from ..search import SentenceIndex
    from ..search.sentences import check_target

    # 1. The vectors must be those of the texts.
    texts: dict[str, Any] = {"column": arguments.column, "show_progress_bar": not arguments.quiet}
    if arguments.vectors:
        manifest = read_manifest(arguments.vectors)
        made_with = manifest["settings"]
        source = manifest["input"]
        problem = None
        if made_with["precision"] != "float32":
            problem = f"{made_with['precision']} codes; an index is made of float32 vectors"
        elif "columns" in made_with:
            problem = f"the vectors of several columns ({', '.join(made_with['columns'])})"
        elif digest(Path(arguments.input).expanduser()) != source.get("blake2b"):
            problem = f"the vectors of another file ({source['file']}) than --input {arguments.input}"
        elif arguments.column not in (None, made_with["column"]):
            problem = f"the vectors of column {made_with['column']!r}, not {arguments.column!r}"
        if problem is not None:
            raise ValueError(f"{arguments.vectors} holds {problem}. Encode --input as it is now into a new folder.")
        texts |= {"column": made_with["column"], "vectors": read_shards(arguments.vectors)}

    # 2. Add to the index, or build one.
    if arguments.add:
        index = open_index(arguments.output, arguments)
        index.add(arguments.input, **texts)
    else:
        check_target(arguments.output)  # before hours of encoding
        model = load_encoder(arguments.model, arguments)
        _set_prompt(model, "document", arguments)
        index = SentenceIndex.build(
            model,
            arguments.input,
            backend=arguments.backend or "exact",
            parameters=arguments.parameters,
            keep=arguments.keep or (),
            truncate_dim=arguments.truncate_dim,
            **texts,
        )
    index.save(arguments.output)
    document = {"output": arguments.output, "sentences": len(index), "backend": index.backend}
    report(arguments, document, f"{len(index)} sentences in the index {arguments.output}")
    return 0


def _set_prompt(model: "SimCSE", role: str, arguments: Namespace) -> None:
    """Replace the prompt of a model for queries or documents with that of the command line, if there is one."""
    if arguments.prompt is not None or arguments.prompt_name is not None:
        model.prompts[role] = model.resolve_prompt(arguments.prompt, arguments.prompt_name)


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{text!r} is not of the form COLUMN=VALUE")
    return column, value


def _threshold(text: str) -> float | str:
    return text if text == SAVED else float(text)


def add_search_options(parser: ArgumentParser) -> None:
    """Add `--index`, `--parameters`, `--top_k` and `--threshold`."""
    parser.add_argument("--index", required=True, metavar="FOLDER", help="folder that `simcse-hf index` wrote")
    parser.add_argument("--parameters", help=_PARAMETERS_HELP)
    parser.add_argument("--top_k", type=positive_int, default=5, help="number of sentences to find; default: 5")
    parser.add_argument(
        "--threshold",
        type=_threshold,
        help="hide sentences with a lower cosine, or a lower score of the model's own kind: a number, or `saved` for "
        "the one that `evaluate --save_threshold` wrote; default: hide none",
    )


def find_threshold(index: "SentenceIndex", arguments: Namespace) -> float | None:
    """Return the number that `--threshold` stands for.

    Args:
        index (`SentenceIndex`): The index that is searched.
        arguments (`argparse.Namespace`): The options of `add_search_options`.

    Returns:
        `float`, *optional*: The lowest cosine; `None` to hide nothing.

    Raises:
        ValueError: If the saved threshold is asked for and there is none, or it does not hold for this index.
    """
    if arguments.threshold != SAVED:
        index.check_threshold(arguments.threshold)
        return arguments.threshold
    prompts = [name for name in ("query", "document") if index.model.prompts[name]]
    if prompts or index.truncate_dim is not None:
        why = f"the prompt {prompts[0]!r}" if prompts else f"{index.truncate_dim} dimensions only"
        raise ValueError(
            f"--threshold saved was chosen for pairs of texts, but this index is searched with {why}, which gives "
            "other cosines. Give a number."
        )
    return index.model.threshold


def search_main(argv: list[str]) -> int:
    """Run `simcse-hf search`.

    Args:
        argv (`list[str]`): The words after `simcse-hf search`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If `--filter` names a column twice.
    """
    parser = command_parser("search", "Find the sentences of an index that are most similar to each query.")
    parser.add_argument("queries", nargs="*", help="texts to search for; default: the lines of standard input")
    add_search_options(parser)
    add_prompt_options(parser)
    add_model_options(parser, default="the model that the index names")
    parser.add_argument(
        "--filter",
        type=_condition,
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="look only among sentences whose kept column holds this value; given several times, all must hold",
    )
    add_general_options(parser)
    arguments = parser.parse_args(argv)
    filters = dict(arguments.filter)
    if len(filters) < len(arguments.filter):
        raise ValueError("--filter names a column twice: give each column one value")
    index = open_index(arguments.index, arguments)
    _set_prompt(index.model, "query", arguments)
    threshold = find_threshold(index, arguments)
    queries = arguments.queries or (line.rstrip("\n") for line in sys.stdin if line.strip())
    for query in queries:
        found: Any = index.search(query, top_k=arguments.top_k, filters=filters)
        best = found[0].score if found else None
        matches = [match for match in found if threshold is None or match.score >= threshold]
        lines = [query]
        for match in matches:
            # Escape sequences of a text would reach the terminal.
            shown = "".join(character if character.isprintable() else " " for character in match.sentence)
            lines.append(f"  {match.score:.4f}  {shown}")
        if found and not matches:
            lines.append(f"  no sentence reaches {threshold:.4g}; the best one has {best:.4f}")
        results = [{**match._asdict(), **vars(match)} for match in matches]
        document = {"query": query, "results": results, "best_score": best}
        report(arguments, document, "\n".join([*lines, ""]))
    return 0


def open_index(folder: str, arguments: Namespace) -> "SentenceIndex":
    """Open an index with the model that it names, or that the command line names instead.

    Args:
        folder (`str`): Folder of the index.
        arguments (`argparse.Namespace`): The options of `add_model_options`, and `parameters` of a faiss index.

    Returns:
        `SentenceIndex`: The index.
    """
    from ..search import SentenceIndex, describe

    saved = describe(folder)
    settings = {
        "pooler_type": arguments.pooler_type or saved["pooler"],
        "max_length": arguments.max_length or saved["max_length"],
        "long_texts": arguments.long_texts or saved.get("long_texts", "cut"),  # not in an index of 0.3
    }
    if arguments.model is None:
        if saved["revision"] is not None:
            settings["revision"] = saved["revision"]
        if arguments.model_backend == "torch":
            settings["backend"] = saved.get("model_backend", "torch")  # not in an index of 0.3
    model = load_encoder(arguments.model or saved["model"], arguments, **settings)
    if saved["document_prompt"] is not None:
        model.prompts["document"] = saved["document_prompt"]
    return SentenceIndex.load(folder, model, parameters=arguments.parameters)
