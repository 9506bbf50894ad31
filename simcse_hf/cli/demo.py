"""The command `simcse-hf demo`: serve a web page that searches an index and compares two sentences."""

import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .common import add_general_options, add_model_options, command_parser, positive_int, report

if TYPE_CHECKING:
    from ..search import SentenceIndex

MAX_BODY = 2**20  # bytes of a request; the longest accepted texts need less
_MAX_TOP_K = 100  # end of the slider, unless the command line asks for more
_MAX_CHARACTERS = 10_000  # of a text; a longer one takes seconds, and no encoder reads it to its end


def demo_main(argv: list[str]) -> int:
    """Run `simcse-hf demo` until it is interrupted.

    Nothing is shared, reported or loaded from elsewhere: the page and its fonts come from this process.

    Args:
        argv (`list[str]`): The words after `simcse-hf demo`.

    Returns:
        `int`: The exit status.

    Raises:
        ValueError: If the index cannot be opened, or the address is in use.
    """
    parser = command_parser(
        "demo",
        "Serve a web page that searches an index and compares two sentences. Everything stays on this machine.",
    )
    parser.add_argument("--index", required=True, metavar="FOLDER", help="folder that `simcse-hf index` wrote")
    parser.add_argument("--parameters", help="parameters of a faiss index, such as efSearch=256 or nprobe=20")
    parser.add_argument("--top_k", type=positive_int, default=5, help="number of sentences to find; default: 5")
    words = "lowest score to show; `saved` uses the one of `evaluate --save_threshold`"
    parser.add_argument("--threshold", type=lambda text: text if text == "saved" else float(text), help=words)
    add_model_options(parser, default="the model that the index names")
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
    add_general_options(parser)
    arguments = parser.parse_args(argv)
    if arguments.port > 65535:
        raise ValueError(f"--port must be between 1 and 65535, got {arguments.port}")

    from ..ops.errors import require_extra
    from ..search.commands import open_index, resolve_threshold

    # Read when gradio is imported and again when it serves; it also decides whether gradio looks for a newer version.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    require_extra("gradio", "demo", "the demo")  # before a large index is read
    from starlette.middleware import Middleware

    index = open_index(
        arguments.index,
        arguments.model,
        parameters=arguments.parameters,
        pooler_type=arguments.pooler_type,
        max_length=arguments.max_length,
        dtype=arguments.dtype,
        device=arguments.device,
        long_texts=arguments.long_texts,
        model_backend=arguments.model_backend,
        postprocess=not arguments.no_postprocess,
    )
    threshold = resolve_threshold(index, arguments.threshold, index.model.prompts["query"])
    page = build_demo(index, arguments.top_k, threshold)
    guard = Middleware(DemoGuard, host=arguments.host, allowed=arguments.allowed_hosts)
    try:
        page.launch(
            server_name=arguments.host,
            server_port=arguments.port,
            app_kwargs={"middleware": [guard]},
            max_file_size=MAX_BODY,
            # Nothing is shared with or loaded from elsewhere.
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
    report(arguments, {"url": page.local_url}, f"Serving on {page.local_url}; interrupt (Ctrl-C) to stop.")
    page.block_thread()
    return 0


def build_demo(index: "SentenceIndex", top_k: int, threshold: float | None) -> Any:
    """Build the page without serving it.

    Args:
        index (`SentenceIndex`): The index, which is searched with its own model.
        top_k (`int`): Number of sentences that the page shows first.
        threshold (`float`, *optional*): Lowest cosine similarity that the page shows first; `None` shows all.

    Returns:
        `gradio.Blocks`: The page.
    """
    import gradio as gr
    from jinja2 import Template

    def problem(text: str) -> str | None:
        """Return the message for a text that the demo does not take."""
        if not text.strip():
            return "Type a sentence first."
        if len(text) > _MAX_CHARACTERS:
            return f"A text may have {_MAX_CHARACTERS:,} characters; this one has {len(text):,}."
        return None

    def compare(first: str, second: str) -> str:
        if message := problem(first) or problem(second):
            return message
        return f"{index.similarity.capitalize()}: {index.model.similarity(first, second):.4f}"

    # Markup in a sentence is shown as text.
    results = Template(Path(__file__).with_name("demo_results.html").read_text(encoding="utf-8"), autoescape=True)

    def search(query: str, top_k: int, threshold: float | None) -> str:
        if message := problem(query):
            return message
        best: Any = index.search(query, top_k=int(top_k))
        found = [match for match in best if threshold is None or match.score >= threshold]
        if not found:
            return f"The best sentence has a {index.similarity} of {best[0].score:.2f} only."
        return results.render(matches=found, kept=index.kept)

    name = index.model.name_or_path
    if Path(name).exists():
        name = Path(name).name
    step = max(1, len(index) // 4)
    examples = list(dict.fromkeys(index[row] for row in range(0, len(index), step)))
    with gr.Blocks(title="Sentence search", analytics_enabled=False) as page:
        gr.Markdown(
            f"# Sentence search\n{len(index):,} sentences, model `{name}` with pooler `{index.model.pooler_type}`"
        )
        with gr.Tab("Search"):
            with gr.Row(equal_height=True):
                query = gr.Textbox(label="Query", placeholder="Type a sentence", scale=6)
                button = gr.Button("Search", variant="primary", scale=1)
            with gr.Row():
                most = gr.Slider(1, max(_MAX_TOP_K, top_k), value=top_k, step=1, label="Number of sentences")
                if index.similarity == "cosine":
                    least = gr.Slider(-1, 1, value=-1 if threshold is None else threshold, label="Lowest cosine")
                else:
                    least = gr.Number(threshold, label=f"Lowest {index.similarity}")
            shown = gr.Examples(examples[:4], query, label="Examples: sentences of the index")
            inputs = [query, most, least]
            answer = gr.HTML()
            shown.load_input_event.then(search, inputs, answer, api_name=False)
            gr.on([button.click, query.submit], search, inputs, answer, api_name="search")
        with gr.Tab("Compare"):
            first = gr.Textbox("A man is playing a guitar.", label="First")
            second = gr.Textbox("A woman plays the violin.", label="Second")
            button = gr.Button("Compare", variant="primary")
            cosine = gr.Markdown()
            gr.on([button.click, first.submit, second.submit], compare, [first, second], cosine, api_name="compare")
    return page


class DemoGuard:
    """ASGI middleware that refuses requests that no visitor of the page makes.

    A page of another site can make a browser send requests to this machine. Such a request names the site in `Origin`,
    or, if the site's own name was made to point to this machine (DNS rebinding), in `Host`. Files and requests that
    are too large are refused as well.

    Args:
        app (`Callable`): The application behind it.
        host (`str`): The address that the demo listens on. On a wildcard address every IP address is a name of the
            demo, because rebinding needs a name.
        allowed (`Sequence[str]`, *optional*): Further names of this machine, such as that of a proxy before it.
    """

    def __init__(self, app: Any, host: str, allowed: Sequence[str] = ()) -> None:
        self.app = app
        self.any_address = host in ("0.0.0.0", "::", "")
        names = ["localhost", "127.0.0.1", "::1", host, *allowed]
        if self.any_address:
            names += [socket.gethostname(), socket.getfqdn()]
        self.names = {name.lower() for name in names}

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        """Answer a refused request with its reason, and hand any other one on."""
        from starlette.datastructures import Headers
        from starlette.responses import PlainTextResponse

        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        length = headers.get("content-length", "0")
        try:
            name = urlsplit(f"//{host}").hostname or ""
            known = name in self.names or (self.any_address and ip_address(name) is not None)
        except ValueError:
            known = False
        refusal = None
        if not known:
            refusal = 403, f"host {host!r} is not a name of this demo: start it with --allowed_hosts {host}"
        elif urlsplit(headers.get("origin", f"//{host}")).netloc != host:
            refusal = 403, "requests from other sites are refused"
        elif scope["path"].rstrip("/").endswith("/upload"):
            refusal = 403, "the demo takes no files"
        elif not length.isdecimal() or int(length) > MAX_BODY:
            refusal = 413, f"the demo takes requests of at most {MAX_BODY} bytes"
        if refusal is not None:
            status, reason = refusal
            await PlainTextResponse(reason, status, {"connection": "close"})(scope, receive, send)
            return
        received = 0

        async def bounded() -> dict:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            # A body without a declared length: the application sees a visitor who has gone away.
            return {"type": "http.disconnect"} if received > MAX_BODY else message

        await self.app(scope, bounded, send)
