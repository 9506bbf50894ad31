"""Measures what an export in int8 loses in quality and gains in speed, against this package's float32."""

import random
import statistics
import time
from itertools import islice
from typing import Any

from ..data.file_texts import stream_texts
from ..evaluation.embeddings import SentenceEmbeddings
from ..evaluation.scoring import read_tasks, score_tasks
from ..evaluation.sts import STS_TASKS
from ..inference.simcse import SimCSE

#: The lowest ratio to the speed of float32 at which an export pays.
LEAST_SPEED = 1.2
_TEXTS, _TURNS = 1000, 5


def measure_export(simcse: SimCSE, exported: SimCSE, file: str | None, data_dir: str | None) -> dict[str, Any]:
    """Measure the loss and the speed of an export.

    Args:
        simcse (`SimCSE`): The model, on the CPU in float32.
        exported (`SimCSE`): Its export, loaded with its backend.
        file (`str`, *optional*): A file of texts. The first 1,000 are encoded; without it, 1,000
            texts of the STS sets.
        data_dir (`str`, *optional*): SentEval's `downstream` folder. The STS sets that it has are scored.

    Returns:
        `dict[str, Any]`: `loss` in points: of the STS average with `data_dir`, else 100 * (1 - mean cosine to the
            float32 embeddings); `speed`, sentences per second as a multiple of float32's, the median of turns; and
            what they were computed from.

    Raises:
        ValueError: If the file has no texts, or the folder no STS sets.
    """
    result: dict[str, Any] = {}
    texts = [] if file is None else [text for _, text in islice(stream_texts(file), _TEXTS)]
    if data_dir is not None:
        data = read_tasks(STS_TASKS, data_dir)
        averages = [
            score_tasks(data, SentenceEmbeddings(model, data.texts()), STS_TASKS).results["average"]
            for model in (simcse, exported)
        ]
        before, after = (average["value"] for average in averages)
        result = {"loss": before - after, "sts_tasks": averages[0]["tasks"], "sts_before": before, "sts_after": after}
        texts = texts or random.Random(0).choices(sorted(set(data.texts())), k=_TEXTS)
    if not texts:
        raise ValueError(f"{file} has no texts to measure the export with: name a file of texts with --texts.")
    cosines = (simcse.encode(texts) * exported.encode(texts)).sum(dim=1)
    result |= {"texts": len(texts), "mean_cosine": cosines.mean().item(), "lowest_cosine": cosines.min().item()}
    result.setdefault("loss", 100 * (1 - result["mean_cosine"]))
    seconds = [(_seconds(simcse, texts), _seconds(exported, texts)) for _ in range(_TURNS)]
    for name, column in zip(("float32", "int8"), zip(*seconds, strict=True), strict=True):
        result[f"{name}_sentences_per_second"] = len(texts) / statistics.median(column)
    return result | {"speed": statistics.median(plain / int8 for plain, int8 in seconds)}


def _seconds(model: SimCSE, texts: list[str]) -> float:
    start = time.perf_counter()
    model.encode(texts)
    return time.perf_counter() - start
