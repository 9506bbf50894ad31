"""Reading a file from the place of any row gives the same rows as reading it from the start."""

import gzip
import json
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse_hf.data.files import open_table
from simcse_hf.data.lines import FIRST, Place

CONTENTS = {
    "lines.txt": b"\xef\xbb\xbfone\n\n two\r\nthree\rf\xc3\xa4nf\n\n\nsix",
    "table.csv": b'\n"text",n\n"one",1\n\n"two\r\nlines, ""quoted""",2\nthree,3\r\n"f\xc3\xa4nf",4',
    "table.tsv": b"text\tn\none\t1\ntwo\t2\nthree\t3\n",
    "rows.jsonl": '{"text": "one"}\n\n{"text": "zwöi"}\r\n{"text": "three"}\n'.encode(),
    "array.json": json.dumps([{"text": word} for word in ("one", "two", "three")]).encode(),
}


def rows_of(path, start=FIRST):
    table = open_table(path)
    return [(place, tuple(cells)) for place, cells in table.placed_rows(["text"], start)]


@pytest.mark.parametrize("name", [*CONTENTS, *(f"{name}.gz" for name in CONTENTS)])
def test_the_rows_from_any_place_on_are_the_rest_of_the_file(tmp_path, name):
    path, content = tmp_path / name, CONTENTS[name.removesuffix(".gz")]
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    rows = rows_of(path)
    assert len(rows) >= 3
    for position, (place, _) in enumerate(rows):
        assert rows_of(path, place) == rows[position:]
    assert open_table(path).can_seek == (name in CONTENTS and name != "array.json")


def test_a_parquet_file_is_read_from_the_row_group_that_holds_the_place(tmp_path, monkeypatch):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"n": range(25), "text": [f"text {n}" for n in range(25)]}), path, row_group_size=10)
    rows = rows_of(path)
    assert [place.number for place, _ in rows] == list(range(1, 26))
    for position, (place, _) in enumerate(rows):
        assert rows_of(path, place) == rows[position:]
    table, groups = open_table(path), []
    iterate = table._file.iter_batches

    class File:
        metadata = table._file.metadata

        def iter_batches(self, *arguments, row_groups=None, **options):
            groups.append(row_groups)
            return iterate(*arguments, row_groups=row_groups, **options)

    table._file = File()
    assert len(list(table.placed_rows(["text"], rows[20][0]))) == 5
    assert groups == [[2]]


def test_an_error_behind_the_place_names_the_line_of_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "one"}\n' * 150 + '{"text": \n')
    table = open_table(path)
    places = table.placed_rows(["text"])
    next(places)
    second, _ = next(places)
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 151: not valid JSON"):
        list(table.placed_rows(["text"], second))
    path = tmp_path / "table.csv"
    path.write_text("text,n\none,1\ntwo,2\nthree,3,4\n")
    table = open_table(path)
    _, (second, _) = islice(table.placed_rows(["text"]), 2)
    with pytest.raises(ValueError, match=r"table\.csv, line 4: 3 cells"):
        list(table.placed_rows(["text"], second))
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\ntwo\nb\xe4d\n")
    with pytest.raises(ValueError, match="line 3: byte 0xe4 at byte offset 9 is not UTF-8"):
        list(open_table(path).placed_rows(["text"], Place(2, 4)))
