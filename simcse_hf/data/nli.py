"""Training rows from labelled natural language inference pairs: triplets, or premises with all their hypotheses."""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from datasets import ClassLabel, Dataset
from transformers.utils import logging

from ..names import NLI_LABELS
from ..objectives.labelled_contrastive import SAMPLINGS
from ..runtime.errors import DataError, SettingError, check_values
from .columns import check_text, find_parts, has_text
from .read import TextSource, name_of_class, open_source

logger = logging.get_logger(__name__)

#: Labels by name, by number, and by ANLI's letter.
_LABEL: dict[str, str] = {}
for _number, _name in enumerate(NLI_LABELS):
    _LABEL |= {_name: _name, _name[0]: _name, str(_number): _name}

_NO_LABEL = ("", "-", "-1", "none")  # the annotators did not agree, or the label is withheld


def build_nli_triplets(
    source: TextSource,
    *,
    seed: int = 42,
    hard_negatives_per_pair: int = 1,
    negatives: Sequence[str] = ("contradiction",),
    positives: Sequence[str] = ("entailment",),
    max_rows: int | None = None,
) -> Dataset:
    """Build training data from labelled premise-hypothesis pairs (Gao et al. 2021, section 4).

    For each premise, every entailed hypothesis becomes one row, with hard negatives drawn without replacement from the
    premise's hypotheses of the `negatives` labels: "we only sample one as the hard negative" (footnote 7). If the
    number of hard negatives is a multiple of the number of labels, each label gives equally many: with two of
    ("contradiction", "neutral"), a row has one of each (Table 7). Otherwise all hypotheses with these labels form one
    pool.

    Premises that differ only in case, spacing or punctuation are one premise, with its first spelling. Rows stand in
    the order in which the premises, and then their hypotheses, were first seen.

    The log counts what is left out: pairs without a label, pairs with an empty text, hypotheses with two different
    labels for one premise, and the positives of premises with too few negatives.

    Args:
        source (`str`, `Path`, `Dataset` or `Iterable`): Rows with `premise` (or `sentence1`, or
            ANLI's `context`), `hypothesis` (or `sentence2`) and `label` (or `gold_label`), as dicts or a `Dataset`; or
            the path of a csv, tsv, json, jsonl or parquet file of such rows, possibly with `.gz`; or a list of paths.
            A label is a name in any case or its first letter, or 0 for entailment, 1 for neutral and 2 for
            contradiction. A `ClassLabel` column uses its own names. -1, "-" and an empty label mean that there is
            none.
        seed (`int`, *optional*, defaults to `42`): Seed of the random draws.
        hard_negatives_per_pair (`int`, *optional*, defaults to `1`): Hard negatives in each row. 0 keeps every pair,
            as in the 314k entailment pairs of Table 4.
        negatives (`Sequence[str]`, *optional*, defaults to `("contradiction",)`): Labels of the hard negatives.
        positives (`Sequence[str]`, *optional*, defaults to `("entailment",)`): Labels of the positives. Table 4 also
            trains on neutral and on contradictory pairs.
        max_rows (`int`, *optional*): Keep a random sample of at most this many rows, in their order (134k in Table 4).

    Returns:
        `Dataset`: The string columns `sent0`, `sent1` and `hard_neg`, or `hard_neg_1`, `hard_neg_2`, ... if there are
            several.

    Raises:
        DataFileNotFoundError: If a file does not exist (also a ValueError).
        SettingError: If a column is missing, a label is unknown, an argument is out of range, or nothing is left. The
            message names the file and the line or row.

    Examples:
        >>> from simcse_hf import build_nli_triplets
        >>> pairs = [
        ...     {"premise": "A man eats.", "hypothesis": "A person eats.", "label": "entailment"},
        ...     {"premise": "A man eats.", "hypothesis": "A man sleeps.", "label": "contradiction"},
        ...     {"premise": "A man eats.", "hypothesis": "A man is in a cafe.", "label": "neutral"},
        ... ]
        >>> build_nli_triplets(pairs)[0]
        {'sent0': 'A man eats.', 'sent1': 'A person eats.', 'hard_neg': 'A man sleeps.'}
    """
    for name, labels in (("negatives", negatives), ("positives", positives)):
        if isinstance(labels, str) or not labels or len(set(labels) & set(NLI_LABELS)) < len(labels):
            raise SettingError(f"{name} must list distinct labels of {', '.join(NLI_LABELS)}, got {labels!r}.")
    check_values("an integer of 0 or more", hard_negatives_per_pair=hard_negatives_per_pair)
    check_values("an integer above 0", max_rows=max_rows)
    if hard_negatives_per_pair and set(negatives) & set(positives):
        raise SettingError(
            f"negatives {negatives} and positives {positives} share a label: name different labels, or set "
            "hard_negatives_per_pair to 0."
        )
    premises, skipped = _read_premises(source)
    generator = random.Random(seed)
    pools = [[label] for label in negatives]
    if hard_negatives_per_pair % len(negatives):
        pools = [list(negatives)]
    per_pool = hard_negatives_per_pair // len(pools)
    rows = []
    for premise, hypotheses in premises:
        candidates = [_labelled(hypotheses, labels) for labels in pools]
        for positive in _labelled(hypotheses, positives):
            if any(len(pool) < per_pool for pool in candidates):
                skipped[f"pairs whose premise has fewer than {hard_negatives_per_pair} hard negative(s) here"] += 1
                continue
            row = [premise, positive]
            for pool in candidates:
                row += generator.sample(pool, per_pool)
            rows.append(row)
    _report(source, len(rows), len(premises), skipped)
    if max_rows is not None and len(rows) > max_rows:
        kept = generator.sample(range(len(rows)), max_rows)
        rows = [rows[index] for index in sorted(kept)]
    names = ["hard_neg"]
    if hard_negatives_per_pair != 1:
        names = [f"hard_neg_{index + 1}" for index in range(hard_negatives_per_pair)]
    return Dataset.from_dict(dict(zip(["sent0", "sent1", *names], zip(*rows, strict=True), strict=True)))


