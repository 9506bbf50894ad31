"""Quantize embeddings: fewer dimensions, 8-bit codes or sign bits."""

import numpy as np
import torch

from ..names import PRECISIONS
from ..runtime.errors import SettingError, check_finite, check_values

#: The precisions whose codes depend on the ranges of the dimensions.
SCALAR_PRECISIONS = ("int8", "uint8")


def calibrate_ranges(embeddings: np.ndarray) -> np.ndarray:
    """Measure the ranges that 8-bit codes cover, on a sample of embeddings.

    Args:
        embeddings (`np.ndarray`): A sample of shape `(n, dim)`. A thousand embeddings are few: later values outside
            their range are clipped to it.

    Returns:
        `np.ndarray`: The smallest and the largest value of each dimension, of shape `(2, dim)`.

    Raises:
        SettingError: If there are fewer than two embeddings, or values that are not finite.
    """
    embeddings = np.asarray(embeddings, dtype=np.float32)
    if embeddings.ndim != 2 or len(embeddings) < 2:
        raise SettingError(f"ranges need at least two embeddings in an (n, dim) array, got shape {embeddings.shape}")
    check_finite(embeddings, "row {}".format)
    return np.stack([embeddings.min(axis=0), embeddings.max(axis=0)])


def check_ranges(ranges: np.ndarray, dim: int) -> None:
    """Raise a `ValueError` unless `ranges` has shape `(2, dim)`, is finite, and no minimum exceeds its maximum."""
    if ranges.shape != (2, dim):
        raise SettingError(
            f"ranges must be (2, {dim}), a minimum and a maximum for each dimension, got {ranges.shape}"
        )
    least, most = ranges
    if not np.isfinite(ranges).all() or not (least <= most).all():
        raise SettingError("ranges must be finite, and each minimum at most its maximum")


def quantize(embeddings: np.ndarray | torch.Tensor, precision: str, ranges: np.ndarray | None = None) -> np.ndarray:
    """Convert embeddings to the codes of sentence-transformers' `quantize_embeddings`.

    - int8: code = (value - minimum) / (maximum - minimum) * 255 - 128 for each dimension; uint8: that plus 128. We
      round to the nearest code where sentence-transformers truncates, and clip a value outside its range where its
      code wraps around to the other end.
    - binary, ubinary: the signs, 8 to a byte, the first in the highest bit. ubinary is that byte, binary is that byte
      minus 128. If the dimensions do not fill the last byte, zeros do.

    Args:
        embeddings (`np.ndarray` or `torch.Tensor`): Float32 embeddings of shape `(n, dim)`. They are checked and
            converted on the device of a tensor.
        precision (`str`): One of `PRECISIONS`.
        ranges (`np.ndarray`, *optional*): For int8 and uint8, of shape `(2, dim)`; see `calibrate_ranges`.

    Returns:
        `np.ndarray`: Float32 values or 8-bit codes of shape `(n, dim)`, or bits of shape `(n, ceil(dim / 8))`.

    Raises:
        SettingError: If `precision` is unknown, an embedding is not finite, or `ranges` are missing or do not fit.

    Examples:
        >>> import numpy as np
        >>> from simcse_hf.encoding.quantization import calibrate_ranges, quantize
        >>> embeddings = np.array([[-1.0, 0.0], [0.2, 0.5], [1.0, 1.0]])
        >>> quantize(embeddings, "uint8", calibrate_ranges(embeddings))
        array([[  0,   0],
               [153, 127],
               [255, 255]], dtype=uint8)
        >>> quantize(embeddings, "ubinary")  # a byte holds the signs of eight dimensions
        array([[  0],
               [192],
               [192]], dtype=uint8)
    """
    check_values(PRECISIONS, precision=precision)
    codes = torch.as_tensor(embeddings, dtype=torch.float32)
    check_finite(codes, "row {}".format)
    if precision in SCALAR_PRECISIONS:
        if ranges is None:
            raise SettingError(f"{precision} codes need ranges: quantize(..., ranges=calibrate_ranges(a sample))")
        check_ranges(np.asarray(ranges), codes.shape[1])
        lowest, highest = torch.as_tensor(ranges, dtype=torch.float32, device=codes.device)
        steps = (highest - lowest) / 255
        steps[steps == 0] = 1  # a constant dimension: every value is its minimum
        codes = ((codes - lowest) / steps).round().clamp(0, 255).to(torch.uint8)
    elif precision != "float32":
        codes = torch.from_numpy(np.packbits((codes > 0).cpu(), axis=1))
    if precision in ("int8", "binary"):
        codes = (codes - 128).view(torch.int8)  # less than 0 wraps around, and is negative again in int8
    return codes.cpu().numpy()
