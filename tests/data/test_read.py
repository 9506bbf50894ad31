"""Any source gives the same rows with their line numbers, or an error that says where it is wrong; none is lost."""

import json
import os
import subprocess
import sys
import tracemalloc

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_helpers import content_of, read_all, write
from datasets import Dataset, DatasetDict, Features, Value

from simcse_hf.data import columns as texts_module
from simcse_hf.data import table as lines_module
from simcse_hf.data.read import is_labelled, load_text_dataset
from simcse_hf.data.stream import load_text_stream
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
#: The rows of the triplets, as every source gives them.
AS_ROWS = records(("sent0", "sent1", "sent2"), TRIPLETS)


@pytest.fixture
def load(tmp_path):
    """`load_text_dataset` with a cache of its own."""
    return lambda source, **options: load_text_dataset(source, cache_dir=tmp_path / "cache", **options)


def triplet_file(folder, extension):
    """Write the triplets to a file in a format, packed if the extension ends in .gz."""
    rows = records(("anchor", "positive", "negative"), TRIPLETS)
    content = content_of(extension.removesuffix(".gz"), rows)
    return write(folder / f"triplets.{extension}", content)


# --- tables ---

PACKED = pytest.mark.parametrize("gz", ["", ".gz"], ids=["plain", "packed"])
TABLE_FORMATS = ["csv", "tsv", "json", "jsonl", "parquet"]
FIRST_ROW = {"csv": 2, "tsv": 2}  # after a header; in others the number is 1


def table_of_pairs(folder, extension, gz):
    content = content_of(extension, records("ab", PAIRS))
    return open_table(write(folder / f"DATA.{extension.upper()}{gz}", content))


@PACKED
@pytest.mark.parametrize("extension", TABLE_FORMATS)
def test_every_format_gives_the_same_cells_packed_or_not(tmp_path, extension, gz):
    table = table_of_pairs(tmp_path, extension, gz)
    assert table.columns == ["a", "b"]
    assert [tuple(cells) for _, cells in table.rows(["a", "b"])] == PAIRS


@PACKED
@pytest.mark.parametrize("extension", TABLE_FORMATS)
def test_columns_are_given_in_the_order_asked_for(tmp_path, extension, gz):
    table = table_of_pairs(tmp_path, extension, gz)
    cells = [tuple(cells) for _, cells in table.rows(["b", "a"])]
    assert cells == [pair[::-1] for pair in PAIRS]


@PACKED
def test_a_file_of_lines_has_one_column(tmp_path, gz):
    table = table_of_pairs(tmp_path, "txt", gz)
    assert table.columns == ["text"]
    assert [tuple(cells) for _, cells in table.rows(["text"])] == [pair[:1] for pair in PAIRS]


@PACKED
@pytest.mark.parametrize("extension", ["txt", *TABLE_FORMATS])
def test_rows_are_numbered_as_their_lines(tmp_path, extension, gz):
    table = table_of_pairs(tmp_path, extension, gz)
    first = FIRST_ROW.get(extension, 1)
    assert [number for number, _ in table.rows(table.columns)] == [first, first + 1]


@PACKED
@pytest.mark.parametrize("extension", TABLE_FORMATS)
def test_every_format_gives_the_same_data_set(tmp_path, load, extension, gz):
    assert load(str(triplet_file(tmp_path, extension + gz))).to_list() == AS_ROWS


LONG_CELL = "word " * 40_000


