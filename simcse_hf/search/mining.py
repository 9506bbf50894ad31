"""Mine hard negatives for pairs of texts: the candidates nearest to an anchor that are not its positives."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from .exact import ExactIndex
from .faiss_index import FaissIndex

OUTPUT_FORMATS = ("n-tuple", "triplet")
SAMPLING_STRATEGIES = ("top", "random")
_WINDOW = 50_000  # texts that are encoded together
#: Anchors that are searched together. It decides which random numbers a pair draws, so a change alters `"random"`.
_BLOCK = 8192


@dataclass(frozen=True)
class MiningOptions:
    """Which candidates may become hard negatives, in the words of sentence-transformers' `mine_hard_negatives`.

    Ranks count from 0 over the candidates of an anchor in descending similarity. The anchor's own text and all of its
    positives are removed first and have no rank. The bounds relative to the positive are those of NV-Retriever
    (Moreira et al. 2024, arXiv:2407.15831), whose best setting corresponds to `relative_margin=0.05`.

    Args:
        num_negatives (`int`, *optional*, defaults to `1`): Hard negatives of each pair.
        range_min (`int`, *optional*, defaults to `0`): Skip so many of the most similar candidates.
        range_max (`int`, *optional*): The rank at which the search ends. Defaults to `range_min + num_negatives`, or
            to `range_min + 10 * num_negatives` if a bound may drop candidates or they are drawn.
        max_score (`float`, *optional*): Drop candidates with a higher cosine similarity to the anchor.
        min_score (`float`, *optional*): Drop candidates with a lower one.
        absolute_margin (`float`, *optional*): Drop candidates above the positive's similarity minus this margin.
        relative_margin (`float`, *optional*): Drop candidates above the positive's similarity minus this share of its
            size: with 0.05 and a positive at 0.8, those above 0.76.
        sampling_strategy (`str`, *optional*, defaults to `"top"`): `"top"` takes the most similar candidates that are
            left, `"random"` draws from them.
        seed (`int`, *optional*, defaults to `0`): Seed of `"random"`.

    Raises:
        ValueError: If a value is out of range.
    """

    num_negatives: int = 1
    range_min: int = 0
    range_max: int | None = None
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None
    sampling_strategy: str = "top"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        bounds = (self.max_score, self.min_score, self.absolute_margin, self.relative_margin)
        problems = {
            f"num_negatives must be at least 1, got {self.num_negatives}": self.num_negatives < 1,
            f"range_min must be at least 0, got {self.range_min}": self.range_min < 0,
            f"range_min = {self.range_min} and range_max = {self.range_max} leave fewer than num_negatives = "
            f"{self.num_negatives} candidates: raise range_max or lower range_min": (
                self.last_rank - self.range_min < self.num_negatives
            ),
            f"scores and margins must be finite numbers, got {bounds}": not all(
                bound is None or math.isfinite(bound) for bound in bounds
            ),
            f"sampling_strategy must be one of {', '.join(SAMPLING_STRATEGIES)}, got {self.sampling_strategy!r}": (
                self.sampling_strategy not in SAMPLING_STRATEGIES
            ),
        }
        for message, found in problems.items():
            if found:
                raise ValueError(message)

    @property
    def last_rank(self) -> int:
        """The rank at which the search ends, exclusive."""
        if self.range_max is not None:
            return self.range_max
        bounds = (self.max_score, self.min_score, self.absolute_margin, self.relative_margin)
        may_drop = self.sampling_strategy == "random" or any(bound is not None for bound in bounds)
        return self.range_min + self.num_negatives * (10 if may_drop else 1)


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
    already have, and the texts of `corpus`. Texts that differ in white space or case only count as one. An anchor
    never gets its own text, nor a positive of any pair with the same anchor.

    Args:
        dataset (`datasets.Dataset`): Columns `sent0` (anchor), `sent1` (positive), and perhaps hard negatives, as from
            `load_text_dataset`.
        model (`SimCSE`): The model; any object with `encode_query` and `encode_document` like those of [`SimCSE`].
        corpus (`Sequence[str]`, *optional*, defaults to `()`): Further candidates.
        options (`MiningOptions`, *optional*): Which candidates may become negatives.
        backend (`str`, *optional*, defaults to `"exact"`): What searches the candidates, as in
            [`SentenceIndex.build`].
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
    pair_anchors, anchor_keys = _number(map(fold_text, first))
    numbers, candidate_keys = _number(map(fold_text, texts))
    pair_positives = numbers[: len(second)]
    candidate_texts = [texts[place] for place in np.unique(numbers, return_index=True)[1]]
    anchor_texts = [first[place] for place in np.unique(pair_anchors, return_index=True)[1]]
    anchors = _encode(model.encode_query, anchor_texts, show_progress_bar)
    candidates = _encode(model.encode_document, candidate_texts, show_progress_bar)
    positive_scores = np.einsum("ij,ij->i", anchors[pair_anchors], candidates[pair_positives])

    dim = candidates.shape[1]
    index: ExactIndex | FaissIndex = ExactIndex(dim) if backend == "exact" else FaissIndex(dim, backend)
    index.add(candidates)
    own = np.array([candidate_keys.get(key, -1) for key in anchor_keys])
    # What an anchor must not take, as one sorted number for anchor and candidate.
    forbidden = np.concatenate(
        [
            pair_anchors * len(candidates) + pair_positives,
            (np.arange(len(own)) * len(candidates) + own)[own >= 0],
        ]
    )
    search = _Search(index, np.unique(forbidden), own, options)
    negatives, scores = search.negatives_of(anchors, pair_anchors, positive_scores)

    found = negatives >= 0
    complete = found.all(axis=1)
    rows = _rows(first, second, candidate_texts, negatives, complete, output_format)
    report = MiningReport(
        pairs=len(first),
        anchors=len(anchors),
        candidates=len(candidates),
        rows=len(rows),
        pairs_without_negatives=int((~complete).sum()),
        dropped={"repeated candidate": len(texts) - len(candidates), **search.dropped},
        positive_score=float(positive_scores.mean()),
        negative_score=float(scores[found].mean()) if found.any() else None,
    )
    return rows, report


def _number(keys: Iterable[str]) -> tuple[np.ndarray, dict[str, int]]:
    """Return the number of each key, and the distinct keys with their numbers, in the order of their first places."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys]), numbers


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


