"""Mine hard negatives for pairs of texts: the candidates nearest to an anchor that are not its positives."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from ..ops.errors import check_finite_texts
from .exact import ExactIndex
from .faiss_index import FaissIndex

OUTPUT_FORMATS = ("n-tuple", "triplet")
SAMPLING_STRATEGIES = ("top", "random")
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
        if self.num_negatives < 1 or self.range_min < 0:
            raise ValueError(
                f"num_negatives must be at least 1 and range_min at least 0, got {self.num_negatives} and "
                f"{self.range_min}"
            )
        if self.last_rank - self.range_min < self.num_negatives:
            raise ValueError(
                f"range_min = {self.range_min} and range_max = {self.range_max} leave fewer than num_negatives = "
                f"{self.num_negatives} candidates: raise range_max or lower range_min"
            )
        if not all(bound is None or math.isfinite(bound) for bound in self._bounds):
            raise ValueError(f"scores and margins must be finite numbers, got {self._bounds}")
        if self.sampling_strategy not in SAMPLING_STRATEGIES:
            raise ValueError(
                f"sampling_strategy must be one of {', '.join(SAMPLING_STRATEGIES)}, got {self.sampling_strategy!r}"
            )

    @property
    def _bounds(self) -> tuple[float | None, ...]:
        return self.max_score, self.min_score, self.absolute_margin, self.relative_margin

    @property
    def last_rank(self) -> int:
        """The rank at which the search ends, exclusive."""
        if self.range_max is not None:
            return self.range_max
        may_drop = self.sampling_strategy == "random" or any(bound is not None for bound in self._bounds)
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
    anchor_of, anchor_keys = _number(first)
    candidate_of, candidate_keys = _number(texts)
    first_texts = [first[place] for place in np.unique(anchor_of, return_index=True)[1]]
    candidate_texts = [texts[place] for place in np.unique(candidate_of, return_index=True)[1]]
    anchors = _encode(model.encode_query, first_texts, show_progress_bar)
    candidates = _encode(model.encode_document, candidate_texts, show_progress_bar)
    positive_of = candidate_of[: len(second)]
    positive_scores = np.einsum("ij,ij->i", anchors[anchor_of], candidates[positive_of])

    index = ExactIndex(candidates.shape[1]) if backend == "exact" else FaissIndex(candidates.shape[1], backend)
    index.add(candidates)
    own = np.array([candidate_keys.get(key, -1) for key in anchor_keys])
    # What an anchor must not take, as one sorted number for anchor and candidate.
    taboo = [anchor_of * len(index) + positive_of, (np.arange(len(own)) * len(index) + own)[own >= 0]]
    search = _Search(index, np.unique(np.concatenate(taboo)), own, options)
    negatives, scores = search.negatives_of(anchors, anchor_of, positive_scores)
    found = negatives >= 0
    complete = found.all(axis=1)

    if output_format == "triplet":
        pairs, columns = np.nonzero(found)
        chosen = negatives[pairs, columns][:, None]
    else:
        pairs = np.flatnonzero(complete)
        chosen = negatives[pairs]
    rows = {"sent0": [first[pair] for pair in pairs], "sent1": [second[pair] for pair in pairs]}
    for number, column in enumerate(chosen.T, start=1):
        name = "hard_neg" if chosen.shape[1] == 1 else f"hard_neg_{number}"
        rows[name] = [candidate_texts[place] for place in column]
    report = MiningReport(
        pairs=len(first),
        anchors=len(anchors),
        candidates=len(candidates),
        rows=len(pairs),
        pairs_without_negatives=int((~complete).sum()),
        dropped={"repeated candidate": len(texts) - len(candidates), **search.dropped},
        positive_score=float(positive_scores.mean()),
        negative_score=float(scores[found].mean()) if found.any() else None,
    )
    return Dataset.from_dict(rows), report


def _number(texts: Iterable[str]) -> tuple[np.ndarray, dict[str, int]]:
    """Return the number of each text's key, and the distinct keys with their numbers, in the order of first places."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(fold_text(text), len(numbers)) for text in texts]), numbers


