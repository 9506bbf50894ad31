"""Mine hard negatives for pairs of texts: the candidates nearest to an anchor that are not its positives."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from ..names import OUTPUT_FORMATS, SAMPLING_STRATEGIES
from ..ops.similarity import similarity_matrix
from .faiss_index import new_index

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
        range_min (`int`, *optional*, defaults to `0`): Number of the most similar candidates to skip.
        range_max (`int`, *optional*): The rank at which the search ends. Defaults to `range_min + num_negatives`, or
            to `range_min + 10 * num_negatives` if a bound may drop candidates or they are drawn.
        max_score (`float`, *optional*): Drop candidates with a higher similarity to the anchor (of the model's kind).
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
        if not all(math.isfinite(bound or 0) for bound in self.bounds):
            raise ValueError(f"scores and margins must be finite numbers, got {self.bounds}")
        if self.sampling_strategy not in SAMPLING_STRATEGIES:
            raise ValueError(
                f"sampling_strategy must be one of {', '.join(SAMPLING_STRATEGIES)}, got {self.sampling_strategy!r}"
            )

    @property
    def bounds(self) -> tuple[float | None, ...]:
        """The bounds of the scores, as far as they are set."""
        return self.max_score, self.min_score, self.absolute_margin, self.relative_margin

    @property
    def last_rank(self) -> int:
        """The rank at which the search ends, exclusive."""
        if self.range_max is not None:
            return self.range_max
        if self.sampling_strategy == "top" and set(self.bounds) == {None}:
            return self.range_min + self.num_negatives
        return self.range_min + 10 * self.num_negatives


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
        positive_score (`float`): Mean similarity of anchors and positives.
        negative_score (`float`, *optional*): Mean similarity of anchors and mined negatives.
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
    """Add hard negatives to pairs of an anchor and a positive, by the model's own similarity.

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
    pairs: dict[str, list[int]] = {}  # of each distinct anchor
    for pair, text in enumerate(first):
        pairs.setdefault(fold_text(text), []).append(pair)
    texts = [*second, *chain(*given), *corpus]
    candidate_of: dict[str, int] = {}
    candidate_texts: list[str] = []
    for text in texts:
        key = fold_text(text)
        if key not in candidate_of:
            candidate_of[key] = len(candidate_texts)
            candidate_texts.append(text)
    # The search has to reach past all positives of an anchor, so anchors with about as many pairs are searched
    # together.
    groups = sorted(pairs.items(), key=lambda group: len(group[1]))
    anchor_texts = [first[own_pairs[0]] for _, own_pairs in groups]
    anchors = model.encode_query(anchor_texts, convert_to_numpy=True, show_progress_bar=show_progress_bar)
    candidates = model.encode_document(candidate_texts, convert_to_numpy=True, show_progress_bar=show_progress_bar)

    similarity = getattr(model, "similarity_fn_name", "cosine")
    for name in ("max_score", "min_score"):
        score = getattr(options, name)
        if similarity == "cosine" and score is not None and abs(score) > 1:
            raise ValueError(f"{name} must be a cosine, between -1 and 1, got {score}")
    index = new_index(candidates.shape[1], backend, similarity)
    index.add(candidates)
    repeated = len(texts) - len(candidates)
    dropped = Counter({"repeated candidate": repeated, "the anchor itself": 0, "positive of the same anchor": 0})
    positive_scores = []
    negatives: list[list[Candidate]] = [[] for _ in first]
    draw = random.Random(options.seed)
    for start in range(0, len(groups), _BLOCK):
        block = groups[start : start + _BLOCK]
        vectors = anchors[start : start + _BLOCK]
        _, most_pairs = block[-1]
        reach = options.last_rank + len(most_pairs) + 1
        scores, found = index.search(vectors, min(reach, len(index)))
        searched = zip(block, vectors, scores.tolist(), found.tolist(), strict=True)
        for (key, own_pairs), vector, row_scores, row in searched:
            positives = [candidate_of[fold_text(second[pair])] for pair in own_pairs]
            taboo = set(positives)
            ranked = []
            for candidate, score in zip(row, row_scores, strict=True):
                if candidate == candidate_of.get(key):
                    dropped["the anchor itself"] += 1
                elif candidate in taboo:
                    dropped["positive of the same anchor"] += 1
                elif candidate >= 0:  # faiss gives -1 where it finds fewer
                    ranked.append((candidate, score))
            ranked = ranked[options.range_min : options.last_rank]
            own_vectors = torch.as_tensor(candidates[positives])
            own_scores = similarity_matrix(torch.as_tensor(vector[None]), own_vectors, similarity)
            for pair, positive_score in zip(own_pairs, own_scores[0].tolist(), strict=True):
                positive_scores.append(positive_score)
                negatives[pair] = _choose(ranked, positive_score, options, draw, dropped)

    width = 1 if output_format == "triplet" else options.num_negatives
    found_rows = []
    for anchor_text, positive_text, chosen in zip(first, second, negatives, strict=True):
        found_texts = [candidate_texts[candidate] for candidate, _ in chosen]
        for start in range(0, len(chosen) - width + 1, width):
            found_rows.append([anchor_text, positive_text, *found_texts[start : start + width]])
    names = ["sent0", "sent1", "hard_neg"]
    if width > 1:
        names[2:] = [f"hard_neg_{number}" for number in range(1, width + 1)]
    rows = Dataset.from_dict({name: [row[place] for row in found_rows] for place, name in enumerate(names)})
    negative_scores = [score for chosen in negatives for _, score in chosen]
    report = MiningReport(
        pairs=len(first),
        anchors=len(anchors),
        candidates=len(candidates),
        rows=len(rows),
        pairs_without_negatives=sum(len(chosen) < options.num_negatives for chosen in negatives),
        dropped=dict(dropped),
        positive_score=float(np.mean(positive_scores)),
        negative_score=float(np.mean(negative_scores)) if negative_scores else None,
    )
    return rows, report


def _choose(
    ranked: Sequence[Candidate],
    positive: float,
    options: MiningOptions,
    draw: random.Random,
    dropped: Counter[str],
) -> list[Candidate]:
    """Choose the negatives of a pair by rank, and count the other candidates by the first bound that they fail."""
    # Every comparison with NaN is false, so a bound that is not set drops nothing.
    bounds = [math.nan if bound is None else bound for bound in options.bounds]
    max_score, min_score, margin, share = bounds
    usable = []
    for candidate, score in ranked:
        if score > max_score:
            dropped["max_score"] += 1
        elif score > positive - margin:
            dropped["absolute_margin"] += 1
        elif score > positive - share * abs(positive):
            dropped["relative_margin"] += 1
        elif score < min_score:
            dropped["min_score"] += 1
        else:
            usable.append((candidate, score))
    if options.sampling_strategy == "random":
        number = min(options.num_negatives, len(usable))
        drawn = draw.sample(range(len(usable)), number)
        usable = [usable[place] for place in sorted(drawn)]
    return usable[: options.num_negatives]
