"""`simcse-hf demo`: a web page that searches an index and compares two sentences."""

import argparse
import os
from html import escape

from ..inference.simcse import SimCSE
from ..search import SentenceIndex
from ..search.sentences import Results
from .common import add_general_options, add_model_options, command_parser, positive_int
from .search import add_search_options, open_index

_MAX_TOP_K = 100  # end of the slider, unless more are asked for on the command line
_EMPTY_QUERY = "Type a query first: it is empty."
_EMPTY_SENTENCE = "Type both sentences first: the {} is empty."
_NOTHING_FOUND = "No sentence of the index has a cosine of at least {:.2f} with this query: lower the threshold."


def build_demo(index: SentenceIndex, model: SimCSE, *, top_k: int = 5, threshold: float = 0.6):
    """The page, not yet served.

    Args:
        index: answers the queries.
        model: compares two sentences; the one the index was built with.
        top_k: the page's first setting of [`SentenceIndex.search`]'s.
        threshold: likewise.

    Returns:
        A `gradio.Blocks`. Its scores are those of [`SentenceIndex.search`] and [`SimCSE.similarity`], to four digits.

    Raises:
        ValueError: a `top_k` below 1, a `threshold` that is no cosine.
        ImportError: gradio is not installed; names the extra.
    """
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if not -1 <= threshold <= 1:
        raise ValueError(f"threshold must be a cosine, between -1 and 1, got {threshold}")
    gr = _gradio()

    def search(query: str, top_k: int, threshold: float) -> tuple[str, str]:
        if not query.strip():
            return "", _EMPTY_QUERY
        found = index.search(query, top_k=int(top_k), threshold=threshold)
        return (_table(found), "") if found else ("", _NOTHING_FOUND.format(threshold))

    def compare(first: str, second: str) -> str:
        for name, sentence in (("first", first), ("second", second)):
            if not sentence.strip():
                return _EMPTY_SENTENCE.format(name)
        return f"Cosine: {model.similarity(first, second):.4f}"

    # One call at a time: a fast tokenizer cannot be used by two threads at once.
    alone = {"concurrency_limit": 1, "concurrency_id": "model"}
    with gr.Blocks(title="Sentence search", analytics_enabled=False) as page:
        gr.Markdown("# Sentence search")
        with gr.Tab("Search"):
            query = gr.Textbox(label=f"Query over {len(index):,} sentences", autofocus=True, elem_id="query")
            with gr.Row():
                most = gr.Slider(1, max(_MAX_TOP_K, top_k), value=top_k, step=1, label="Sentences at most")
                least = gr.Slider(-1, 1, value=threshold, step=0.01, label="Least cosine")
            button = gr.Button("Search", variant="primary", elem_id="search")
            message = gr.Markdown(elem_id="search-message")
            results = gr.HTML(elem_id="results")
            asked = [button.click, query.submit]
            gr.on(asked, search, [query, most, least], [results, message], api_name="search", **alone)
        with gr.Tab("Compare", elem_id="compare-tab"):
            with gr.Row():
                first = gr.Textbox(label="First sentence", elem_id="first")
                second = gr.Textbox(label="Second sentence", elem_id="second")
            button = gr.Button("Compare", variant="primary", elem_id="compare")
            cosine = gr.Markdown(elem_id="cosine")
            asked = [button.click, first.submit, second.submit]
            gr.on(asked, compare, [first, second], cosine, api_name="compare", **alone)
    return page


def _table(found: Results) -> str:
    """Markup of the ranked sentences; a sentence's own markup is text in it."""
    rows = "".join(
        f"<tr><td>{rank}</td><td>{score:.4f}</td><td>{escape(sentence)}</td></tr>"
        for rank, (sentence, score) in enumerate(found, start=1)
    )
    head = "<tr><th>Rank</th><th>Cosine</th><th>Sentence</th></tr>"
    return f'<div class="prose"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _gradio():
    # Read when gradio is imported and again when it serves; it also asks the author's server for a newer version.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise ImportError("the demo needs gradio: pip install 'simcse-hf[demo]'") from error
    return gradio


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("demo", "Serve a web page that searches an index and compares sentences.")
    parser.add_argument("--index", required=True, metavar="FOLDER", help="folder that `simcse-hf index` wrote")
    add_search_options(parser)
    add_model_options(parser, default="the model that the index names")
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for any; default: 127.0.0.1, this machine"
    )
    group.add_argument("--port", type=positive_int, default=7860, help="default: 7860")
    add_general_options(parser, json=False)
    return parser


def demo_main(argv: list[str]) -> int:
    """Run `simcse-hf demo` until it is interrupted.

    Nothing is shared, reported or loaded from elsewhere: the page and its fonts come from this process.

    Args:
        argv (`list[str]`): The words after `simcse-hf demo`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If the port cannot be listened on.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.port > 65535:
        parser.error(f"--port must be between 1 and 65535, got {arguments.port}")
    _gradio()  # before a large index is read
    index = open_index(arguments.index, arguments)
    try:
        threshold = -1 if arguments.threshold is None else arguments.threshold
        page = build_demo(index, index.model, top_k=arguments.top_k, threshold=threshold)
        try:
            page.launch(
                server_name=arguments.host,
                server_port=arguments.port,
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
        print(f"Serving on {page.local_url}; interrupt to end.", flush=True)
        page.block_thread()
    finally:
        index.close()
    return 0
