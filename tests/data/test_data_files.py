"""A file gives its rows with their line numbers, or an error that says where it is wrong."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse_hf.data.read import DataFileNotFoundError, open_table

ROWS = [("A dog runs.", "An animal moves."), ("Zwölf Boxkämpfer, “jagend”.", 'He said "no", twice.')]


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def contents(extension):
    records = [dict(zip(("a", "b"), row, strict=True)) for row in ROWS]
    if extension == "txt":
        return "".join(f"{a}\n" for a, _ in ROWS)
    if extension in ("csv", "tsv"):
        lines = []
        writer = csv.writer(type("Sink", (), {"write": lines.append}), delimiter={"csv": ",", "tsv": "\t"}[extension])
        writer.writerows([("a", "b"), *ROWS])
        return "".join(lines)
    if extension == "json":
        return json.dumps(records, indent=1)
    if extension == "jsonl":
        return "".join(json.dumps(record) + "\n" for record in records)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("extension", ["txt", "csv", "tsv", "json", "jsonl", "parquet"])
def test_every_format_gives_the_same_rows_packed_or_not(tmp_path, extension, gz):
    table = open_table(write(tmp_path / f"data.{extension}{gz}", contents(extension)))
    if extension == "txt":
        assert table.columns == ["text"]
        assert [list(cells) for _, cells in table.rows(["text"])] == [[a] for a, _ in ROWS]
    else:
        assert table.columns == ["a", "b"]
        assert [list(cells) for _, cells in table.rows(["b", "a"])] == [[b, a] for a, b in ROWS]
    start = 2 if extension in ("csv", "tsv") else 1
    assert [number for number, _ in table.rows(table.columns)] == [start, start + 1]


def test_the_extension_may_be_in_upper_case(tmp_path):
    assert open_table(write(tmp_path / "DATA.TXT", "One.\n")).sample() == [("One.",)]


def test_a_json_file_may_hold_json_lines(tmp_path):
    assert open_table(write(tmp_path / "x.json", contents("jsonl"))).sample() == [list(row) for row in ROWS]


def test_the_byte_order_mark_is_removed(tmp_path):
    assert open_table(write(tmp_path / "x.txt", "\ufeffOne.\n")).sample() == [("One.",)]
    assert open_table(write(tmp_path / "x.csv", '\ufeff"a",b\n1,2\n')).columns == ["a", "b"]


def test_txt_keeps_inner_white_space_and_does_not_split_at_unicode_separators(tmp_path):
    table = open_table(write(tmp_path / "x.txt", "  two  spaces\t\r\n\n \nform\x0cfeed and\u2028separator\nlast"))
    assert list(table.rows(["text"])) == [
        (1, ("  two  spaces\t",)),
        (4, ("form\x0cfeed and\u2028separator",)),
        (5, ("last",)),
    ]


def test_csv_line_numbers_count_blank_lines_and_line_breaks_in_cells(tmp_path):
    table = open_table(write(tmp_path / "x.csv", 'a,b\n\n"one\ntwo",x\ny,z\n'))
    assert list(table.rows(["a"])) == [(3, ["one\ntwo"]), (5, ["y"])]


def test_reads_csv_cells_longer_than_the_limit_of_the_csv_module(tmp_path):
    long = "word " * 40_000
    assert open_table(write(tmp_path / "x.csv", f"a,b\n{long},x\n")).sample() == [[long, "x"]]


@pytest.mark.parametrize(("line", "count"), [("only one", 1), ("one,two,three", 3)])
def test_refuses_a_csv_row_with_missing_or_extra_cells(tmp_path, line, count):
    table = open_table(write(tmp_path / "x.csv", f"a,b\nx,y\n{line}\n"))
    with pytest.raises(ValueError, match=rf"x\.csv, line 3: {count} cells where the header has 2 \(a, b\)"):
        list(table.rows(["a"]))


def test_refuses_a_csv_quote_that_never_closes(tmp_path):
    table = open_table(write(tmp_path / "x.csv", 'a,b\nx,y\n"open,z\nmore,cells\n'))
    with pytest.raises(ValueError, match=r"x\.csv, line 3: not valid csv: .*doubled"):
        list(table.rows(["a"]))


def test_refuses_unescaped_tsv_quotes_that_would_swallow_lines(tmp_path):
    table = open_table(write(tmp_path / "x.tsv", 'a\tb\n"Yes\tx\nhe said."\ty\n'))
    with pytest.raises(ValueError, match=r"x\.tsv, line 2: .* runs on to line 3"):
        list(table.rows(["a"]))


@pytest.mark.parametrize("header", ["sent0\tsent1", "sent0;sent1", "a|b|c"])
def test_refuses_a_csv_file_with_another_delimiter(tmp_path, header):
    with pytest.raises(ValueError, match=r"x\.csv: the header is the one column .* by commas"):
        open_table(write(tmp_path / "x.csv", f"{header}\nx\ty\n"))


def test_refuses_a_repeated_column_name(tmp_path):
    with pytest.raises(ValueError, match=r"x\.csv: column name\(s\) 'a' occur more than once"):
        open_table(write(tmp_path / "x.csv", "a,b,a\n1,2,3\n"))


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".json", ".parquet", ".txt.gz"])
def test_refuses_an_empty_file(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.touch()
    with pytest.raises(ValueError, match=rf"x{suffix}: the file is empty"):
        open_table(path)


@pytest.mark.parametrize(("suffix", "content"), [(".csv", "\n\n"), (".json", "[]"), (".jsonl", "\n")])
def test_refuses_a_file_without_header_or_rows(tmp_path, suffix, content):
    with pytest.raises(ValueError, match=rf"x{suffix}: the file holds no"):
        open_table(write(tmp_path / f"x{suffix}", content))


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".txt.gz"])
def test_names_line_and_offset_of_a_byte_that_is_not_utf8(tmp_path, suffix):
    first = {".csv": "a\n", ".jsonl": '{"a": "b"}\n'}.get(suffix, "Ünd\n").encode()
    with pytest.raises(
        ValueError, match=rf"x{suffix}, line 2: byte 0xe9 at byte offset {len(first) + 3} .*WINDOWS-1252"
    ):
        table = open_table(write(tmp_path / f"x{suffix}", first + b"caf\xe9 noir\n"))
        list(table.rows(table.columns))


def test_the_offset_of_a_bad_byte_counts_the_byte_order_mark(tmp_path):
    with pytest.raises(ValueError, match=r"line 1: byte 0xe9 at byte offset 6 "):
        open_table(write(tmp_path / "x.txt", b"\xef\xbb\xbfcaf\xe9\n")).sample()


def test_recognises_utf16(tmp_path):
    with pytest.raises(ValueError, match=r"line 1: byte 0xff at byte offset 0 .* UTF-16"):
        open_table(write(tmp_path / "x.txt", "One.\n".encode("utf-16"))).sample()


def test_a_missing_file_is_a_file_not_found_error_and_a_value_error(tmp_path):
    with pytest.raises(DataFileNotFoundError, match=r"nowhere\.csv: no such file") as caught:
        open_table(tmp_path / "nowhere.csv")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, ValueError)


def test_refuses_a_directory_and_an_unknown_extension(tmp_path):
    with pytest.raises(ValueError, match="is a directory"):
        open_table(tmp_path)
    with pytest.raises(ValueError, match=r"x\.docx: unknown extension '\.docx'\. The name must end in \.txt, \.csv"):
        open_table(write(tmp_path / "x.docx", "One.\n"))


def test_refuses_a_broken_gzip_file(tmp_path):
    whole = gzip.compress("".join(f"Sentence {i}.\n" for i in range(5000)).encode())
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.txt\.gz: cannot be read to its end"):
        list(open_table(cut).rows(["text"]))
    plain = tmp_path / "plain.txt.gz"
    plain.write_text("One.\n")
    with pytest.raises(ValueError, match=r"plain\.txt\.gz: cannot be read to its end"):
        list(open_table(plain).rows(["text"]))


def test_names_the_line_of_malformed_json(tmp_path):
    table = open_table(write(tmp_path / "x.jsonl", '{"a": "b"}\n' * 200 + '{"a": \n'))
    with pytest.raises(ValueError, match=r"x\.jsonl, line 201: not valid JSON"):
        list(table.rows(["a"]))
    with pytest.raises(ValueError, match=r"x\.json, line 2: not valid JSON"):
        open_table(write(tmp_path / "x.json", '[{"a": "b"},\n{"a" "c"}]'))
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1: expected an object .* got 'a'"):
        open_table(write(tmp_path / "x.jsonl", '"a"\n'))


def test_a_json_key_may_be_missing_in_the_first_row(tmp_path):
    table = open_table(write(tmp_path / "x.jsonl", '{"a": "1"}\n{"a": "2", "b": "3"}\n'))
    assert table.columns == ["a", "b"]
    assert list(table.rows(["b"])) == [(1, [None]), (2, ["3"])]


def test_refuses_a_file_that_is_not_parquet(tmp_path):
    with pytest.raises(ValueError, match=r"x\.parquet: not a readable parquet file"):
        open_table(write(tmp_path / "x.parquet", "PAR1 but not really"))


@pytest.mark.parametrize("ends", ["\r", "\r\n", "\n"])
def test_every_line_end_separates_rows(tmp_path, ends):
    table = open_table(write(tmp_path / "x.txt", ends.join(["One.", "Two.", "", "Four."])))
    assert list(table.rows(["text"])) == [(1, ("One.",)), (2, ("Two.",)), (4, ("Four.",))]
    table = open_table(write(tmp_path / "x.csv", ends.join(["a,b", "1,2", "3,4", ""])))
    assert list(table.rows(["b"])) == [(2, ["2"]), (3, ["4"])]
    table = open_table(write(tmp_path / "x.jsonl", ends.join(['{"a": "1"}', '{"a": "2"}'])))
    assert list(table.rows(["a"])) == [(1, ["1"]), (2, ["2"])]


def test_refuses_a_json_key_that_first_appears_after_the_rows_that_name_the_columns(tmp_path):
    table = open_table(write(tmp_path / "x.jsonl", '{"a": "1"}\n' * 150 + '{"a": "1", "hard_neg": "2"}\n'))
    assert len(list(table.rows(["a"]))) == 151
    table.refuse_late_keys = True
    with pytest.raises(ValueError, match=r"x\.jsonl, line 151: the key 'hard_neg' does not occur in the first 100"):
        list(table.rows(["a"]))


def test_json_rows_may_be_arrays_of_texts(tmp_path):
    for content in ('["a", "b"]\n["c", "d"]\n', '[["a", "b"], ["c", "d"]]'):
        table = open_table(write(tmp_path / "x.jsonl", content))
        assert table.positional and table.columns == ["0", "1"]
        assert list(table.rows(["1", "0"])) == [(1, ["b", "a"]), (2, ["d", "c"])]


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' + "1" * 5000 + "}"], ids=["nested", "long number"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_json_that_python_refuses_to_read_is_named_with_its_line(tmp_path, name, line):
    path = write(tmp_path / name, line + "\n")
    with pytest.raises(ValueError, match=rf"{name}, line 1: not valid JSON: (maximum recursion|Exceeds)"):
        open_table(path)


@pytest.mark.parametrize("gz", ["", ".gz"])
def test_a_parquet_file_that_is_damaged_anywhere_is_named(tmp_path, gz):
    content = contents("parquet")
    read = 0
    for place in range(0, len(content), 7):
        damaged = content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :]
        path = write(tmp_path / f"x.parquet{gz}", damaged)
        try:
            table = open_table(path)
            read += len(list(table.rows(table.columns))) == len(ROWS)
        except ValueError as error:
            assert str(path) in str(error)
    assert read < len(range(0, len(content), 7))


def test_a_quoted_cell_over_several_lines_is_reported_once(tmp_path, caplog):
    """Two stray opening quotes turned 100 lines into 30 rows without a word."""
    path = tmp_path / "t.csv"
    lines = [f"sentence {number}" for number in range(100)]
    lines[10], lines[80] = '"Quoted at its start', 'and at its end"'
    path.write_text("\n".join(["text", *lines]) + "\n")
    table = open_table(path)
    assert len(list(table.rows(["text"]))) == 30 == len(list(table.rows(["text"])))
    assert caplog.text.count("t.csv, line 12: a cell that opens with a double quote runs on to line 82") == 1


def test_a_csv_file_with_a_row_on_each_line_gets_no_warning(tmp_path, caplog):
    path = tmp_path / "t.csv"
    path.write_text('text,n\n"a, b",1\n\n"say ""hi""",2\n')
    assert len(list(open_table(path).rows(["text"]))) == 2 and not caplog.text
