"""Any source gives the same rows with their line numbers, or an error that says where it is wrong; none is lost."""

import os
import subprocess
import sys
import tracemalloc

import pandas as pd
import pyarrow as pa
import pytest
from data_helpers import content_of, read_all, write
from datasets import Dataset, DatasetDict, Features, Value

from simcse_hf.data import columns as texts_module
from simcse_hf.data import table as lines_module
from simcse_hf.data.read import is_labelled, load_text_dataset
from simcse_hf.data.table import open_table, stream_texts


def records(names, rows):
    return [dict(zip(names, row, strict=True)) for row in rows]


PAIRS = [
    ("A dog runs.", "An animal moves."),
    ("Zwölf Boxkämpfer, “jagend”.", 'He said "no", twice.'),
]
TRIPLETS = [
    ("A dog runs.", "An animal moves.", "A cat sleeps."),
    ("One, two.", "Numbers.", "Letters."),
]
NAMES = ("anchor", "positive", "negative")
#: The rows of the triplets, as every source gives them.
AS_ROWS = records(("sent0", "sent1", "sent2"), TRIPLETS)


@pytest.fixture
def load(tmp_path):
    """`load_text_dataset` with a cache of its own."""
    return lambda source, **options: load_text_dataset(source, cache_dir=tmp_path / "cache", **options)


def triplet_file(folder, extension):
    return write(folder / f"triplets.{extension}", content_of(extension, records(NAMES, TRIPLETS)))


# --- tables ---


@pytest.mark.parametrize("gz", ["", ".gz"], ids=["plain", "packed"])
@pytest.mark.parametrize("extension", ["txt", "csv", "tsv", "json", "jsonl", "parquet"])
def test_every_format_gives_the_same_cells_with_the_numbers_of_their_lines(tmp_path, extension, gz):
    path = write(tmp_path / f"DATA.{extension.upper()}{gz}", content_of(extension, records("ab", PAIRS)))
    table = open_table(path)
    names = ["text"] if extension == "txt" else ["b", "a"]
    assert table.columns == names[::-1]
    numbers, cells = zip(*table.rows(names), strict=True)
    first = 2 if extension in ("csv", "tsv") else 1  # after a header
    assert numbers == (first, first + 1)
    assert [tuple(row[::-1]) for row in cells] == [pair[: len(names)] for pair in PAIRS]


LONG_CELL = "word " * 40_000


@pytest.mark.parametrize(
    "name, content, rows",
    [
        ("a.csv", '\ufeff"a",b\n1,2\n', [(2, ["1", "2"])]),
        (
            "a.txt",
            "  two  spaces\t\r\n\n \nform\x0cfeed and\u2028separator\nlast",
            [(1, ("  two  spaces\t",)), (4, ("form\x0cfeed and\u2028separator",)), (5, ("last",))],
        ),
        ("a.csv", "a,b\n\nNA,1.50\nNone,007\n", [(3, ["NA", "1.50"]), (4, ["None", "007"])]),
        ("a.csv", f"a,b\n{LONG_CELL},x\n", [(2, [LONG_CELL, "x"])]),
        ("a.jsonl", '{}\n{"a": "2"}\n', [(1, [None]), (2, ["2"])]),
        ("a.jsonl", '[["a"], ["c"]]', [(1, ["a"]), (2, ["c"])]),
    ],
    ids=["byte order mark", "white space", "words for missing values", "long cell", "no keys", "list of lists"],
)
def test_cells_are_kept_as_they_are(tmp_path, name, content, rows):
    assert read_all(write(tmp_path / name, content)) == rows


@pytest.mark.parametrize("end", ["\r", "\r\n"], ids=["CR", "CR LF"])
def test_lines_may_end_as_on_any_system(tmp_path, end):
    assert read_all(write(tmp_path / "a.txt", f"One.{end}{end}Three.")) == [(1, ("One.",)), (3, ("Three.",))]
    assert read_all(write(tmp_path / "a.csv", f"a,b{end}1,2{end}")) == [(2, ["1", "2"])]
    assert read_all(write(tmp_path / "a.jsonl", f'{{"a": "1"}}{end}{{"a": "2"}}')) == [(1, ["1"]), (2, ["2"])]


@pytest.mark.parametrize(
    "name, content, cell",
    [("t.csv", 'text\nA.\n"B\t\nC"\n"D\nE"\n', "B\t\nC"), ("t.tsv", 'text\nA.\n"B\nC"\n"D\nE"\n', "B\nC")],
)
def test_quoted_cells_over_several_lines_are_read_and_reported_once(tmp_path, caplog, name, content, cell):
    """Two stray opening quotes turned 100 lines into 30 rows without a word."""
    assert len(read_all(write(tmp_path / "u.csv", 'text,n\n"a, b",1\n\n"say ""hi""",2\n'))) == 2
    assert not caplog.text, "cells within a line are usual"
    path = write(tmp_path / name, content)
    for _ in range(2):
        assert read_all(path) == [(2, ["A."]), (3, [cell]), (5, ["D\nE"])]
    assert caplog.text.count("a cell that opens with a double quote") == 1
    assert f"{name}, line 3" in caplog.text