class _Search:
    """Search the candidates of anchors and choose the negatives of their pairs.

    Args:
        index (`ExactIndex` or `FaissIndex`): The candidates.
        forbidden (`np.ndarray`): `anchor * len(index) + candidate` of what anchors must not take, sorted.
        own (`np.ndarray`): The candidate with the text of each anchor, or -1.
        options (`MiningOptions`): Which candidates may be taken.
    """

    def __init__(
        self, index: ExactIndex | FaissIndex, forbidden: np.ndarray, own: np.ndarray, options: MiningOptions
    ) -> None:
        self.index, self.forbidden, self.own, self.options = index, forbidden, own, options
        self.dropped: Counter[str] = Counter()  # candidates by the reason, counted once for each pair

    def negatives_of(
        self, anchors: np.ndarray, pair_anchors: np.ndarray, positive_scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the candidates (-1 where fewer were found) and their scores, of shape `(pairs, num_negatives)`."""
        shape = (len(pair_anchors), self.options.num_negatives)
        negatives, scores = np.full(shape, -1), np.zeros(shape, dtype=np.float32)
        draw = np.random.default_rng(self.options.seed)
        # Anchors with equally many positives are searched together, because the search has to reach past all of these.
        num_forbidden = np.bincount(self.forbidden // len(self.index), minlength=len(anchors))
        order = np.argsort(num_forbidden, kind="stable")
        for start in range(0, len(order), _BLOCK):
            block = order[start : start + _BLOCK]
            reach = self.options.last_rank + int(num_forbidden[block].max())
            block_scores, found = self._ranked(block, anchors[block], min(reach, len(self.index)))
            places = np.full(len(anchors), -1)
            places[block] = np.arange(len(block))
            pairs = np.flatnonzero(places[pair_anchors] >= 0)
            rows = places[pair_anchors[pairs]]
            usable = self._usable(block_scores[rows], found[rows], positive_scores[pairs, None])
            keys = (
                ~usable if self.options.sampling_strategy == "top" else np.where(usable, draw.random(usable.shape), 2)
            )
            columns = np.sort(np.argsort(keys, axis=1, kind="stable")[:, : self.options.num_negatives], axis=1)
            taken = np.take_along_axis(usable, columns, 1)
            negatives[pairs] = np.where(taken, np.take_along_axis(found[rows], columns, 1), -1)
            scores[pairs] = np.where(taken, np.take_along_axis(block_scores[rows], columns, 1), 0)
        return negatives, scores

    def _ranked(self, numbers: np.ndarray, vectors: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and candidates of the ranks that are searched; candidates are -1 where there are fewer."""
        scores, found = self.index.search(vectors, reach)
        codes = numbers[:, None] * len(self.index) + found
        places = np.minimum(np.searchsorted(self.forbidden, codes), len(self.forbidden) - 1)
        gone = (self.forbidden[places] == codes) & (found >= 0)
        own = int((found == self.own[numbers][:, None]).sum(where=found >= 0))
        self.dropped["the anchor itself"] += own
        self.dropped["positive of the same anchor"] += int(gone.sum()) - own
        found = np.where(gone, -1, found)
        last = self.options.last_rank
        columns = np.argsort(found < 0, axis=1, kind="stable")[:, self.options.range_min : last]
        missing = ((0, 0), (0, last - self.options.range_min - columns.shape[1]))
        scores, found = np.take_along_axis(scores, columns, 1), np.take_along_axis(found, columns, 1)
        return np.pad(scores, missing), np.pad(found, missing, constant_values=-1)

    def _usable(self, scores: np.ndarray, found: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """Say which candidates pass the bounds, and count the others by the first bound that they fail."""
        options = self.options
        bounds: dict[str, np.ndarray] = {}
        if options.max_score is not None:
            bounds["max_score"] = scores > options.max_score
        if options.absolute_margin is not None:
            bounds["absolute_margin"] = scores > positives - options.absolute_margin
        if options.relative_margin is not None:
            bounds["relative_margin"] = scores > positives - options.relative_margin * np.abs(positives)
        if options.min_score is not None:
            bounds["min_score"] = scores < options.min_score
        usable = found >= 0
        for name, fails in bounds.items():
            self.dropped[name] += int((usable & fails).sum())
            usable = usable & ~fails
        return usable


def _rows(
    first: list[str],
    second: list[str],
    candidates: list[str],
    negatives: np.ndarray,
    complete: np.ndarray,
    output_format: str,
) -> Dataset:
    """Write negatives beside their pairs, in the order of the pairs."""
    if output_format == "triplet":
        pairs, columns = np.nonzero(negatives >= 0)
        chosen = negatives[pairs, columns][:, None]
    else:
        pairs = np.flatnonzero(complete)
        chosen = negatives[pairs]
    width = chosen.shape[1]
    names = ["hard_neg"] if width == 1 else [f"hard_neg_{number}" for number in range(1, width + 1)]
    columns = {name: [candidates[place] for place in chosen[:, i]] for i, name in enumerate(names)}
    return Dataset.from_dict({"sent0": [first[i] for i in pairs], "sent1": [second[i] for i in pairs], **columns})
