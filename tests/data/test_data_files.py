"""What a user is promised of a file: its rows with their line numbers, or an error that says where it is wrong."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse_hf.data.files import DataFileNotFoundError, MemoryTable, open_table

ROWS = [("A dog runs.", "An animal moves."), ("Zwölf Boxkämpfer, “jagend”.", 'He said "no", twice.')]


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def contents(kind):
    records = [dict(zip(("a", "b"), row, strict=True)) for row in ROWS]
    if kind == "txt":
        return "".join(f"{a}\n" for a, _ in ROWS)
    if kind in ("csv", "tsv"):
        lines = []
        writer = csv.writer(type("Sink", (), {"write": lines.append}), delimiter={"csv": ",", "tsv": "\t"}[kind])
        writer.writerows([("a", "b"), *ROWS])
        return "".join(lines)
    if kind == "json":
        return json.dumps(records, indent=1)
    if kind == "jsonl":
        return "".join(json.dumps(record) + "\n" for record in records)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("kind", ["txt", "csv", "tsv", "json", "jsonl", "parquet"])
def test_every_format_and_its_gz_gives_the_same_rows(tmp_path, kind, gz):
    table = open_table(write(tmp_path / f"data.{kind}{gz}", contents(kind)))
    if kind == "txt":
        assert table.columns == ["text"]
        assert [list(cells) for _, cells in table.rows(["text"])] == [[a] for a, _ in ROWS]
    else:
        assert table.columns == ["a", "b"]
        assert [list(cells) for _, cells in table.rows(["b", "a"])] == [[b, a] for a, b in ROWS]
    start = 2 if kind in ("csv", "tsv") else 1
    assert [number for number, _ in table.rows(table.columns)] == [start, start + 1]


def test_extension_is_read_in_any_case(tmp_path):
    assert open_table(write(tmp_path / "DATA.TXT", "One.\n")).sample() == [("One.",)]


def test_json_lines_in_a_json_file(tmp_path):
    assert open_table(write(tmp_path / "x.json", contents("jsonl"))).sample() == [list(row) for row in ROWS]


def test_byte_order_mark_is_no_part_of_the_text(tmp_path):
    assert open_table(write(tmp_path / "x.txt", "\ufeffOne.\n")).sample() == [("One.",)]
    assert open_table(write(tmp_path / "x.csv", '\ufeff"a",b\n1,2\n')).columns == ["a", "b"]


def test_txt_keeps_inner_white_space_and_splits_at_line_feeds_only(tmp_path):
    table = open_table(write(tmp_path / "x.txt", "  two  spaces\t\r\n\n \nform\x0cfeed and\u2028separator\nlast"))
    assert list(table.rows(["text"])) == [
        (1, ("  two  spaces\t",)),
        (4, ("form\x0cfeed and\u2028separator",)),
        (5, ("last",)),
    ]
    assert table.blank_lines == 2


def test_csv_line_numbers_count_blank_lines_and_lines_inside_quotes(tmp_path):
    table = open_table(write(tmp_path / "x.csv", 'a,b\n\n"one\ntwo",x\ny,z\n'))
    assert list(table.rows(["a"])) == [(3, ["one\ntwo"]), (5, ["y"])]
    assert table.blank_lines == 1


def test_csv_cell_longer_than_the_csv_modules_limit(tmp_path):
    limit = csv.field_size_limit()
    long = "word " * (limit // 4)
    assert open_table(write(tmp_path / "x.csv", f"a,b\n{long},x\n")).sample() == [[long, "x"]]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(("line", "count"), [("only one", 1), ("one,two,three", 3)])
def test_csv_row_with_another_number_of_cells(tmp_path, line, count):
    table = open_table(write(tmp_path / "x.csv", f"a,b\nx,y\n{line}\n"))
    with pytest.raises(ValueError, match=rf"x\.csv, line 3: {count} cells where the header has 2 \(a, b\)"):
        list(table.rows(["a"]))


def test_csv_quote_that_never_closes(tmp_path):
    table = open_table(write(tmp_path / "x.csv", 'a,b\nx,y\n"open,z\nmore,cells\n'))
    with pytest.raises(ValueError, match=r"x\.csv, line 3: not valid csv: .*doubled"):
        list(table.rows(["a"]))


def test_tsv_raw_quotes_do_not_swallow_the_lines_between_them(tmp_path):
    table = open_table(write(tmp_path / "x.tsv", 'a\tb\n"Yes\tx\nhe said."\ty\n'))
    with pytest.raises(ValueError, match=r"x\.tsv, line 2: .* runs on to line 3"):
        list(table.rows(["a"]))


def test_csv_that_is_separated_by_something_else(tmp_path):
    path = write(tmp_path / "x.csv", "sent0\tsent1\nx\ty\n")
    with pytest.raises(ValueError, match=r"x\.csv: .* pass delimiter='\\t'"):
        open_table(path)
    assert open_table(path, delimiter="\t").sample() == [["x", "y"]]
    with pytest.raises(ValueError, match="delimiter must be one character"):
        open_table(path, delimiter="::")


def test_delimiter_for_a_format_without_one(tmp_path):
    with pytest.raises(ValueError, match=r"x\.txt: a delimiter"):
        open_table(write(tmp_path / "x.txt", "One.\n"), delimiter="\t")


def test_column_name_twice(tmp_path):
    with pytest.raises(ValueError, match=r"x\.csv: column name\(s\) 'a' occur more than once"):
        open_table(write(tmp_path / "x.csv", "a,b,a\n1,2,3\n"))


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".json", ".parquet", ".txt.gz"])
def test_empty_file(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.touch()
    with pytest.raises(ValueError, match=rf"x{suffix}: the file is empty"):
        open_table(path)


@pytest.mark.parametrize(("suffix", "content"), [(".csv", "\n\n"), (".json", "[]"), (".jsonl", "\n")])
def test_file_without_rows_or_header(tmp_path, suffix, content):
    with pytest.raises(ValueError, match=rf"x{suffix}: the file holds no"):
        open_table(write(tmp_path / f"x{suffix}", content))


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".txt.gz"])
def test_bytes_that_are_not_utf8(tmp_path, suffix):
    first = {".csv": "a\n", ".jsonl": '{"a": "b"}\n'}.get(suffix, "Ünd\n").encode()
    with pytest.raises(
        ValueError, match=rf"x{suffix}, line 2: byte 0xe9 at byte offset {len(first) + 3} .*WINDOWS-1252"
    ):
        table = open_table(write(tmp_path / f"x{suffix}", first + b"caf\xe9 noir\n"))
        list(table.rows(table.columns))


def test_offset_of_a_bad_byte_counts_the_byte_order_mark(tmp_path):
    with pytest.raises(ValueError, match=r"line 1: byte 0xe9 at byte offset 6 "):
        open_table(write(tmp_path / "x.txt", b"\xef\xbb\xbfcaf\xe9\n")).sample()


def test_utf16_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"line 1: byte 0xff at byte offset 0 .* UTF-16"):
        open_table(write(tmp_path / "x.txt", "One.\n".encode("utf-16"))).sample()


def test_missing_file_is_both_kinds_of_error(tmp_path):
    with pytest.raises(DataFileNotFoundError, match=r"nowhere\.csv: no such file") as caught:
        open_table(tmp_path / "nowhere.csv")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, ValueError)


def test_directory_and_unknown_extension(tmp_path):
    with pytest.raises(ValueError, match="is a directory"):
        open_table(tmp_path)
    with pytest.raises(ValueError, match=r"x\.docx: unknown extension '\.docx'; the name must end in \.txt, \.csv"):
        open_table(write(tmp_path / "x.docx", "One.\n"))


def test_gzip_that_is_cut_or_none(tmp_path):
    whole = gzip.compress("".join(f"Sentence {i}.\n" for i in range(5000)).encode())
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.txt\.gz: cannot be read to its end"):
        list(open_table(cut).rows(["text"]))
    plain = tmp_path / "plain.txt.gz"
    plain.write_text("One.\n")
    with pytest.raises(ValueError, match=r"plain\.txt\.gz: cannot be read to its end"):
        list(open_table(plain).rows(["text"]))


def test_json_that_is_none(tmp_path):
    table = open_table(write(tmp_path / "x.jsonl", '{"a": "b"}\n' * 200 + '{"a": \n'))
    with pytest.raises(ValueError, match=r"x\.jsonl, line 201: not valid JSON"):
        list(table.rows(["a"]))
    with pytest.raises(ValueError, match=r"x\.json, line 2: not valid JSON"):
        open_table(write(tmp_path / "x.json", '[{"a": "b"},\n{"a" "c"}]'))
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1: expected an object .* got str"):
        open_table(write(tmp_path / "x.jsonl", '"a"\n'))


def test_json_key_that_the_first_row_lacks(tmp_path):
    table = open_table(write(tmp_path / "x.jsonl", '{"a": "1"}\n{"a": "2", "b": "3"}\n'))
    assert table.columns == ["a", "b"]
    assert list(table.rows(["b"])) == [(1, [None]), (2, ["3"])]


def test_parquet_that_is_none(tmp_path):
    with pytest.raises(ValueError, match=r"x\.parquet: not a readable parquet file"):
        open_table(write(tmp_path / "x.parquet", "PAR1 but not really"))


def test_rows_in_memory():
    assert list(MemoryTable(["a", "b"]).rows(["text"])) == [(1, ("a",)), (2, ("b",))]
    assert list(MemoryTable([("a", "b")]).rows(["1", "0"])) == [(1, ["b", "a"])]
    assert list(MemoryTable([{"x": "a"}, {"y": "b"}]).rows(["x", "y"])) == [(1, ["a", None]), (2, [None, "b"])]
    with pytest.raises(ValueError, match="row 2: .* does not have the 2 cells of row 1"):
        list(MemoryTable([("a", "b"), ("c",)]).rows(["0"]))
    with pytest.raises(ValueError, match="row 1: expected a string, tuple or dict, got 3"):
        MemoryTable([3])
    with pytest.raises(ValueError, match="list of rows is empty"):
        MemoryTable([])
