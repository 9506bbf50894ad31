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

ROWS = [("A dog runs.", "An animal moves."), ("Zwölf Boxkämpfer, “jagend”.", 'He said "no", twice.')]
TRIPLETS = [("A dog runs.", "An animal moves.", "A cat sleeps."), ("One, two.", "Numbers.", "Letters.")]


def records(names, rows):
    return [dict(zip(names, row, strict=True)) for row in rows]


AB = records("ab", ROWS)
AS_ROWS = records(("sent0", "sent1", "sent2"), TRIPLETS)


@pytest.fixture
def load(tmp_path):
    return lambda source, **options: load_text_dataset(source, cache_dir=tmp_path / "cache", **options)


def triplet_file(folder, extension):
    content = content_of(extension.removesuffix(".gz"), records(("anchor", "positive", "negative"), TRIPLETS))
    return write(folder / f"triplets.{extension}", content)


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("extension", ["txt", "csv", "tsv", "json", "jsonl", "parquet"])
def test_every_format_gives_the_same_rows_packed_or_not(tmp_path, load, extension, gz):
    table = open_table(write(tmp_path / f"DATA.{extension.upper()}{gz}", content_of(extension, AB)))
    columns, names = (["text"], ["a"]) if extension == "txt" else (["a", "b"], ["b", "a"])
    assert table.columns == columns
    cells = [list(cells) for _, cells in table.rows(columns[::-1])]
    assert cells == [[row[name] for name in names] for row in AB]
    start = 2 if extension in ("csv", "tsv") else 1
    assert [number for number, _ in table.rows(table.columns)] == [start, start + 1]
    if extension != "txt":
        assert load(str(triplet_file(tmp_path, extension + gz))).to_list() == AS_ROWS


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", '\ufeff"a",b\n1,2\n', [(2, ["1", "2"])]),
        ("a.txt", "  two  spaces\t\r\n\n \nform\x0cfeed and\u2028separator\nlast",
         [(1, ("  two  spaces\t",)), (4, ("form\x0cfeed and\u2028separator",)), (5, ("last",))]),
        ("a.csv", 'a,b\n\n"one\ntwo",x\ny,z\n', [(3, ["one\ntwo", "x"]), (5, ["y", "z"])]),
        ("a.csv", "a,b\nNA,1.50\nNone,007\n", [(2, ["NA", "1.50"]), (3, ["None", "007"])]),
        ("a.csv", f"a,b\n{'word ' * 40_000},x\n", [(2, ["word " * 40_000, "x"])]),
        ("a.jsonl", '{}\n{"a": "2", "b": "3"}\n', [(1, [None, None]), (2, ["2", "3"])]),
        ("a.jsonl", '["a", "b"]\n["c", "d"]\n', [(1, ["a", "b"]), (2, ["c", "d"])]),
        ("a.jsonl", '[["a", "b"], ["c", "d"]]', [(1, ["a", "b"]), (2, ["c", "d"])]),
        *((f"a.{suffix}", end.join(lines), rows) for end in ("\r", "\r\n", "\n") for suffix, lines, rows in (
            ("txt", ["One.", "Two.", "", "Four."], [(1, ("One.",)), (2, ("Two.",)), (4, ("Four.",))]),
            ("csv", ["a,b", "1,2", "3,4", ""], [(2, ["1", "2"]), (3, ["3", "4"])]),
            ("jsonl", ['{"a": "1"}', '{"a": "2"}'], [(1, ["1"]), (2, ["2"])]))),
    ],
)  # fmt: skip
def test_cells_are_kept_as_they_are_with_the_numbers_of_their_lines(tmp_path, name, content, rows):
    assert read_all(write(tmp_path / name, content)) == rows


def test_a_quoted_cell_over_several_lines_is_reported_once(tmp_path, caplog):
    """Two stray opening quotes turned 100 lines into 30 rows without a word."""
    lines = [f"sentence {number}" for number in range(100)]
    lines[10], lines[80] = '"Quoted at its start', 'and at its end"'
    path = write(tmp_path / "t.csv", "\n".join(["text", *lines]) + "\n")
    assert len(read_all(path)) == 30 == len(read_all(path))
    assert caplog.text.count("t.csv, line 12: a cell that opens with a double quote runs on to line 82") == 1
    caplog.clear()
    assert len(read_all(write(tmp_path / "u.csv", 'text,n\n"a, b",1\n\n"say ""hi""",2\n'))) == 2 and not caplog.text