# --- data sets ---


@pytest.mark.parametrize(
    "source",
    [
        TRIPLETS,
        DatasetDict(train=Dataset.from_list(AS_ROWS)),
        Dataset.from_list(AS_ROWS, features=Features({f"sent{i}": Value("large_string") for i in range(3)})),
    ],
    ids=["tuples", "dataset_dict", "large_string"],
)
def test_reads_triplets_from_memory(load, source):
    data = load(source)
    assert data.to_list() == AS_ROWS
    assert data.features == Features({name: Value("string") for name in AS_ROWS[0]})
    assert load(data) is data
    assert load(source, max_rows=1).to_list() == load(data, max_rows=1).to_list() == AS_ROWS[:1]


# --- the JSON Lines of sentence-transformers ---

QUERIES = records(
    ("query", "pos", "neg"),
    [
        ("q1", ["p1", "p2", None], ["n1", "n2"]),
        ("q2", ["p3"], ["n3", "n4", "n5"]),
        ("q3", ["p4"], []),
        ("q4", ["", ""], ["n6", "n7"]),
        ("q5", ["p5"], ["", "n8"]),
        ("q6", ["p6"], [" ", ""]),
    ],
)


def frame_with_views(records):
    """A table of Arrow whose texts are views, as those of polars are."""
    view, views = pa.string_view(), pa.list_(pa.string_view())
    return pa.Table.from_pylist(records, pa.schema({"query": view, "pos": views, "neg": views}))


@pytest.mark.parametrize("kind", ["file", "rows", "data set", "frame", "views"])
def test_each_positive_of_a_query_becomes_a_row_and_what_is_left_out_is_reported(tmp_path, load, caplog, kind):
    source = {
        "file": write(tmp_path / "x.jsonl", content_of("jsonl", QUERIES)),
        "rows": QUERIES,
        "data set": Dataset.from_list(QUERIES),
        "frame": pd.DataFrame(QUERIES),
        "views": frame_with_views(QUERIES),
    }[kind]
    assert [list(row.values()) for row in load(source)] == [
        ["q1", "p1", "n1", "n2", None],
        ["q1", "p2", "n1", "n2", None],
        ["q2", "p3", "n3", "n4", "n5"],
        ["q3", "p4", None, None, None],
        ["q5", "p5", "n8", None, None],
        ["q6", "p6", None, None, None],
    ]
    unit = "line" if kind == "file" else "row"
    for words in (
        f"1 of 7 rows dropped for an empty cell: {unit} 4.",
        f"3 of 7 rows with an empty text in a list, which is left out: {unit} 1, 5, 6.",
        f"4 of 7 rows with fewer hard negatives than others: {unit} 1, 3, 5, 6.",
    ):
        assert words in caplog.text
    assert load(source, columns=["query", "pos"], max_rows=2)["sent1"][:] == ["p1", "p2"]


# --- several files, columns and empty cells ---


def test_files_of_different_formats_become_one_data_set(tmp_path, load):
    files = [triplet_file(tmp_path, "csv"), str(triplet_file(tmp_path, "jsonl"))]
    assert load(files).to_list() == AS_ROWS * 2
    for number in (1, 3):
        assert load(files, max_rows=number).to_list() == (AS_ROWS * 2)[:number]


def test_columns_can_be_asked_for_in_any_order(tmp_path, load):
    path = triplet_file(tmp_path, "csv")
    for source in (path, Dataset.from_csv(str(path))):
        data = load(source, columns=["negative", "anchor"])
        assert data.to_list() == [{"sent0": row[2], "sent1": row[0]} for row in TRIPLETS]


def test_a_late_key_that_is_not_asked_for_is_no_fault(tmp_path, load):
    late = '{"sent0": "a"}\n' * 120 + '{"sent0": "a", "hard_neg": "n"}\n'
    assert len(load(write(tmp_path / "x.jsonl", late), columns=["sent0"])) == 121


def test_every_load_drops_rows_with_an_empty_cell_and_warns_of_them(tmp_path, load, caplog):
    lines = ["a,b", ",b", "a,  ", *["a,b"] * 3, *["a,"] * 6]
    path = write(tmp_path / "x.csv", "\n".join(["sent0,sent1", *lines]) + "\n")
    for _ in range(2):
        caplog.clear()
        assert load(path).to_list() == [{"sent0": "a", "sent1": "b"}] * 4
        [record] = caplog.records
        assert record.levelname == "WARNING"
        assert record.message == f"{path}: 8 of 12 rows dropped for an empty cell: line 3, 4, 8, 9, 10, ...."
    rows = records(("sent0", "sent1"), [("a", "b"), (None, "b"), ("a", " \u00a0\t"), ("c", "None")])
    assert load(rows).to_list() == [rows[0], rows[3]]
    assert "2 of 4 rows dropped for an empty cell: row 2, 3." in caplog.text


