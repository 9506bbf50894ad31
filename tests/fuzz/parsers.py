"""The parsers of the package, each with valid files and a simpler way to count their rows."""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from data_helpers import content_of

import simcse_hf
from simcse_hf import SimCSE
from simcse_hf.data.documents import read_documents
from simcse_hf.data.nli import build_nli_groups
from simcse_hf.data.read import table_cleaners
from simcse_hf.data.table import open_table, stream_texts
from simcse_hf.encoding.files import read_manifest, read_shards
from simcse_hf.evaluation import read_scored_pairs
from simcse_hf.training.recipe import Recipe

Files = dict[str, bytes]


@dataclass(frozen=True)
class Parser:
    """How the package reads a folder, valid folders, and how many rows a folder has, where that can be counted."""

    parse: Callable[[Path], object]
    seeds: list[Files]
    count: Callable[[Files], int] | None = None
    names_file: bool = True


def only(folder):
    return next(folder.iterdir(), folder / "missing.txt")


def training_rows(folder):
    """Return how many rows of a file became rows of training or were reported."""
    table = open_table(only(folder))
    [cleaner] = table_cleaners([table], None)
    for _ in cleaner.read():
        pass
    records = sum(1 for _ in table.rows(cleaner.columns))
    return min(records, cleaner.kept + cleaner.counts["dropped"])  # a list of positives gives several rows


def streamed(folder):
    return sum(1 for _ in stream_texts(only(folder)))


def text_of(files):
    ((name, content),) = files.items()
    return (gzip.decompress(content) if name.endswith(".gz") else content).removeprefix(b"\xef\xbb\xbf").decode()


def count_lines(files):
    return sum(bool(line.strip()) for line in re.split(r"\r\n|\r|\n", text_of(files)))


def count_records(delimiter):
    def count(files):
        lines = io.StringIO(re.sub(r"\r\n|\r", "\n", text_of(files)), newline="")
        return sum(bool(cells) for cells in csv.reader(lines, delimiter=delimiter, strict=True)) - 1

    return count


def count_objects(files):
    try:
        value = json.loads(text_of(files))
    except json.JSONDecodeError:
        return count_lines(files)
    return len(value) if isinstance(value, list) else count_lines(files)


def count_parquet(files):
    return pq.read_metadata(io.BytesIO(*files.values())).num_rows


def count_scored(files):
    lines = [line.removesuffix("\r") for line in text_of(files).split("\n")]
    return sum(bool(line.strip() and line.split("\t")[0].strip()) for line in lines)


def one(name, *contents):
    """Return a folder of one file for each content: bytes, or records that are written as the name says."""
    folders = []
    for content in contents:
        if isinstance(content, list):
            content = content_of(name.split(".")[1], content)
        content = content.encode() if isinstance(content, str) else content
        folders.append({name: gzip.compress(content, mtime=0) if name.endswith(".gz") else content})
    return folders


LINES = 'A man is playing a guitar.\nZwei Hunde spielen.\nShe said "no".\n日本語 \U0001f600\na, b; c\n'.encode()
TRIPLETS = [
    ("a cat", "a pet", "a dog"),
    ("one, two", 'a "quoted" cell', "x"),
    ("line\nbreak", "y", "é"),
]
OBJECTS = [dict(zip(("sent0", "sent1", "hard_neg"), row, strict=True)) for row in TRIPLETS]
LISTS = [
    {"query": "q", "pos": ["p", "r"], "neg": ["n", "m"]},
    {"query": "s", "pos": ["t"], "neg": ["u", "v"]},
]
NLI = [
    {"premise": "A man eats.", "hypothesis": "Someone eats.", "label": "entailment"},
    {"premise": "A man eats.", "hypothesis": "Nobody eats.", "label": "contradiction"},
    {"premise": "It rains.", "hypothesis": "It is wet.", "label": 0},
]
PAIR = {"sentence1": "a", "sentence2": "b", "score": 1.0}
SCORED = b"5.0\tA plane takes off.\tAn air plane takes off.\n\tno score\tno score\n3.2\ta\tb\n"
STSB = b"main-news\tMSRpar\t2012\t0001\t5.000\tA plane.\tAn air plane.\nmain\tx\t2012\t2\t0.5\ta\tb\n"
RECIPE = Path(simcse_hf.__file__).with_name("training").joinpath("recipes/esimcse-bert-base-uncased.yaml").read_bytes()


def _nli(folder):
    build_nli_groups(only(folder))


def _scored(folder):
    return len(read_scored_pairs(only(folder)))


def _recipe(folder):
    Recipe.read("unsup", only(folder))


def _shards(folder):
    return max(sum(map(len, read_shards(folder))), read_manifest(folder)["input"]["rows"])


PARSERS = {
    "txt": Parser(
        streamed,
        one("a.txt", LINES, b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n")),
        count_lines,
    ),
    "csv": Parser(training_rows, one("a.csv", OBJECTS, b"text\na\nb\n"), count_records(",")),
    "tsv": Parser(training_rows, one("a.tsv", b"sent0\tsent1\na\tb\nc\td\n"), count_records("\t")),
    "json": Parser(training_rows, one("a.json", OBJECTS, LISTS, TRIPLETS), count_objects),
    "jsonl": Parser(training_rows, one("a.jsonl", OBJECTS, LISTS, TRIPLETS), count_objects),
    "parquet": Parser(training_rows, one("a.parquet", OBJECTS, LISTS), count_parquet),
    "parquet_texts": Parser(streamed, one("a.parquet", [{"text": "a"}, {"text": "b"}]), count_parquet),
    "parquet.gz": Parser(training_rows, one("a.parquet.gz", OBJECTS)),
    "documents": Parser(
        lambda folder: sum(map(len, read_documents(only(folder)))),
        one("a.txt", b"a\nb\n\nc\nd\n\n\ne\n"),
        count_lines,
    ),
    "nli_jsonl": Parser(_nli, one("a.jsonl", NLI)),
    "nli_csv": Parser(_nli, one("a.csv", b"premise,hypothesis,label\na,b,0\na,c,2\nd,e,neutral\n")),
    "scored_tsv": Parser(_scored, one("a.tsv", SCORED), count_scored),
    "scored_stsb": Parser(_scored, one("sts-dev.csv", STSB)),
    "scored_jsonl": Parser(_scored, one("a.jsonl", [PAIR] * 3)),
    "scored_parquet": Parser(_scored, one("a.parquet", [PAIR] * 3)),
    "recipe": Parser(_recipe, one("recipe.yaml", RECIPE)),
    "shards": Parser(_shards, []),
    "checkpoint": Parser(lambda folder: SimCSE(folder, device="cpu").encode(["a"]), [], names_file=False),
}
