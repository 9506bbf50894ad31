"""Check the URLs of database servers, decide what of them is saved, and when the user has to give them."""

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

QDRANT_KEY = "QDRANT_API_KEY"
POSTGRES_PASSWORD = "PGPASSWORD"
_POSTGRES = ("postgresql", "postgres")
#: Parameters of a PostgreSQL URL that a saved index keeps. Those of the second group are used and not saved.
_SAVED_PARAMETERS = ("host", "port", "sslmode", "sslrootcert")
_OTHER_PARAMETERS = ("options", "connect_timeout", "application_name")


def is_postgres(url: str) -> bool:
    """Return whether a URL has the scheme of PostgreSQL."""
    return url.partition(":")[0] in _POSTGRES


def split_url(url: str) -> SplitResult:
    """Split the URL of a server; other forms may name another host than the one they show.

    Args:
        url (`str`): `https://host:port`, or `postgresql://user:password@host:port/database`. A PostgreSQL server may
            also be named by the folder of its socket, as in `postgresql:///database?host=/run/postgresql`.

    Returns:
        `SplitResult`: Its parts.

    Raises:
        ValueError: If the URL has another form, or a parameter that could hide the host or hold a secret.
    """
    try:
        parts = urlsplit(url)
        plain = parts.port != 0 and not any(character in url for character in "\\ \t\r\n")
        plain = plain and (_is_plain_postgres(parts) if is_postgres(url) else _is_plain_http(parts))
    except (ValueError, AttributeError):
        plain = False
    if not plain:
        shown = without_password(url) if isinstance(url, str) else repr(url)
        raise ValueError(
            f"{shown!r} is not the URL of a server: write it as https://host:port for Qdrant, or as "
            "postgresql://user@host:port/database for PostgreSQL. Further parameters of a PostgreSQL URL may be "
            f"{', '.join((*_SAVED_PARAMETERS, *_OTHER_PARAMETERS))}."
        )
    return parts


def _is_plain_http(parts: SplitResult) -> bool:
    return bool(parts.scheme in ("http", "https") and parts.hostname and parts.username is None)


def _is_plain_postgres(parts: SplitResult) -> bool:
    parameters = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    socket = parameters.get("host")
    if set(parameters) - {*_SAVED_PARAMETERS, *_OTHER_PARAMETERS} or len(parts.path) < 2 or parts.fragment:
        return False
    if socket is not None:  # a host here would take the place of the one before the path
        return not parts.hostname and socket.startswith("/") and "," not in socket
    return bool(parts.hostname) and "," not in parts.netloc


def without_password(url: str) -> str:
    """Return a PostgreSQL URL as it is saved and shown: without its password and its unsaved parameters."""
    try:
        parts = urlsplit(url)
        user = "" if parts.username is None else parts.username + "@"
        query = [(name, value) for name, value in parse_qsl(parts.query) if name in _SAVED_PARAMETERS]
        netloc = user + parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=netloc, query=urlencode(query, quote_via=quote, safe="/")).geturl()
    except (ValueError, AttributeError):
        return "(a URL that cannot be read)"


def is_this_machine(parts: SplitResult) -> bool:
    """Return whether a server's URL names this machine: its loopback address, or a socket."""
    host = parts.hostname or ""
    if not host and parts.scheme in _POSTGRES:
        return True
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_encrypted(parts: SplitResult) -> bool:
    """Return whether a PostgreSQL URL asks for a connection that is never in clear."""
    return dict(parse_qsl(parts.query)).get("sslmode") in ("require", "verify-ca", "verify-full")


def check_saved_url(url: Any, folder: Path, options: Mapping[str, Any]) -> None:
    """Refuse to connect to a server only because the folder of an index names it.

    A folder may come from someone else, and whoever is connected to sees the queries and the key or password. A
    server on this machine needs no such care, unless there is a key or password.

    Args:
        url (`Any`): The URL in the folder's description; `None` without a server.
        folder (`Path`): The folder.
        options (`Mapping[str, Any]`): The caller's options. Their `url` is one that the caller trusts.

    Raises:
        ValueError: If the caller has to name the URL, or it is not one of a server.
    """
    if url is None or options.get("url") is not None:
        return
    if not isinstance(url, str):
        raise ValueError(f"{folder} names {url!r} as its server, which is no URL; build the index again.")
    name, secret = ("PostgreSQL", POSTGRES_PASSWORD) if is_postgres(url) else ("Qdrant", QDRANT_KEY)
    if os.environ.get(secret) is not None or not is_this_machine(split_url(url)):
        kind = "password" if is_postgres(url) else "key"
        raise ValueError(
            f"{folder} names the {name} server {url}, which would see your queries and the {kind} in {secret}. If "
            f"you trust it, name it yourself: --url {url} (in Python, the option url)."
        )
