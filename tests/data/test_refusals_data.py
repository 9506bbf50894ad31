"""What `simcse_hf.data` refuses; the message names the file and line, the row, the argument or the setting."""

import copy
import gzip
import json
import math

import pytest
from conftest import CLS, SEP
from data_helpers import read_all, write
from datasets import Dataset, DatasetDict

from simcse_hf import ContrastiveCollator
from simcse_hf.data.collator import PackingCollator
from simcse_hf.data.columns import find_parts, resolve_columns
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
LATE = '{"sent0": "a", "sent1": "b"}\n' * 120 + '{"sent0": "a", "hard_neg": "n"}\n'

#: Files that no reader accepts, and what the message names beside the file.
MALFORMED = {
    "x.csv": [
        ("a,b\nx,y\nonly one\n", r"line 3: 1 cells where the header has 2 \(a, b\)"),
        ('a,b\nx,y\n"open,z\nmore,cells\n', "line 3: not valid csv: .*doubled"),
        ("sent0\tsent1\nx\ty\n", "the header is one column.* by commas"),
        (
            "sent0,sent1\na,b\nsent0,sent1\nc,d\n",
            "line 3: this line repeats the header",
        ),
        ("a,b,a\n1,2,3\n", r"column name\(s\) 'a' occur more than once"),
        ("", "the file is empty"),
    ],
    "x.tsv": [
        ('a\tb\n"Yes\tx\nhe said."\ty\n', "line 2: .* runs on to line 3"),
    ],
    "x.txt": [
        (
            b"\xc3\x9cnd\ncaf\xe9 noir\n",
            "line 2: byte 0xe9 at character 4 .*WINDOWS-1252",
        ),
        (
            "One.\n".encode("utf-16"),
            "line 1: byte 0xff at character 1 .*iconv -f UTF-16 -t UTF-8",
        ),
        (b"text\na\0b\n", "line 2: a NUL byte"),
    ],
    "x.jsonl": [
        ("\n", "there are no rows"),
        ('{"a": "b"}\n"c"\n', "line 2: every row must be an object .* got 'c'"),
        (
            '["a", "b"]\n["c"]\n',
            r"line 2: every row must be .* an array as long as the first.* got \['c'\]",
        ),
        ('{"a": "b"}\n' * 200 + '{"a": \n', "line 201: not valid JSON"),
        ('{"text": ' + "1" * 5000 + "}\n", "line 1: not valid JSON: Exceeds"),
    ],
    "x.json": [
        ("[]", "there are no rows"),
        ('[{"a": "b"},\n{"a" "c"}]', "line 2: not valid JSON"),
    ],
    "x.parquet": [("PAR1 but not really", "cannot be read to its end: Parquet magic bytes")],
    "x.txt.gz": [(HALF_GZIP, "cannot be read to its end")],
    "x.docx": [("One.\n", r"unknown extension '\.docx'\. The name must end in \.txt, \.csv")],
}


