"""Training files that a table makes from other files: pairs of one label, of duplicates, or of captions."""

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from simcse_hf.data.nli import build_nli_triplets
from simcse_hf.evaluation.tasks.senteval import STS_TASKS, TaskNotFound, read_sts_task
from simcse_hf.runtime.files import write_atomically

from .data import digest, find_data, find_senteval

PREFIX = "prepared/"
_FILE = Path(__file__).with_name("prepared.yaml")
_ENTRIES = ("builder", "sources", "keep", "leave_out", "exclude_sts", "options")


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
            rows.to_csv(temporary, index=False)
    return target


def _definition(name: str) -> dict[str, Any]:
    definition = _definitions().get(name.removeprefix(PREFIX))
    if definition is None:
        raise ValueError(f"{name}: prepared.yaml defines no such file; it defines {', '.join(_definitions())}")
    if unknown := sorted(set(definition) - set(_ENTRIES)):
        raise ValueError(f"{name}: unknown entry {', '.join(unknown)} in prepared.yaml")
    return definition


def _build(definition: dict[str, Any], data_dir: Path) -> pd.DataFrame:
    paths = [path for name in definition["sources"] if (path := find_data(name, data_dir)) is not None]
    options = definition.get("options", {})
    if definition["builder"] == "nli":
        source: Any = paths
        if "leave_out" in definition:
            source = [row for path in paths for row in _rows(path, definition)]
        return build_nli_triplets(source, **options).to_pandas()
    groups = [[row[name] for name in options["columns"]] for path in paths for row in _rows(path, definition)]
    exclude = _sts_texts(find_senteval(data_dir)) if definition.get("exclude_sts") else []
    return pd.DataFrame(list(_pairs(groups, exclude)), columns=["sent0", "sent1"])


def _rows(path: Path, definition: dict[str, Any]) -> list[dict[str, str]]:
    """Read the rows of a table. Without a header, its columns have names, and quotation marks belong to the texts."""
    names = definition.get("options", {}).get("names")
    separator = "\t" if path.name.removesuffix(".gz").endswith((".tsv", ".txt")) else ","
    quoting = csv.QUOTE_MINIMAL if names is None else csv.QUOTE_NONE
    frame = pd.read_csv(path, sep=separator, names=names, quoting=quoting, dtype=str, keep_default_na=False)
    for column, values in definition.get("keep", {}).items():
        frame = frame[frame[column].isin(values)]
    for column, values in definition.get("leave_out", {}).items():
        frame = frame[~frame[column].isin(values)]
    return frame.to_dict("records")


def _pairs(groups: Iterable[list[str]], exclude: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pair any two different texts of a group, as "any two captions of the same image" (SimCSE, section 4)."""
    excluded = {_wording(text) for text in exclude}
    for texts in groups:
        distinct = [text for text in dict.fromkeys(texts) if text.strip()]
        yield from combinations((text for text in distinct if _wording(text) not in excluded), 2)


def _sts_texts(data_dir: Path) -> Iterator[str]:
    for task in STS_TASKS:
        try:
            parts = read_sts_task(task, data_dir, ("test", "dev"))
        except TaskNotFound:
            continue
        for pairs in parts.values():
            yield from (*pairs.sentences1, *pairs.sentences2)


def _wording(text: str) -> str:
    return "".join(re.findall(r"\w+", text.casefold()))