@pytest.mark.parametrize(
    "name, content, rows",
    [
        pytest.param(
            "a.csv",
            '\ufeff"a",b\n1,2\n',
            [(2, ["1", "2"])],
            id="byte order mark",
        ),
        pytest.param(
            "a.txt",
            "  two  spaces\t\r\n\n \nform\x0cfeed and\u2028separator\nlast",
            [
                (1, ("  two  spaces\t",)),
                (4, ("form\x0cfeed and\u2028separator",)),
                (5, ("last",)),
            ],
            id="white space",
        ),
        pytest.param(
            "a.csv",
            'a,b\n\n"one\ntwo",x\ny,z\n',
            [(3, ["one\ntwo", "x"]), (5, ["y", "z"])],
            id="a cell of two lines",
        ),
        pytest.param(
            "a.csv",
            "a,b\nNA,1.50\nNone,007\n",
            [(2, ["NA", "1.50"]), (3, ["None", "007"])],
            id="words for missing values, and numbers",
        ),
        pytest.param(
            "a.csv",
            f"a,b\n{LONG_CELL},x\n",
            [(2, [LONG_CELL, "x"])],
            id="a long cell",
        ),
        pytest.param(
            "a.jsonl",
            '{}\n{"a": "2", "b": "3"}\n',
            [(1, [None, None]), (2, ["2", "3"])],
            id="a row without keys",
        ),
        pytest.param(
            "a.jsonl",
            '["a", "b"]\n["c", "d"]\n',
            [(1, ["a", "b"]), (2, ["c", "d"])],
            id="lines of lists",
        ),
        pytest.param(
            "a.jsonl",
            '[["a", "b"], ["c", "d"]]',
            [(1, ["a", "b"]), (2, ["c", "d"])],
            id="a list of lists",
        ),
    ],
)
def test_cells_are_kept_as_they_are_with_the_numbers_of_their_lines(tmp_path, name, content, rows):
    assert read_all(write(tmp_path / name, content)) == rows


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"], ids=["CR", "CR LF", "LF"])
@pytest.mark.parametrize(
    "suffix, lines, rows",
    [
        (
            "txt",
            ["One.", "Two.", "", "Four."],
            [(1, ("One.",)), (2, ("Two.",)), (4, ("Four.",))],
        ),
        ("csv", ["a,b", "1,2", "3,4", ""], [(2, ["1", "2"]), (3, ["3", "4"])]),
        ("jsonl", ['{"a": "1"}', '{"a": "2"}'], [(1, ["1"]), (2, ["2"])]),
    ],
    ids=["txt", "csv", "jsonl"],
)
def test_lines_may_end_as_on_any_system(tmp_path, suffix, lines, rows, end):
    assert read_all(write(tmp_path / f"a.{suffix}", end.join(lines))) == rows


@pytest.fixture
def table_with_two_stray_quotes(tmp_path):
    """Two stray opening quotes turned 100 lines into 30 rows without a word."""
    lines = [f"sentence {number}" for number in range(100)]
    lines[10] = '"Quoted at its start'
    lines[80] = 'and at its end"'
    return write(tmp_path / "t.csv", "\n".join(["text", *lines]) + "\n")


def test_a_quoted_cell_over_several_lines_is_reported_once(table_with_two_stray_quotes, caplog):
    for _ in range(2):
        assert len(read_all(table_with_two_stray_quotes)) == 30
    words = "t.csv, line 12: a cell that opens with a double quote runs on to line 82"
    assert caplog.text.count(words) == 1


def test_quoted_cells_within_a_line_are_not_reported(tmp_path, caplog):
    path = write(tmp_path / "u.csv", 'text,n\n"a, b",1\n\n"say ""hi""",2\n')
    assert len(read_all(path)) == 2
    assert not caplog.text


# --- data sets ---

LARGE_STRINGS = Features({f"sent{i}": Value("large_string") for i in range(3)})
NAMES = ["anchor", "positive", "negative"]


