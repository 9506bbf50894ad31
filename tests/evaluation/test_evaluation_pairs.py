"""Reading scored pairs: every layout that is promised, and an error with file and line for what is not."""

import gzip
import json

import pytest

from simcse_hf.evaluation import ScoredPairs, read_scored_pairs

EXPECTED = ScoredPairs("x", ["a cat", 'he said "no"'], ["a dog", "it is , red"], [4.5, 0.0])
STSB = 'g\tf\t2012\t1\t4.5\ta cat\ta dog\ng\tf\t2012\t2\t0.0\the said "no"\tit is , red\textra\tsource\n'


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "name, text",
    [
        ("x.csv", STSB),
        ("x.tsv", '4.5\ta cat\ta dog\n0.0\the said "no"\tit is , red\n'),
        ("x.tsv", 'sentence1\tsentence2\tscore\na cat\ta dog\t4.5\nhe said "no"\tit is , red\t0.0\n'),
        ("x.csv", 'score,sentence1,sentence2\n4.5,a cat,a dog\n0.0,"he said ""no""","it is , red"\n'),
        ("x.csv", '\ufeffsent1,sent2,label\r\na cat,a dog,4.5\r\n"he said ""no""","it is , red",0\r\n'),
        (
            "x.txt",
            "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n"
            '1\ta cat\ta dog\t4.5\n2\the said "no"\tit is , red\t0',
        ),
        ("x.csv", STSB + "g\tf\t2012\t3\t\tnot\tscored\n"),
        ("x.csv", STSB.replace("a cat", "  a \u00a0cat ")),
        ("x.tsv", '4.5\ta cat\ta dog\r\n0.0\the said "no"\tit is , red\r\n'),
    ],
)
def test_every_layout_is_read(tmp_path, name, text):
    assert read_scored_pairs(write(tmp_path, name, text)) == EXPECTED


def test_jsonl_parquet_and_gzip_files_are_read(tmp_path):
    rows = [
        {"sentence1": a, "sentence2": b, "similarity_score": s}
        for a, b, s in zip(EXPECTED.sentences1, EXPECTED.sentences2, EXPECTED.scores, strict=True)
    ]
    unscored = {"sentence1": "not", "sentence2": "scored", "similarity_score": None}
    lines = "\n".join(json.dumps(row) for row in [*rows, unscored])
    assert read_scored_pairs(write(tmp_path, "x.jsonl", lines)) == EXPECTED
    assert read_scored_pairs(write(tmp_path, "x.csv.gz", gzip.compress(STSB.encode()))) == EXPECTED

    import pandas

    pandas.DataFrame([*rows, unscored]).to_parquet(tmp_path / "x.parquet")
    assert read_scored_pairs(tmp_path / "x.parquet") == EXPECTED


@pytest.mark.parametrize(
    "name, text, line, message",
    [
        ("x.csv", STSB + "g\tf\t2012\t3\t1.0\tonly one\n", 3, "6 columns"),
        ("x.csv", STSB + "g\tf\t2012\t3\tfour\ta\tb\n", 3, "'four' is not a finite number"),
        ("x.tsv", "1\ta\tb\nnan\ta\tb\n", 2, "not a finite number"),
        ("x.tsv", "1\ta\tb\n1\t \tb\n", 2, "empty"),
        ("x.tsv", b"1\ta\tb\n1\tcaf\xe9\tb\n", 2, "not UTF-8"),
        ("x.tsv", "sentence1\tsentence2\tscore\na\tb\t1\na\tb\n", 3, "2 columns instead of 3"),
        ("x.csv", "sentence1,sentence2,score\na, b, c,1\n", 2, "4 columns instead of 3"),
        ("x.csv", 'sentence1,sentence2,score\na,b,1\n"a,b,1\n', 3, "not valid csv"),
        ("x.csv", "one,two\na,b\n", 1, "expected the columns"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 1}\nnothing\n', 2, "not valid JSON"),
        ("x.jsonl", '{"sentence1": "a", "score": 1}\n{"sentence2": "b"}\n', 1, "must be a string"),
        ("x.jsonl", "[" * 3000, 1, "not valid JSON"),
        ("x.jsonl", f'{{"sentence1": "a", "sentence2": "b", "score": 1{"0" * 400}}}', 1, "not a finite number"),
        ("x.jsonl", '{"sentence1": "a", "sentence2": 7, "score": 1}\n', 1, "must be a string"),
    ],
)
def test_errors_name_the_file_and_line_of_bad_rows(tmp_path, name, text, line, message):
    path = write(tmp_path, name, text)
    with pytest.raises(ValueError, match=message) as error:
        read_scored_pairs(path)
    assert f"{path}, line {line}:" in str(error.value)


@pytest.mark.parametrize("text", ["", "\n", "sentence1\tsentence2\tscore\n", "sentence1\tsentence2\tscore\na\tb\t\n"])
def test_a_file_without_a_scored_pair_is_an_error(tmp_path, text):
    with pytest.raises(ValueError, match="no scored sentence pair|expected the columns"):
        read_scored_pairs(write(tmp_path, "x.tsv", text))


def test_damaged_and_missing_files_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="cannot be read to its end"):
        read_scored_pairs(write(tmp_path, "x.tsv.gz", gzip.compress(STSB.encode())[:-9]))
    import pandas

    pandas.DataFrame({"a": ["x"], "b": ["y"]}).to_parquet(tmp_path / "names.parquet")
    with pytest.raises(ValueError, match=r"names\.parquet.*The columns are 'a', 'b'"):
        read_scored_pairs(tmp_path / "names.parquet")
    with pytest.raises(ValueError, match="not a readable parquet file"):
        read_scored_pairs(write(tmp_path, "x.parquet", "no"))
    with pytest.raises(FileNotFoundError, match="absent.tsv"):
        read_scored_pairs(tmp_path / "absent.tsv")
