"""Any source gives the same dataset, and no row is lost without a warning."""

import gzip
import json
import logging
import os
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, Features, Value

from simcse_hf.data.read import load_text_dataset, stream_texts

TRIPLETS = [("A dog runs.", "An animal moves.", "A cat sleeps."), ("One, two.", "Numbers.", "Letters.")]
AS_ROWS = [dict(zip(("sent0", "sent1", "sent2"), row, strict=True)) for row in TRIPLETS]


@pytest.fixture
def load(tmp_path):
    return lambda source, **options: load_text_dataset(source, cache_dir=tmp_path / "cache", **options)


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def triplet_file(folder, suffix):
    data = Dataset.from_list([dict(zip(("anchor", "positive", "negative"), row, strict=True)) for row in TRIPLETS])
    path = folder / f"triplets{suffix}"
    if suffix == ".parquet":
        pq.write_table(data.data.table, path)
        return path
    if suffix in (".json", ".jsonl"):
        rows = [json.dumps(row) for row in data]
        return write(path, "\n".join(rows) if suffix == ".jsonl" else f"[{','.join(rows)}]")
    separator = "\t" if ".tsv" in suffix else ","
    return write(path, "\n".join(separator.join(f'"{cell}"' for cell in row) for row in [list(data[0]), *TRIPLETS]))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv", ".tsv.gz", ".json", ".jsonl", ".parquet"])
@pytest.mark.parametrize("as_text", [True, False])
def test_reads_triplets_from_every_format(tmp_path, load, suffix, as_text):
    path = triplet_file(tmp_path, suffix)
    data = load(str(path) if as_text else path)
    assert data.to_list() == AS_ROWS
    assert data.features == Features({name: Value("string") for name in ("sent0", "sent1", "sent2")})


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_reads_sentences_from_txt_and_skips_blank_lines(tmp_path, load, suffix, caplog):
    data = load(write(tmp_path / f"x{suffix}", "One  space.\n\n Two.\n\n"))
    assert data.to_list() == [{"sent0": "One  space."}, {"sent0": " Two."}]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "source",
    [
        TRIPLETS,
        [list(row) for row in TRIPLETS],
        [dict(zip(("sent0", "sent1", "hard_neg"), row, strict=True)) for row in TRIPLETS],
        Dataset.from_list([dict(zip(("hard_neg", "sent1", "sent0"), row[::-1], strict=True)) for row in TRIPLETS]),
        DatasetDict(train=Dataset.from_list(AS_ROWS)),
        Dataset.from_list(AS_ROWS, features=Features({f"sent{i}": Value("large_string") for i in range(3)})),
    ],
    ids=["tuples", "lists", "dicts", "dataset", "dataset_dict", "large_string"],
)
def test_reads_triplets_from_memory(load, source):
    data = load(source)
    assert data.to_list() == AS_ROWS
    assert data.features == Features({name: Value("string") for name in ("sent0", "sent1", "sent2")})
    assert load(data).to_list() == AS_ROWS


def test_reads_data_frames(load):
    names = ["anchor", "positive", "negative"]
    assert load(pd.DataFrame(TRIPLETS, columns=names)).to_list() == AS_ROWS
    assert load(pd.DataFrame(TRIPLETS, columns=names)[::-1].reset_index()).to_list() == AS_ROWS[::-1]
    with pytest.raises(ValueError, match="the data frame has a column of mixed types.*Convert"):
        load(pd.DataFrame({"text": ["a", 3]}))


def test_reads_the_json_lines_of_sentence_transformers(tmp_path, load, caplog):
    rows = [
        {"query": "q1", "pos": ["p1", "p2"], "neg": ["n1", "n2"]},
        {"query": "q2", "pos": ["p3"], "neg": ["n3"]},
    ]
    expected = [["q1", "p1", "n1"], ["q1", "p2", "n1"], ["q2", "p3", "n3"]]
    path = write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows)))
    for source in (path, path, rows, Dataset.from_list(rows), pd.DataFrame(rows)):
        caplog.clear()
        assert [list(row.values()) for row in load(source)] == expected
        assert "1 rows list more than 1 hard negative(s)" in caplog.text
    assert load(path, columns=["query", "pos"], max_rows=2).to_list() == [
        {"sent0": "q1", "sent1": "p1"},
        {"sent0": "q1", "sent1": "p2"},
    ]
    with pytest.raises(ValueError, match="3 text column.* where 2 are expected"):
        load(path, expected_columns=2)
    pairs = write(tmp_path / "pairs.jsonl", '["q1", "p1"]\n["q2", "p2"]\n')
    assert load(pairs).to_list() == [{"sent0": "q1", "sent1": "p1"}, {"sent0": "q2", "sent1": "p2"}]


