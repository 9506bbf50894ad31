"""Files of training texts, packed or not."""

import gzip

from simcse_hf.data.table import open_table


def write(path, content):
    """Write text or bytes, packed if the name ends in .gz, and return the path."""
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read_all(path):
    """Return the rows of a file with their numbers, in all columns."""
    table = open_table(path)
    return list(table.rows(table.columns))
