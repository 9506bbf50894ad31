"""Measures what an export in int8 loses in quality and gains in speed, against this package's float32."""

import random
import statistics
import time
from itertools import islice
from typing import Any

from ..data.table import stream_texts
from ..evaluation.embeddings import SentenceEmbeddings
from ..evaluation.scoring import read_tasks, score_tasks
from ..evaluation.sts import STS_TASKS
from ..inference.simcse import SimCSE

#: The lowest ratio to the speed of float32 at which an export pays.
LEAST_SPEED = 1.2
_TEXTS = 1000
_CALIBRATION = 300
_TURNS = 5


class Checks:
    """The texts with which exports in int8 are calibrated and measured.

    Args:
        file (`str`, *optional*): A file of texts. The first 1,000 are encoded; without it, 1,000 of the STS sets.
        data_dir (`str`, *optional*): SentEval's `downstream` folder. The STS sets that it has are scored.
        calibrate (`str`, *optional*): A file of texts, the first 300 of which give the ranges of activations. By
            default they are the 300 texts after those that are encoded, or as many as there are.

    Raises:
        ValueError: If a file has no texts, or the folder no STS sets.
    """

    def __init__(self, file: str | None, data_dir: str | None, calibrate: str | None = None) -> None:
        self.data: Any = None
        self.before: Any = None  # the STS average in float32, which is the same for every export
        texts = []
        if file is not None:
            texts = _read(file, _TEXTS + _CALIBRATION)
        if data_dir is not None:
            self.data = read_tasks(STS_TASKS, data_dir)
            if not texts:
                distinct = sorted(set(self.data.texts()))
                texts = random.Random(0).choices(distinct, k=_TEXTS + _CALIBRATION)
        self.texts = texts[:_TEXTS]
        if calibrate is not None:
            self.calibration = _read(calibrate, _CALIBRATION)
        else:
            self.calibration = (texts[_TEXTS:] or texts)[:_CALIBRATION]

    def measure(self, simcse: SimCSE, exported: SimCSE) -> dict[str, Any]:
        """Measure the loss and the speed of an export.

        Args:
            simcse (`SimCSE`): The model, on the CPU in float32.
            exported (`SimCSE`): Its export, loaded with its backend.

        Returns:
            `dict[str, Any]`: `loss` in points: of the STS average with `data_dir`, else 100 * (1 - mean cosine to the
                float32 embeddings); `speed`, sentences per second as a multiple of float32's, the median of turns; and
                what they were computed from.
        """
        expected = simcse.encode(self.texts)
        actual = exported.encode(self.texts)
        cosines = (expected * actual).sum(dim=1)
        mean = cosines.mean().item()
        result: dict[str, Any] = {
            "texts": len(self.texts),
            "mean_cosine": mean,
            "lowest_cosine": cosines.min().item(),
            "loss": 100 * (1 - mean),
        }
        if self.data is not None:
            if self.before is None:
                self.before = self._score(simcse)
            after = self._score(exported)
            result["loss"] = self.before["value"] - after["value"]
            result["sts_tasks"] = after["tasks"]
            result["sts_before"] = self.before["value"]
            result["sts_after"] = after["value"]
        plain = []
        int8 = []
        ratios = []
        for _ in range(_TURNS):
            plain.append(_seconds(simcse, self.texts))
            int8.append(_seconds(exported, self.texts))
            ratios.append(plain[-1] / int8[-1])
        result["speed"] = statistics.median(ratios)
        result["float32_sentences_per_second"] = len(self.texts) / statistics.median(plain)
        result["int8_sentences_per_second"] = len(self.texts) / statistics.median(int8)
        return result

    def _score(self, model: SimCSE) -> Any:
        embeddings = SentenceEmbeddings(model, self.data.texts())
        return score_tasks(self.data, embeddings, STS_TASKS).results["average"]


def _read(file: str, count: int) -> list[str]:
    texts = [text for _, text in islice(stream_texts(file), count)]
    if not texts:
        raise ValueError(f"{file} has no texts to measure the export with: name a file of texts.")
    return texts


def _seconds(model: SimCSE, texts: list[str]) -> float:
    start = time.perf_counter()
    model.encode(texts)
    return time.perf_counter() - start