# --- data sets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        TRIPLETS,
        records(("sent0", "sent1", "hard_neg"), TRIPLETS),
        Dataset.from_list(records(("hard_neg", "sent1", "sent0"), [row[::-1] for row in TRIPLETS])),
        DatasetDict(train=Dataset.from_list(AS_ROWS)),
        Dataset.from_list(AS_ROWS, features=Features({f"sent{i}": Value("large_string") for i in range(3)})),
        pd.DataFrame(TRIPLETS, columns=["anchor", "positive", "negative"]),
        pd.DataFrame(TRIPLETS[::-1], columns=["anchor", "positive", "negative"])[::-1].reset_index(),
    ],
    ids=["tuples", "dicts", "dataset", "dataset_dict", "large_string", "frame", "frame with index"],
)
def test_reads_triplets_from_memory(load, source):
    data = load(source)
    assert data.to_list() == AS_ROWS == load(data).to_list()
    assert data.features == Features({name: Value("string") for name in ("sent0", "sent1", "sent2")})


def test_reads_the_json_lines_of_sentence_transformers(tmp_path, load, caplog):
    rows = [("q1", ["p1", "p2", None], ["n1", "n2"]), ("q2", ["p3"], ["n3", "n4", "n5"]), ("q3", ["p4"], [])]
    rows += [("q4", ["", ""], ["n6", "n7"]), ("q5", ["p5"], ["", "n8"]), ("q6", ["p6"], [" ", ""])]
    rows = records(("query", "pos", "neg"), rows)
    path = write(tmp_path / "x.jsonl", content_of("jsonl", rows))
    for source in (path, rows, Dataset.from_list(rows), pd.DataFrame(rows)):
        caplog.clear()
        assert [list(row.values()) for row in load(source)] == [
            ["q1", "p1", "n1", "n2", None],
            ["q1", "p2", "n1", "n2", None],
            ["q2", "p3", "n3", "n4", "n5"],
            ["q3", "p4", None, None, None],
            ["q5", "p5", "n8", None, None],
            ["q6", "p6", None, None, None],
        ]
        unit = "line" if source is path else "row"
        assert f"1 of 7 rows dropped for an empty cell: {unit} 4." in caplog.text
        assert f"3 of 7 rows with an empty text in a list, which is left out: {unit} 1, 5, 6." in caplog.text
        assert f"4 of 7 rows with fewer hard negatives than others: {unit} 1, 3, 5, 6." in caplog.text
    assert load(path, columns=["query", "pos"], max_rows=2)["sent1"][:] == ["p1", "p2"]


def test_files_of_different_formats_become_one_dataset(tmp_path, load):
    paths = [triplet_file(tmp_path, "csv"), str(triplet_file(tmp_path, "jsonl"))]
    assert load(paths).to_list() == AS_ROWS * 2
    assert load(paths, max_rows=3).to_list() == [*AS_ROWS, AS_ROWS[0]]
    assert load(paths, max_rows=1).to_list() == AS_ROWS[:1]
    for source in (TRIPLETS, Dataset.from_list(AS_ROWS)):
        assert load(source, max_rows=1).to_list() == AS_ROWS[:1]


def test_columns_can_be_requested_from_every_source(tmp_path, load):
    for source in (triplet_file(tmp_path, "csv"), Dataset.from_csv(str(triplet_file(tmp_path, "csv")))):
        data = load(source, columns=["negative", "anchor"])
        assert data.to_list() == [{"sent0": row[2], "sent1": row[0]} for row in TRIPLETS]
    late = '{"sent0": "a"}\n' * 120 + '{"sent0": "a", "hard_neg": "n"}\n'
    assert len(load(write(tmp_path / "x.jsonl", late), columns=["sent0"])) == 121  # the late key is not wanted


def test_every_load_warns_of_rows_dropped_for_an_empty_cell(tmp_path, load, caplog):
    path = write(tmp_path / "x.csv", "sent0,sent1\na,b\n,b\na,  \n" + "a,b\n" * 3 + "a,\n" * 6)
    for _ in range(2):
        caplog.clear()
        assert load(path).to_list() == [{"sent0": "a", "sent1": "b"}] * 4
        assert "x.csv: 8 of 12 rows dropped for an empty cell: line 3, 4, 8, 9, 10, ..." in caplog.text
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    rows = [{"sent0": a, "sent1": b} for a, b in [("a", "b"), (None, "b"), ("a", " \u00a0\t"), ("c", "None")]]
    for source in (rows, Dataset.from_list(rows)):
        caplog.clear()
        assert load(source).to_list() == [rows[0], rows[3]]
        assert "2 of 4 rows dropped for an empty cell: row 2, 3." in caplog.text