def test_a_header_that_looks_like_a_sentence_is_reported(tmp_path, load, caplog):
    load(write(tmp_path / "z.jsonl", '{"Is it text?": "x"}\n'))
    assert not caplog.text, "a key is no header"
    load(write(tmp_path / "z.csv", "A dog runs.\nx\n"))
    assert "'A dog runs.' looks like a sentence" in caplog.text


@pytest.mark.parametrize("content, is_said", [("a\tb\nc\td\n", True), ("a\tb\nc d\n", False), ("a\tb\n", False)])
def test_lines_of_text_that_all_hold_a_tab_are_reported(tmp_path, caplog, content, is_said):
    path = write(tmp_path / "x.txt.gz", content)
    assert len(read_all(path)) == content.count("\n")
    assert (f"{path}: each line has a tab" in caplog.text) is is_said


# --- the hub ---


@pytest.mark.parametrize(
    "name, expected",
    [
        ("org/name", ("org/name", None, "train")),
        ("org/name:config", ("org/name", "config", "train")),
        ("org/name:test", ("org/name", None, "test")),
        ("name:test[10%:20%]", ("name", None, "test[10%:20%]")),
        ("org/name:config:test[:5]", ("org/name", "config", "test[:5]")),
    ],
)
def test_a_data_set_of_the_hub_is_named_with_its_configuration_and_split(load, monkeypatch, name, expected):
    asked = []

    def load_dataset(name, configuration, split, **options):
        asked.append((name, configuration, split))
        return Dataset.from_dict({"idx": [0], "sentence": ["One."], "label": ["a"]})

    monkeypatch.setattr("simcse_hf.data.read.load_dataset", load_dataset)
    monkeypatch.setattr("simcse_hf.data.read.get_dataset_config_names", lambda _: ["default", "config"])
    assert load(name).to_list() == [{"sent0": "One."}]
    assert is_labelled(name)
    assert asked == [expected] * 2
    load("org/name", split="validation[:10]")
    assert asked[2] == ("org/name", None, "validation[:10]")


def test_a_name_that_is_neither_a_file_nor_on_the_hub_is_refused(load):
    with pytest.raises(ValueError, match="'absent/absent' is no file here.* the hub"):
        load("absent/absent")


# --- fingerprints ---


def test_the_fingerprint_depends_on_the_bytes_of_a_file_and_the_arguments(tmp_path, load):
    """So a file of another name and time finds the same cache."""
    csv = triplet_file(tmp_path, "csv")
    first = load(csv)._fingerprint
    moved = write(tmp_path / "elsewhere.csv", csv.read_bytes())
    os.utime(moved, (0, 0))
    assert load_text_dataset(moved, cache_dir=tmp_path / "other")._fingerprint == first
    others = {load(csv, max_rows=1)._fingerprint, load(csv, columns=["anchor"])._fingerprint}
    csv.write_text(csv.read_text().replace("Letters", "Lettres"))
    others.add(load(csv)._fingerprint)
    assert load(csv)[1]["sent2"] == "Lettres."
    assert len(others - {first}) == 3


@pytest.mark.slow  # imports take seconds
def test_another_process_finds_the_same_cache(tmp_path, load):
    csv = triplet_file(tmp_path, "csv")
    program = "import sys, simcse_hf; print(simcse_hf.load_text_dataset(sys.argv[1], cache_dir='other')._fingerprint)"
    words = [sys.executable, "-c", program, csv]
    printed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == load(csv)._fingerprint


# --- streams and long texts ---


@pytest.fixture
def longest_text_of_1000(monkeypatch):
    """A text may have 1000 characters in place of 16 million."""
    monkeypatch.setattr(lines_module, "LONGEST_TEXT", 1000)
    monkeypatch.setattr(texts_module, "LONGEST_TEXT", 1000)


@pytest.mark.parametrize(
    "name, head, line",
    [("x.txt", "a\n", 2), ("x.jsonl", '{"text": "', 1), ("x.csv", "text\n", 2), ("x.tsv.gz", "text\n", 2)],
)
def test_a_line_that_is_too_long_is_refused_before_it_is_read_whole(tmp_path, longest_text_of_1000, name, head, line):
    path = write(tmp_path / name, head + "a " * 2_000_000)
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"{name}, line {line}: more than 16 million characters"):
        list(stream_texts(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("suffix", ["json", "parquet", None])
def test_a_text_that_is_too_long_is_refused(tmp_path, load, longest_text_of_1000, suffix):
    rows = [{"text": text} for text in ("short", "a" * 1000, "a" * 1001)]
    source = write(tmp_path / f"x.{suffix}", content_of(suffix, rows)) if suffix else rows
    with pytest.raises(ValueError, match="row 3, column 'text': more than 16 million characters"):
        load(source)
