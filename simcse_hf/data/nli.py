"""Builds training triplets from labelled natural language inference pairs (Gao et al. 2021, section 4)."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, Value
from transformers.utils import logging

from .files import TextTable, open_table

logger = logging.get_logger(__name__)

LABELS = ("entailment", "neutral", "contradiction")  # the order of the numbers 0, 1, 2 in SNLI and MultiNLI

_LABEL = {**{name: name for name in LABELS}, **{str(number): name for number, name in enumerate(LABELS)}}
_NO_LABEL = ("", "-", "-1", "none")  # the annotators did not agree, or the label is withheld
_NAMES = (("premise", "sentence1"), ("hypothesis", "sentence2"), ("label", "gold_label"))


@dataclass
class Premise:
    """A premise with its labelled hypotheses, in the order in which they were first seen."""

    text: str
    hypotheses: dict[str, set[str]] = field(default_factory=dict)  # hypothesis -> its labels

    def labelled(self, labels: Iterable[str]) -> list[str]:
        """The hypotheses with one of the `labels`, without those that have two different ones."""
        wanted = [{label} for label in labels]
        return [hypothesis for hypothesis, given in self.hypotheses.items() if given in wanted]


def build_nli_triplets(
    source: str | Path | Dataset | Iterable[Mapping[str, Any]] | Sequence[str | Path],
    *,
    seed: int = 42,
    hard_negatives_per_pair: int = 1,
    negatives: Sequence[str] = ("contradiction",),
) -> Dataset:
    """Builds training data from labelled premise-hypothesis pairs.

    For each premise, every entailed hypothesis becomes one row with hard negatives drawn from the premise's hypotheses
    of the `negatives` labels, without replacement; "we only sample one as the hard negative" (Gao et al. 2021,
    footnote 7). Premises that differ in case, spacing or punctuation only are one premise, spelled as it was first.
    Rows stand in the order in which the premises, then their hypotheses, were first seen.

    Left out, with a count in the log: a pair without a label, a pair with an empty text, a hypothesis with two
    different labels for one premise, and the entailed hypotheses of a premise with too few negatives.

    Args:
        source: Rows with `premise` (or `sentence1`), `hypothesis` (or `sentence2`) and `label` (or `gold_label`), as
            dicts or a `Dataset`; or a path to a csv, tsv, json, jsonl or parquet file of such rows or to a gz of one,
            or a list of such paths. A label is a name, in any case, or 0 entailment, 1 neutral, 2 contradiction; a
            `ClassLabel` column goes by its own names; -1, "-" and an empty label mean none.
        seed: Of the draw of the negatives.
        hard_negatives_per_pair: Negatives in each row; 0 gives every entailment pair, as in the 314k pairs of Table 4.
        negatives: Labels from whose hypotheses negatives are drawn; ("contradiction", "neutral") for Table 7.

    Returns:
        A dataset with the string columns `sent0, sent1` and `hard_neg`, or `hard_neg_1, hard_neg_2, ...` where there
        are several.

    Raises:
        DataFileNotFoundError: A file does not exist (also a ValueError).
        ValueError: A column is missing, a label is unknown, an argument is out of range, or nothing is left; the
            message names the file and the line or row.
    """
    if hard_negatives_per_pair < 0:
        raise ValueError(f"hard_negatives_per_pair must be 0 or more, got {hard_negatives_per_pair}.")
    if isinstance(negatives, str) or not negatives or not set(negatives) <= {"neutral", "contradiction"}:
        raise ValueError(f"negatives must list 'contradiction', 'neutral' or both, got {negatives!r}.")
    skipped: Counter[str] = Counter()
    premises = read_premises(source, skipped)
    generator = random.Random(seed)
    rows = []
    for premise in premises:
        entailed = premise.labelled(["entailment"])
        pool = premise.labelled(negatives)
        if len(pool) < hard_negatives_per_pair:
            skipped[f"entailment pairs with fewer than {hard_negatives_per_pair} hard negative(s)"] += len(entailed)
            continue
        rows += [[premise.text, each, *generator.sample(pool, hard_negatives_per_pair)] for each in entailed]
    left_out = describe_skipped(skipped)
    logger.info("%d rows from %d premises; left out: %s.", len(rows), len(premises), left_out)
    if not rows:
        raise ValueError(f"no triplet could be built from {len(premises)} premise(s); left out: {left_out}.")
    columns = ["sent0", "sent1", *_negative_columns(hard_negatives_per_pair)]
    return Dataset.from_dict(
        dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)),
        features=Features({column: Value("string") for column in columns}),
    )


def read_premises(source: Any, skipped: Counter[str]) -> list[Premise]:
    """Reads labelled pairs and gathers the hypotheses of each premise.

    Args:
        source: As in [`build_nli_triplets`].
        skipped: Counts what is left out, by its description.

    Raises:
        ValueError: As [`build_nli_triplets`] says of its source.
    """
    premises = _group(_pairs(source), skipped)
    skipped["hypotheses with two labels"] += sum(
        len(labels) > 1 for premise in premises for labels in premise.hypotheses.values()
    )
    return premises


def describe_skipped(skipped: Counter[str]) -> str:
    """What was left out, for a message."""
    return ", ".join(f"{count} {what}" for what, count in skipped.items() if count) or "nothing"


def _negative_columns(count: int) -> list[str]:
    return ["hard_neg"] if count == 1 else [f"hard_neg_{index}" for index in range(1, count + 1)]


def _group(pairs: Iterable[tuple[str, Any, Any, Any]], skipped: Counter[str]) -> list[Premise]:
    premises: dict[str, Premise] = {}
    for where, premise, hypothesis, label in pairs:
        name = str(label if label is not None else "").strip().lower()
        if name in _NO_LABEL:
            skipped["pairs without a label"] += 1
            continue
        if name not in _LABEL:
            raise ValueError(
                f"{where}: unknown label {label!r}; expected {', '.join(LABELS)}, or 0, 1, 2, or -1 for none."
            )
        for text in (premise, hypothesis):
            if text is not None and not isinstance(text, str):
                raise ValueError(f"{where}: premise and hypothesis must be strings, got {text!r}.")
        if not (premise and premise.strip() and hypothesis and hypothesis.strip()):
            skipped["pairs with an empty text"] += 1
            continue
        key = re.sub(r"\W+", " ", premise.casefold()).strip() or premise
        hypotheses = premises.setdefault(key, Premise(premise)).hypotheses
        hypotheses.setdefault(hypothesis, set()).add(_LABEL[name])
    return list(premises.values())


def _pairs(source: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yields (place for a message, premise, hypothesis, label)."""
    if isinstance(source, (str, Path)):
        source = [source]
    if isinstance(source, Dataset):
        columns = [_find(source.column_names, names, "the dataset") for names in _NAMES]
        kind = source.features[columns[2]]
        for number, row in enumerate(source.with_format(None).select_columns(columns), 1):
            premise, hypothesis, label = (row[column] for column in columns)
            if isinstance(kind, ClassLabel) and label is not None and label >= 0:
                label = kind.int2str(label)
            yield f"the dataset, row {number}", premise, hypothesis, label
        return
    for number, item in enumerate(source, 1):
        if isinstance(item, (str, Path)):
            yield from _file_pairs(open_table(item))
        elif isinstance(item, Mapping):
            columns = [_find(item, names, f"row {number}") for names in _NAMES]
            yield f"row {number}", *(item[column] for column in columns)
        else:
            raise ValueError(f"row {number}: expected a dict or the path of a file, got {item!r}.")


def _file_pairs(table: TextTable) -> Iterator[tuple[str, Any, Any, Any]]:
    columns = [_find(table.columns, names, table.name) for names in _NAMES]
    for number, cells in table.rows(columns):
        yield table.at(number), *cells


def _find(found: Iterable[str], names: Sequence[str], where: str) -> str:
    found = list(found)
    for name in names:
        if name in found:
            return name
    raise ValueError(
        f"{where}: no column {' or '.join(map(repr, names))}; the columns are {', '.join(map(repr, found))}."
    )