def build_nli_groups(source: TextSource, *, sampling: str = "pairs") -> Dataset:
    """Build rows of a premise and its labelled hypotheses.

    - `pairs`: each labelled pair is a row, and the pairs of a premise are adjacent. This is the data of Liao 2021,
      arXiv:2106.04791, whose batches are 64 pairs in this order: train with `train_sampling_strategy="sequential"`
      (the default of the training scripts), or the pairs of a premise end up in different batches.
    - `premises`: a premise and all its hypotheses are one row, which stays together however the rows are shuffled or
      distributed over processes. A batch then has about 3 times as many pairs as rows.

    The models "3p3n", "3palln" and "allpalln" of Table 2 have the same rows. They differ in the options
    `max_positives` and `max_negatives` of the objective `supcon`, also in a sum, and the baselines "-Augment"
    in the option `augment` of `softmax`.

    Premises, duplicates and pairs without a label are treated as in `build_nli_triplets`. Rows stand in the order in
    which the premises were first seen. In a row of `premises`, entailed hypotheses come first.

    Args:
        source (`str`, `Path`, `Dataset` or `Iterable`): See `build_nli_triplets`.
        sampling (`str`, *optional*, defaults to `"pairs"`): `"pairs"` or `"premises"`.

    Returns:
        `Dataset`: The column `texts` has the premise and then its hypotheses. The column `relations` has, for each
            hypothesis, 0 for entailment, 1 for neutral or 2 for contradiction.

    Raises:
        DataFileNotFoundError: If a file does not exist (also a ValueError).
        ValueError: If the sampling is unknown, a column is missing, a label is unknown, or nothing is left. The
            message names the file and the line or row.
    """
    check_values(SAMPLINGS, sampling=sampling)
    premises, skipped = _read_premises(source)
    texts = []
    relations = []
    for premise, hypotheses in premises:
        related = sorted(hypotheses, key=lambda text: hypotheses[text] != NLI_LABELS[0])
        rows = [related] if sampling == "premises" else [[text] for text in hypotheses]
        for row in filter(None, rows):
            texts.append([premise, *row])
            relations.append([NLI_LABELS.index(hypotheses[text]) for text in row])
    _report(source, len(texts), len(premises), skipped)
    return Dataset.from_dict({"texts": texts, "relations": relations})


def _labelled(hypotheses: Mapping[str, str], labels: Sequence[str]) -> list[str]:
    return [text for text, label in hypotheses.items() if label in labels]


def _report(source: TextSource, rows: int, premises: int, skipped: Counter[str]) -> None:
    """Log how many rows were built and what was left out, or raise a `ValueError` if there are none."""
    counts = [f"{count} {what}" for what, count in skipped.items() if count]
    left_out = ", ".join(counts) or "nothing"
    if not rows:
        raise DataError(f"{source!s:.200}: no row could be built from {premises} premise(s); left out: {left_out}.")
    # Rows that were cut from a larger file have lost the other hypotheses of their premises.
    log = logger.warning if sum(skipped.values()) > rows else logger.info
    log(f"Built {rows} rows from {premises} premises; left out: {left_out}.")


def _read_premises(source: TextSource) -> tuple[list[tuple[str, dict[str, str]]], Counter[str]]:
    """Read labelled pairs, and count what is left out.

    Args:
        source (`TextSource`): See [`build_nli_triplets`].

    Returns:
        `tuple[list[tuple[str, dict[str, str]]], Counter[str]]`: Each premise, and its hypotheses with their labels, in
            the order in which they were first seen; and how many pairs were left out for what.

    Raises:
        DataError: If a column is missing, a label is unknown, or a text is none.
    """
    premises: dict[str, tuple[str, dict[str, set[str]]]] = {}
    skipped: Counter[str] = Counter()
    for table in open_source(source):
        parts = find_parts(table.columns, ("premise", "hypothesis", "relation"), table.name)
        label_type = table.source.features[parts["relation"]] if isinstance(table.source, Dataset) else None
        for number, (premise, hypothesis, label) in table.rows(list(parts.values())):
            where = table.at(number)
            if isinstance(label_type, ClassLabel) and label is not None:
                label = label_type.int2str(label)
            name = name_of_class(label, where).lower()
            if name in _NO_LABEL:
                skipped["pairs without a label"] += 1
                continue
            if name not in _LABEL:
                raise DataError(
                    f"{where}: unknown label {label!r}; expected {', '.join(NLI_LABELS)}, or 0, 1, 2, or -1 for none."
                )
            for text in (premise, hypothesis):
                if text is not None:
                    check_text(text, where)
            if not (has_text(premise) and has_text(hypothesis)):
                skipped["pairs with an empty text"] += 1
                continue
            words = re.sub(r"\W+", " ", premise.casefold()).strip()
            _, hypotheses = premises.setdefault(words or premise, (premise, {}))
            hypotheses.setdefault(hypothesis, set()).add(_LABEL[name])
    read = []
    for premise, hypotheses in premises.values():
        sure = {text: label for text, (label, *others) in hypotheses.items() if not others}
        skipped["hypotheses with two labels"] += len(hypotheses) - len(sure)
        read.append((premise, sure))
    return read, skipped
