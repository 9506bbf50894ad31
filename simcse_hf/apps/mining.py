"""Mine hard negatives for pairs of texts: the candidates nearest to an anchor that are not its positives."""

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Unpack, get_args

import numpy as np
import torch
from datasets import Dataset

from ..data.read import load_text_dataset
from ..data.table import stream_texts
from ..encoding.simcse import SimCSE, load_model
from ..names import ModelOptions, OutputFormat, SamplingStrategy
from ..retrieval.faiss_index import NOT_FOUND, new_index
from ..runtime.encoders import Encoder, as_encoder
from ..runtime.errors import DataError, SettingError, check_values
from ..runtime.files import StrPath
from ..runtime.outputs import TABLE_SUFFIXES, Result, check_output_file, write_table
from ..runtime.similarity import check_scores, similarity_matrix

#: Anchors that are searched together.
_ANCHORS = 8192
#: Why a mined negative is probably a positive, the strongest reason first.
SUSPICIONS = ("equal words", "in a pair with either text", "above the positive", "near the positive")
#: The share of a positive's similarity in which a negative is near it: what NV-Retriever drops.
NEAR = 0.05
#: A candidate's text, and its similarity to the anchor.
Candidate = tuple[str, float]


@dataclass(frozen=True)
class MiningOptions:
    """Which candidates may become hard negatives, in the words of sentence-transformers' `mine_hard_negatives`.

    Ranks count from 0 over the candidates of an anchor in descending similarity. The anchor's own text and all of its
    positives are removed first and have no rank. Of the candidates up to `range_max`, the bounds drop some first, and
    then `range_min` of those left are skipped. The bounds relative to the positive are those of NV-Retriever
    (Moreira et al. 2024, arXiv:2407.15831), whose best setting corresponds to `relative_margin=0.05`.

    Args:
        num_negatives (`int`, *optional*, defaults to `1`): Hard negatives of each pair.
        range_min (`int`, *optional*, defaults to `0`): Number of the most similar candidates to skip.
            A dropped one does not count.
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
        check_values("an integer above 0", num_negatives=self.num_negatives)
        check_values("an integer of 0 or more", range_min=self.range_min)
        check_values(get_args(SamplingStrategy), sampling_strategy=self.sampling_strategy)
        check_values("a finite number", **self.bounds)
        if self.last_rank - self.range_min < self.num_negatives:
            raise SettingError(
                f"range_min = {self.range_min} and range_max = {self.range_max} leave fewer than num_negatives = "
                f"{self.num_negatives} candidates: raise range_max or lower range_min"
            )

    @property
    def bounds(self) -> dict[str, float | None]:
        """The bounds of the scores by their names."""
        names = ("max_score", "min_score", "absolute_margin", "relative_margin")
        return {name: getattr(self, name) for name in names}

    @property
    def last_rank(self) -> int:
        """The rank at which the search ends, exclusive."""
        if self.range_max is not None:
            return self.range_max
        if self.sampling_strategy == "top" and set(self.bounds.values()) == {None}:
            return self.range_min + self.num_negatives
        return self.range_min + 10 * self.num_negatives


@dataclass(frozen=True)
class Mined(Result):
    """Which rows were mined, and what became of the pairs and of the candidates.

    Args:
        output (`str`, *optional*): The file that the rows were written to.
        columns (`list[str]`): The columns of the rows.
        pairs (`int`): Pairs that were read.
        anchors (`int`): Distinct anchors among them.
        candidates (`int`): Distinct candidates.
        rows (`int`): Rows that were mined.
        pairs_without_negatives (`int`): Pairs with fewer negatives than requested. With `"n-tuple"` they give no row.
        dropped (`dict[str, int]`): Candidates that were left out, by reason.
        positive_score (`float`): Mean similarity of anchors and positives.
        negative_score (`float`, *optional*): Mean similarity of anchors and mined negatives.
        suspicious (`int`): Mined negatives that are probably positives; see [`false_negatives`].
        options (`MiningOptions`): Which candidates could become negatives.
    """

    output: str | None
    columns: list[str]
    pairs: int
    anchors: int
    candidates: int
    rows: int
    pairs_without_negatives: int
    dropped: dict[str, int]
    positive_score: float
    negative_score: float | None
    suspicious: int
    options: MiningOptions

    def __str__(self) -> str:
        similarity = "none" if self.negative_score is None else f"{self.negative_score:.4f}"
        lines = [
            f"{self.output}: {self.rows} rows of {', '.join(self.columns)}",
            f"{self.pairs} pairs, {self.anchors} distinct anchors, {self.candidates} distinct candidates",
            f"mean similarity of positives {self.positive_score:.4f}, of negatives {similarity}",
            f"suspicious negatives: {self.suspicious}",
            "left out:",
            *(f"  {count:>10}  {reason}" for reason, count in self.dropped.items()),
            f"  {self.pairs_without_negatives:>10}  pairs with too few negatives",
        ]
        return "\n".join(lines)


def mine(
    model: StrPath | SimCSE,
    input: StrPath,
    output: StrPath,
    *,
    columns: Sequence[str] | None = None,
    corpus: StrPath | None = None,
    corpus_column: str | None = None,
    backend: str = "exact",
    num_negatives: int = 1,
    range_min: int = 0,
    range_max: int | None = None,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    sampling_strategy: SamplingStrategy = "top",
    seed: int = 0,
    output_format: OutputFormat = "n-tuple",
    audit: StrPath | None = None,
    overwrite: bool = False,
    show_progress_bar: bool = True,
    **loading: Unpack[ModelOptions],
) -> Mined:
    """Turn pairs into triplets: for each anchor, find similar texts that are not its positives.

    Args:
        model (`str`, `os.PathLike` or `SimCSE`): Folder of a model, or its name on the Hugging Face hub.
        input (`str` or `os.PathLike`): File of texts: txt, csv, tsv, json, jsonl or parquet, optionally gzipped; in
            Python also a data frame.
        output (`str` or `os.PathLike`): File to write, ending in .csv, .jsonl or .parquet.
        columns (`Sequence[str]`, *optional*): Columns of texts, if the file has several.
        corpus (`str` or `os.PathLike`, *optional*): File of further candidates beside the positives of all pairs.
        corpus_column (`str`, *optional*): Column of texts, if `corpus` has several.
        backend (`str`, *optional*, defaults to `"exact"`): What searches: exact, or one of faiss, which may miss some
            neighbours: hnsw (a graph), ivf (an inverted file) or a description for its index_factory such as
            IVF4096,SQ8.
        num_negatives (`int`, *optional*, defaults to `1`): Hard negatives of a pair.
        range_min (`int`, *optional*, defaults to `0`): Number of the most similar candidates to skip
            after scores and margins have dropped some.
        range_max (`int`, *optional*): Rank at which the search ends. The default is range_min + num_negatives, or
            range_min + 10 * num_negatives if scores or margins drop candidates.
        max_score (`float`, *optional*): Drop candidates that are more similar to the anchor.
        min_score (`float`, *optional*): Drop candidates that are less similar to the anchor.
        absolute_margin (`float`, *optional*): Drop candidates above the positive's similarity minus this margin.
        relative_margin (`float`, *optional*): Drop candidates above the positive's similarity minus this share of it;
            NV-Retriever recommends 0.05.
        sampling_strategy (`str`, *optional*, defaults to `"top"`): Take the most similar candidates that are left
            (top), or draw among them (random).
        seed (`int`, *optional*, defaults to `0`): Seed of `sampling_strategy` random.
        output_format (`str`, *optional*, defaults to `"n-tuple"`): n-tuple: a row for each pair with a column for each
            negative, pairs with too few are left out; triplet: a row for each negative.
        audit (`str` or `os.PathLike`, *optional*): File to write the negatives to that are probably positives, the
            most suspicious first, with both scores.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show progress bars.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        `Mined`: What was written and what was left out.

    Raises:
        SettingError: If an input is unreadable, an option is out of range, or no pair has enough negatives.

    Examples:
        >>> from simcse_hf import mine
        >>> mined = mine("outputs/my-model", "pairs.csv", "mined.csv", num_negatives=2)
        >>> mined.rows, mined.columns
        (64, ['sent0', 'sent1', 'hard_neg_1', 'hard_neg_2'])
    """
    check_output_file(output, overwrite, TABLE_SUFFIXES)
    check_output_file(audit, overwrite, TABLE_SUFFIXES)
    if audit is not None and Path(audit).expanduser().resolve() == Path(output).expanduser().resolve():
        raise SettingError(f"audit and output are one file, {output}: name another one for the audit")
    options = MiningOptions(
        num_negatives=num_negatives,
        range_min=range_min,
        range_max=range_max,
        max_score=max_score,
        min_score=min_score,
        absolute_margin=absolute_margin,
        relative_margin=relative_margin,
        sampling_strategy=sampling_strategy,
        seed=seed,
    )
    further = [] if corpus is None else [text for _, text in stream_texts(corpus, corpus_column) if text.strip()]
    rows, mined = mine_hard_negatives(
        load_text_dataset(input, columns=columns),
        load_model(model, **loading),
        corpus=further,
        options=options,
        backend=backend,
        output_format=output_format,
        audit=audit,
        show_progress_bar=show_progress_bar,
    )
    if not len(rows):
        dropped = ", ".join(f"{count} x {reason}" for reason, count in mined.dropped.items())
        raise SettingError(
            f"{input}: no pair has {num_negatives} hard negative(s) left: {dropped}. Raise range_max, or loosen the "
            "margins and scores."
        )
    write_table(rows, output)
    return replace(mined, output=str(output))


def fold_text(text: str) -> str:
    """Return a key that is equal for texts that differ in white space or in upper and lower case only."""
    return " ".join(text.split()).casefold()


def mine_hard_negatives(
    dataset: Dataset,
    model: Encoder,
    *,
    corpus: Iterable[str] = (),
    options: MiningOptions = MiningOptions(),
    backend: str = "exact",
    output_format: str = "n-tuple",
    audit: StrPath | None = None,
    show_progress_bar: bool = False,
) -> tuple[Dataset, Mined]:
    """Add hard negatives to pairs of an anchor and a positive, by the model's own similarity.

    Each distinct anchor and candidate is encoded once. Candidates are all positives, hard negatives that the rows
    already have, and the texts of `corpus`. Texts that differ in white space or case only count as one. An anchor
    never gets its own text, nor a positive of any pair with the same anchor.

    Args:
        dataset (`datasets.Dataset`): Columns of anchors and positives, and perhaps of hard negatives.
        model (`SimCSE`): The model, or any object with `encode`.
        corpus (`Iterable[str]`, *optional*, defaults to `()`): Further candidates.
        options (`MiningOptions`, *optional*): Which candidates may become negatives.
        backend (`str`, *optional*, defaults to `"exact"`): What searches the candidates, as in
            [`SentenceIndex.build`].
        output_format (`str`, *optional*, defaults to `"n-tuple"`): `"n-tuple"` gives a pair one row with all of its
            negatives in columns `hard_neg`, or `hard_neg_1`, `hard_neg_2` and so on; `"triplet"` gives it a row for
            each negative.
        audit (`str` or `os.PathLike`, *optional*): File to write the suspicious negatives to; see [`false_negatives`].
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show progress bars.

    Returns:
        `tuple[datasets.Dataset, Mined]`: Rows of `sent0`, `sent1` and hard negatives, and what was left out.

    Raises:
        DataError: If the rows are no pairs, an option is unknown, or an embedding is not finite.
    """
    encoder = as_encoder(model)
    similarity = encoder.similarity
    # 1. Refuse what cannot be mined.
    check_values(get_args(OutputFormat), output_format=output_format)
    check_scores(similarity, max_score=options.max_score, min_score=options.min_score)
    columns = dataset.to_dict()
    if len(columns) < 2:
        raise DataError("input: a row holds one text, and mining needs an anchor and its positive: add a column")
    first, second, *given = columns.values()

    # 2. Encode each anchor and each candidate once.
    texts = [*second, *filter(None, chain(*given)), *corpus]
    # A search has to reach past all positives of an anchor, so anchors with about as many pairs are searched together.
    anchors = sorted(group_texts(first).items(), key=lambda anchor: len(anchor[1]))
    anchor_texts = [first[pairs[0]] for _, pairs in anchors]
    candidates = group_texts(texts)
    candidate_texts = [texts[places[0]] for places in candidates.values()]
    queries = encoder.embed(anchor_texts, "query", show_progress_bar=show_progress_bar)
    documents = encoder.embed(candidate_texts, "document", show_progress_bar=show_progress_bar)
    index = new_index(documents.shape[1], backend, similarity)
    index.add(documents)

    # 3. Choose the negatives of each pair.
    number_of = {key: number for number, key in enumerate(candidates)}
    positive_of = [number_of[fold_text(text)] for text in second]
    repeated = len(texts) - len(candidates)
    dropped = Counter({"repeated candidate": repeated, "the anchor itself": 0, "positive of the same anchor": 0})
    draw = random.Random(options.seed)
    positive_scores = [0.0] * len(first)
    negatives: list[list[Candidate]] = [[] for _ in first]
    for start in range(0, len(anchors), _ANCHORS):
        block = slice(start, start + _ANCHORS)
        _, most_pairs = anchors[block][-1]
        reach = options.last_rank + len(most_pairs) + 1
        found = index.search(queries[block], min(reach, len(index)))
        for (key, pairs), query, *near in zip(anchors[block], queries[block], *found, strict=True):
            near_scores, numbers = (row.tolist() for row in near)
            positives = [positive_of[pair] for pair in pairs]
            # These have no rank.
            own = dict.fromkeys(positives, "positive of the same anchor") | {number_of.get(key): "the anchor itself"}
            dropped.update(own[number] for number in numbers if number in own)
            ranked = []
            for number, score in zip(numbers, near_scores, strict=True):
                if number != NOT_FOUND and number not in own:
                    ranked.append((candidate_texts[number], score))
            scores = similarity_matrix(torch.as_tensor(query[None]), torch.as_tensor(documents[positives]), similarity)
            for pair, score in zip(pairs, scores[0].tolist(), strict=True):
                positive_scores[pair] = score
                negatives[pair] = choose_negatives(ranked[: options.last_rank], score, options, draw, dropped)

    # 4. Make the rows and the report.
    width = 1 if output_format == "triplet" else options.num_negatives
    names = ["sent0", "sent1"]
    names += ["hard_neg"] if width == 1 else [f"hard_neg_{number}" for number in range(1, width + 1)]
    table: dict[str, list[str]] = {name: [] for name in names}
    for anchor, positive, chosen in zip(first, second, negatives, strict=True):
        texts = [text for text, _ in chosen]
        for start in range(0, len(texts) - width + 1, width):
            for name, text in zip(names, [anchor, positive, *texts[start : start + width]], strict=True):
                table[name].append(text)
    rows = Dataset.from_dict(table)
    negative_scores = [score for chosen in negatives for _, score in chosen]
    return rows, Mined(
        output=None,
        columns=rows.column_names,
        pairs=len(first),
        anchors=len(anchors),
        candidates=len(candidates),
        rows=len(rows),
        pairs_without_negatives=sum(len(chosen) < options.num_negatives for chosen in negatives),
        dropped=dict(dropped),
        positive_score=float(np.mean(positive_scores)),
        negative_score=float(np.mean(negative_scores)) if negative_scores else None,
        suspicious=len(false_negatives(first, second, positive_scores, negatives, width, audit)),
        options=options,
    )


def group_texts(texts: Iterable[str]) -> dict[str, list[int]]:
    """Return the places of each distinct text, by its key (see [`fold_text`])."""
    groups = defaultdict(list)
    for place, text in enumerate(texts):
        groups[fold_text(text)].append(place)
    return groups


def choose_negatives(
    ranked: Sequence[Candidate],
    positive: float,
    options: MiningOptions,
    draw: random.Random,
    dropped: Counter[str],
) -> list[Candidate]:
    """Choose the negatives of a pair, and count the other candidates by the first bound that they fail.

    Args:
        ranked (`Sequence[Candidate]`): Candidates, the most similar one first.
        positive (`float`): The similarity of the anchor and the positive.
        options (`MiningOptions`): The bounds, and how many negatives to take in which way.
        draw (`random.Random`): The generator of `"random"`.
        dropped (`Counter[str]`): Candidates that were left out, by reason. It is added to.

    Returns:
        `list[Candidate]`: At most `options.num_negatives`, the most similar one first.
    """
    # Every comparison with NaN is false, so a bound that is not set drops nothing.
    bounds = (math.nan if bound is None else bound for bound in options.bounds.values())
    max_score, min_score, margin, share = bounds
    usable = []
    for text, score in ranked:
        if score > max_score:
            dropped["max_score"] += 1
        elif score > positive - margin:
            dropped["absolute_margin"] += 1
        elif score > positive - share * abs(positive):
            dropped["relative_margin"] += 1
        elif score < min_score:
            dropped["min_score"] += 1
        else:
            usable.append((text, score))
    usable = usable[options.range_min :]
    if options.sampling_strategy == "random":
        count = min(options.num_negatives, len(usable))
        usable = sorted(draw.sample(usable, count), key=usable.index)
    return usable[: options.num_negatives]


def false_negatives(
    anchors: Sequence[str],
    positives: Sequence[str],
    positive_scores: Sequence[float],
    negatives: Sequence[Sequence[Candidate]],
    width: int = 1,
    output: StrPath | None = None,
) -> Dataset:
    """Find the negatives that are probably positives: those of equal words, known pairs, or a high similarity.

    The words of a text are compared in their order, without case and punctuation. A known pair is one of the anchor or
    the positive with the negative.

    Args:
        anchors (`Sequence[str]`): The anchor of each pair.
        positives (`Sequence[str]`): Its positive.
        positive_scores (`Sequence[float]`): Their similarity.
        negatives (`Sequence[Sequence[Candidate]]`): Its negatives, and their similarity to the anchor.
        width (`int`, *optional*, defaults to `1`): Negatives of a row. A pair with fewer has no row to look at.
        output (`str` or `os.PathLike`, *optional*): File to write them to.

    Returns:
        `datasets.Dataset`: Columns `reason`, the first of `SUSPICIONS` that holds, `positive_score`, `negative_score`,
            `anchor`, `positive` and `negative`; by the reason, and then by how far the negative's score exceeds the
            positive's.
    """

    def words_of(text: str) -> list[str]:
        return re.findall(r"\w+", text.casefold()) or [text]

    partners = defaultdict(set)
    for anchor, positive in zip(map(fold_text, anchors), map(fold_text, positives), strict=True):
        partners[anchor].add(positive)
        partners[positive].add(anchor)
    found = []
    for anchor, positive, limit, chosen in zip(anchors, positives, positive_scores, negatives, strict=True):
        texts = [words_of(anchor), words_of(positive)]
        known = partners[fold_text(anchor)] | partners[fold_text(positive)]
        for negative, score in chosen if len(chosen) >= width else ():
            holds = (
                words_of(negative) in texts,
                fold_text(negative) in known,
                score > limit,
                score > limit - NEAR * abs(limit),
            )
            if any(holds):
                found.append((holds.index(True), limit, score, anchor, positive, negative))
    found.sort(key=lambda row: (row[0], row[1] - row[2]))
    names = ("reason", "positive_score", "negative_score", "anchor", "positive", "negative")
    table: dict[str, list] = {name: [row[place] for row in found] for place, name in enumerate(names)}
    table["reason"] = [SUSPICIONS[place] for place in table["reason"]]
    suspects = Dataset.from_dict(table)
    if output is not None:
        write_table(suspects, output)
    return suspects
