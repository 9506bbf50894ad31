"""What `simcse_hf.data` refuses; the message names the file and line, the row, the argument or the setting."""

import gzip
import json

import pytest
from conftest import CLS, SEP, tiny_tokenizer
from data_helpers import read_all, write
from datasets import Dataset, DatasetDict
from trainer_helpers import refuses

from simcse_hf import ContrastiveCollator
from simcse_hf.data.collator import PackingCollator
from simcse_hf.data.columns import resolve_columns
from simcse_hf.data.documents import SpanDataset, next_sentence_pairs, read_documents
from simcse_hf.data.nli import build_nli_groups, build_nli_triplets
from simcse_hf.data.read import load_class_rows, load_text_dataset
from simcse_hf.data.scored_pairs import read_scored_pairs
from simcse_hf.data.stream import load_text_stream
from simcse_hf.data.table import DataFileNotFoundError, stream_texts
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.data.view_dataset import ViewDataset
from simcse_hf.data.views import make_view

HALF_GZIP = gzip.compress("".join(f"Sentence {i}.\n" for i in range(5000)).encode(), mtime=0)[:9000]

#: Files that no reader accepts, and what the message names beside the file.
MALFORMED = [
    ("x.csv", "a,b\nx,y\nonly one\n", "line 3"),
    ("x.csv", 'a,b\nx,y\n"open,z\nmore,cells\n', "line 3: .*csv"),
    ("x.csv", "sent0\tsent1\nx\ty\n", "header"),
    ("x.csv", "sent0,sent1\na,b\nsent0,sent1\nc,d\n", "line 3: .*header"),
    ("x.csv", "a,b,a\n1,2,3\n", "'a'"),
    ("x.csv", "", "empty"),
    ("x.tsv", 'a\tb\n"Yes\tx\nhe said."\ty\n', "line 2: .*line 3"),
    ("x.txt", b"\xc3\x9cnd\ncaf\xe9 noir\n", "line 2: byte 0xe9 at character 4 .*WINDOWS-1252"),
    ("x.txt", "One.\n".encode("utf-16"), "line 1: byte 0xff at character 1 .*UTF-16"),
    ("x.txt", b"text\na\0b\n", "line 2: .*NUL"),
    ("x.csv", gzip.compress(b"text\na\n", mtime=0), r"gzip: its name must end in \.gz"),
    ("x.csv", b"PK\x03\x04\x14\x00rest", "Excel"),
    ("x.txt", b"PAR1\x15\x04rest", r"its name must end in \.parquet"),
    ("x.jsonl", '["a", "b"]\n["c"]\n', r"line 2: .* \['c'\]"),
    ("x.jsonl", '{"a": "b"}\n' * 200 + '{"text": ' + "1" * 5000 + "}\n", "line 201: .*JSON"),
    ("x.json", '[{"a": "b"},\n{"a" "c"}]', "line 2: .*JSON"),
    ("x.parquet", "PAR1 but not really", "cannot be read"),
    ("x.txt.gz", HALF_GZIP, "cannot be read"),
    ("x.docx", "One.\n", r"'\.docx'"),
]


def streamed(path, **options):
    return list(stream_texts(path, **options))


#: Readers, the file that each gets, and what the message names beside the file.
OF_FILES = [
    *((read_all, *case) for case in MALFORMED),
    (load_text_dataset, "x.csv", "sent0,sent1\na,\n,b\n", "'sent0' or 'sent1'"),
    (load_text_dataset, "x.csv", "a,b\n", "no rows"),
    (load_text_dataset, "x.jsonl", '{"text": "a"}\n{"text": "b \\ud83d"}\n', "line 2, column 'text': .*surrogate"),
    (load_text_dataset, "x.jsonl", '{"a": "a", "b": "b"}\n{"a": "a", "b": ["b", 3]}\n', "line 2, column 'b': .* 3"),
    (lambda path: load_text_dataset([str(path), "A sentence."]), "x.txt", "a\n", "among other things"),
    (lambda path: load_text_dataset(path, cache_dir=path), "x.txt", "a\n", "HF_HOME, or cache_dir"),
    (streamed, "x.jsonl", '["a", "b"]\n' * 2, "'sent0', 'sent1'"),
    (lambda path: streamed(path, keep=["text"]), "x.csv", "text\na\n", "columns"),
    (load_class_rows, "x.csv", "text,label\na,x\nb,x\nc,y\n", "'label'. At least two .* 1 of these"),
    (
        load_text_dataset,
        "x.csv",
        "query,positives\na,\"['b', 'c']\"\n",
        r"'positives': \"\['b', 'c'\]\" is a list .*jsonl",
    ),
    (load_class_rows, "x.csv", 'text,label\na,"[1, 2]"\n', r"line 2: '\[1, 2\]' is a list .*jsonl"),
    (load_class_rows, "x.jsonl", '{"text": "a", "label": [0, 1, 0]}\n' * 2, "line 1: .*mark for each class"),
    (load_class_rows, "x.csv", "text\na\n", "'label', or .* 'positives'"),
    (build_nli_triplets, "x.csv", "premise,hypothesis,label\na,b,neutral\na,c,no\n", "line 3: .* 'no'"),
    (build_nli_triplets, "x.csv", "premise,label\na,0\n", "'hypothesis'"),
    (next_sentence_pairs, "x.txt", "a\nb\nc\n", "line 1 and line 3"),
    (next_sentence_pairs, "x.txt", "\n \n", "blank lines"),
    (next_sentence_pairs, "x.txt", "a\n\nb\n\nc\n", "all 3 documents"),
    (lambda path: list(read_documents(path)), "x.csv", "text\na\n", r"\.txt"),
]


