"""The demo answers its own page only: not other sites, other names, large requests or files."""

import asyncio

import pytest

from simcse_hf.cli.demo_guard import MAX_BODY, DemoGuard, guard_settings


def answer(settings, *, path="/gradio_api/call/search", body=b"{}", kind="http", **headers):
    """Send one request through the guard, and return the status and what the application has received."""
    received, sent = [], []
    parts = [body[start : start + 65536] for start in range(0, len(body), 65536)] or [b""]

    async def app(scope, receive, send):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                received.append(None)
                return
            received.append(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "headers": named}
    asyncio.run(DemoGuard(app, **settings)(scope, receive, send))
    return (sent[0].get("status", sent[0]["type"]) if sent else None), received


LOCAL = guard_settings("127.0.0.1")


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "[::1]:7860", "LOCALHOST"])
def test_requests_of_the_page_itself_are_answered(host):
    assert answer(LOCAL, host=host) == (200, [b"{}"])
    assert answer(LOCAL, host=host, origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "10.0.0.5", "", "["])
def test_a_name_that_was_made_to_point_here_is_refused(host):
    """A page at evil.example:7860 may read the answers if its name resolves to 127.0.0.1 (DNS rebinding)."""
    assert answer(LOCAL, host=host) == (403, [])
    assert answer(LOCAL, host=host, kind="websocket") == ("websocket.close", [])


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:9999", "http://127.0.0.1"])
def test_requests_from_other_sites_are_refused(origin):
    assert answer(LOCAL, host="127.0.0.1:7860", origin=origin) == (403, [])


@pytest.mark.parametrize("path", ["/upload", "/gradio_api/upload", "/gradio_api/upload/"])
def test_files_are_refused(path):
    assert answer(LOCAL, host="localhost", path=path) == (403, [])


def test_large_requests_are_refused_whether_or_not_they_tell_their_length():
    large = b"x" * (MAX_BODY + 1)
    assert answer(LOCAL, host="localhost", content_length=str(len(large)), body=large) == (413, [])
    assert answer(LOCAL, host="localhost", content_length="many", body=b"") == (413, [])
    status, received = answer(LOCAL, host="localhost", body=large)
    assert status is None and received[-1] is None and sum(map(len, received[:-1])) <= MAX_BODY


def test_a_demo_for_the_network_answers_to_addresses_and_to_the_names_it_was_given():
    settings = guard_settings("0.0.0.0", ["demo.example"])
    assert [answer(settings, host=host)[0] for host in ("10.0.0.5:7860", "demo.example", "evil.example")] == [
        200,
        200,
        403,
    ]
    assert answer(guard_settings("10.0.0.5"), host="10.0.0.5:7860")[0] == 200
