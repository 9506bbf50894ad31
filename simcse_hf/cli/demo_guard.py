"""Refuse requests to the demo that no visitor of its page makes: from other sites, too large, or with files."""

import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

MAX_BODY = 2**20  # bytes of a request; the longest accepted texts need less
_WILDCARDS = ("0.0.0.0", "::", "")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class DemoGuard:
    """ASGI middleware that checks the host, the origin, the path and the size of each request.

    A page of another site can make a browser send requests to this machine. Such a request names the site in `Origin`,
    or, if the site's own name was made to point to this machine (DNS rebinding), in `Host`.

    Args:
        app (`Callable`): The application behind it.
        hosts (`Iterable[str]`): Names that the demo is reached under. On a wildcard address every IP address is one,
            because rebinding needs a name.
        any_address (`bool`): Whether the demo listens on a wildcard address.
    """

    def __init__(self, app: Any, hosts: Iterable[str], any_address: bool) -> None:
        self.app, self.hosts, self.any_address = app, frozenset(hosts), any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request with its reason, and hand any other one on."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _refuse(scope, send, *refusal)
            return
        received = 0

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            # A body without a declared length: the application sees a visitor who has gone away.
            return {"type": "http.disconnect"} if received > MAX_BODY else message

        await self.app(scope, bounded, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_known(_name_of(f"//{host}")):
            return 403, f"host {host!r} is not a name of this demo: start it with --allowed_hosts {host}"
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "requests from other sites are refused"
        if scope["path"].rstrip("/").endswith("/upload"):
            return 403, "the demo takes no files"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return 413, f"the demo takes requests of at most {MAX_BODY} bytes"
        return None

    def _is_known(self, name: str) -> bool:
        if name in self.hosts:
            return True
        try:
            return self.any_address and ip_address(name) is not None
        except ValueError:
            return False


def guard_settings(host: str, allowed: Iterable[str] = ()) -> dict[str, Any]:
    """Return the arguments of [`DemoGuard`] for a demo that listens on some address.

    Args:
        host (`str`): The address to listen on.
        allowed (`Iterable[str]`, *optional*): Further names of this machine, such as that of a proxy before it.

    Returns:
        `dict[str, Any]`: `hosts` and `any_address`.
    """
    names = {"localhost", "127.0.0.1", "::1", host, *allowed}
    if host in _WILDCARDS:
        names |= {socket.gethostname(), socket.getfqdn()}
    return {"hosts": {name.lower() for name in names}, "any_address": host in _WILDCARDS}


def _name_of(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason[:100]})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
