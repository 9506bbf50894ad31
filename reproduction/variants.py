"""Ways to read embeddings from one trained model: with another pooler, and after a whitening or a flow."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simcse_hf.data.read import load_text_dataset
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.report import Evaluation
from simcse_hf.evaluation.scoring import score_tasks
from simcse_hf.evaluation.tasks import Task
from simcse_hf.evaluation.tasks.senteval import TransferTask
from simcse_hf.postprocessing import VectorTransform, fit_flow, fit_whitening

from .data import find_data

Embed = Callable[[list[str]], np.ndarray]

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


def transformed(embed: Embed, method: str, fit_on: Iterable[str], texts: Iterable[str]) -> SentenceEmbeddings:
    """Return embeddings after a transform that is fitted on texts.

    Args:
        embed (`Callable[[list[str]], np.ndarray]`): Returns raw embeddings.
        method (`str`): `"whitening"` or `"flow"`.
        fit_on (`Iterable[str]`): The texts that it is fitted on. Repeated ones count once.
        texts (`Iterable[str]`): The texts whose embeddings are returned.

    Returns:
        [`SentenceEmbeddings`]: Their embeddings.
    """
    raw = torch.as_tensor(embed(list(dict.fromkeys(fit_on))))
    transform: VectorTransform = fit_whitening([raw]) if method == "whitening" else fit_flow(raw)[0]
    distinct = list(dict.fromkeys(texts))
    vectors = transform.transform(torch.as_tensor(embed(distinct)))
    return SentenceEmbeddings({None: distinct}, vectors.numpy())


def score_per_set(data: dict[str, Task], embed: Embed, method: str) -> Evaluation:
    """Fit a transform on each set's own texts, without their scores, and score the set with it.

    BERT-flow and BERT-whitening call this "target" (Li et al. 2020, Su et al. 2021). The subsets of an STS task are
    one set.

    Args:
        data (`dict[str, Task]`): What `read_tasks` returned: STS tasks, pairs and geometry.
        embed (`Callable[[list[str]], np.ndarray]`): Returns raw embeddings.
        method (`str`): `"whitening"` or `"flow"`.

    Returns:
        `Evaluation`: Results and scores, as `score_tasks` returns them.

    Raises:
        ValueError: If there are transfer tasks, or a set has too few texts for the transform.
    """
    transfer = [name for name, task in data.items() if isinstance(task, TransferTask)]
    if transfer:
        raise ValueError(f"a transform is fitted on a set for STS only: leave out {', '.join(transfer)}")
    whole = Evaluation({}, {})
    for name, task in data.items():
        texts = task.texts
        embeddings = SentenceEmbeddings({}, np.zeros((0, 1)))
        try:
            if texts:  # or its data is missing
                embeddings = transformed(embed, method, texts, texts)
        except ValueError as error:
            raise ValueError(f"{name}: no {method} can be fitted on its texts: {error}") from error
        evaluation = score_tasks({name: task}, embeddings)
        whole.results[name] = evaluation.results[name]
        whole.scores.update(evaluation.scores)
    return whole


def nli_file(data_dir: Path) -> Path | None:
    """Find the file of NLI sentences in the folder of data."""
    return next((path for name in NLI_FILES if (path := find_data(name, data_dir)) is not None), None)


@cache
def nli_sentences(path: Path) -> tuple[str, ...]:
    """Draw distinct sentences of an NLI file with seed 0."""
    rows = load_text_dataset(path)
    texts = list(dict.fromkeys(text for column in rows.column_names for text in rows[column]))
    return tuple(random.Random(0).sample(texts, min(NLI_SENTENCES, len(texts))))
