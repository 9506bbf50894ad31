"""The commands `simcse-hf index` and `simcse-hf search`."""

import argparse
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import (
    TRUNCATE_HELP,
    add_general_options,
    add_invariance_option,
    add_model_options,
    add_output_options,
    add_prompt_options,
    add_text_options,
    command_parser,
    cosine,
    load_encoder,
    positive_int,
    report,
    set_prompt,
)

if TYPE_CHECKING:
    from ..search import SentenceIndex

BACKENDS = ("exact", "flat", "ivf", "hnsw", "ivf_disk", "qdrant", "pgvector")

URL_HELP = (
    "qdrant: address of a server, whose key is read from QDRANT_API_KEY and sent over https only; pgvector: "
    "postgresql://USER@HOST:PORT/DATABASE, whose password is read from PGPASSWORD or ~/.pgpass"
)
_BACKEND_OPTIONS = (
    "codes",
    "cells",
    "probes",
    "neighbors",
    "ef_construction",
    "ef_search",
    "url",
    "collection",
    "precision",
    "resume",
)
_INDEX_FILE = "index.json"


def _index_parser() -> argparse.ArgumentParser:
    parser = command_parser("index", "Build a search index over the texts of a file, or add texts to an index.")
    add_model_options(parser, default="with --add, the model that the index names")
    add_text_options(parser)
    add_prompt_options(parser)
    parser.add_argument(
        "--vectors", metavar="FOLDER", help="folder that `simcse-hf encode` wrote for the same --input and model"
    )
    group = parser.add_argument_group("index")
    group.add_argument("--add", action="store_true", help="add to the index that is in --output")
    group.add_argument("--backend", choices=BACKENDS, default="exact", help="what searches the index; default: exact")
    group.add_argument("--truncate_dim", type=positive_int, help=TRUNCATE_HELP)
    group.add_argument("--cells", type=positive_int, help="ivf, ivf_disk: number of cells; default: 4 sqrt(n)")
    group.add_argument("--codes", help="ivf_disk: sq8, a byte per dimension, or such as pq64, 64 bytes; default: sq8")
    group.add_argument(
        "--probes",
        type=positive_int,
        help="ivf, ivf_disk: cells that a query looks into; default: a tenth of them, 64",
    )
    group.add_argument("--neighbors", type=positive_int, help="hnsw, pgvector: edges of an embedding; default: 32, 16")
    group.add_argument(
        "--ef_construction", type=positive_int, help="hnsw, pgvector: candidates while building; default: 80, 64"
    )
    group.add_argument(
        "--ef_search", type=positive_int, help="hnsw, pgvector: candidates while searching; default: 128, 100"
    )
    group.add_argument("--url", help=f"{URL_HELP}; default: embedded Qdrant")
    group.add_argument("--collection", help="qdrant, pgvector: name of the collection or table; default: sentences")
    group.add_argument(
        "--precision",
        choices=("float32", "float16", "int8", "binary"),
        help="pgvector: float32, float16 or binary; qdrant: float32, int8 or binary; default: float32",
    )
    group.add_argument(
        "--keep",
        nargs="+",
        metavar="COLUMN",
        help="keep these columns of --input too, for `simcse-hf search --filter`",
    )
    group.add_argument(
        "--resume", action="store_true", default=None, help="pgvector: continue a build that was interrupted"
    )
    add_output_options(parser, "folder of the index")
    add_invariance_option(parser)
    add_general_options(parser)
    return parser


def index_main(argv: list[str]) -> int:
    """Run `simcse-hf index`.

    Args:
        argv (`list[str]`): The words after `simcse-hf index`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If `--vectors` holds codes, which no index can be made of.
    """
    parser = _index_parser()
    arguments = parser.parse_args(argv)
    _check_index_arguments(parser, arguments)

    from ..inference.manifest import read_manifest
    from ..inference.shards import read_shards, sample_shards
    from ..search import SentenceIndex, describe, hold_folder
    from ..search.disk_index import TRAINING_VECTORS, default_cells
    from ..search.folder import check_target

    options: dict[str, Any] = {
        name: getattr(arguments, name) for name in _BACKEND_OPTIONS if getattr(arguments, name) is not None
    }
    vectors = None
    if arguments.vectors is not None:
        manifest = read_manifest(arguments.vectors)
        precision = manifest["settings"]["precision"]
        if precision != "float32":
            raise ValueError(f"{arguments.vectors} holds {precision} codes; an index is made of float32 vectors.")
        vectors = read_shards(arguments.vectors)
        if arguments.backend == "ivf_disk" and not arguments.add:
            rows = manifest["input"]["rows"]
            options.setdefault("cells", default_cells(rows))
            options["training"] = sample_shards(arguments.vectors, TRAINING_VECTORS * options["cells"])
    texts = {"column": arguments.column, "vectors": vectors, "show_progress_bar": not arguments.quiet}
    with ExitStack() as stack:
        if arguments.add:
            describe(arguments.output)  # says so if there is no index
            stack.enter_context(hold_folder(arguments.output))
            index = open_index(arguments.output, arguments)
            stack.callback(index.close)
            index.add(arguments.input, **texts)
        else:
            check_target(arguments.output)  # before hours of encoding
            settings = {"backend": arguments.backend, "truncate_dim": arguments.truncate_dim}
            settings["keep"] = arguments.keep or ()
            model = load_encoder(arguments.model, arguments)
            set_prompt(model, "document", arguments)
            index = SentenceIndex.build(model, arguments.input, **settings, **texts, **options)
            stack.callback(index.close)
        index.save(arguments.output)
        document = {"output": arguments.output, "sentences": len(index), "backend": index.backend}
        report(arguments, document, f"{len(index)} sentences in the index {arguments.output}")
    return 0


