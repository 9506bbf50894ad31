"""Small SentEval folders, files of users' tasks and encoders without a model, for the tests of the evaluation."""

import csv
import json
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from simcse_hf.evaluation.compare import compare_evaluations
from simcse_hf.evaluation.tasks.senteval import STS_SUBSETS

SHARED = Path(__file__).parents[2] / "shared"
WORDS = "a the cat dog bird man woman child runs sings sleeps plays on in near house tree river red old".split()


@cache
def word_vector(word: str, dim: int) -> np.ndarray:
    """A random vector that is the same in every run."""
    return np.random.RandomState(zlib.crc32(word.encode())).randn(dim)


class BagOfWords:
    """Sums a fixed random vector per word, so that texts that share words are similar; counts what it encodes."""

    def __init__(self, dim: int = 64):
        self.dim = dim
        self.calls: list[list[str]] = []

    def encode(self, texts):
        self.calls.append(list(texts))
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.split():
                vectors[row] += word_vector(word, self.dim)
        return vectors


class Fixed:
    """Returns the same vectors for any texts."""

    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, texts):
        return self.vectors


def random_texts(n: int, seed: int, length: int = 6) -> list[str]:
    """Texts of `length` words."""
    random = np.random.RandomState(seed)
    return [" ".join(random.choice(WORDS, length)) for _ in range(n)]


def random_pairs(n: int, seed: int) -> list[tuple[str, str, float]]:
    """Pairs that share more words the higher their score is, with noise."""
    random = np.random.RandomState(seed)
    rows = []
    for text in random_texts(n, seed):
        words = text.split()
        score = random.randint(0, 6)
        changed = [word if place < score else random.choice(WORDS) for place, word in enumerate(words)]
        rows.append((text, " ".join(changed), float(min(score + random.rand(), 5))))
    return rows


def random_columns(n: int, seed: int) -> list[list]:
    """The first sentences, the second sentences and the scores of `random_pairs`."""
    return [list(column) for column in zip(*random_pairs(n, seed), strict=True)]


def write(path: Path, lines: list[str]) -> Path:
    """Writes lines to a file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def write_sts(folder: Path, task: str) -> None:
    """Writes STS12 to STS16, at least 30 pairs per subset, in SentEval's layout."""
    for offset, subset in enumerate(STS_SUBSETS[task]):
        rows = random_pairs(30 + offset, offset)
        where = folder / "STS" / f"{task}-en-test"
        write(
            where / f"STS.input.{subset}.txt",
            [f"{first}\t{second}" for first, second, _ in rows],
        )
        write(where / f"STS.gs.{subset}.txt", [f"{score:.3f}" for *_, score in rows])


def write_stsb(folder: Path) -> None:
    """Writes STS-B in SentEval's layout."""
    for seed, split in enumerate(("train", "dev", "test"), start=50):
        rows = random_pairs(40, seed)
        write(
            folder / "STS" / "STSBenchmark" / f"sts-{split}.csv",
            [f"g\tf\t2020\t{i}\t{score:.3f}\t{first}\t{second}" for i, (first, second, score) in enumerate(rows)],
        )


def write_sick(folder: Path) -> None:
    """Writes SICK in SentEval's layout, scores from 1 to 5."""
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    for seed, name in enumerate(("SICK_train", "SICK_trial", "SICK_test_annotated"), start=70):
        rows = [
            f"{i}\t{first}\t{second}\t{max(score, 1):.3f}\tNEUTRAL"
            for i, (first, second, score) in enumerate(random_pairs(40, seed))
        ]
        write(folder / "SICK" / f"{name}.txt", [header, *rows])


def write_transfer(folder: Path) -> None:
    """Writes MR, SST2, TREC and MRPC in SentEval's layout; every class has a word of its own."""
    write(folder / "MR" / "rt-polarity.pos", [f"good {text}" for text in random_texts(60, seed=1)])
    write(folder / "MR" / "rt-polarity.neg", [f"bad {text}" for text in random_texts(60, seed=2)])
    for seed, split in enumerate(("train", "dev", "test"), start=3):
        rows = [f"{('bad', 'good')[i % 2]} {text}\t{i % 2}" for i, text in enumerate(random_texts(60, seed))]
        write(folder / "SST" / "binary" / f"sentiment-{split}", rows)
    labels = ("ABBR:exp", "DESC:def", "ENTY:animal", "HUM:ind", "LOC:city", "NUM:date")
    for seed, name in enumerate(("train_5500", "TREC_10"), start=6):
        rows = [f"{labels[i % 6]} {labels[i % 6][:3]} {text}" for i, text in enumerate(random_texts(6 * 12, seed))]
        write(folder / "TREC" / f"{name}.label", rows)
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for seed, split in enumerate(("train", "test"), start=8):
        rows = [
            f"{int(score > 2.5)}\t{i}\t{i}\t{first}\t{second}"
            for i, (first, second, score) in enumerate(random_pairs(60, seed))
        ]
        write(folder / "MRPC" / f"msr_paraphrase_{split}.txt", [header, *rows])


def write_senteval(folder: Path) -> Path:
    """Writes STS12, STS-B, SICK and the transfer tasks; the other tasks are missing."""
    write_sts(folder, "STS12")
    write_stsb(folder)
    write_sick(folder)
    write_transfer(folder)
    return folder


# --- users' tasks ---

LABELS = ("good", "bad", "odd")


def encode(texts):
    """The embeddings of `BagOfWords`."""
    return BagOfWords(32).encode(texts)


def write_rows(path: Path, header: list[str], rows) -> Path:
    """Writes a csv or tsv table, or JSON Lines."""
    if path.suffix == ".jsonl":
        return write(path, [json.dumps(dict(zip(header, row, strict=True))) for row in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([header, *rows])
    return path


def write_beir(folder: Path, corpus: dict, queries: dict, qrels: dict) -> Path:
    """Writes a retrieval task: texts of documents and queries by id, and relevance by query and document."""
    write(
        folder / "corpus.jsonl",
        [json.dumps({"_id": id, "title": "", "text": text}) for id, text in corpus.items()],
    )
    write(
        folder / "queries.jsonl",
        [json.dumps({"_id": id, "text": text}) for id, text in queries.items()],
    )
    rows = [(query, document, grade) for query, judged in qrels.items() for document, grade in judged.items()]
    write_rows(folder / "qrels/test.tsv", ["query-id", "corpus-id", "score"], rows)
    return folder


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


def write_user_tasks(folder: Path) -> None:
    """Writes rows.csv, pairs.csv, ranked.jsonl and beir: a task of each kind that keyword search can do."""
    write_rows(folder / "rows.csv", ["text", "label"], labelled_rows(60))
    write_rows(folder / "pairs.csv", ["sentence1", "sentence2", "label"], binary_pairs(40))
    ranked = [(a, [b], random_texts(3, i)) for i, (a, b, _) in enumerate(binary_pairs(25, 1))]
    write_rows(folder / "ranked.jsonl", ["query", "positive", "negative"], ranked)
    corpus = {f"d{i}": f"{text} {i}" for i, text in enumerate(random_texts(30, 5))}
    queries = {f"q{i}": corpus[f"d{i}"] for i in range(25)}
    write_beir(folder / "beir", corpus, queries, {f"q{i}": {f"d{i}": 1} for i in range(25)})


def compare_systems(evaluations, *options, **more):
    """The comparison of one evaluation of each system."""
    return compare_evaluations({name: {None: each} for name, each in evaluations.items()}, *options, **more)