def test_an_empty_hard_negative_narrows_all_rows_instead_of_losing_its_own(tmp_path, load, caplog):
    rows = [
        {"query": "q1", "pos": ["p1"], "neg": ["n1", "n2"]},
        {"query": "q2", "pos": ["p2"], "neg": ["", "n3"]},
        {"query": "q3", "pos": ["p3"], "neg": ["  ", ""]},
    ]
    path = write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows)))
    for source in (path, rows, Dataset.from_list(rows)):
        caplog.clear()
        assert [list(row.values()) for row in load(source)] == [["q1", "p1", "n1"], ["q2", "p2", "n3"]]
        assert "dropped 1 of 3 rows for an empty cell" in caplog.text and "left 1 empty text" in caplog.text


def test_a_label_column_is_never_taken_as_the_positive(tmp_path, load, caplog):
    path = write(tmp_path / "x.csv", "text,category\nA dog runs.,animals\n")
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        assert load(path).to_list() == [{"sent0": "A dog runs."}]
    assert "x.csv: the sentences are in column 'text'; ignored 'category'." in caplog.text


def test_names_the_line_of_half_a_surrogate_pair(tmp_path, load):
    path = write(tmp_path / "x.jsonl", '{"text": "a"}\n{"text": "b \\ud83d"}\n')
    with pytest.raises(
        ValueError, match=r"x\.jsonl, line 2, column 'text': the text .* half of a surrogate pair, '.ud83d'"
    ):
        load(path)
    with pytest.raises(ValueError, match=r"list of 1 rows, row 1, .*surrogate"):
        load(["\ud83d"])
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2, .*surrogate"):
        list(stream_texts(path))


def test_a_column_name_with_thousands_of_digits_is_no_numbered_negative(tmp_path, load):
    path = write(tmp_path / "x.csv", f"sent0,sent1,hard_neg_{'1' * 5000}\na,b,c\n")
    assert load(path).to_list() == [{"sent0": "a", "sent1": "b"}]