@pytest.mark.parametrize(
    "source",
    [
        TRIPLETS,
        records(("sent0", "sent1", "hard_neg"), TRIPLETS),
        Dataset.from_list(records(("hard_neg", "sent1", "sent0"), [row[::-1] for row in TRIPLETS])),
        DatasetDict(train=Dataset.from_list(AS_ROWS)),
        Dataset.from_list(AS_ROWS, features=LARGE_STRINGS),
        pd.DataFrame(TRIPLETS, columns=NAMES),
        pd.DataFrame(TRIPLETS[::-1], columns=NAMES)[::-1].reset_index(),
    ],
    ids=[
        "tuples",
        "dicts",
        "dataset",
        "dataset_dict",
        "large_string",
        "frame",
        "frame with index",
    ],
)
def test_reads_triplets_from_memory(load, source):
    data = load(source)
    assert data.to_list() == AS_ROWS
    assert data.features == Features({name: Value("string") for name in AS_ROWS[0]})


def test_a_data_set_that_was_read_is_read_again_unchanged(load):
    assert load(load(TRIPLETS)).to_list() == AS_ROWS


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


@pytest.fixture
def jsonl(tmp_path):
    return write(tmp_path / "x.jsonl", content_of("jsonl", QUERIES))


@pytest.fixture(params=["file", "rows", "data set", "frame"])
def kind(request):
    return request.param


@pytest.fixture
def source(kind, jsonl):
    """The queries with their lists, from a file or from memory."""
    sources = {
        "file": jsonl,
        "rows": QUERIES,
        "data set": Dataset.from_list(QUERIES),
        "frame": pd.DataFrame(QUERIES),
    }
    return sources[kind]


def test_each_positive_of_a_query_becomes_a_row_with_all_hard_negatives(load, source):
    assert [list(row.values()) for row in load(source)] == [
        ["q1", "p1", "n1", "n2", None],
        ["q1", "p2", "n1", "n2", None],
        ["q2", "p3", "n3", "n4", "n5"],
        ["q3", "p4", None, None, None],
        ["q5", "p5", "n8", None, None],
        ["q6", "p6", None, None, None],
    ]


@pytest.mark.parametrize(
    "words, numbers",
    [
        ("1 of 7 rows dropped for an empty cell", "4"),
        ("3 of 7 rows with an empty text in a list, which is left out", "1, 5, 6"),
        ("4 of 7 rows with fewer hard negatives than others", "1, 3, 5, 6"),
    ],
)
def test_what_is_left_out_of_lists_is_reported_with_its_rows(
    load,
    source,
    kind,
    caplog,
    words,
    numbers,
):
    load(source)
    unit = "line" if kind == "file" else "row"
    assert f"{words}: {unit} {numbers}." in caplog.text


def test_columns_and_a_number_of_rows_of_lists_can_be_asked_for(load, jsonl):
    assert load(jsonl, columns=["query", "pos"], max_rows=2)["sent1"][:] == ["p1", "p2"]


# --- several files, columns and numbers of rows ---


@pytest.fixture
def two_files(tmp_path):
    return [triplet_file(tmp_path, "csv"), str(triplet_file(tmp_path, "jsonl"))]


def test_files_of_different_formats_become_one_data_set(load, two_files):
    assert load(two_files).to_list() == AS_ROWS * 2


@pytest.mark.parametrize("number", [1, 3])
def test_the_first_rows_of_several_files_can_be_asked_for(load, two_files, number):
    assert load(two_files, max_rows=number).to_list() == (AS_ROWS * 2)[:number]


@pytest.mark.parametrize("source", [TRIPLETS, Dataset.from_list(AS_ROWS)], ids=["list", "data set"])
def test_the_first_rows_of_memory_can_be_asked_for(load, source):
    assert load(source, max_rows=1).to_list() == AS_ROWS[:1]


@pytest.mark.parametrize("is_dataset", [False, True], ids=["file", "data set"])
def test_columns_can_be_asked_for_in_any_order(tmp_path, load, is_dataset):
    path = triplet_file(tmp_path, "csv")
    source = Dataset.from_csv(str(path)) if is_dataset else path
    data = load(source, columns=["negative", "anchor"])
    assert data.to_list() == [{"sent0": row[2], "sent1": row[0]} for row in TRIPLETS]


