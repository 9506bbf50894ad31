"""Mine hard negatives for pairs of texts with a model: pairs become triplets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from .exact import ExactIndex
from .faiss_index import KINDS, FaissIndex
from .interface import VectorIndex
from .mining import MinedNegatives, MiningOptions, PairTable, mine_negatives

MINING_BACKENDS = ("exact", *KINDS)
OUTPUT_FORMATS = ("n-tuple", "triplet")
_WINDOW = 50_000  # texts that are tokenised together


@dataclass
class MiningReport:
    """What became of the pairs and of the candidates.

    Args:
        pairs (`int`): Pairs that were read.
        anchors (`int`): Distinct anchors among them.
        candidates (`int`): Distinct candidates.
        rows (`int`): Rows that were written.
        pairs_without_negatives (`int`): Pairs with fewer negatives than requested. With `"n-tuple"` they give no row.
        dropped (`dict[str, int]`): Candidates that were left out, by reason.
        positive_score (`float`): Mean cosine similarity of anchors and positives.
        negative_score (`float`, *optional*): Mean cosine similarity of anchors and mined negatives.
    """

    pairs: int
    anchors: int
    candidates: int
    rows: int
    pairs_without_negatives: int
    dropped: dict[str, int]
    positive_score: float
    negative_score: float | None


def fold_text(text: str) -> str:
    """Return a key that is equal for texts that differ in white space or in upper and lower case only."""
    return " ".join(text.split()).casefold()


def make_index(vectors: np.ndarray, backend: str = "exact") -> VectorIndex:
    """Index embeddings.

    Args:
        vectors (`np.ndarray`): Unit embeddings of shape `(n, dim)`.
        backend (`str`, *optional*, defaults to `"exact"`): One of `MINING_BACKENDS`; `"ivf"` and `"hnsw"` may miss
            neighbours.

    Returns:
        `VectorIndex`: The index.

    Raises:
        ValueError: If the backend is unknown.
        ImportError: If the backend needs faiss and it is not installed.
    """
    if backend not in MINING_BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(MINING_BACKENDS)}, got {backend!r}")
    dim = vectors.shape[1]
    index: VectorIndex = ExactIndex(dim) if backend == "exact" else FaissIndex(dim, backend)
    index.add(vectors)
    return index


def mine_hard_negatives(
    dataset: Dataset,
    model: Any,
    *,
    corpus: Sequence[str] = (),
    options: MiningOptions | None = None,
    backend: str = "exact",
    output_format: str = "n-tuple",
    show_progress_bar: bool = False,
) -> tuple[Dataset, MiningReport]:
    """Add hard negatives to pairs of an anchor and a positive.

    Each distinct anchor and candidate is encoded once. Candidates are all positives, hard negatives that the rows
    already have, and the texts of `corpus`. Texts that differ in white space or case only count as one.

    Args:
        dataset (`datasets.Dataset`): Columns `sent0` (anchor), `sent1` (positive), and perhaps hard negatives, as from
            `load_text_dataset`.
        model (`SimCSE`): The model; any object with `encode_query` and `encode_document` like those of [`SimCSE`].
        corpus (`Sequence[str]`, *optional*, defaults to `()`): Further candidates.
        options (`MiningOptions`, *optional*): Which candidates may become negatives.
        backend (`str`, *optional*, defaults to `"exact"`): What searches the candidates; see [`make_index`].
        output_format (`str`, *optional*, defaults to `"n-tuple"`): `"n-tuple"` gives a pair one row with all of its
            negatives in columns `hard_neg`, or `hard_neg_1`, `hard_neg_2` and so on; `"triplet"` gives it a row for
            each negative.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show progress bars.

    Returns:
        `tuple[datasets.Dataset, MiningReport]`: Rows of `sent0`, `sent1` and hard negatives, and what was left out.

    Raises:
        ValueError: If the rows are no pairs, an option is unknown, or an embedding is not finite.
    """
    options = options or MiningOptions()
    if output_format not in OUTPUT_FORMATS:
        raise ValueError(f"output_format must be one of {', '.join(OUTPUT_FORMATS)}, got {output_format!r}")
    if len(dataset.column_names) < 2:
        raise ValueError(
            f"mining needs pairs of an anchor and a positive, and the rows hold {', '.join(dataset.column_names)} only"
        )
    first, second, *given = (list(dataset[column]) for column in dataset.column_names)
    texts = [*second, *(text for column in given for text in column), *corpus]
    keys = [fold_text(text) for text in texts]
    table = PairTable([fold_text(text) for text in first], keys[: len(second)], keys[len(second) :])
    candidate_texts = [texts[place] for place in table.first_candidate]
    anchors = _encode(model.encode_query, [first[place] for place in table.first_anchor], show_progress_bar)
    candidates = _encode(model.encode_document, candidate_texts, show_progress_bar)
    mined = mine_negatives(table, anchors, candidates, make_index(candidates, backend), options)
    rows = _rows(first, second, candidate_texts, mined, output_format)
    found = mined.candidates >= 0
    report = MiningReport(
        pairs=len(first),
        anchors=len(anchors),
        candidates=len(candidates),
        rows=len(rows),
        pairs_without_negatives=int((~mined.is_complete).sum()),
        dropped={"repeated candidate": table.num_duplicates, **mined.dropped},
        positive_score=float(mined.positive_scores.mean()),
        negative_score=float(mined.scores[found].mean()) if found.any() else None,
    )
    return rows, report


def _encode(encode: Callable[..., np.ndarray], texts: Sequence[str], show_progress_bar: bool) -> np.ndarray:
    parts = [
        np.asarray(encode(texts[start : start + _WINDOW], convert_to_numpy=True, show_progress_bar=show_progress_bar))
        for start in range(0, len(texts), _WINDOW)
    ]
    vectors = np.concatenate(parts).astype(np.float32, copy=False)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"the embedding of {texts[int(finite.argmin())]!r:.80} is not finite: use a model in float32 or bfloat16"
        )
    return vectors


def _rows(
    first: Sequence[str], second: Sequence[str], candidates: Sequence[str], mined: MinedNegatives, output_format: str
) -> Dataset:
    """Write negatives beside their pairs, in the order of the pairs."""
    width = mined.candidates.shape[1]
    if output_format == "triplet":
        pairs, columns = np.nonzero(mined.candidates >= 0)
        chosen = mined.candidates[pairs, columns][:, None]
    else:
        pairs = np.flatnonzero(mined.is_complete)
        chosen = mined.candidates[pairs]
    names = ["hard_neg"] if chosen.shape[1] == 1 else [f"hard_neg_{number}" for number in range(1, width + 1)]
    negatives = {name: [candidates[place] for place in chosen[:, i]] for i, name in enumerate(names)}
    kept = pairs.tolist()
    return Dataset.from_dict({"sent0": [first[i] for i in kept], "sent1": [second[i] for i in kept], **negatives})
