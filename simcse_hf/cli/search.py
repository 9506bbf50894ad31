"""`simcse-hf index` and `simcse-hf search`."""

import argparse
import json
import sys
from collections.abc import Iterable

from ..inference.shards import read_manifest, read_shards
from ..inference.simcse import SimCSE
from ..models.poolers import POOLER_TYPES
from ..search.sentences import BACKENDS, SentenceIndex, describe

_OPTIONS = ("cells", "probes", "neighbors", "ef_construction", "ef_search", "url", "collection")


def _index_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simcse-hf index", description="Makes an index of sentences, or adds to one."
    )
    parser.add_argument("--model", help="directory or hub name; with --add by default the index's own")
    parser.add_argument("--input", required=True, help="txt, csv, tsv, json, jsonl or parquet file, or one gzipped")
    parser.add_argument("--output", required=True, help="folder of the index")
    parser.add_argument("--add", action="store_true", help="add to the index that is there")
    parser.add_argument("--column", help="column of sentences, where the file has several")
    parser.add_argument("--vectors", help="folder that `simcse-hf encode` wrote for the same --input and model")
    parser.add_argument("--backend", choices=BACKENDS, default="exact", help="default: exact")
    parser.add_argument("--pooler", choices=POOLER_TYPES, help="default: the one the checkpoint names")
    parser.add_argument("--device", help="default: a GPU where there is one")
    parser.add_argument("--truncate_dim", type=int, help="keep so many leading dimensions")
    parser.add_argument("--cells", type=int, help="ivf: number of cells; default: 4 sqrt(n)")
    parser.add_argument("--probes", type=int, help="ivf: cells a query looks into; default: a tenth")
    parser.add_argument("--neighbors", type=int, help="hnsw: edges of a vector; default: 32")
    parser.add_argument("--ef_construction", type=int, help="hnsw: candidates while building; default: 80")
    parser.add_argument("--ef_search", type=int, help="hnsw: candidates while searching; default: 128")
    parser.add_argument("--url", help="qdrant: of a server; default: embedded. Its key: QDRANT_API_KEY")
    parser.add_argument("--collection", help="qdrant: name of the collection; default: sentences")
    return parser


def index_main(argv: list[str]) -> int:
    """Runs `simcse-hf index`; returns the exit status.

    Raises:
        ValueError, ImportError: what [`SentenceIndex`] and [`SimCSE`] raise.
        SystemExit: with status 2, for a wrong command line.
    """
    parser = _index_parser()
    arguments = parser.parse_args(argv)
    options = {name: getattr(arguments, name) for name in _OPTIONS if getattr(arguments, name) is not None}
    vectors = None
    if arguments.vectors is not None:
        precision = read_manifest(arguments.vectors)["settings"]["precision"]
        if precision != "float32":
            raise ValueError(f"{arguments.vectors} holds {precision} codes; an index is made of float32 vectors.")
        vectors = read_shards(arguments.vectors)
    given = {"column": arguments.column, "vectors": vectors, "show_progress": True}
    if arguments.add:
        fixed = ("backend", "truncate_dim", *_OPTIONS)
        if any(getattr(arguments, name) not in (None, parser.get_default(name)) for name in fixed):
            parser.error(f"--add keeps the index as it was made: leave out {', '.join(f'--{name}' for name in fixed)}")
        index = open_index(arguments.output, arguments)
        index.add(arguments.input, **given)
    else:
        if arguments.model is None:
            parser.error("give --model")
        model = SimCSE(arguments.model, pooler_type=arguments.pooler, device=arguments.device)
        settings = {"backend": arguments.backend, "truncate_dim": arguments.truncate_dim}
        index = SentenceIndex.build(model, arguments.input, **settings, **given, **options)
    index.save(arguments.output)
    print(f"{len(index)} sentences in the index {arguments.output}")
    index.close()
    return 0


def _search_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simcse-hf search", description="Finds the sentences of an index that are most similar to each query."
    )
    parser.add_argument("queries", nargs="*", help="default: the lines of standard input")
    parser.add_argument("--index", required=True, help="folder that `simcse-hf index` wrote")
    parser.add_argument("--model", help="default: the one the index names")
    parser.add_argument("--pooler", choices=POOLER_TYPES, help="default: the one the index names")
    parser.add_argument("--device", help="default: a GPU where there is one")
    parser.add_argument("--top_k", type=int, default=5, help="default: 5")
    parser.add_argument("--threshold", type=float, default=0.6, help="least cosine; default: 0.6")
    parser.add_argument("--probes", type=int, help="ivf: cells a query looks into; default: the index's")
    parser.add_argument("--ef_search", type=int, help="hnsw: candidates while searching; default: the index's")
    parser.add_argument("--json", action="store_true", help="a JSON object a line: query, results")
    return parser


def search_main(argv: list[str]) -> int:
    """Runs `simcse-hf search`; returns the exit status.

    Raises:
        ValueError, ImportError: what [`SentenceIndex`] and [`SimCSE`] raise.
        SystemExit: with status 2, for a wrong command line.
    """
    arguments = _search_parser().parse_args(argv)
    options = {
        name: getattr(arguments, name) for name in ("probes", "ef_search") if getattr(arguments, name) is not None
    }
    index = open_index(arguments.index, arguments, **options)
    for query in arguments.queries or _lines(sys.stdin):
        results = index.search(query, top_k=arguments.top_k, threshold=arguments.threshold)
        if arguments.json:
            found = [{"sentence": sentence, "score": score} for sentence, score in results]
            print(json.dumps({"query": query, "results": found}, ensure_ascii=False), flush=True)
            continue
        print(f"{query}\n" + "".join(f"  {score:.4f}  {sentence}\n" for sentence, score in results), flush=True)
    index.close()
    return 0


def _lines(stream: Iterable[str]) -> Iterable[str]:
    return (line.rstrip("\n") for line in stream if line.strip())


def open_index(folder: str, arguments: argparse.Namespace, **options) -> SentenceIndex:
    """The index with its model, or the one that the command line names in place of it."""
    described = describe(folder)
    own = arguments.model is None and described["revision"] is not None
    model = SimCSE(
        arguments.model or described["model"],
        pooler_type=arguments.pooler or described["pooler"],
        device=arguments.device,
        max_length=described["max_length"],
        **({"revision": described["revision"]} if own else {}),
    )
    return SentenceIndex.load(folder, model, **options)
