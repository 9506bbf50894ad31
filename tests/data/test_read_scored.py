"""Texts with scores: pairs in every layout of a file, and the candidates of a query."""

import json
from dataclasses import replace

import data_helpers
import pytest
from datasets import Dataset
from evaluation_helpers import write
from trainer_helpers import refuses

from simcse_hf.data import read
from simcse_hf.data.scored_pairs import ScoredPairs, read_scored_lists, read_scored_pairs

# --- pairs ---

EXPECTED = ScoredPairs("x", ["a cat", 'he said "no"'], ["a dog", "it is , red"], [4.5, 0.0])
STSB = 'g\tf\t2012\t1\t4.5\ta cat\ta dog\ng\tf\t2012\t2\t0.0\the said "no"\tit is , red\textra\tsource\n'
RECORDS = [
    {"sentence1": "a cat", "sentence2": "a dog", "similarity_score": 4.5},
    {"sentence1": 'he said "no"', "sentence2": "it is , red", "similarity_score": 0.0},
    {"sentence1": "not", "sentence2": "scored", "similarity_score": None},
]


@pytest.mark.parametrize(
    "name, text",
    [
        ("x.csv", STSB),
        ("x.tsv", '4.5\ta cat\ta dog\n0.0\the said "no"\tit is , red\n'),
        (
            "x.tsv",
            'sentence1\tsentence2\tscore\na cat\ta dog\t4.5\nhe said "no"\tit is , red\t0.0\n',
        ),
        (
            "x.csv",
            '\ufeffsent1,sent2,label\r\na cat,a dog,4.5\r\n"he said ""no""","it is , red",0\r\n',
        ),
        (
            "x.txt",
            "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n"
            '1\ta cat\ta dog\t4.5\n2\the said "no"\tit is , red\t0',
        ),
        (
            "x.csv",
            'score,Positive,anchor\n4.5,a dog,a cat\n0.0,"it is , red","he said ""no"""\n',
        ),
        ("x.csv", STSB + "g\tf\t2012\t3\t\tnot\tscored\n"),
        ("x.csv", STSB.replace("a cat", "  a \u00a0cat ")),
        ("x.csv", STSB.replace("a cat", "a\rcat")),
        ("x.jsonl", data_helpers.content_of("jsonl", RECORDS)),
        ("x.parquet", data_helpers.content_of("parquet", RECORDS)),
    ],
)
def test_every_layout_is_read(tmp_path, name, text):
    assert read_scored_pairs(data_helpers.write(tmp_path / name, text)) == EXPECTED


def test_quotation_marks_of_the_raw_files_are_text(tmp_path, caplog):
    raw = write(tmp_path / "raw.tsv", ['4.0\t"quoted as a whole"\t"Yes," she said', "1.0\ta\tb"])
    pairs = read_scored_pairs(raw)
    assert pairs.sentences1 == ['"quoted as a whole"', "a"]
    assert pairs.sentences2 == ['"Yes," she said', "b"]
    glue = write(
        tmp_path / "glue.tsv",
        ["score\tsentence1\tsentence2", '4.0\t"quoted as a whole"\t"Yes," she said'],
    )
    pairs = read_scored_pairs(glue)
    assert [*pairs.sentences1, *pairs.sentences2] == ['"quoted as a whole"', '"Yes," she said']
    assert "glue.tsv, line 2: not valid csv" in caplog.text and "read as part of the text" in caplog.text


def test_the_pairs_argument_is_a_file_or_a_data_set_with_a_split(tmp_path, monkeypatch):
    path = write(tmp_path / "mine.tsv", ["1\ta\tb", "2\tc\td"])
    assert read_scored_pairs(str(path)).name == "mine"
    asked = []

    def load_from_hub(source, split, **options):
        asked.append((source, split))
        return Dataset.from_list(RECORDS)

    monkeypatch.setattr(read, "load_from_hub", load_from_hub)
    for name in ("someone/sts-nl", "someone/sts-nl:validation"):
        assert read_scored_pairs(name) == replace(EXPECTED, name="someone/sts-nl")
    assert asked == [("someone/sts-nl", "test"), ("someone/sts-nl:validation", "test")]


# --- scores of the candidates of a query ---


def test_each_positive_becomes_a_row_with_all_negatives(tmp_path):
    row = {
        "query": "q",
        "pos": ["a", "b"],
        "neg": ["c"],
        "pos_scores": [3, 2.5],
        "neg_scores": [-1],
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    rows = read_scored_lists(tmp_path / "rows.jsonl")
    assert rows["texts"][:] == [["q", "a", "c"], ["q", "b", "c"]]
    assert rows["score"][:] == [[3.0, -1.0], [2.5, -1.0]]
    assert rows["relations"][:] == [[0, 2], [0, 2]]


def test_a_column_holds_the_scores_of_all_candidates_in_their_order():
    row = {"query": "q", "positive": "a", "negative_1": "b", "negative_2": "c"}
    for column in ("scores", "label", "score"):
        rows = read_scored_lists([row | {column: [3, 2, 1]}])
        assert rows[0]["texts"] == ["q", "a", "b", "c"]
        assert rows[0]["score"] == [3.0, 2.0, 1.0]


GOOD = {"query": "q", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [3.0], "neg_scores": [1.0, 0.0]}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"neg_scores": [1.0, None]}, "2: None"),
        ({"neg_scores": [1.0, "high"]}, "2: 'high'"),
        ({"neg_scores": [1.0]}, "2: 1 2"),
        ({"neg": [], "neg_scores": []}, "2: negative"),
        ({"neg": ["b", " "]}, "2: empty"),
        ({"query": None}, "2: text"),
    ],
)
def test_a_row_with_a_wrong_score_or_text_is_refused_by_its_number(change, words):
    with refuses(words):
        read_scored_lists([GOOD, GOOD | change])
