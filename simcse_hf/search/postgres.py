"""A connection to a PostgreSQL server that is made again when it is lost, with errors that say what to do."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from transformers.utils import logging

from .server_url import POSTGRES_PASSWORD, is_encrypted, is_postgres, is_this_machine, split_url, without_password

if TYPE_CHECKING:
    from psycopg import Connection

logger = logging.get_logger(__name__)

#: Seconds to wait before a lost connection is made again; a server that restarts needs some.
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
_LEAST_PGVECTOR = (0, 8)  # the first release whose graph continues where a filter leaves too few results
_LOCK = 0x51C5E << 32
_LOCK_WAIT = "3s"  # the server can need a moment to notice that a process which held the lock has ended
T = TypeVar("T")


class PostgresServer:
    """A server and a database on it; `str()` gives the URL without the password.

    Args:
        url (`str`): The URL, with a password or without.

    Raises:
        ValueError: If it is not the URL of a PostgreSQL server.
        ImportError: If psycopg or pgvector's client is not installed.
    """

    def __init__(self, url: str) -> None:
        _psycopg()
        if not is_postgres(url):
            raise ValueError(f"{url!r} is not the URL of a PostgreSQL server: postgresql://user@host:port/database")
        parts = split_url(url)
        self._url = url
        self._settings: dict[str, Any] = {"autocommit": True}
        if not is_this_machine(parts) and not is_encrypted(parts):
            self._settings["require_auth"] = "!password"  # the server may not ask for the password in clear
        self._connection: Connection | None = None
        self._locked = False  # whether no other process can write to the table

    def __str__(self) -> str:
        return without_password(self._url)

    def with_retries(self, work: Callable[["Connection"], T], writes: Callable[[str], Any] | None = None) -> T:
        """Do some work over the connection, and do it again if the connection is lost meanwhile.

        Args:
            work (`Callable`): The work. Doing it twice must have the effect of doing it once.
            writes (`Callable`, *optional*): Composes statements about the table that the work writes to. No other
                process can then write to it until this server is closed.

        Returns:
            `T`: What the work returned.

        Raises:
            ValueError: If the server refuses or cannot do the work, or stays away for half a minute.
        """
        psycopg = _psycopg()
        was_connected, pauses = self._connection is not None, iter(_PAUSES)
        while True:
            try:
                connection = self._connect(writes)
                was_connected = True
                return work(connection)
            except psycopg.Error as error:
                lost = self._connection is None or self._connection.closed or self._connection.broken
                pause = next(pauses, None) if was_connected and lost else None
                if pause is None:
                    raise ValueError(self._explain(error, lost and was_connected)) from error
                logger.warning("%s: the connection was lost (%s). Connecting again.", self, _first_line(error))
                self.close()
                time.sleep(pause)

    def _connect(self, writes: Callable[[str], Any] | None) -> "Connection":
        psycopg = _psycopg()
        if self._connection is None:
            settings = {"connect_timeout": 10} if "connect_timeout" not in self._url else {}
            self._connection = psycopg.connect(self._url, **settings, **self._settings)
            self._locked = False
            self._prepare(self._connection)
        if writes is not None and not self._locked:
            lock = writes(f"SELECT pg_advisory_lock({_LOCK} + to_regclass({{name}})::oid::bigint)")
            try:
                with self._connection.transaction():
                    self._connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
                    self._connection.execute(lock)  # held until the connection is closed
            except psycopg.errors.LockNotAvailable:
                raise psycopg.errors.LockNotAvailable("another process is writing to this table") from None
            self._locked = True
        return self._connection

    def _prepare(self, connection: "Connection") -> None:
        """Make sure that the extension is there, and teach the connection its types."""
        from pgvector.psycopg import register_vector

        connection.execute("SET client_min_messages = warning")
        version = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        row = connection.execute(version).fetchone()
        if row is None:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            row = connection.execute(version).fetchone()
        if row is not None and tuple(int(part) for part in row[0].split(".")[:2]) < _LEAST_PGVECTOR:
            raise ValueError(
                f"{self} has pgvector {row[0]}, and 0.8 is needed: install it on the server and run ALTER EXTENSION "
                "vector UPDATE."
            )
        register_vector(connection)

    def _explain(self, error: Exception, lost: bool) -> str:
        """Say what the server refused or could not do, and what to do about it."""
        errors, reason = _psycopg().errors, _first_line(error)
        if lost:
            return (
                f"{self}: the connection was lost and could not be made again ({reason}). What was stored is kept: "
                "start the server and run the same command again, a build with --resume."
            )
        if isinstance(error, errors.LockNotAvailable):
            return f"{self}: {reason}. Run the command again when it has ended."
        if isinstance(error, (errors.UndefinedFile, errors.FeatureNotSupported)):
            return f"{self} does not have the extension pgvector ({reason}): install it on the server."
        if isinstance(error, errors.InsufficientPrivilege):
            return (
                f"{self} refused this user a request ({reason}). Its administrator can run CREATE EXTENSION vector "
                "and GRANT CREATE, USAGE ON SCHEMA public for the user in this database."
            )
        if isinstance(error, errors.DiskFull):
            return f"{self}: the server's disk is full ({reason}). Make room there and run a build with --resume."
        if self._connection is None:
            password = "" if os.environ.get(POSTGRES_PASSWORD) else f" A password may be given in {POSTGRES_PASSWORD}."
            return f"{self}: cannot connect ({reason}). Check that the server runs and --url names it.{password}"
        return f"{self} refused or failed a request: {reason}"

    def close(self) -> None:
        """Close the connection; the next work makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _psycopg() -> Any:
    try:
        import pgvector.psycopg  # noqa: F401
        import psycopg
    except ImportError as error:
        raise ImportError("this index needs psycopg and pgvector: run pip install 'simcse-hf[pgvector]'") from error
    return psycopg
