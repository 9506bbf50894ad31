"""The command `demo`: serve a web page that searches an index and compares two sentences."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack
from urllib.parse import urlsplit

from ..encoding.simcse import SimCSE
from ..names import ModelOptions
from ..retrieval.sentences import SentenceIndex
from ..runtime.errors import SettingError, check_values, require_extra
from ..runtime.files import StrPath, read_template
from ..runtime.outputs import Result
from .search import lowest_score, open_index

if TYPE_CHECKING:
    from gradio import Blocks
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY = 2**20  # bytes of a request; the longest accepted texts need less
_MAX_TOP_K = 100  # end of the slider, unless the command line asks for more
_MAX_CHARACTERS = 10_000  # of a text; a longer one takes seconds, and no encoder reads it to its end


@dataclass(frozen=True)
class Demo(Result):
    """A page that is served until the program ends or `close` is called.

    Args:
        url (`str`): Its address.
        page (`gradio.Blocks`): The page.
    """

    url: str
    page: "Blocks"

    def to_dict(self) -> dict[str, Any]:
        """Return the address."""
        return {"url": self.url}

    def __str__(self) -> str:
        return f"Serving on {self.url}; interrupt (Ctrl-C) to stop."

    def wait(self) -> None:
        """Wait for an interrupt."""
        self.page.block_thread()

    def close(self) -> None:
        """Stop serving."""
        self.page.close()


def demo(
    index: StrPath | SentenceIndex,
    *,
    parameters: str | None = None,
    top_k: int = 5,
    threshold: float | Literal["saved"] | None = None,
    model: StrPath | SimCSE | None = None,
    host: str = "127.0.0.1",
    allowed_hosts: Sequence[str] = (),
    port: int = 7860,
    **loading: Unpack[ModelOptions],
) -> Demo:
    """Serve a web page that searches an index and compares two sentences.

    Everything stays on this machine: the page and its fonts come from this process, and nothing is reported. Needs the
    extra `demo`.

    Args:
        index (`str`, `os.PathLike` or `SentenceIndex`): Folder that `simcse-hf index` wrote.
        parameters (`str`, *optional*): Parameters of a faiss index, such as efSearch=256 or nprobe=20.
        top_k (`int`, *optional*, defaults to `5`): Number of sentences to find.
        threshold (`float` or `str`, *optional*): Lowest score to show; saved is the threshold that `simcse-hf evaluate
            --save_threshold` saved.
        model (`str`, `os.PathLike` or `SimCSE`, *optional*): Folder of a model, or its name on the Hugging Face hub.
            The default is the model that the index names.
        host (`str`, *optional*, defaults to `"127.0.0.1"`): Address to listen on: 127.0.0.1 for this machine, 0.0.0.0
            for any.
        allowed_hosts (`Sequence[str]`, *optional*): Further names and addresses that browsers reach the page under,
            such as that of a proxy. The default is this machine's own.
        port (`int`, *optional*, defaults to `7860`): Port to listen on.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        `Demo`: The page, which is being served.

    Raises:
        ImportError: If gradio is not installed.
        SettingError: If the index cannot be opened, or the address is in use.
    """
    check_values(range(1, 65536), port=port)
    check_values("an integer above 0", top_k=top_k)
    # Read when gradio is imported and again when it serves; it also decides whether gradio looks for a newer version.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    require_extra("gradio", "demo", "the demo")  # before a large index is read
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    opened = open_index(index, model, parameters=parameters, **loading)
    before = opened.model.resolve_prompt(role="query")
    page = build_page(opened, top_k, lowest_score(opened.model, threshold, before, opened))
    names = own_names(host) + list(allowed_hosts)
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False), Middleware(guard)]
    try:
        page.launch(
            server_name=host,
            server_port=port,
            app_kwargs={"middleware": guards},
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
        raise SettingError(f"cannot listen on {host}, port {port}: name another port or host ({error})") from error
    return Demo(page.local_url, page)


def own_names(host: str) -> list[str]:
    """Return the names under which a browser reaches a demo that listens on `host`.

    Any other name is refused: a site's own name may be made to point to this machine (DNS rebinding).
    """
    names = ["localhost", "127.0.0.1", "[::1]", host]
    if host in ("0.0.0.0", "::"):
        names += [socket.gethostname(), socket.getfqdn(), *socket.gethostbyname_ex(socket.gethostname())[2]]
    return names


def build_page(index: SentenceIndex, top_k: int, threshold: float | None) -> "Blocks":
    """Build the page without serving it.

    Args:
        index (`SentenceIndex`): The index, which is searched with its own model.
        top_k (`int`): Number of sentences that the page shows first.
        threshold (`float`, *optional*): Lowest score that the page shows first; `None` shows all.

    Returns:
        `gradio.Blocks`: The page.
    """
    import gradio as gr

    # Markup in a sentence is shown as text.
    results = read_template(Path(__file__).with_name("demo_results.html"), autoescape=True)

    def compare(first: str, second: str) -> str:
        if message := problem(first) or problem(second):
            return message
        return f"{index.similarity.capitalize()}: {index.model.similarity(first, second):.4f}"

    def search(query: str, top_k: int, threshold: float | None) -> str:
        if message := problem(query):
            return message
        best = index.search(query, top_k=int(top_k))
        found = [match for match in best if threshold is None or match.score >= threshold]
        if not found:
            return f"The best sentence has a {index.similarity} of {best[0].score:.2f} only."
        return results.render(matches=found, kept=index.kept)

    name = index.model.name_or_path
    if Path(name).exists():
        name = Path(name).name
    step = max(1, len(index) // 4)
    sentences = index.rows["sentence"].drop_null()[::step].to_pylist()
    examples = list(dict.fromkeys(sentences))
    with gr.Blocks(title="Sentence search") as page:
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


def problem(text: str) -> str | None:
    """Return the message for a text that the demo does not take."""
    if not text.strip():
        return "Type a sentence first."
    if len(text) > _MAX_CHARACTERS:
        return f"A text may have {_MAX_CHARACTERS:,} characters; this one has {len(text):,}."
    return None


def guard(app: "ASGIApp") -> "ASGIApp":
    """Return ASGI middleware that refuses files, large bodies and the requests of other sites' pages.

    Args:
        app (`Callable`): The application behind it.

    Returns:
        `Callable`: Answers a refused request with its reason, and hands any other one on.
    """
    from starlette.datastructures import Headers
    from starlette.responses import PlainTextResponse

    async def guarded(scope: "Scope", receive: "Receive", send: "Send") -> None:
        answer = app
        if scope["type"] != "lifespan":
            headers = Headers(scope=scope)
            host = headers.get("host", "")
            refusal = None
            if urlsplit(headers.get("origin", f"//{host}")).netloc != host:
                refusal = "requests from other sites are refused", 403
            elif scope["path"].rstrip("/").endswith("/upload"):
                refusal = "the demo takes no files", 403
            elif "transfer-encoding" in headers:
                refusal = "the demo takes requests that tell their length", 411
            elif int(headers.get("content-length", "0")) > MAX_BODY:
                refusal = f"the demo takes requests of at most {MAX_BODY} bytes", 413
            if refusal is not None:
                answer = PlainTextResponse(*refusal, {"connection": "close"})
        await answer(scope, receive, send)

    return guarded