#: Readers, the file that each gets, and what the message names.
OF_FILES = [
    *(
        (read_all, name, content, f"{name}[:,] ?{message}")
        for name, cases in MALFORMED.items()
        for content, message in cases
    ),
    (
        load_text_dataset,
        "x.csv",
        "sent0,sent1\na,\n,b\n",
        r"x\.csv: each of the 2 row\(s\) .* 'sent0' or 'sent1'\. Fill",
    ),
    (load_text_dataset, "x.csv", "a,b\n", r"x\.csv: there are no rows"),
    (
        load_text_dataset,
        "x.jsonl",
        '{"text": "a"}\n{"text": "b \\ud83d"}\n',
        "line 2, column 'text': .*surrogate",
    ),
    (
        load_text_dataset,
        "x.jsonl",
        '{"sent0": "a", "sent1": "b"}\n{"sent0": "a", "sent1": ["b", 3]}\n',
        r"x\.jsonl, line 2, column 'sent1': expected a text, got 3",
    ),
    (
        load_text_dataset,
        "x.jsonl",
        LATE,
        r"x\.jsonl, line 121: the key 'hard_neg' does not occur in the first 100",
    ),
    (
        lambda path: load_text_dataset(path, max_rows=0),
        "x.txt",
        "a\n",
        "max_rows must be an integer above 0",
    ),
    (
        lambda path: load_text_dataset(path, expected_columns=3),
        "x.txt",
        "a\n",
        r"x\.txt: 1 text .* where 3 must be",
    ),
    (
        lambda path: load_text_dataset([str(path), "A sentence."]),
        "x.txt",
        "a\n",
        "the list holds the file .*x.txt among other things",
    ),
    (
        lambda path: load_text_dataset(path, cache_dir=path),
        "x.txt",
        "a\n",
        "to the cache .*HF_HOME, or cache_dir,",
    ),
    (
        lambda path: list(stream_texts(path)),
        "x.jsonl",
        '{"text": "a"}\n{"text": null}\n',
        "line 2, column 'text'",
    ),
    (
        lambda path: list(stream_texts(path)),
        "x.jsonl",
        '["a", "b"]\n' * 2,
        "which of the columns 'sent0', 'sent1'",
    ),
    (
        lambda path: list(stream_texts(path, keep=["text"])),
        "x.csv",
        "text\na\n",
        r"x\.csv: columns must be",
    ),
    (
        lambda path: list(load_text_stream(path)),
        "x.csv",
        "sent0,sent1\n" + "a,b\n" * 200 + "a,b,c\n",
        "line 202: 3",
    ),
    (
        load_class_rows,
        "x.csv",
        "text,label\na,x\nb,x\nc,y\n",
        "2 classes in column 'label'. At least two .* 1 of these",
    ),
    (
        load_class_rows,
        "x.csv",
        "text\na\n",
        "Add a column 'label', or positives .* 'positives'",
    ),
    (
        load_class_rows,
        "x.jsonl",
        '{"text": "a", "label": 1}\n{"text": 1, "label": 1}\n',
        "line 2, column 'text'",
    ),
    (
        build_nli_triplets,
        "x.csv",
        "premise,hypothesis,label\na,b,neutral\na,c,no\n",
        "line 3: unknown label 'no'",
    ),
    (
        build_nli_triplets,
        "x.csv",
        "premise,label\na,0\n",
        r"x\.csv: no column 'hypothesis' .* are 'premise'",
    ),
    (
        next_sentence_pairs,
        "x.txt",
        "a\nb\nc\n",
        "x.txt: .*no empty line between line 1 and line 3",
    ),
    (next_sentence_pairs, "x.txt", "\n \n", "x.txt: .*only blank lines"),
    (
        next_sentence_pairs,
        "x.txt",
        "a\n\nb\n\nc\n",
        "all 3 documents are a single sentence",
    ),
    (
        lambda path: list(read_documents(path)),
        "x.csv",
        "text\na\n",
        r"documents are read from \.txt",
    ),
]


@pytest.mark.parametrize(("reader", "name", "content", "message"), OF_FILES)
def test_a_file_that_cannot_be_used_is_refused_and_not_cached(tmp_path, monkeypatch, reader, name, content, message):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            reader(path if reader is not load_class_rows else str(path))
        assert {path.suffix for path in (tmp_path / "cache").rglob("*.*")} <= {".lock"}


PAIR = {
    "premise": "A dog runs.",
    "hypothesis": "An animal moves.",
    "label": "entailment",
}
SCORED = {"sentence1": ["a", "b"], "sentence2": ["c", "d"]}
TEXTS = Dataset.from_dict({"sent0": ["a", "b"]})


def names(column_names, **options):
    return lambda: resolve_columns(column_names.split(), name="x.csv", **options)


def nli(rows=(PAIR,), **options):
    return lambda: build_nli_triplets(rows, **options)


