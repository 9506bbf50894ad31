"""Choose hard negatives from embeddings: the candidates nearest to an anchor that are not its positives."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .interface import VectorIndex

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
        if self.num_negatives < 1:
            raise ValueError(f"num_negatives must be at least 1, got {self.num_negatives}")
        if self.range_min < 0:
            raise ValueError(f"range_min must be at least 0, got {self.range_min}")
        if self.last_rank - self.range_min < self.num_negatives:
            raise ValueError(
                f"range_min = {self.range_min} and range_max = {self.range_max} leave fewer than num_negatives = "
                f"{self.num_negatives} candidates: raise range_max or lower range_min"
            )
        for name in ("max_score", "min_score", "absolute_margin", "relative_margin"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        if self.sampling_strategy not in SAMPLING_STRATEGIES:
            raise ValueError(
                f"sampling_strategy must be one of {', '.join(SAMPLING_STRATEGIES)}, got {self.sampling_strategy!r}"
            )

    @property
    def last_rank(self) -> int:
        """The rank at which the search ends, exclusive."""
        if self.range_max is not None:
            return self.range_max
        bounds = (self.max_score, self.min_score, self.absolute_margin, self.relative_margin)
        may_drop = self.sampling_strategy == "random" or any(bound is not None for bound in bounds)
        return self.range_min + self.num_negatives * (10 if may_drop else 1)


class PairTable:
    """The distinct anchors and candidates of a list of pairs, and which candidates an anchor must not take.

    Texts are compared by keys, such as case-folded texts or token ids. An anchor must not take a candidate with its
    own key, or with the key of a positive of any pair with the same anchor.

    Example: the pairs (a, b), (a, c) and (d, b) have the anchors a and d and the candidates b and c. Anchor a must
    take neither, and anchor d may take c.

    Args:
        anchors (`Sequence[Hashable]`): The key of each pair's anchor.
        positives (`Sequence[Hashable]`): The key of each pair's positive. Positives are candidates.
        others (`Sequence[Hashable]`, *optional*, defaults to `()`): Keys of further candidates.

    Attributes:
        anchor_of_pair (`np.ndarray`): The number of each pair's anchor among the distinct ones.
        positive_of_pair (`np.ndarray`): The number of each pair's positive among the distinct candidates.
        first_anchor (`np.ndarray`): The first pair with each distinct anchor.
        first_candidate (`np.ndarray`): The first place of each distinct candidate in `[*positives, *others]`.
        num_candidates (`int`): The number of distinct candidates.
        num_duplicates (`int`): Candidates that repeat an earlier one.
    """

    def __init__(
        self, anchors: Sequence[Hashable], positives: Sequence[Hashable], others: Sequence[Hashable] = ()
    ) -> None:
        anchor_numbers: dict[Hashable, int] = {}
        self.anchor_of_pair = np.array([anchor_numbers.setdefault(key, len(anchor_numbers)) for key in anchors])
        candidate_numbers: dict[Hashable, int] = {}
        numbers = np.array(
            [candidate_numbers.setdefault(key, len(candidate_numbers)) for keys in (positives, others) for key in keys]
        )
        self.positive_of_pair = numbers[: len(positives)]
        self.first_anchor = np.unique(self.anchor_of_pair, return_index=True)[1]
        self.first_candidate = np.unique(numbers, return_index=True)[1]
        self.num_candidates = len(candidate_numbers)
        self.num_duplicates = len(numbers) - self.num_candidates
        own = [(number, candidate_numbers[key]) for key, number in anchor_numbers.items() if key in candidate_numbers]
        self._own = np.array([candidate_numbers.get(key, -1) for key in anchor_numbers])
        excluded = np.unique(
            np.concatenate(
                [
                    np.stack([self.anchor_of_pair, self.positive_of_pair], 1),
                    np.array(own, dtype=np.int64).reshape(-1, 2),
                ]
            ),
            axis=0,
        )
        #: How many candidates each anchor must not take.
        self.num_excluded = np.bincount(excluded[:, 0], minlength=len(anchor_numbers))
        self._codes = excluded[:, 0] * self.num_candidates + excluded[:, 1]  # sorted

    def is_excluded(self, anchors: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Say which candidates anchors must not take.

        Args:
            anchors (`np.ndarray`): Numbers of anchors, of shape `(n,)`.
            candidates (`np.ndarray`): Numbers of candidates for each anchor, of shape `(n, k)`.

        Returns:
            `np.ndarray`: Booleans of shape `(n, k)`.
        """
        codes = anchors[:, None] * self.num_candidates + candidates
        places = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return np.equal(self._codes[places], codes)

    def is_own_text(self, anchors: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Say which candidates have the text of their anchor; shapes as in [`is_excluded`]."""
        return np.equal(self._own[anchors][:, None], candidates)


@dataclass
class MinedNegatives:
    """The hard negatives of each pair, and what was left out.

    Args:
        candidates (`np.ndarray`): Numbers of candidates of shape `(pairs, num_negatives)`, -1 where fewer were found.
        scores (`np.ndarray`): Their cosine similarities to the anchors.
        positive_scores (`np.ndarray`): The cosine similarities of the pairs, of shape `(pairs,)`.
        dropped (`Counter[str]`): How many candidates were dropped for each reason, counted once for each pair.
    """

    candidates: np.ndarray
    scores: np.ndarray
    positive_scores: np.ndarray
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def is_complete(self) -> np.ndarray:
        """Whether each pair has all of its negatives, of shape `(pairs,)`."""
        return np.asarray((self.candidates >= 0).all(axis=1))


def mine_negatives(
    table: PairTable,
    anchors: np.ndarray,
    candidates: np.ndarray,
    index: VectorIndex,
    options: MiningOptions,
    blocks: slice = slice(None),
) -> MinedNegatives:
    """Search the candidates of each anchor and choose the hard negatives of its pairs.

    Memory grows with one block of anchors times the ranks that are searched, beside the embeddings themselves.

    Args:
        table (`PairTable`): The pairs.
        anchors (`np.ndarray`): Unit embeddings of the distinct anchors, of shape `(anchors, dim)`.
        candidates (`np.ndarray`): Unit embeddings of the distinct candidates, of shape `(candidates, dim)`.
        index (`VectorIndex`): An index of `candidates`.
        options (`MiningOptions`): Which candidates may be taken.
        blocks (`slice`, *optional*): The blocks of anchors to search, such as `slice(rank, None, processes)`. The
            pairs of the other blocks keep zeros in every array, so that processes can add their results.

    Returns:
        `MinedNegatives`: The negatives of all pairs, in their order.
    """
    num_pairs = len(table.anchor_of_pair)
    shape = (num_pairs, options.num_negatives)
    result = MinedNegatives(
        np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32), np.zeros(num_pairs, dtype=np.float32)
    )
    # Anchors with equally many positives are searched together, because the search has to reach past all of these.
    order = np.argsort(table.num_excluded, kind="stable")
    pairs_of_anchor = np.argsort(table.anchor_of_pair, kind="stable")
    ends = np.cumsum(np.bincount(table.anchor_of_pair, minlength=len(order)))
    starts = range(0, len(order), _BLOCK)
    for number in range(len(starts))[blocks]:
        block = order[starts[number] : starts[number] + _BLOCK]
        scores, found = _ranked_candidates(table, block, anchors[block], index, options.last_rank, result.dropped)
        scores, found = scores[:, options.range_min :], found[:, options.range_min :]
        counts = np.diff(ends, prepend=0)[block]
        rows = np.repeat(np.arange(len(block)), counts)
        pairs = np.concatenate([pairs_of_anchor[ends[a] - n : ends[a]] for a, n in zip(block, counts, strict=True)])
        positives = np.einsum("ij,ij->i", anchors[block][rows], candidates[table.positive_of_pair[pairs]])
        usable = _usable(scores[rows], found[rows], positives, options, result.dropped)
        rng = np.random.default_rng([options.seed, number])
        columns = _choose(usable, options, rng)
        result.positive_scores[pairs] = positives
        result.scores[pairs] = np.take_along_axis(np.where(usable, scores[rows], 0), columns, 1)
        result.candidates[pairs] = np.take_along_axis(np.where(usable, found[rows], -1), columns, 1)
    return result


def _ranked_candidates(
    table: PairTable, anchors: np.ndarray, vectors: np.ndarray, index: VectorIndex, ranks: int, dropped: Counter[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and numbers of the nearest candidates that the anchors may take, of shape `(anchors, ranks)`.

    Numbers are -1 and scores -inf where there are fewer.
    """
    reach = min(ranks + int(table.num_excluded[anchors].max()), table.num_candidates)
    scores, found = index.search(vectors, reach)
    excluded = table.is_excluded(anchors, found)
    own = int(table.is_own_text(anchors, found).sum())
    dropped["the anchor itself"] += own
    dropped["positive of the same anchor"] += int(excluded.sum()) - own
    columns = np.argsort(excluded | (found < 0), axis=1, kind="stable")[:, :ranks]
    gone = np.take_along_axis(excluded, columns, 1)
    scores = np.where(gone, -np.inf, np.take_along_axis(scores, columns, 1))
    found = np.where(gone, -1, np.take_along_axis(found, columns, 1))
    missing = ((0, 0), (0, ranks - found.shape[1]))
    return np.pad(scores, missing, constant_values=-np.inf), np.pad(found, missing, constant_values=-1)


def _usable(
    scores: np.ndarray, found: np.ndarray, positives: np.ndarray, options: MiningOptions, dropped: Counter[str]
) -> np.ndarray:
    """Say which candidates pass the bounds of the scores, and count the others by the first bound that they fail."""
    positives = positives[:, None]
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
        dropped[name] += int((usable & fails).sum())
        usable &= ~fails
    return usable


def _choose(usable: np.ndarray, options: MiningOptions, rng: np.random.Generator) -> np.ndarray:
    """Return the columns of the chosen candidates of each row: all of them usable, if there are enough."""
    if options.sampling_strategy == "top":
        return np.argsort(~usable, axis=1, kind="stable")[:, : options.num_negatives]
    keys = np.where(usable, rng.random(usable.shape), 2.0)
    return np.sort(np.argsort(keys, axis=1)[:, : options.num_negatives], axis=1)