def test_a_key_that_appears_late_in_json_lines_is_an_error_unless_columns_are_named(tmp_path, load):
    path = write(tmp_path / "x.jsonl", '{"sent0": "a", "sent1": "b"}\n' * 120 + '{"sent0": "a", "hard_neg": "n"}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl, line 121: the key 'hard_neg' does not occur"):
        load(path)
    assert len(load(path, columns=["sent0"])) == 121


def test_reads_sentences_from_a_list(load):
    assert load(["One.", "Two."]).to_list() == [{"sent0": "One."}, {"sent0": "Two."}]


def test_files_of_different_formats_become_one_dataset(tmp_path, load):
    paths = [triplet_file(tmp_path, ".csv"), str(triplet_file(tmp_path, ".jsonl"))]
    assert load(paths).to_list() == AS_ROWS * 2


def test_refuses_files_with_different_numbers_of_columns(tmp_path, load):
    single = write(tmp_path / "x.txt", "One.\n")
    with pytest.raises(ValueError, match=r"triplets\.csv has 3 text column.*x\.txt has 1 \(text\)"):
        load([triplet_file(tmp_path, ".csv"), single])


def test_refuses_a_list_that_mixes_paths_and_sentences(tmp_path, load):
    with pytest.raises(ValueError, match=r"the list holds the file .*x\.txt among other things"):
        load([str(write(tmp_path / "x.txt", "One.\n")), "A sentence."])


def test_rows_of_several_batches_keep_their_order(tmp_path, load):
    lines = [f"Sentence number {i}." for i in range(25_001)]
    data = load(write(tmp_path / "x.txt", "\n".join(lines)))
    assert data["sent0"][:] == lines
    assert load(data.add_column("sent1", lines[::-1]))[25_000] == {"sent0": lines[-1], "sent1": lines[0]}


def test_reads_at_most_max_rows(tmp_path, load):
    path = triplet_file(tmp_path, ".csv")
    assert load([path, path], max_rows=3).to_list() == [*AS_ROWS, AS_ROWS[0]]
    assert load([path, path], max_rows=1).to_list() == AS_ROWS[:1]
    assert load(path, max_rows=9).to_list() == AS_ROWS
    assert load(TRIPLETS, max_rows=1).to_list() == AS_ROWS[:1]
    assert load(Dataset.from_list(AS_ROWS), max_rows=1).to_list() == AS_ROWS[:1]
    with pytest.raises(ValueError, match="max_rows must be at least 1"):
        load(path, max_rows=0)


def test_columns_and_expected_columns_apply_to_every_source(tmp_path, load):
    for source in (triplet_file(tmp_path, ".csv"), Dataset.from_csv(str(triplet_file(tmp_path, ".csv")))):
        data = load(source, columns=["negative", "anchor"])
        assert data.to_list() == [{"sent0": row[2], "sent1": row[0]} for row in TRIPLETS]
        with pytest.raises(ValueError, match="no column 'text'; the columns are 'anchor', 'positive', 'negative'"):
            load(source, columns=["text"])
        with pytest.raises(ValueError, match="3 text column.* where 2 are expected"):
            load(source, expected_columns=2)
    with pytest.raises(ValueError, match=r"x\.txt: 1 text column\(s\) \('text'\) where 3 are expected"):
        load(write(tmp_path / "x.txt", "One.\n"), expected_columns=3)


EMPTY = "sent0,sent1\na,b\n,b\na,  \n" + "a,b\n" * 3 + "a,\n" * 6


def test_every_load_warns_of_rows_dropped_for_an_empty_cell(tmp_path, load, caplog):
    path = write(tmp_path / "x.csv", EMPTY)
    for _ in range(2):
        caplog.clear()
        assert load(path).to_list() == [{"sent0": "a", "sent1": "b"}] * 4
        assert "x.csv: dropped 8 of 12 rows for an empty cell: line 3, 4, 8, 9, 10, ..." in caplog.text
        assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("as_dataset", [True, False])
def test_warns_of_rows_in_memory_dropped_for_an_empty_cell(load, caplog, as_dataset):
    rows = [{"sent0": a, "sent1": b} for a, b in [("a", "b"), (None, "b"), ("a", " \u00a0\t"), ("c", "None")]]
    data = load(Dataset.from_list(rows) if as_dataset else rows)
    assert data.to_list() == [rows[0], rows[3]]
    assert "dropped 2 of 4 rows for an empty cell: row 2, 3." in caplog.text


def test_refuses_a_source_whose_rows_all_have_an_empty_cell(tmp_path, load):
    path = write(tmp_path / "x.csv", "sent0,sent1\na,\n,b\n")
    with pytest.raises(ValueError, match=r"x\.csv: every one of the 2 row\(s\) has an empty cell in sent0, sent1"):
        load(path)
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    with pytest.raises(ValueError, match=r"the dataset: every one of the 1 row\(s\) has an empty cell"):
        load(Dataset.from_dict({"text": [" "]}))


@pytest.mark.parametrize(("suffix", "text"), [(".csv", "a,b\n"), (".txt", "\n \n")])
def test_refuses_a_file_without_rows(tmp_path, load, suffix, text):
    with pytest.raises(ValueError, match=rf"x{suffix}: there are no rows"):
        load(write(tmp_path / f"x{suffix}", text))


def test_refuses_an_empty_list_or_dataset(load):
    with pytest.raises(ValueError, match="no rows"):
        load(Dataset.from_dict({"text": []}))
    with pytest.raises(ValueError, match="empty"):
        load([])


def test_names_the_line_and_column_of_a_cell_that_is_no_string(tmp_path, load):
    path = write(tmp_path / "x.jsonl", '{"sent0": "a", "sent1": "b"}\n{"sent0": "a", "sent1": ["b", 3]}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2, column 'sent1': expected a text, got 3"):
        load(path)
    path = write(tmp_path / "x.jsonl", '{"text": ["a"]}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1, column 'text': expected a text, got \['a'\]"):
        load(path)
    with pytest.raises(ValueError, match="column 'text' holds .*int64.*, not strings"):
        load(Dataset.from_dict({"text": [1, 2]}), columns=["text"])


def test_an_error_late_in_a_file_is_raised_at_every_load_and_leaves_no_cache(tmp_path, load):
    path = write(tmp_path / "x.csv", "sent0,sent1\n" + "a,b\n" * 20_000 + "a\n")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"x\.csv, line 20002: 1 cells"):
            load(path)
        assert not list((tmp_path / "cache").rglob("*.arrow")) and not list((tmp_path / "cache").rglob("*.json"))


def test_warns_of_a_header_that_looks_like_a_sentence(tmp_path, load, caplog):
    with pytest.raises(ValueError, match="the column names do not say"):
        load(write(tmp_path / "x.csv", "A dog runs.,An animal moves.\nx,y\n"))
    assert "x.csv: the first line is taken as the header, but 'A dog runs.' looks like a sentence" in caplog.text
    load(write(tmp_path / "z.csv", "A dog runs.\nx\n"))
    assert "z.csv: the first line is taken as the header" in caplog.text
    caplog.clear()
    load(write(tmp_path / "y.csv", "first sentence,second sentence\nx,y\n"), columns=["first sentence"])
    assert not caplog.records


def test_names_a_source_that_is_neither_file_nor_dataset(tmp_path, load, monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("offline")

    monkeypatch.setattr("simcse_hf.data.read.load_dataset", load_dataset)
    with pytest.raises(FileNotFoundError, match=r"train\.csv: no such file"):
        load("train.csv")
    with pytest.raises(FileNotFoundError, match=r"b\.txt: no such file"):
        load([write(tmp_path / "a.txt", "One.\n"), tmp_path / "b.txt"])
    with pytest.raises(FileNotFoundError, match="data/train: no such file"):
        load("./data/train")
    with pytest.raises(
        ValueError, match="'data/train' is no file here, and could not be loaded from the hub.*offline"
    ):
        load("data/train")
    with pytest.raises(ValueError, match="source must be"):
        load(3)
    with pytest.raises(ValueError, match="no split 'test'; it has train"):
        load(DatasetDict(train=Dataset.from_list(AS_ROWS)), split="test")


def test_loads_a_configuration_and_split_from_the_hub(load, monkeypatch, tmp_path):
    calls = []

    def load_dataset(*args, **options):
        calls.append((args, options))
        return Dataset.from_dict({"idx": [0], "sentence": ["One."]})

    monkeypatch.setattr("simcse_hf.data.read.load_dataset", load_dataset)
    assert load("org/name:config", split="validation[:10]").to_list() == [{"sent0": "One."}]
    load("name")
    cache_dir = str(tmp_path / "cache")
    assert calls == [
        (("org/name", "config"), {"split": "validation[:10]", "cache_dir": cache_dir}),
        (("name", None), {"split": "train", "cache_dir": cache_dir}),
    ]


def test_a_second_load_maps_the_cached_file_and_does_not_read_again(tmp_path, load, monkeypatch):
    path = triplet_file(tmp_path, ".csv")
    [file] = load(path).cache_files
    assert file["filename"].startswith(str(tmp_path / "cache" / "simcse_hf"))
    written = os.stat(file["filename"]).st_mtime_ns
    assert load(path).cache_files == [file]
    assert os.stat(file["filename"]).st_mtime_ns == written


def test_the_fingerprint_depends_on_content_and_arguments_only(tmp_path, load):
    path = triplet_file(tmp_path, ".csv")
    fingerprint = load(path)._fingerprint
    moved = tmp_path / "moved" / "elsewhere.csv"
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    os.utime(moved, (0, 0))
    assert load(moved)._fingerprint == fingerprint
    assert load(path, max_rows=1)._fingerprint != fingerprint
    assert load(path, columns=["anchor"])._fingerprint != fingerprint
    path.write_text(path.read_text().replace("Letters", "Lettres"))
    assert load(path)._fingerprint != fingerprint
    assert load(path)[1]["sent2"] == "Lettres."


def test_the_fingerprint_is_the_same_in_another_process(tmp_path, load):
    path = triplet_file(tmp_path, ".csv")
    code = (
        "import sys; from simcse_hf.data.read import load_text_dataset as load;"
        "print(load(sys.argv[1], cache_dir=sys.argv[2])._fingerprint)"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "other")]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert other == load(path)._fingerprint


def test_a_later_map_finds_its_cache_again(tmp_path, load):
    path = triplet_file(tmp_path, ".csv")
    first = load(path).map(lambda row: {"length": len(row["sent0"])})
    again = load(path).map(lambda row: {"length": len(row["sent0"])})
    assert first.cache_files and first.cache_files == again.cache_files


def test_names_a_cache_that_cannot_be_written(tmp_path):
    blocked = write(tmp_path / "file", "x")
    with pytest.raises(ValueError, match=r"cannot write to the cache .*file.*Pass another cache_dir"):
        load_text_dataset(triplet_file(tmp_path, ".csv"), cache_dir=blocked)