#: Calls without a file, and what the message names.
OF_VALUES = [
    (lambda: load_text_dataset(3), "the source is a int: pass the name of a file"),
    (lambda: load_text_dataset({"a", "b"}), "the source is a set: pass"),
    (
        lambda: load_text_dataset({"sent0": ["a", "b"], "sent1": ["c"]}),
        "the columns: .*'sent0': 2, 'sent1': 1",
    ),
    (lambda: load_text_dataset([]), "list of 0 rows: there are no rows"),
    (
        lambda: load_text_dataset([("a", "b"), ("c",)]),
        r"row 2: every row must be .* got \['c'\]",
    ),
    (lambda: load_text_dataset(["\ud83d"]), "list of 1 rows, row 1, .*surrogate"),
    (
        lambda: load_text_dataset(Dataset.from_dict({"text": [1, 2]})),
        "row 1, column 'text': expected a text",
    ),
    (lambda: load_text_dataset("train.csv"), r"train\.csv: no such file"),
    (
        lambda: load_text_dataset(DatasetDict(train=TEXTS), split="test"),
        "no split 'test'; it has train",
    ),
    (
        lambda: load_text_dataset(["a.txt", "tests/data/nowhere.txt"]),
        "a.txt: no such file",
    ),
    (lambda: read_all("tests"), "tests: this is a folder"),
    (
        lambda: load_text_dataset([("a", "b")] * 2, expected_columns=1),
        "where 1 must be.*`simcse-hf train sup` reads pairs",
    ),
    (
        lambda: load_text_stream(["a", "b"]),
        "a stream is read from files or from the hub, got a list",
    ),
    (
        names("a b", columns=["a", "premise"]),
        "x.csv: no column 'premise'; the columns are 'a', 'b'",
    ),
    (names("a b", columns="a"), "columns must be a non-empty list"),
    (names("a b", columns=["a", "a"]), "list of different column names"),
    (names("sent0 hard_neg"), "but no 'sent1'"),
    (
        names("sent0 sent1 hard_neg1 hard_neg_1"),
        "two of 'hard_neg1', 'hard_neg_1' have the same number",
    ),
    (
        names("x y similarity", sample=[("A.", "B.", "0.5"), ("C.", "D.", "-1e3")]),
        "'similarity' cannot be text",
    ),
    (
        names("question answer label"),
        r"x\.csv: the column names do not say .*--columns .*are 'question', 'answer'",
    ),
    *(
        (names(columns), "x.csv: the column names do not say")
        for columns in (
            "w x y z",
            "pos neg",
            "text negative",
            "query pos sentence1 sentence2",
            "id label",
            "x y id",
        )
    ),
    (
        names("anchor x negative"),
        "there are 'anchor' and 'negative', but no 'positive'",
    ),
    (names("query x neg"), "there are 'query' and 'neg', but no 'positive'"),
    *((names(f"x y {name}"), rf"\('{name}' cannot be text\).*columns=\[\.\.\.\]") for name in ("gold_label", "score")),
    (
        lambda: find_parts(["text"], ("text", "label"), "x.csv"),
        r"x\.csv: no column 'label' \(also accepted: category",
    ),
    (
        lambda: read_scored_pairs(Dataset.from_dict(SCORED), "x"),
        "x: no column 'score'.* 'sentence1'",
    ),
    (
        lambda: read_scored_pairs(Dataset.from_dict(SCORED | {"sentence2": [1, 2], "score": [1, 2]})),
        "a text, got 1",
    ),
    *(
        (
            lambda score=score: read_scored_pairs(Dataset.from_dict(SCORED | {"score": ["4.0", score]}), "x"),
            f"x, row 2: the score '{score}' is not a finite number",
        )
        for score in ("inf", "high")
    ),
    (nli([PAIR, PAIR | {"label": 3}]), "row 2: unknown label 3"),
    (nli([PAIR | {"premise": 7}]), "row 1: expected a text, got 7"),
    (
        nli(hard_negatives_per_pair=-1),
        "hard_negatives_per_pair must be an integer of 0 or more",
    ),
    *((nli(negatives=labels), "negatives must list") for labels in ("contradiction", [], ["no"], ["neutral"] * 2)),
    (
        nli(negatives=["entailment"]),
        "share a label: name different labels, or set hard_negatives_per_pair to 0",
    ),
    (nli(max_rows=0), "max_rows must be an integer above 0, got 0"),
    (nli(), "no row .* 1 pairs whose premise has fewer than 1 hard negative"),
    (
        lambda: build_nli_groups([PAIR], sampling="3p3n"),
        "sampling must be one of pairs, premises, got '3p3n'",
    ),
    (
        lambda: build_nli_groups([PAIR | {"label": "-"}]),
        "no row could be built from 0 premise",
    ),
    *(
        (
            lambda name=name, rate=rate: make_view(name, rate),
            "view_rate must be a number of 0 or more and below 1",
        )
        for name in ("crop", "shuffle", "eda", "mlm", "crop+mlm")
        for rate in (-0.1, 1.0, 15, math.nan)
    ),
    *(
        (
            lambda name=name: make_view(name, 0.1),
            f"view {name} takes no view_rate.*crop",
        )
        for name in (
            "identity",
            "fixed_mask",
            "delete_one_word",
            "synonyms",
            "next_sentence",
        )
    ),
    (
        lambda: make_view("croop"),
        "one of identity, .*next_three_sentences, .*, got 'croop'",
    ),
]


