"""The vectors that frozen models give the texts of training rows."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, config
from transformers.utils import logging

from ..objectives.registry import split_weight
from ..retrieval.description import of_documents
from ..runtime.distributed import on_first_process, world
from ..runtime.errors import DataError
from ..runtime.files import lock
from ..runtime.identity import Identity, digest_texts, digest_value
from .files import SHARD_MANIFEST, Shard, encode, files_of, read_manifest, texts_of_rows
from .simcse import load_model

logger = logging.get_logger(__name__)

#: Entries of a model's identity that make its vectors, beside the prompt.
_MAKES_VECTORS = (
    *("pooler", "max_length", "long_texts", "backend", "dtype", "tokenizer", "templates", "weights"),
    "postprocessing",
)
_SHARD = 10_000  # vectors of a shard; what an interrupted run loses at most


class RowVectors:
    """Unit vectors of the texts of training rows, by one frozen model or several.

    A model encodes the texts once, with its prompts for queries and documents ([`BatchEncoder.column_prompts`]). Its
    vectors are kept in the cache of `datasets` (`HF_DATASETS_CACHE`, which several machines must share) and used again
    by every run with the same texts and weights. A folder of `simcse-hf encode` or [`write_vectors`] is used as it is,
    if it holds the vectors of the same texts in the same order. Vectors are mapped from their files.

    The vectors of several models are put one after the other, each times the square root of the model's share of all
    weights. So the product of two is the weighted mean of the models' cosines.

    Args:
        sources (`Sequence[str]`): Models or folders of vectors. A source may end in a weight, as in `model:0.33`.
        rows (`Dataset`): Training rows with columns of texts only.
        device (`torch.device`): Where models run.

    Raises:
        ValueError: If a weight is not above 0, or a folder holds the vectors of other texts, or no float32 vectors.
    """

    def __init__(self, sources: Sequence[str], rows: Dataset, device: torch.device):
        self.num_rows = len(rows)
        self.width = len(rows.column_names)
        count, texts = on_first_process(lambda: digest_texts(text for _, text in texts_of_rows(rows)))
        weighted = [split_source(source) for source in sources]
        total = sum(weight for _, weight in weighted)
        contents = []
        #: The size of the vectors of all models together.
        self.dim = 0
        #: The model that gives all texts these vectors; `None` for several, or for vectors from elsewhere.
        self.model: Identity | None = None
        self._files: list[tuple[Shard, float]] = []
        for source, weight in weighted:
            folder = Path(source).expanduser()
            if not (folder / SHARD_MANIFEST).is_file():
                folder = _encode(source, rows, texts, device)
            manifest = read_manifest(folder)
            found = manifest["input"]
            if found.get("texts") != texts:
                raise DataError(
                    f"{folder} holds the vectors of other texts, or in another order, than the training rows "
                    f"({found['rows']:,} there, {count:,} here): encode the file of exactly these rows, with its "
                    "--columns, or name the model itself."
                )
            settings = manifest["settings"]
            kind = f"{settings['precision']} in {settings['format']}"
            if kind != "float32 in npy":
                raise DataError(f"{folder} holds {kind}; a teacher or guide needs float32 in npy: encode it again.")
            factor = math.sqrt(weight / total)
            [file] = files_of(folder, manifest)
            self._files.append((file, factor))
            model = {name: value for name, value in manifest["model"].items() if name in _MAKES_VECTORS}
            contents.append([factor, (count, texts), model, settings.get("prompt"), settings.get("truncate_dim")])
        #: Stands for the vectors' content, whatever the folders are called.
        self.digest = digest_value(contents)
        self.dim = self(np.arange(min(1, self.num_rows))).shape[2]  # a missing shard is found before training
        if len(sources) == 1 and "pooler" in manifest["model"] and settings.get("truncate_dim") is None:
            self.model = of_documents(Identity.from_dict(manifest["model"]))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of some rows.

        Args:
            rows (`np.ndarray`): Row numbers from 0, of shape `(n,)`.

        Returns:
            `np.ndarray`: Of shape `(n, columns, dim)`, in float32.

        Raises:
            DataError: If a file is missing or damaged, or a vector is not finite or zero.
        """
        places = np.add.outer(rows * self.width, np.arange(self.width)).ravel()
        found = []
        for file, factor in self._files:
            vectors = file.read()[places]
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            has_direction = (norms > 0) & np.isfinite(norms)
            if not has_direction.all():
                row = places[has_direction.argmin()] // self.width
                raise DataError(
                    f"{file.path}: the vector of training row {row + 1} is zero or not finite: encode again."
                )
            found.append(factor * vectors / norms)
        return np.concatenate(found, axis=1).reshape(len(rows), self.width, -1)


def split_source(source: str) -> tuple[str, float]:
    """Split `model:0.33` into the name and the weight, which is 1 if there is none or a file has the whole name."""
    return (source, 1.0) if Path(source).expanduser().exists() else split_weight(source)


def _encode(source: str, rows: Dataset, texts: str, device: torch.device) -> Path:
    """Encode the texts of rows with a model, and return the folder of the vectors."""
    try:
        model = load_model(source, device=str(device))
    except ValueError as error:
        raise DataError(
            f"the teacher or guide {source} is neither a folder that `simcse-hf encode` wrote nor a model that can be "
            f"loaded: {error}"
        ) from error
    identity = model.identity().to_dict()
    described = {"name_or_path": None, "revision": None, "config": identity["config"]}
    described |= {name: identity[name] for name in _MAKES_VECTORS}
    cache = Path(config.HF_DATASETS_CACHE).expanduser() / "simcse_hf" / "vectors"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / digest_value([texts, described, model.column_prompts(len(rows.column_names))])
    logger.info(f"The vectors of {source} for the training rows are in {folder}.")
    # Another run may be encoding the same texts: the first process waits for its shards, and the others for the first.
    rank, _ = world()
    with lock(folder, timeout=-1) if rank == 0 else nullcontext():
        encode(model, rows, folder, shard_size=_SHARD, resume=True)
    return folder
