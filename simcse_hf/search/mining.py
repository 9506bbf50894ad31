"""Mine hard negatives for pairs of texts: the candidates nearest to an anchor that are not its positives."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from ..ops.errors import check_finite_texts
from .exact import ExactIndex
from .faiss_index import FaissIndex

OUTPUT_FORMATS = ("n-tuple", "triplet")
SAMPLING_STRATEGIES = ("top", "random")
#: Anchors that are searched together.
_BLOCK = 8192
#: The number of a candidate, and its similarity to the anchor.
Candidate = tuple[int, float]


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
    candidate_texts = [text for _, text in candidate_keys.values()]
    anchors = _encode(model.encode_query, [text for _, text in anchor_keys.values()], show_progress_bar)
    candidates = _encode(model.encode_document, candidate_texts, show_progress_bar)
    positive_of = candidate_of[: len(second)]
    positive_scores = np.einsum("ij,ij->i", anchors[anchor_of], candidates[positive_of])

    index = ExactIndex(candidates.shape[1]) if backend == "exact" else FaissIndex(candidates.shape[1], backend)
    index.add(candidates)
    own = [candidate_keys.get(key, (-1, ""))[0] for key in anchor_keys]
    dropped = Counter({"repeated candidate": len(texts) - len(candidates)})
    negatives: list[list[Candidate]] = [[] for _ in first]
    draw = random.Random(options.seed)
    for anchor_pairs, ranked in _ranked(index, anchors, own, anchor_of, positive_of, options, dropped):
        for pair in anchor_pairs:
            negatives[pair] = _choose(ranked, float(positive_scores[pair]), options, draw, dropped)

    width = 1 if output_format == "triplet" else options.num_negatives
    rows = [
        (first[pair], second[pair], *(candidate_texts[place] for place, _ in found[start : start + width]))
        for pair, found in enumerate(negatives)
        for start in range(0, len(found) - width + 1, width)
    ]
    names = ["hard_neg"] if width == 1 else [f"hard_neg_{number}" for number in range(1, width + 1)]
    columns = zip(*rows, strict=True) if rows else [[]] * (2 + width)
    scores = [score for found in negatives for _, score in found]
    report = MiningReport(
        pairs=len(first),
        anchors=len(anchors),
        candidates=len(candidates),
        rows=len(rows),
        pairs_without_negatives=sum(len(found) < options.num_negatives for found in negatives),
        dropped=dict(dropped),
        positive_score=float(positive_scores.mean()),
        negative_score=float(np.mean(scores)) if scores else None,
    )
    return Dataset.from_dict(dict(zip(["sent0", "sent1", *names], map(list, columns), strict=True))), report


def _number(texts: Iterable[str]) -> tuple[list[int], dict[str, tuple[int, str]]]:
    """Return the number of each text's key, and for each distinct key its number and the first text that has it."""
    keys: dict[str, tuple[int, str]] = {}
    return [keys.setdefault(fold_text(text), (len(keys), text))[0] for text in texts], keys


def _encode(encode: Callable[..., np.ndarray], texts: Sequence[str], show_progress_bar: bool) -> np.ndarray:
    vectors = np.asarray(encode(texts, convert_to_numpy=True, show_progress_bar=show_progress_bar), dtype=np.float32)
    check_finite_texts(vectors, texts)
    return vectors


def _ranked(
    index: ExactIndex | FaissIndex,
    anchors: np.ndarray,
    own: Sequence[int],
    anchor_of: Sequence[int],
    positive_of: Sequence[int],
    options: MiningOptions,
    dropped: Counter[str],
) -> Iterator[tuple[list[int], list[Candidate]]]:
    """Yield the pairs of each anchor, and the candidates in the range of ranks that are none of its positives.

    Args:
        index (`ExactIndex` or `FaissIndex`): The candidates.
        anchors (`np.ndarray`): The embeddings of the anchors, of shape `(anchors, dim)`.
        own (`Sequence[int]`): The candidate with the text of each anchor, or -1.
        anchor_of (`Sequence[int]`): The anchor of each pair.
        positive_of (`Sequence[int]`): The candidate that is the positive of each pair.
        options (`MiningOptions`): The range of ranks.
        dropped (`Counter`): Counts what is left out by its reason, once for each anchor.
    """
    pairs: list[list[int]] = [[] for _ in anchors]
    for pair, anchor in enumerate(anchor_of):
        pairs[anchor].append(pair)
    # Anchors with equally many pairs are searched together, because the search has to reach past all positives.
    order = sorted(range(len(anchors)), key=lambda anchor: len(pairs[anchor]))
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        reach = options.last_rank + len(pairs[block[-1]]) + 1
        scores, found = index.search(anchors[block], min(reach, len(index)))
        for anchor, row, row_scores in zip(block, found.tolist(), scores.tolist(), strict=True):
            positives = {positive_of[pair] for pair in pairs[anchor]} - {own[anchor]}
            dropped["the anchor itself"] += own[anchor] >= 0 and own[anchor] in row
            dropped["positive of the same anchor"] += len(positives.intersection(row))
            taboo = positives | {own[anchor], -1}  # faiss gives -1 where it finds fewer
            ranked = [each for each in zip(row, row_scores, strict=True) if each[0] not in taboo]
            yield pairs[anchor], ranked[options.range_min : options.last_rank]


def _choose(
    ranked: Sequence[Candidate], positive: float, options: MiningOptions, draw: random.Random, dropped: Counter[str]
) -> list[Candidate]:
    """Choose the negatives of a pair by rank, and count the other candidates by the first bound that they fail."""
    margin, share = options.absolute_margin, options.relative_margin
    highest = {
        "max_score": options.max_score,
        "absolute_margin": None if margin is None else positive - margin,
        "relative_margin": None if share is None else positive - share * abs(positive),
    }
    usable = []
    for candidate, score in ranked:
        reason = next((name for name, bound in highest.items() if bound is not None and score > bound), None)
        if reason is None and options.min_score is not None and score < options.min_score:
            reason = "min_score"
        if reason is None:
            usable.append((candidate, score))
        else:
            dropped[reason] += 1
    if options.sampling_strategy == "random":
        number = min(options.num_negatives, len(usable))
        usable = [usable[place] for place in sorted(draw.sample(range(len(usable)), number))]
    return usable[: options.num_negatives]