@pytest.mark.parametrize(("call", "message"), OF_VALUES)
def test_what_cannot_be_trained_on_is_refused_by_its_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def spans(**options):
    return lambda tokenizer: SpanDataset([["a cat"] * 20], tokenizer, 18, **options)


def collate(*input_ids, **options):
    return lambda tokenizer: ContrastiveCollator(tokenizer, **options)([{"input_ids": ids} for ids in input_ids])


def packed(input_ids, **options):
    return lambda tokenizer: PackingCollator(ContrastiveCollator(tokenizer), 0, **options)([{"input_ids": input_ids}])


def views(texts):
    return lambda tokenizer: ViewDataset(texts, tokenizer, make_view("crop"), 12)


def without_padding(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = None
    collate([[CLS, SEP]])(tokenizer)


#: What is called with a tokenizer.
OF_TOKENS = [
    (
        lambda tokenizer: ContrastiveCollator(tokenizer)([{"text": "a"}]),
        "token id lists.*the keys.*Tokenize first",
    ),
    (collate([2, 7, 3]), r"a list of token id lists.*got \[2, 7, 3\]"),
    (
        packed([[CLS, 7, 7, 7, SEP]], length=4),
        "a text has 5 tokens, but the batch is 4 tokens long",
    ),
    (
        collate([[CLS, SEP], [CLS]], [[CLS], []]),
        "sentence 1 of row 1 of the batch has no token",
    ),
    (without_padding, r"^the tokenizer has no padding token: set tokenizer.pad_token"),
    (
        lambda tokenizer: tokenize_dataset(TEXTS.select([]), tokenizer, 8),
        "the dataset to tokenize is empty",
    ),
    (
        views(TEXTS.add_column("sent1", ["c", "d"])),
        "column sent0; the data set has sent0, sent1. Select",
    ),
    (views(TEXTS.select([])), "is empty"),
    (spans(anchors=0), "anchors must be an integer above 0, got 0"),
    (spans(max_span=17), r"max_span <= 16 \(max_seq_length=18"),
    (spans(min_span=9, max_span=8), "spans of 9 to 8 tokens"),
    (
        spans(anchors=2),
        "none of the 1 documents has 64 tokens, and the longest has 40: lower max_span",
    ),
]


@pytest.mark.parametrize(("call", "message"), OF_TOKENS)
def test_what_cannot_become_rows_of_tokens_is_refused(call, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        call(tokenizer)


def test_a_missing_file_is_also_a_value_error():
    with pytest.raises(DataFileNotFoundError, match=r"nowhere\.csv: no such file") as caught:
        read_all("nowhere.csv")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, ValueError)


def test_a_row_that_a_data_set_does_not_have_is_refused(tokenizer):
    with pytest.raises(IndexError, match="no row 2 in a dataset of 2 rows"):
        views(TEXTS)(tokenizer)[2]


def test_files_of_different_widths_are_refused(tmp_path):
    pairs = write(tmp_path / "x.jsonl", json.dumps({"anchor": "a", "positive": "b"}))
    with pytest.raises(
        ValueError,
        match=r"x\.txt has 1 text column.*x\.jsonl has 2 \('anchor', 'positive'\)",
    ):
        load_text_dataset([pairs, write(tmp_path / "x.txt", "One.\n")])
