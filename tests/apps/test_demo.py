"""The demo's page, asked over HTTP as its own script asks it, and the guards before it."""

import asyncio
import json
import socket
import urllib.error
import urllib.request

import pytest
from cli_helpers import save_model
from process_helpers import free_port
from starlette.middleware.trustedhost import TrustedHostMiddleware

from simcse_hf import SentenceIndex, SimCSE
from simcse_hf.apps.demo import MAX_BODY, build_page, demo, guard, own_names
from simcse_hf.cli.main import main

SENTENCES = [
    "a cat sat on a mat",
    "the dog ran in the house",
    "a bird sang in the tree",
    "<b>the</b> woman slept ${1 + 1} {{ 1 + 1 }} & <script>alert(1)</script>",
    "a man , a dog and a bird",
    "the big red house",
]
QUERY = "the cat slept on the big mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """An index with a kept column, beside its model."""
    pytest.importorskip("gradio")
    base = tmp_path_factory.mktemp("demo")
    rows = [json.dumps({"text": text, "author": f"author <{row}>"}) for row, text in enumerate(SENTENCES)]
    (base / "texts.jsonl").write_text("\n".join(rows))
    model = SimCSE(save_model(base / "my-model", tokenizer), device="cpu")
    SentenceIndex.build(model, base / "texts.jsonl", column="text", keep=["author"]).save(base / "index")
    return base


@pytest.fixture(scope="module")
def index(folder):
    return SentenceIndex.load(folder / "index", SimCSE(folder / "my-model", device="cpu"))


def test_the_page_of_an_index_with_deleted_sentences_shows_others(folder):
    changed = SentenceIndex.load(folder / "index", SimCSE(folder / "my-model", device="cpu"))
    changed.delete([0, 3])
    shown = str(build_page(changed, 5, None).config)
    assert SENTENCES[1] in shown and SENTENCES[0] not in shown


@pytest.fixture(scope="module")
def served(folder):
    """Run the command until it waits for the interrupt; return its address and the hosts that it looked up."""
    from gradio import Blocks

    port, look_up = free_port(), socket.getaddrinfo
    pages, hosts = [], []

    def noted(host, *rest, **more):
        hosts.append(host)
        return look_up(host, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Blocks, "block_thread", lambda page: pages.append(page))
        patch.setattr(socket, "getaddrinfo", noted)
        line = f"demo --index {folder / 'index'} --port {port} --top_k 4 --device cpu"
        assert main(line.split()) == 0
        yield f"http://127.0.0.1:{port}/", hosts
        pages[0].close()


def ask(address, path, data=None, **headers):
    """Return the status and the text of an answer."""
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # a machine may be busy
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def call(served, name, *data):
    """Call a function of the page as its own script does, and return what it answers."""
    body = json.dumps({"data": data}).encode()
    status, text = ask(served[0], f"gradio_api/call/{name}", body, **{"Content-Type": "application/json"})
    assert status == 200, text
    answer = ask(served[0], f"gradio_api/call/{name}/{json.loads(text)['event_id']}")[1]
    return json.loads(answer.partition("data: ")[2].partition("\n")[0])[0] if "complete" in answer else answer


# --- the page ------------------------------------------------------------------------------------------------------


def test_search_shows_sentences_with_scores_row_numbers_and_kept_columns(served, index):
    table = call(served, "search", QUERY, 3, -1)
    best = index.search(QUERY, top_k=3)
    assert table.count("<tr>") == 4 and "<th>author</th>" in table
    for match in best:
        assert f"{match.score:.4f}</td><td>{match.row}</td>" in table
        assert f"author &lt;{match.row}&gt;" in table
    assert "<script>" not in call(served, "search", SENTENCES[3], 6, -1)


def test_what_cannot_be_searched_or_compared_gets_a_message(served, index):
    best = index.search(QUERY, top_k=1)[0].score
    assert f"cosine of {best:.2f}" in call(served, "search", QUERY, 3, 1)
    assert "Type a sentence" in call(served, "search", "  ", 3, -1)
    long = "a cat " * 2000
    assert "10,000 characters" in call(served, "search", long, 3, -1) == call(served, "compare", "dog", long)
    assert call(served, "compare", *SENTENCES[:2]) == f"Cosine: {index.model.similarity(*SENTENCES[:2]):.4f}"


def test_only_the_page_itself_gets_answers_and_no_other_host_is_asked(served):
    address, hosts = served
    assert ask(address, "")[0] == 200
    assert ask(address, "", Host="evil.example") == (400, "Invalid host header")
    assert ask(address, "gradio_api/call/search", b"{}", Origin="https://evil.example")[0] == 403
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    assert ask(address, "gradio_api/upload", b"--x--\r\n", **form) == (403, "the demo takes no files")
    assert "127.0.0.1" in hosts and set(map(str, hosts)) <= {"127.0.0.1", "localhost", "None"}


# --- the guards ----------------------------------------------------------------------------------------------------


def answer(served_at="127.0.0.1", allowed=(), *, kind="http", **headers):
    """Send one request through the guards, and return its status."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "path": "/gradio_api/call/search",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    guarded = TrustedHostMiddleware(guard(app), [*own_names(served_at), *allowed], www_redirect=False)
    asyncio.run(guarded(scope, receive, send))
    return sent[0]["status"]


def test_a_demo_for_the_network_answers_to_this_machine_and_to_the_names_it_was_given():
    names = (socket.gethostname(), "demo.example:7860", "evil.example", "10.0.0.5")
    assert [answer("0.0.0.0", ["demo.example"], host=name) for name in names] == [200, 200, 400, 400]


@pytest.mark.parametrize(
    "host, origin, status",
    [
        *((host, f"http://{host}", 200) for host in ("127.0.0.1:7860", "localhost:7860", "[::1]:7860", "LOCALHOST")),
        # A page at evil.example:7860 may read the answers if its name resolves to 127.0.0.1 (DNS rebinding).
        *((host, None, 400) for host in ("evil.example:7860", "127.0.0.1.evil.example", "10.0.0.5", "", "[")),
        *(("127.0.0.1:7860", site, 403) for site in ("https://evil.example", "null", "http://localhost:9999")),
    ],
)
def test_only_requests_of_the_page_itself_are_answered(host, origin, status):
    headers = {"host": host} | ({"origin": origin} if origin else {})
    assert answer(**headers) == status
    assert status == 200 or answer(**headers, kind="websocket") == status


def test_large_requests_are_refused_and_those_that_do_not_tell_their_length():
    assert answer(host="localhost", content_length=str(MAX_BODY + 1)) == 413
    assert answer(host="localhost", transfer_encoding="chunked") == 411


# --- the function --------------------------------------------------------------------------------------------------


def test_a_notebook_gets_the_page_and_can_close_it_and_a_port_in_use_is_an_error(folder):
    page = demo(folder / "index", port=free_port(), device="cpu")
    assert ask(page.url, "")[0] == 200 and page.to_dict() == {"url": page.url}
    port = page.page.server_port
    with pytest.raises(ValueError, match=f"port {port}"):
        demo(folder / "index", port=port, device="cpu")
    page.close()