@pytest.mark.parametrize("reader, name, content, message", OF_FILES)
def test_a_file_that_cannot_be_used_is_refused_and_not_cached(tmp_path, monkeypatch, reader, name, content, message):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{name}.*{message}"):
            reader(path)
        assert {path.suffix for path in (tmp_path / "cache").rglob("*.*")} <= {".lock"}


PAIR = {"premise": "A dog runs.", "hypothesis": "An animal moves.", "label": "entailment"}
TEXTS = Dataset.from_dict({"sent0": ["a", "b"]})


def names(column_names, **options):
    return lambda: resolve_columns(column_names.split(), name="x.csv", **options)


def nli(**options):
    return lambda: build_nli_triplets([PAIR], **options)


#: Calls without a file, and what the message names.
OF_VALUES = [
    (lambda: load_text_dataset({"a", "b"}), "a set"),
    (lambda: load_text_dataset({"sent0": ["a", "b"], "sent1": ["c"]}), "'sent0': 2, 'sent1': 1"),
    (lambda: load_text_dataset([]), "list of 0 rows"),
    (lambda: load_text_dataset(TEXTS, max_rows=0), "max_rows"),
    (lambda: load_text_dataset(DatasetDict(train=TEXTS), split="test"), "'test' train"),
    (lambda: load_text_dataset(["a.txt", "tests/data/nowhere.txt"]), "a.txt: no such file"),
    (lambda: load_text_dataset([("a", "b")] * 2, expected_columns=1), "1 must be `simcse-hf train sup`"),
    (lambda: read_all("tests"), "tests: this is a folder"),
    (lambda: load_text_stream(["a", "b"]), "a list"),
    (names("a b", columns=["a", "premise"]), "x.csv: 'premise'"),
    (names("a b", columns=["a", "a"]), "columns must be"),
    (names("anchor x negative"), "'anchor' and 'negative', but no 'positive'"),
    (names("sent0 sent1 hard_neg1 hard_neg_1"), "'hard_neg1', 'hard_neg_1'"),
    (
        names("x y similarity", sample=[("A.", "B.", "0.5"), ("C.", "D.", "-1e3")]),
        "x.csv: 'similarity' cannot be text --columns 'x', 'y'",
    ),
    (lambda: read_scored_pairs([{"sentence1": "a", "sentence2": 1, "score": 1}]), "row 1: expected a text, got 1."),
    (lambda: read_scored_pairs([{"sentence1": "a", "sentence2": "b", "score": " "}]), "every score is blank"),
    (nli(hard_negatives_per_pair=-1), "hard_negatives_per_pair"),
    (nli(negatives="contradiction"), "negatives"),
    (nli(negatives=["entailment"]), "hard_negatives_per_pair"),
    (nli(), "1 pairs whose premise"),
    (lambda: build_nli_groups([PAIR], sampling="3p3n"), "sampling"),
    (lambda: make_view("crop", 1.0), "view_rate"),
    (lambda: make_view("delete_one_word", 0.1), "delete_one_word takes no view_rate crop"),
    (lambda: make_view("croop"), "next_three_sentences, 'croop'"),
]


@pytest.mark.parametrize("call, message", OF_VALUES)
def test_what_cannot_be_trained_on_is_refused_by_its_name(call, message):
    with refuses(message):
        call()


def spans(**options):
    return lambda tokenizer: SpanDataset([["a cat"] * 20], tokenizer, 18, **options)


def collate(*rows):
    return lambda tokenizer: ContrastiveCollator(tokenizer)(rows)


def views(texts):
    return lambda tokenizer: ViewDataset(texts, tokenizer, make_view("crop"), 12)


def packed(tokenizer):
    return PackingCollator(ContrastiveCollator(tokenizer), 0, length=4)([{"input_ids": [[CLS, 7, 7, 7, SEP]]}])


def without_padding(_):
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    collate({"input_ids": [[CLS, SEP]]})(tokenizer)


#: What is called with a tokenizer.
OF_TOKENS = [
    (collate({"text": "a"}), "'text' Tokenize first"),
    (collate({"input_ids": [[CLS, SEP], [CLS]]}, {"input_ids": [[CLS], []]}), "sentence 1 of row 1"),
    (packed, "5 tokens 4 tokens"),
    (without_padding, "pad_token"),
    (lambda tokenizer: tokenize_dataset(TEXTS.select([]), tokenizer, 8), "empty"),
    (views(TEXTS.add_column("sent1", ["c", "d"])), "sent0, sent1"),
    (spans(anchors=0), "anchors"),
    (spans(max_span=17), "max_span"),
    (spans(anchors=2), "none of the 1 documents has 64 tokens"),
]


@pytest.mark.parametrize("call, message", OF_TOKENS)
def test_what_cannot_become_rows_of_tokens_is_refused(call, message, tokenizer):
    with refuses(message):
        call(tokenizer)


def test_a_missing_file_is_also_a_value_error():
    with pytest.raises(DataFileNotFoundError, match=r"nowhere\.csv"):
        read_all("nowhere.csv")
    assert issubclass(DataFileNotFoundError, FileNotFoundError) and issubclass(DataFileNotFoundError, ValueError)


def test_a_row_that_a_data_set_does_not_have_is_refused(tokenizer):
    with pytest.raises(IndexError):
        views(TEXTS)(tokenizer)[2]


def test_files_of_different_widths_are_refused(tmp_path):
    pairs = write(tmp_path / "x.jsonl", json.dumps({"anchor": "a", "positive": "b"}))
    with pytest.raises(ValueError, match=r"x\.txt .* 1 .*x\.jsonl .* 2 "):
        load_text_dataset([pairs, write(tmp_path / "x.txt", "One.\n")])