def _encode(encode: Callable[..., np.ndarray], texts: Sequence[str], show_progress_bar: bool) -> np.ndarray:
    vectors = np.asarray(encode(texts, convert_to_numpy=True, show_progress_bar=show_progress_bar), dtype=np.float32)
    check_finite_texts(vectors, texts)
    return vectors


class _Search:
    """Search the candidates of anchors and choose the negatives of their pairs.

    Args:
        index (`ExactIndex` or `FaissIndex`): The candidates.
        taboo (`np.ndarray`): `anchor * len(index) + candidate` of what anchors must not take, sorted.
        own (`np.ndarray`): The candidate with the text of each anchor, or -1.
        options (`MiningOptions`): Which candidates may be taken.
    """

    def __init__(
        self, index: ExactIndex | FaissIndex, taboo: np.ndarray, own: np.ndarray, options: MiningOptions
    ) -> None:
        self.index, self.taboo, self.own, self.options = index, taboo, own, options
        self.dropped: Counter[str] = Counter()  # candidates by the reason, counted once for each pair

    def negatives_of(
        self, anchors: np.ndarray, anchor_of: np.ndarray, positive_scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the candidates (-1 where fewer were found) and their scores, of shape `(pairs, num_negatives)`."""
        shape = (len(anchor_of), self.options.num_negatives)
        negatives, scores = np.full(shape, -1), np.zeros(shape, dtype=np.float32)
        draw = np.random.default_rng(self.options.seed)
        # Anchors with equally many positives are searched together, because the search has to reach past all of these.
        num_taboo = np.bincount(self.taboo // len(self.index), minlength=len(anchors))
        order = np.argsort(num_taboo, kind="stable")
        for start in range(0, len(order), _BLOCK):
            block = order[start : start + _BLOCK]
            reach = self.options.last_rank + int(num_taboo[block].max())
            block_scores, found = self._ranked(block, anchors[block], min(reach, len(self.index)))
            places = np.full(len(anchors), -1)
            places[block] = np.arange(len(block))
            pairs = np.flatnonzero(places[anchor_of] >= 0)
            rows = places[anchor_of[pairs]]
            usable = self._usable(block_scores[rows], found[rows], positive_scores[pairs, None])
            keys = draw.random(usable.shape) if self.options.sampling_strategy == "random" else np.zeros(usable.shape)
            keys[~usable] = 2
            columns = np.sort(np.argsort(keys, axis=1, kind="stable")[:, : self.options.num_negatives], axis=1)
            taken = np.take_along_axis(usable, columns, 1)
            negatives[pairs] = np.where(taken, np.take_along_axis(found[rows], columns, 1), -1)
            scores[pairs] = np.where(taken, np.take_along_axis(block_scores[rows], columns, 1), 0)
        return negatives, scores

    def _ranked(self, numbers: np.ndarray, vectors: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and candidates of the ranks that are searched; candidates are -1 where there are fewer."""
        scores, found = self.index.search(vectors, reach)
        codes = numbers[:, None] * len(self.index) + found
        places = np.minimum(np.searchsorted(self.taboo, codes), len(self.taboo) - 1)
        gone = (self.taboo[places] == codes) & (found >= 0)
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
        fails = {
            "max_score": lambda bound: scores > bound,
            "absolute_margin": lambda margin: scores > positives - margin,
            "relative_margin": lambda margin: scores > positives - margin * np.abs(positives),
            "min_score": lambda bound: scores < bound,
        }
        usable = found >= 0
        for name, fails_bound in fails.items():
            if (bound := getattr(self.options, name)) is not None:
                failed = usable & fails_bound(bound)
                self.dropped[name] += int(failed.sum())
                usable &= ~failed
        return usable
