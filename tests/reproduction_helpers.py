"""A small table of a paper, for the tests of the reproduction."""

from pathlib import Path

import yaml

from reproduction.table import Table, load_table

TABLE = {
    "paper": "simcse",
    "table": "3",
    "title": "A test",
    "figure": "STS-B dev, Spearman x 100",
    "recipe": "unsup-simcse-bert-base-uncased",
    "columns": [{"name": "dev"}],
    "rows": [{"name": "a", "paper": [1.0]}, {"name": "b", "paper": [2.0]}],
}


def table_of(folder: Path, **changes) -> Table:
    """Writes `TABLE` with changes to `test.yaml` in a folder, and reads it."""
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(TABLE | changes))
    return load_table(str(path))