def test_a_header_that_looks_like_a_sentence_is_reported(tmp_path, load, caplog):
    load(write(tmp_path / "z.csv", "A dog runs.\nx\n"))
    assert "z.csv: the first line is taken as the header, but 'A dog runs.' looks like a sentence" in caplog.text
    caplog.clear()
    load(write(tmp_path / "z.jsonl", '{"Is it text?": "x"}\n'))
    assert not caplog.text, "a key of JSON Lines is no header"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name", ("org/name", None, "validation[:10]")),
        ("org/name:config", ("org/name", "config", "validation[:10]")),
        ("org/name:test", ("org/name", None, "test")),
        ("name:test[10%:20%]", ("name", None, "test[10%:20%]")),
        ("org/name:config:test[:5]", ("org/name", "config", "test[:5]")),
    ],
)
def test_a_dataset_of_the_hub_is_named_with_its_configuration_and_split(load, monkeypatch, name, expected):
    calls = []

    def load_dataset(name, configuration, split, **options):
        if name == "absent":
            raise ConnectionError("offline")
        calls.append((name, configuration, split))
        return Dataset.from_dict({"idx": [0], "sentence": ["One."], "label": ["a"]})

    monkeypatch.setattr("simcse_hf.data.read.load_dataset", load_dataset)
    monkeypatch.setattr("simcse_hf.data.read.get_dataset_config_names", lambda _: ["default", "config"])
    assert load(name, split="validation[:10]").to_list() == [{"sent0": "One."}]
    assert is_labelled(name)
    with pytest.raises(ValueError, match="'absent' is no file here, and could not be loaded from the hub.*offline"):
        load("absent")
    assert calls == [expected, (*expected[:2], expected[2].replace("validation[:10]", "train"))]


def test_the_fingerprint_depends_on_content_and_arguments_only(tmp_path, load):
    path = triplet_file(tmp_path, "csv")
    fingerprint = load(path)._fingerprint
    (tmp_path / "moved").mkdir()
    moved = write(tmp_path / "moved" / "elsewhere.csv", path.read_bytes())
    os.utime(moved, (0, 0))
    assert load(moved)._fingerprint == fingerprint
    assert len({fingerprint, load(path, max_rows=1)._fingerprint, load(path, columns=["anchor"])._fingerprint}) == 3
    code = "import sys, simcse_hf; print(simcse_hf.load_text_dataset(sys.argv[1], cache_dir=sys.argv[2])._fingerprint)"
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "other")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == fingerprint
    path.write_text(path.read_text().replace("Letters", "Lettres"))
    assert load(path)._fingerprint != fingerprint and load(path)[1]["sent2"] == "Lettres."


def test_streamed_texts_stay_aligned_with_the_rows(tmp_path):
    path = write(tmp_path / "a.csv", "text,n\nb,1\n,2\n")
    assert list(stream_texts(path)) == [(2, "b"), (3, "")]


@pytest.mark.parametrize(
    "name, head", [("x.txt", "a\n"), ("x.jsonl", '{"text": "'), ("x.csv", "text\n"), ("x.tsv.gz", "text\n")]
)
@pytest.mark.parametrize("reader", [load_text_dataset, load_text_stream, stream_texts])
def test_a_line_that_is_too_long_is_refused_before_it_is_read_whole(tmp_path, monkeypatch, name, head, reader):
    path = write(tmp_path / name, head + "a " * 2_000_000)
    monkeypatch.setattr(lines_module, "LONGEST_TEXT", 1000)
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"{name}, line {1 + head.count(chr(10))}: more than 16 million characters"):
        list(reader(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000  # of 4 MB


@pytest.mark.parametrize("source", ["x.json", "x.parquet", "memory"])
def test_a_text_that_is_too_long_is_refused_in_files_that_are_not_read_by_lines(tmp_path, load, monkeypatch, source):
    for module in (texts_module, lines_module):
        monkeypatch.setattr(module, "LONGEST_TEXT", 1000)
    rows = ["short", "a" * 1000, "a" * 1001]
    (tmp_path / "x.json").write_text(json.dumps([{"text": text} for text in rows]))
    pq.write_table(pa.table({"text": rows}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"row 3, column '(text|0)': more than 16 million characters"):
        load(rows if source == "memory" else tmp_path / source)
