"""Training files that a table makes from other files: pairs of one label, of duplicates, or of captions."""

import hashlib
import json
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset

from ...data.nli import build_nli_triplets
from ...data.positive_pairs import build_positive_pairs
from ...data.read import open_table
from ...data.row_filter import keeps, parse_condition
from ...evaluation.sts_data import read_sts_texts
from ...ops.files import write_atomically
from .data import SENTEVAL, digest, find_data

PREFIX = "prepared/"
_FILE = Path(__file__).with_name("scales") / "prepared.yaml"
_ENTRIES = ("builder", "sources", "where", "exclude_sts", "options")


@cache
def _definitions() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(_FILE.read_text(encoding="utf-8"))


def source_files(name: str) -> list[str]:
    """Return the files from which a file is made, or the file itself if it is not made.

    Args:
        name (`str`): A file as a run names it, such as `data/nli.csv` or `prepared/entailment.csv`.

    Returns:
        `list[str]`: The files.

    Raises:
        ValueError: If the name begins with `prepared/` and prepared.yaml does not define it.
    """
    return [name] if not name.startswith(PREFIX) else list(_definition(name)["sources"])


def content_digest(name: str, data_dir: Path) -> str | None:
    """Return a digest of a file's content, or of the files and settings from which it is made.

    Args:
        name (`str`): A file as a run names it.
        data_dir (`Path`): The folder of data.

    Returns:
        `str`, *optional*: The digest; `None` if a file is missing.
    """
    paths = [find_data(source, data_dir) for source in source_files(name)]
    digests = [digest(path) for path in paths if path is not None]
    if len(digests) < len(paths):
        return None
    if not name.startswith(PREFIX):
        return digests[0]
    text = json.dumps([_definition(name), digests], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_file(name: str, data_dir: Path, folder: Path) -> Path:
    """Find a file, or make it unless it is there.

    Args:
        name (`str`): A file as a run names it. Its sources exist.
        data_dir (`Path`): The folder of data.
        folder (`Path`): Where to write it.

    Returns:
        `Path`: The file.

    Raises:
        ValueError: If a source is malformed. The message names the file and the line or row.
    """
    if not name.startswith(PREFIX):
        path = find_data(name, data_dir)
        assert path is not None, name
        return path
    target = folder / f"{Path(name).stem}-{content_digest(name, data_dir)}.csv"
    if not target.exists():
        rows = _build(_definition(name), data_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with write_atomically(target) as temporary:
            rows.to_csv(str(temporary))
    return target


def _definition(name: str) -> dict[str, Any]:
    definition = _definitions().get(name.removeprefix(PREFIX))
    if definition is None:
        raise ValueError(f"{name}: scales/prepared.yaml defines no such file; it defines {', '.join(_definitions())}")
    if unknown := sorted(set(definition) - set(_ENTRIES)):
        raise ValueError(f"{name}: unknown entry {', '.join(unknown)} in scales/prepared.yaml")
    return definition


def _build(definition: dict[str, Any], data_dir: Path) -> Dataset:
    paths = [path for name in definition["sources"] if (path := find_data(name, data_dir)) is not None]
    where = [parse_condition(text) for text in definition.get("where", [])]
    options = definition.get("options", {})
    if definition["builder"] == "nli":
        return build_nli_triplets([row for path in paths for row in _rows(path, where)] if where else paths, **options)
    senteval = data_dir / SENTEVAL
    exclude = read_sts_texts(senteval if senteval.is_dir() else data_dir) if definition.get("exclude_sts") else []
    return build_positive_pairs(paths, **options, where=where, exclude=exclude)


def _rows(path: Path, where: list[Any]) -> Iterator[dict[str, Any]]:
    table = open_table(path)
    checked = [condition.column for condition in where]
    for number, cells in table.rows([*table.columns, *checked]):
        if keeps(where, cells[len(table.columns) :], partial(table.at, number)):
            yield dict(zip(table.columns, cells, strict=False))