def test_a_late_key_that_is_not_asked_for_is_no_fault(tmp_path, load):
    late = '{"sent0": "a"}\n' * 120 + '{"sent0": "a", "hard_neg": "n"}\n'
    assert len(load(write(tmp_path / "x.jsonl", late), columns=["sent0"])) == 121


# --- empty cells and headers ---


@pytest.fixture
def file_with_empty_cells(tmp_path):
    lines = ["a,b", ",b", "a,  ", *["a,b"] * 3, *["a,"] * 6]
    return write(tmp_path / "x.csv", "\n".join(["sent0,sent1", *lines]) + "\n")


def test_rows_with_an_empty_cell_are_dropped(load, file_with_empty_cells):
    assert load(file_with_empty_cells).to_list() == [{"sent0": "a", "sent1": "b"}] * 4


def test_every_load_warns_of_rows_dropped_for_an_empty_cell(load, file_with_empty_cells, caplog):
    for _ in range(2):
        caplog.clear()
        load(file_with_empty_cells)
        [record] = caplog.records
        assert record.levelname == "WARNING"
        words = "x.csv: 8 of 12 rows dropped for an empty cell: line 3, 4, 8, 9, 10, ..."
        assert words in caplog.text


@pytest.mark.parametrize("make", [list, Dataset.from_list], ids=["list", "data set"])
def test_rows_of_memory_with_an_empty_cell_are_dropped_and_reported(load, caplog, make):
    rows = records(
        ("sent0", "sent1"),
        [("a", "b"), (None, "b"), ("a", " \u00a0\t"), ("c", "None")],
    )
    assert load(make(rows)).to_list() == [rows[0], rows[3]]
    assert "2 of 4 rows dropped for an empty cell: row 2, 3." in caplog.text


def test_a_header_that_looks_like_a_sentence_is_reported(tmp_path, load, caplog):
    load(write(tmp_path / "z.csv", "A dog runs.\nx\n"))
    words = "z.csv: the first line is taken as the header, but 'A dog runs.' looks like a sentence"
    assert words in caplog.text


def test_a_key_of_json_lines_is_no_header(tmp_path, load, caplog):
    load(write(tmp_path / "z.jsonl", '{"Is it text?": "x"}\n'))
    assert not caplog.text


# --- the hub ---


@pytest.fixture
def asked(monkeypatch):
    """The names, configurations and splits for which the hub is asked; it has no data set `absent`."""
    calls = []

    def load_dataset(name, configuration, split, **options):
        if name == "absent":
            raise ConnectionError("offline")
        calls.append((name, configuration, split))
        return Dataset.from_dict({"idx": [0], "sentence": ["One."], "label": ["a"]})

    monkeypatch.setattr("simcse_hf.data.read.load_dataset", load_dataset)
    monkeypatch.setattr(
        "simcse_hf.data.read.get_dataset_config_names",
        lambda _: ["default", "config"],
    )
    return calls


@pytest.mark.parametrize(
    "name, expected",
    [
        ("org/name", ("org/name", None, "validation[:10]")),
        ("org/name:config", ("org/name", "config", "validation[:10]")),
        ("org/name:test", ("org/name", None, "test")),
        ("name:test[10%:20%]", ("name", None, "test[10%:20%]")),
        ("org/name:config:test[:5]", ("org/name", "config", "test[:5]")),
    ],
)
def test_a_data_set_of_the_hub_is_named_with_its_configuration_and_split(
    load,
    asked,
    name,
    expected,
):
    assert load(name, split="validation[:10]").to_list() == [{"sent0": "One."}]
    assert asked == [expected]


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
def test_whether_a_data_set_of_the_hub_has_labels_is_seen_in_its_split(asked, name, expected):
    assert is_labelled(name)
    assert asked == [expected]


def test_a_name_that_is_neither_a_file_nor_on_the_hub_is_refused(load, asked):
    message = "'absent' is no file here, and could not be loaded from the hub.*offline"
    with pytest.raises(ValueError, match=message):
        load("absent")


# --- fingerprints ---


