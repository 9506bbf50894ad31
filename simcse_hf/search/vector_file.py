"""Float32 vectors in an npy file, written part by part and read through the file system's memory map."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np


def write_vectors(path: Path, parts: Iterable[np.ndarray], count: int, dim: int) -> None:
    """Writes (n, dim) parts, `count` vectors in all, one after the other: joined, they would take twice the memory."""
    with open(path, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (count, dim)})
        for part in parts:
            np.ascontiguousarray(part, dtype="<f4").tofile(stream)


def read_vectors(path: Path) -> np.ndarray:
    """(count, dim), mapped into memory; changes to the array never reach the file.

    Raises:
        ValueError: the file is missing or damaged.
    """
    try:
        vectors = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}); build the index again.") from error
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ValueError(f"{path}: holds {vectors.dtype} of shape {vectors.shape}, not float32 vectors.")
    return vectors
