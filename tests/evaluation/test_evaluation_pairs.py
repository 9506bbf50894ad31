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
