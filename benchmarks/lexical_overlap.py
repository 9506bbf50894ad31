"""Measure how many words the two texts of a training pair share: the lexical overlap of SimCSE, section 4.

    python -m benchmarks lexical_overlap --output benchmarks/results/lexical_overlap.json

The paper (arXiv:2104.08821) measures "F1 between two bags of words" and gives 39% for entailment pairs (SNLI + MNLI),
60% for QQP and 55% for ParaNMT. It does not say how it finds words, so two ways are measured: `words` are runs of
letters and digits in lower case, and `white space` splits a text as it stands. QQP and ParaNMT are not part of the
data folder; `simcse-hf build-pairs` prints the first figure for files of one's own.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simcse_hf.data.overlap import mean_word_f1
from simcse_hf.data.positive_pairs import build_positive_pairs
from simcse_hf.data.read import open_table
from simcse_hf.data.row_filter import Condition

from .harness import Report, add_data_option, markdown, training_texts

#: What section 4 says, by the names that the measured sets have here.
PAPER = {"SNLI + MNLI, entailment": 39, "QQP, duplicates": 60, "ParaNMT": 55}
LABELS = ("entailment", "neutral", "contradiction")
#: The parts of the pairs file that come from each data set. `snli-test` is tokenised, so its white space differs.
SOURCES = {"SNLI": ("snli-train", "snli-dev"), "MNLI": ("mnli-train", "mnli-dev")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)


def white_space_f1(pairs: Iterable[tuple[str, str]]) -> float:
    """Average the F1 between the bags of what stands between white space."""
    values = []
    for first, second in pairs:
        bags = Counter(first.split()), Counter(second.split())
        values.append(2 * (bags[0] & bags[1]).total() / (bags[0].total() + bags[1].total()))
    return sum(values) / len(values)


def nli_pairs(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Read the pairs of SNLI, of MNLI and of both, by label."""
    table = open_table(path)
    parts = {part: name for name, members in SOURCES.items() for part in members}
    found: dict[str, list[tuple[str, str]]] = {}
    for _, (premise, hypothesis, label, source) in table.rows(["premise", "hypothesis", "label", "source"]):
        if source in parts:
            for name in ("SNLI + MNLI", parts[source]):
                found.setdefault(f"{name}, {label}", []).append((premise, hypothesis))
    return {f"{name}, {label}": found[f"{name}, {label}"] for label in LABELS for name in ("SNLI + MNLI", *SOURCES)}


def other_pairs(data: Path) -> dict[str, list[tuple[str, str]]]:
    """Read the pairs of captions of one picture, and the paraphrases of tweets."""
    captions = [f"caption{number}" for number in range(1, 6)]
    rows = {
        "Flickr30k, two captions of a picture": build_positive_pairs(
            data / "flickr30k" / "captions_train.tsv.gz", captions, column_names=captions
        ),
        "Twitter URL, paraphrases": build_positive_pairs(
            data / "twitter_url" / "train.tsv.gz",
            ["first", "second"],
            column_names=["label", "first", "second"],
            where=[Condition("label", "=", "1")],
        ),
    }
    return {name: list(zip(pairs["sent0"], pairs["sent1"], strict=True)) for name, pairs in rows.items()}


def run(options: argparse.Namespace, report: Report) -> None:
    if options.data is None:
        pairs = training_texts(None, max_rows=1000)["NLI pairs"]
        sets = {"generated pairs": list(zip(pairs["sent0"], pairs["sent1"], strict=True))}
    else:
        sets = nli_pairs(options.data / "nli" / "nli_pairs.csv.gz") | other_pairs(options.data)
    measured = {
        name: {"pairs": len(pairs), "words": mean_word_f1(pairs), "white_space": white_space_f1(pairs)}
        for name, pairs in sets.items()
    }
    report.save(measured=measured, paper=PAPER)


def table(results: dict[str, Any]) -> str:
    names = [*results["measured"], *(name for name in results["paper"] if name not in results["measured"])]
    rows = []
    for name in names:
        measured = results["measured"].get(name)
        ours = ["not available", "", ""]
        if measured:
            ours = [f"{measured['pairs']:,}", f"{measured['words']:.1%}", f"{measured['white_space']:.1%}"]
        paper = f"{results['paper'][name]}%" if name in results["paper"] else ""
        rows.append([name, *ours, paper])
    return markdown(["pairs of", "number", "F1 of words", "F1 by white space", "the paper's F1"], rows)
