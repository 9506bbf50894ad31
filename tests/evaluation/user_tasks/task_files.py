"""Files of users' tasks, small and seeded, and an independent encoder for them."""

import csv
import json
from pathlib import Path

import numpy as np
from evaluation_helpers import BagOfWords, random_pairs, random_texts

LABELS = ("good", "bad", "odd")


def encode(texts):
    """The embeddings of `BagOfWords`."""
    return BagOfWords(32).encode(texts)


def write_rows(path: Path, header: list[str], rows) -> Path:
    """Writes a csv or tsv table, or JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(header, row, strict=True))) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([header, *rows])
    return path


def labelled_rows(n: int = 60, seed: int = 0) -> list[tuple[str, str]]:
    """Distinct texts, most of which repeat a word of their label."""
    random = np.random.RandomState(seed)
    texts = dict.fromkeys(random_texts(3 * n, seed, length=4))
    rows = []
    for i, text in enumerate(list(texts)[:n]):
        label = LABELS[i % len(LABELS)]
        rows.append((f"{text} {label} {label} {label}" if random.rand() < 0.8 else text, label))
    return rows


def binary_pairs(n: int = 60, seed: int = 0) -> list[tuple[str, str, int]]:
    """Pairs of distinct texts; those with label 1 share more words."""
    return [(f"{a} w{i}", f"{b} w{i}", int(score > 2.5)) for i, (a, b, score) in enumerate(random_pairs(n, seed))]
