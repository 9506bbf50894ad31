"""The description of an index: the identity of its model and its data."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from ..runtime.encoders import TextEncoder
from ..runtime.errors import DataError, ModelError
from ..runtime.files import StrPath, read_json
from ..runtime.identity import Identity
from ..runtime.loading import full_name
from .exact import comparable

DESCRIPTION = "index.json"
#: A save writes a new data folder, so the old one is whole until the description names the new one.
DATA = re.compile(r"data-[0-9a-f]{16}")
PROBE = "The quick brown fox jumps over the lazy dog, and nobody asked it to."
#: Least cosine of two embeddings of one text by one model; bfloat16 and float32 agree better than this.
SAME = 0.999
#: As `SAME`, for an exported graph: int8 rounds activations by the range of the whole batch.
SAME_ROUNDED = 0.98
REBUILD = "Build the index again."


@dataclass(frozen=True)
class Description:
    """The identity of the model of an index, and its data.

    Args:
        model (`Identity`): The model that encoded the sentences, with the prompt of documents only.
        probe (`list[float]`): Its embedding of `PROBE`, which is compared where the weights cannot be: in another data
            type, in an exported graph, or in a model of another package.
        truncate_dim (`int`, *optional*): How many leading dimensions of the embeddings are used.
        backend (`str`): `"exact"`, or what [`FaissIndex`] was built from.
        count (`int`): Number of sentences.
        data (`str`): The folder of the data.
        digests (`dict[str, str]`): The digest of each file of the data.
    """

    model: Identity
    probe: list[float]
    truncate_dim: int | None
    backend: str
    count: int = 0
    data: str = ""
    digests: dict[str, str] = field(default_factory=dict)

    def is_of_teacher(self, model: TextEncoder) -> bool:
        """Return whether a model is a student that was trained to give queries the vectors of exactly this model."""
        teacher = model.teacher()
        return teacher is not None and self.model.similarity == "cosine" and not self.model.changes(teacher)

    def check_model(self, model: TextEncoder, index: str) -> None:
        """Raise a `ValueError` if a model gives other embeddings than those of the index, which `index` names."""
        before = self.model
        now = identify(model, before)
        may_change = {"dtype", "backend"}
        if before.weights is None:  # of a model of another package
            may_change |= {"weights", "tokenizer", "templates", "postprocessing", "max_length"}
        problems = before.changes(now, may_change)
        if not problems:
            probe = embed_documents(model, [PROBE], self.truncate_dim)[0]
            cosine = agreement(probe, np.array(self.probe, dtype=np.float32))
            if not cosine >= SAME:  # it may be NaN
                problems = [f"its embedding of a fixed sentence has a cosine of {cosine:.4f} with the one there"]
        if problems and not self.is_of_teacher(model):
            raise ModelError(
                f"{index} was built with model {before.name_or_path!r} and pooler {before.pooler!r}; this is another "
                f"model: {'; '.join(problems)}. Load the model of the index, or build the index again."
            )


def identify(model: TextEncoder, default: Identity | None = None) -> Identity:
    """Return what decides a model's embeddings of documents.

    Args:
        model (`TextEncoder`): The model.
        default (`Identity`, *optional*): The entries that a model of another package does not have.

    Returns:
        `Identity`: With an absolute path, and no other prompt than that of documents.
    """
    return of_documents(model.identity(default))


def of_documents(model: Identity) -> Identity:
    """Return what decides the embeddings of documents: with an absolute path, and no other prompt than theirs."""
    prompts = {"document": model.prompts.get("document") or ""}
    return replace(model, name_or_path=full_name(model.name_or_path), prompts=prompts, default_prompt_name=None)


def embed_documents(model: TextEncoder, texts: Sequence[str], truncate_dim: int | None) -> ndarray:
    """Encode texts as the model encodes documents, of unit length if it compares them by their cosine."""
    return comparable(model.embed(texts, "document", truncate_dim=truncate_dim), model.similarity)


def agreement(x: ndarray, y: ndarray) -> float:
    """Return the cosine of two unit embeddings, and of others what falls as fast with their relative distance."""
    if x.shape != y.shape:
        return float("nan")
    distance = np.square(x - y).sum()
    size = np.square(y).sum()
    return float(1 - distance / (2 * size))


def describe(folder: StrPath) -> Description:
    """Read the description of a saved index.

    Args:
        folder (`str` or `os.PathLike`): The folder that it was saved in.

    Returns:
        `Description`: Its model, backend, number of sentences and more.

    Raises:
        DataError: If there is no index, or its description is damaged.

    Examples:
        >>> from simcse_hf import describe, index
        >>> _ = index("sentences.txt", "my-index", model="outputs/my-model", overwrite=True, show_progress_bar=False)
        >>> describe("my-index").backend
        'exact'
    """
    path = Path(folder).expanduser() / DESCRIPTION
    if not path.is_file():
        raise DataError(
            f"{folder}: no {DESCRIPTION}, so no index was saved here. Name the folder that `simcse-hf index` wrote."
        )
    match read_json(path, advice=REBUILD):
        case {
            "model": {
                "name_or_path": str(),
                "revision": str() | None,
                "pooler": str() | None,
                "max_length": int() | None,
                "prompts": {"document": str()},
            } as model,
            "probe": [*probe],
            "truncate_dim": int() | None as truncate_dim,
            "backend": str(backend),
            "count": int(count),
            "data": str(data),
            "digests": dict(digests),
        } if {type(value) for value in probe} == {float} and DATA.fullmatch(data):  # it must stay in the folder
            return Description(Identity.from_dict(model), probe, truncate_dim, backend, count, data, digests)
    raise DataError(f"{path}: damaged (an entry is missing or holds another kind of value). {REBUILD}")