@pytest.fixture
def csv(tmp_path):
    return triplet_file(tmp_path, "csv")


def test_the_fingerprint_does_not_depend_on_the_name_or_the_time_of_a_file(tmp_path, load, csv):
    (tmp_path / "moved").mkdir()
    moved = write(tmp_path / "moved" / "elsewhere.csv", csv.read_bytes())
    os.utime(moved, (0, 0))
    assert load(moved)._fingerprint == load(csv)._fingerprint


def test_the_fingerprint_depends_on_the_arguments(load, csv):
    fingerprints = {
        load(csv)._fingerprint,
        load(csv, max_rows=1)._fingerprint,
        load(csv, columns=["anchor"])._fingerprint,
    }
    assert len(fingerprints) == 3


def test_the_fingerprint_is_the_same_in_another_process(tmp_path, load, csv):
    code = "import sys, simcse_hf; print(simcse_hf.load_text_dataset(sys.argv[1], cache_dir=sys.argv[2])._fingerprint)"
    command = [sys.executable, "-c", code, str(csv), str(tmp_path / "other")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == load(csv)._fingerprint


def test_a_file_that_has_changed_is_read_again(load, csv):
    before = load(csv)._fingerprint
    csv.write_text(csv.read_text().replace("Letters", "Lettres"))
    assert load(csv)._fingerprint != before
    assert load(csv)[1]["sent2"] == "Lettres."


# --- streams and long texts ---


def test_streamed_texts_stay_aligned_with_the_rows(tmp_path):
    path = write(tmp_path / "a.csv", "text,n\nb,1\n,2\n")
    assert list(stream_texts(path)) == [(2, "b"), (3, "")]


@pytest.fixture
def longest_text_of_1000(monkeypatch):
    """A text may have 1000 characters in place of 16 million."""
    monkeypatch.setattr(lines_module, "LONGEST_TEXT", 1000)
    monkeypatch.setattr(texts_module, "LONGEST_TEXT", 1000)


READERS = pytest.mark.parametrize("reader", [load_text_dataset, load_text_stream, stream_texts])
FORMATS_OF_LINES = pytest.mark.parametrize(
    "name, head, line",
    [
        ("x.txt", "a\n", 2),
        ("x.jsonl", '{"text": "', 1),
        ("x.csv", "text\n", 2),
        ("x.tsv.gz", "text\n", 2),
    ],
)


@FORMATS_OF_LINES
@READERS
def test_a_line_that_is_too_long_is_refused_before_it_is_read_whole(
    tmp_path,
    longest_text_of_1000,
    name,
    head,
    line,
    reader,
):
    four_megabytes = "a " * 2_000_000
    path = write(tmp_path / name, head + four_megabytes)
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"{name}, line {line}: more than 16 million characters"):
        list(reader(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


TEXTS_OF_WHICH_ONE_IS_TOO_LONG = ["short", "a" * 1000, "a" * 1001]
TOO_LONG = r"row 3, column '(text|0)': more than 16 million characters"


def test_a_text_of_a_json_file_that_is_too_long_is_refused(tmp_path, load, longest_text_of_1000):
    rows = [{"text": text} for text in TEXTS_OF_WHICH_ONE_IS_TOO_LONG]
    path = write(tmp_path / "x.json", json.dumps(rows))
    with pytest.raises(ValueError, match=TOO_LONG):
        load(path)


def test_a_text_of_a_parquet_file_that_is_too_long_is_refused(tmp_path, load, longest_text_of_1000):
    pq.write_table(pa.table({"text": TEXTS_OF_WHICH_ONE_IS_TOO_LONG}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=TOO_LONG):
        load(tmp_path / "x.parquet")


def test_a_text_in_memory_that_is_too_long_is_refused(load, longest_text_of_1000):
    with pytest.raises(ValueError, match=TOO_LONG):
        load(TEXTS_OF_WHICH_ONE_IS_TOO_LONG)
