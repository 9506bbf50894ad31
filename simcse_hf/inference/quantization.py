"""Vectors in fewer bytes: their leading dimensions only, 8-bit codes, sign bits."""

import numpy as np

PRECISIONS = ("float32", "int8", "binary", "ubinary")


def check_precision(precision: str) -> None:
    """Raises a ValueError unless `precision` is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")


def check_truncate_dim(truncate_dim: int | None, dim: int) -> None:
    """Raises a ValueError unless 1 <= `truncate_dim` <= `dim`, or it is None."""
    if truncate_dim is not None and not 1 <= truncate_dim <= dim:
        raise ValueError(f"truncate_dim must be between 1 and the model's {dim} dimensions, got {truncate_dim}")


def calibrate_ranges(vectors: np.ndarray) -> np.ndarray:
    """The ranges that 8-bit codes cover, from a sample of vectors.

    Args:
        vectors: (n, dim) float32; a thousand are few. Values beyond the sample's range will be cut to it.

    Returns:
        (2, dim) float32: the smallest and the largest value of every dimension.

    Raises:
        ValueError: fewer than two vectors, or values that are not finite.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ValueError(f"ranges need at least two vectors in an (n, dim) array, got the shape {vectors.shape}")
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    check_ranges(ranges, vectors.shape[1])
    return ranges


def check_ranges(ranges: np.ndarray, dim: int) -> None:
    """Raises a ValueError unless `ranges` is (2, dim), finite, and no minimum is above its maximum."""
    if ranges.shape != (2, dim):
        raise ValueError(f"ranges must be (2, {dim}), a minimum and a maximum for each dimension, got {ranges.shape}")
    if not (np.isfinite(ranges).all() and (ranges[0] <= ranges[1]).all()):
        raise ValueError("ranges must be finite, each minimum at most its maximum")


def quantize(vectors: np.ndarray, precision: str, ranges: np.ndarray | None = None) -> np.ndarray:
    """Vectors at another precision, in the codes of sentence-transformers' `quantize_embeddings`.

    int8: code = (value - minimum) / (maximum - minimum) * 255 - 128 for each dimension. Rounded to the nearest code,
    where sentence-transformers cuts the fraction off; and a value outside its range takes the end of it, where theirs
    wraps around to the other end. binary, ubinary: the sign of each value, 8 to a byte, the first in the highest bit;
    ubinary is that byte, binary is it - 128. A last byte that the dimensions do not fill has zeros.

    Args:
        vectors: (n, dim) float32.
        precision: one of `PRECISIONS`.
        ranges: (2, dim), for int8; see [`calibrate_ranges`].

    Returns:
        (n, dim) float32 or int8, or (n, ceil(dim / 8)) int8 (binary) or uint8 (ubinary).

    Raises:
        ValueError: unknown precision; int8 without ranges, or ranges that do not fit.
    """
    check_precision(precision)
    vectors = np.asarray(vectors, dtype=np.float32)
    if precision == "float32":
        return vectors
    if precision == "int8":
        if ranges is None:
            raise ValueError(
                "int8 needs ranges, the same for all vectors that are to be compared: "
                "calibrate_ranges(vectors of a sample of your texts)"
            )
        ranges = np.asarray(ranges, dtype=np.float32)
        check_ranges(ranges, vectors.shape[1])
        steps = (ranges[1] - ranges[0]) / 255
        steps[steps == 0] = 1  # a constant dimension: every value is its minimum
        return np.clip(np.rint((vectors - ranges[0]) / steps) - 128, -128, 127).astype(np.int8)
    bits = np.packbits(vectors > 0, axis=1)
    return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)


def dequantize_int8(codes: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """(n, dim) int8 codes -> the float32 values they stand for, at most half a step from the originals in range."""
    minimum, maximum = np.asarray(ranges, dtype=np.float32)
    return minimum + (codes.astype(np.float32) + 128) * ((maximum - minimum) / 255)
