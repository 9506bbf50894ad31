"""Measures how fast the forms of int8 are on this machine: `python -m simcse_hf.apps.int8 MODEL TEXTS`."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from simcse_hf import SimCSE, export

#: The forms, as `simcse_hf.export` takes them.
FORMS: tuple[tuple[Any, Any], ...] = (
    ("onnx-int8", "dynamic"),
    ("onnx-int8", "mixed"),
    ("onnx-int8", "static"),
    ("openvino-int8", "static"),
    ("openvino-int8", "dynamic"),
)
_TEXTS = 1000
_TURNS = 5


@dataclass(frozen=True)
class Speed:
    """The speed and the loss of a form of int8.

    Args:
        to (`str`): The runtime, one of `FORMS`.
        method (`str`): How activations are rounded.
        speed (`float`): Sentences per second as a multiple of those in float32, the median of turns.
        loss (`float`): As `simcse_hf.export` measures it.
    """

    to: str
    method: str
    speed: float
    loss: float

    def __str__(self) -> str:
        return f"--to {self.to} --method {self.method}: {self.speed:.2f} times float32, loss {self.loss:.2f}"


def compare_int8(model: str, texts: str, forms: Sequence[tuple[Any, Any]] = FORMS) -> Iterator[Speed]:
    """Measure forms of int8 in turns with float32 by torch.

    Args:
        model (`str`): Folder of a model, or its name on the hub.
        texts (`str`): A file with a text in each line, of which the first 1,000 are encoded.
        forms (`Sequence`, *optional*): Some of `FORMS`.

    Yields:
        `Speed`: The speed and loss of each form.
    """
    plain = SimCSE(model, device="cpu")
    with open(texts, encoding="utf-8") as lines:
        rows = [line.strip() for line in islice(lines, _TEXTS)]
    for to, method in forms:
        with TemporaryDirectory() as folder:
            exported = export(plain, Path(folder, "int8"), to=to, method=method, texts=texts, max_loss=float("inf"))
            int8 = SimCSE(Path(folder, "int8"), backend=exported.measured["backend"])
            ratios = [_seconds(plain, rows) / _seconds(int8, rows) for _ in range(_TURNS)]
        yield Speed(to, method, median(ratios), exported.measured["loss"])


def _seconds(model: SimCSE, texts: list[str]) -> float:
    start = time.perf_counter()
    model.encode(texts)
    return time.perf_counter() - start


if __name__ == "__main__":
    for measured in compare_int8(sys.argv[1], sys.argv[2]):
        print(measured, flush=True)
