"""The command `simcse-hf demo`: serve a web page that searches an index and compares sentences."""

import argparse
from typing import Any

from .common import add_general_options, add_model_options, command_parser, positive_int
from .search import add_search_options, open_index


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "demo",
        "Serve a web page that searches an index, compares sentences, draws their similarities as a heat map and "
        "measures the geometry of the embeddings. Everything stays on this machine.",
    )
    parser.add_argument(
        "--index",
        required=True,
        nargs="+",
        metavar="FOLDER",
        help="folder that `simcse-hf index` wrote; two folders, made with different models, stand side by side",
    )
    add_search_options(parser)
    add_model_options(parser, default="the model that the index names")
    parser.add_argument("--pairs", metavar="FILE", help="scored pairs, such as STS-B, to measure alignment on")
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for any; default: 127.0.0.1, this machine"
    )
    group.add_argument(
        "--allowed_hosts",
        nargs="+",
        default=[],
        metavar="NAME",
        help="further names that the page is reached under, such as that of a proxy; default: this machine's own",
    )
    group.add_argument("--port", type=positive_int, default=7860, help="port to listen on; default: 7860")
    add_general_options(parser, json=False)
    return parser


def demo_main(argv: list[str]) -> int:
    """Run `simcse-hf demo` until it is interrupted.

    Nothing is shared, reported or loaded from elsewhere: the page and its fonts come from this process.

    Args:
        argv (`list[str]`): The words after `simcse-hf demo`.

    Returns:
        `int`: The exit status.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.port > 65535:
        parser.error(f"--port must be between 1 and 65535, got {arguments.port}")
    if len(arguments.index) > 2:
        parser.error(f"--index takes one or two folders, got {len(arguments.index)}")
    if len(arguments.index) > 1 and (arguments.model or arguments.pooler_type):
        parser.error("--model and --pooler_type belong to one index: without them each index uses its own")

    from .demo_page import build_demo, import_gradio

    import_gradio()  # fails before a large index is read
    pairs = None
    if arguments.pairs is not None:
        from ..evaluation.sts_data import read_pairs_argument

        pairs = read_pairs_argument(arguments.pairs)
    indexes = [open_index(folder, arguments) for folder in arguments.index]
    page = build_demo(indexes, top_k=arguments.top_k, threshold=arguments.threshold, pairs=pairs)
    _launch(page, arguments)
    print(f"Serving on {page.local_url}; interrupt (Ctrl-C) to stop.", flush=True)
    page.block_thread()
    return 0


def _launch(page: Any, arguments: argparse.Namespace) -> None:
    """Serve the page in a thread of its own, without anything that gradio would load from elsewhere."""
    from starlette.middleware import Middleware

    from .demo_guard import MAX_BODY, DemoGuard, guard_settings

    guard = Middleware(DemoGuard, **guard_settings(arguments.host, arguments.allowed_hosts))
    try:
        page.launch(
            server_name=arguments.host,
            server_port=arguments.port,
            app_kwargs={"middleware": [guard]},
            max_file_size=MAX_BODY,
            share=False,
            ssr_mode=False,
            run_history=False,
            footer_links=[],
            show_error=True,
            quiet=True,
            prevent_thread_lock=True,
        )
    except OSError as error:
        raise ValueError(
            f"cannot listen on {arguments.host}, port {arguments.port}: name another --port or --host ({error})"
        ) from error
