"""Caches of rows on disk: each is a folder with digests of its files, and one that is damaged is made again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, NamedSplit, concatenate_datasets, is_caching_enabled
from datasets.fingerprint import Hasher
from filelock import FileLock
from transformers.utils import logging

from ..ops.files import folder_problem, write_atomically, write_manifest

logger = logging.get_logger(__name__)

#: A part of every key: increase the number when the same texts give other rows than before. Another version of
#: datasets may write files that this one cannot read.
VERSION = f"8, datasets {datasets.__version__}"


def cached_rows(
    folder: Path,
    key: str,
    make: Callable[[Path], Any],
) -> tuple[Dataset, Path]:
    """Make rows, or take them from the cache if they are as they were written.

    Args:
        folder (`Path`): The folder of all caches.
        key (`str`): Hash of what decides the rows, which becomes their fingerprint.
        make (`Callable`): Writes the rows into the folder that it is given, to one or several `.arrow` files.

    Returns:
        `tuple[datasets.Dataset, Path]`: The rows and the folder in which they are cached.
    """
    cache = folder / key
    if folder_problem(cache):
        with FileLock(folder / f"{key}.lock"):  # another process may be making them
            if problem := folder_problem(cache):
                if cache.exists():
                    logger.warning(f"{cache}: the cached rows are made again, because {problem}.")
                with write_atomically(cache) as temporary:
                    temporary.mkdir()
                    make(temporary)
                    write_manifest(temporary)
    parts = []
    for file in sorted(cache.glob("*.arrow")):
        parts.append(Dataset.from_file(str(file), split=NamedSplit("train")))
    rows = concatenate_datasets(parts)
    rows._fingerprint = key  # the default depends on the time of the file
    return rows, cache


def cached_map(dataset: Dataset, function: Callable, key: list, **options: Any) -> Dataset:
    """Map batches of rows as [`datasets.Dataset.map`] does, or take an earlier result that is as it was written.

    Args:
        dataset (`datasets.Dataset`): The rows. The result is cached beside their file; rows in memory have none.
        function (`Callable`): What to call with a batch.
        key (`list`): What decides the result beside the rows.
        options (`Any`): Further arguments of `map`.

    Returns:
        `datasets.Dataset`: The result.
    """
    fingerprint = Hasher.hash([VERSION, dataset._fingerprint, *key])
    options |= {"batched": True, "new_fingerprint": fingerprint}
    files = dataset.cache_files if is_caching_enabled() else []
    if not files:
        return dataset.map(function, **options)

    def make(folder: Path) -> None:
        dataset.map(function, cache_file_name=str(folder / "rows.arrow"), **options)

    return cached_rows(Path(files[0]["filename"]).parent, fingerprint, make)[0]
