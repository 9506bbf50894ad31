"""Ways to read embeddings from one trained model: with another pooler, and after a whitening or a flow."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...data.read import load_text_dataset
from ...postprocessing.per_set import fit_per_set
from .data import find_data

METHODS = ("whitening", "flow")
FIT_ON = ("nli", "target")
#: Where NLI sentences are: the paper's file, or a smaller one. A transform is fitted on a sample of them.
NLI_FILES = ("data/nli_for_simcse.csv", "nli/nli_triplets.csv")
NLI_SENTENCES = 10_000


@dataclass(frozen=True)
class Variant:
    """How embeddings are read from a model.

    Args:
        pooler (`str`, *optional*): Pooler in place of the model's.
        method (`str`, *optional*): `"whitening"` or `"flow"`.
        fit_on (`str`, *optional*): What it is fitted on: `"nli"`, or `"target"` for the sentences of each test set.
    """

    pooler: str | None = None
    method: str | None = None
    fit_on: str | None = None

    def of(self, group: str) -> str:
        """Name an evaluation with this variant, such as `"sts;avg;flow;nli"`; plain for the model itself."""
        return group if self == Variant() else ";".join([group, *(part or "" for part in vars(self).values())])


def split_variant(name: str) -> tuple[str, Variant]:
    """Return the group and the variant that [`Variant.of`] has joined."""
    group, *parts = name.split(";")
    return group, Variant(*(part or None for part in parts))


def variant_of(pooler: str | None, postprocess: dict[str, Any], where: str) -> Variant:
    """Read the variant of a row.

    Args:
        pooler (`str`, *optional*): The row's `pooler`.
        postprocess (`dict`): The row's `postprocess`, empty for none.
        where (`str`): The row's place, for messages.

    Returns:
        [`Variant`]: The variant.

    Raises:
        ValueError: If `postprocess` is neither empty nor a method and what it is fitted on.
    """
    if not postprocess:
        return Variant(pooler)
    method, fit_on = postprocess.get("method"), postprocess.get("fit_on")
    if set(postprocess) != {"method", "fit_on"} or method not in METHODS or fit_on not in FIT_ON:
        raise ValueError(
            f"{where}: postprocess must have method ({', '.join(METHODS)}) and fit_on ({', '.join(FIT_ON)}), "
            f"not {postprocess}"
        )
    return Variant(pooler, method, fit_on)


def transformed(
    embed: Callable[[list[str]], np.ndarray], variant: Variant, sentences: Sequence[str]
) -> Callable[[list[str]], np.ndarray]:
    """Return embeddings after a transform that is fitted on NLI sentences.

    Args:
        embed (`Callable[[list[str]], np.ndarray]`): Returns raw embeddings.
        variant (`Variant`): Names the method.
        sentences (`Sequence[str]`): The sentences of [`nli_sentences`].

    Returns:
        `Callable[[list[str]], np.ndarray]`: A function like `embed`.
    """
    assert variant.method is not None
    return fit_per_set(embed, {"NLI": sentences}, variant.method)["NLI"]


def nli_file(data_dir: Path) -> Path | None:
    """Find the file of NLI sentences in the folder of data."""
    return next((path for name in NLI_FILES if (path := find_data(name, data_dir)) is not None), None)


@cache
def nli_sentences(path: Path) -> tuple[str, ...]:
    """Draw distinct sentences of an NLI file with seed 0."""
    rows = load_text_dataset(path)
    texts = list(dict.fromkeys(text for column in rows.column_names for text in rows[column]))
    return tuple(random.Random(0).sample(texts, min(NLI_SENTENCES, len(texts))))
