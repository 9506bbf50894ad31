"""Files of training texts, packed or not."""

import gzip
import json

import pandas as pd

from simcse_hf.data.table import open_table


def content_of(suffix, records):
    """Return what a file of records holds; a txt file holds their first texts."""
    if suffix == "txt":
        return "".join(f"{next(iter(record.values()))}\n" for record in records)
    if suffix == "json":
        return json.dumps(records, ensure_ascii=False, indent=1)
    if suffix == "jsonl":
        return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    table = pd.DataFrame(records)
    if suffix == "parquet":
        return table.to_parquet(index=False)
    return table.to_csv(index=False, sep="," if suffix == "csv" else "\t", lineterminator="\r\n")


def write(path, content):
    """Write text or bytes, packed if the name ends in .gz, and return the path."""
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def read_all(path):
    """Return the rows of a file with their numbers, in all columns."""
    table = open_table(path)
    return list(table.rows(table.columns))