def _check_index_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.add:
        fixed = (
            "backend",
            "truncate_dim",
            "prompt",
            "prompt_name",
            "keep",
            *(x for x in _BACKEND_OPTIONS if x != "url"),
        )
        if any(getattr(arguments, name) not in (None, parser.get_default(name)) for name in fixed):
            parser.error(f"--add keeps the index as it was made: leave out {', '.join(f'--{name}' for name in fixed)}")
        return
    if arguments.model is None:
        parser.error("--model is missing: name the model that encodes the texts")
    if (Path(arguments.output).expanduser() / _INDEX_FILE).exists() and not arguments.overwrite:
        parser.error(
            f"--output {arguments.output} holds an index: add to it with --add, replace it with --overwrite, or name "
            "another folder"
        )


def _search_parser() -> argparse.ArgumentParser:
    parser = command_parser("search", "Find the sentences of an index that are most similar to each query.")
    parser.add_argument("queries", nargs="*", help="texts to search for; default: the lines of standard input")
    parser.add_argument("--index", required=True, metavar="FOLDER", help="folder that `simcse-hf index` wrote")
    add_search_options(parser)
    add_prompt_options(parser)
    add_model_options(parser, default="the model that the index names")
    group = parser.add_argument_group("index")
    add_url_option(group)
    group.add_argument(
        "--probes",
        type=positive_int,
        help="ivf, ivf_disk: cells that a query looks into; default: what the index was made with",
    )
    group.add_argument(
        "--ef_search",
        type=positive_int,
        help="hnsw, pgvector: candidates while searching; default: what the index was made with",
    )
    group.add_argument(
        "--filter",
        type=_condition,
        action="append",
        metavar="COLUMN=VALUE",
        help="look only among sentences whose column, kept by `simcse-hf index --keep`, holds this value; given "
        "several times, all must hold",
    )
    add_invariance_option(parser)
    add_general_options(parser)
    return parser


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form COLUMN=VALUE")
    return column, value


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Add `--top_k` and `--threshold`."""
    parser.add_argument("--top_k", type=positive_int, default=5, help="number of sentences to find; default: 5")
    parser.add_argument(
        "--threshold", type=cosine, help="hide sentences with a lower cosine similarity; default: hide none"
    )


def add_url_option(group: argparse._ArgumentGroup) -> None:
    """Add `--url` to a command that opens an index."""
    group.add_argument("--url", help=f"{URL_HELP}; required if the index names a server on another machine")


def search_main(argv: list[str]) -> int:
    """Run `simcse-hf search`.

    Args:
        argv (`list[str]`): The words after `simcse-hf search`.

    Returns:
        `int`: The exit status.
    """
    parser = _search_parser()
    arguments = parser.parse_args(argv)
    filters = dict(arguments.filter or ())
    if len(filters) < len(arguments.filter or ()):
        parser.error("--filter names a column twice: give each column one value")
    options = {
        name: getattr(arguments, name) for name in ("probes", "ef_search") if getattr(arguments, name) is not None
    }
    index = open_index(arguments.index, arguments, **options)
    set_prompt(index.model, "query", arguments)
    for query in arguments.queries or _lines(sys.stdin):
        best = index.search(query, top_k=arguments.top_k, threshold=None, filters=filters)
        results = [pair for pair in best if arguments.threshold is None or pair[1] >= arguments.threshold]
        document = {
            "query": query,
            "results": [{"sentence": sentence, "score": score} for sentence, score in results],
            "best_score": best[0][1] if best else None,
        }
        lines = [f"  {score:.4f}  {sentence}\n" for sentence, score in results]
        if best and not results:
            lines = [f"  no sentence reaches {arguments.threshold}; the best one has {best[0][1]:.4f}\n"]
        report(arguments, document, f"{query}\n{''.join(lines)}")
    index.close()
    return 0


def _lines(stream: Iterable[str]) -> Iterable[str]:
    return (line.rstrip("\n") for line in stream if line.strip())


def open_index(folder: str, arguments: argparse.Namespace, **options: Any) -> "SentenceIndex":
    """Open an index with the model that it names, or that the command line names instead.

    Args:
        folder (`str`): Folder of the index.
        arguments (`argparse.Namespace`): The options of `add_model_options` and `add_url_option`.
        options (`Any`): Further options of the backend.

    Returns:
        `SentenceIndex`: The index.
    """
    from ..search import SentenceIndex, describe

    saved = describe(folder)
    if arguments.url is not None:
        options["url"] = arguments.url
    settings: dict[str, Any] = {
        "pooler_type": arguments.pooler_type or saved["pooler"],
        "max_length": arguments.max_length or saved["max_length"],
    }
    if arguments.model is None and saved["revision"] is not None:
        settings["revision"] = saved["revision"]
    model = load_encoder(arguments.model or saved["model"], arguments, **settings)
    if saved.get("document_prompt") is not None:
        model.prompts["document"] = saved["document_prompt"]
    return SentenceIndex.load(folder, model, **options)
