"""Columns are chosen by request or by name, never by a silent guess, and a log line says which plays which part."""

import logging
import math

import pytest
from datasets import Dataset, Features, Value

from simcse_hf.data.columns import find_part, find_parts, resolve_columns
from simcse_hf.data.dataset_columns import resolve_dataset_columns, resolve_scored_pairs


def resolve(column_names, **options):
    return resolve_columns(column_names.split(), name="data.csv", **options)


@pytest.mark.parametrize(
    ("column_names", "expected"),
    [
        ("hard_neg sent1 sent0", "sent0 sent1 hard_neg"),
        ("sent0 sent1", "sent0 sent1"),
        ("sent0 sent1 hard_neg1 hard_neg0", "sent0 sent1 hard_neg0 hard_neg1"),
        ("hard_neg_10 sent0 hard_neg_2 sent1 hard_neg", "sent0 sent1 hard_neg hard_neg_2 hard_neg_10"),
        ("sent3 sent2 sent1 sent0", "sent0 sent1 sent2 sent3"),
        ("negative positive anchor", "anchor positive negative"),
        ("anchor positive", "anchor positive"),
        ("negative_2 negative_1 anchor positive", "anchor positive negative_1 negative_2"),
        ("neg pos query", "query pos neg"),
        ("positive negative query id", "query positive negative"),
        ("hypothesis premise genre", "premise hypothesis"),
        ("label sentence2 sentence1", "sentence1 sentence2"),
        ("idx text label", "text"),
        ("text category", "text"),
        ("source text other", "text"),
        ("id sentence", "sentence"),
        ("id review score", "review"),
        ("sent0", "sent0"),
        ("x", "x"),
        (f"sent0 sent1 hard_neg_{'1' * 5000}", "sent0 sent1"),
    ],
)
def test_columns_are_chosen_by_their_names_and_put_in_order(column_names, expected):
    assert resolve(column_names) == expected.split()
    assert resolve(column_names, columns=expected.split()[::-1]) == expected.split()[::-1]


@pytest.mark.parametrize(
    "column_names",
    ["x y", "x y z", "sent1 sent0b", "text sentence", "text positive", "query pos sentence1 sentence2", "id label"],
)
def test_asks_for_columns_if_the_names_are_not_clear(column_names):
    listed = ", ".join(map(repr, column_names.split()))
    with pytest.raises(ValueError, match=rf"data\.csv: the column names do not say .*--columns .*are {listed}"):
        resolve(column_names)


REFUSED = [
    ("a b", {"columns": ["a", "premise"]}, "data.csv: no column 'premise'; the columns are 'a', 'b'"),
    ("a b", {"columns": []}, "columns must be a non-empty list"),
    ("a b", {"columns": "a"}, "columns must be a non-empty list"),
    ("a b", {"columns": ["a", "a"]}, "list of different column names"),
    ("sent0 hard_neg", {}, "but no 'sent1'"),
    ("anchor negative_1 x", {}, "but no 'positive'"),
    ("query neg", {}, "but no 'pos'"),
    ("sent0 sent1 hard_neg1 hard_neg_1", {}, "two of 'hard_neg1', 'hard_neg_1' have the same number"),
    ("text label", {"expected_columns": 3}, r"1 text column\(s\) \('text'\) where 3 are expected.*'text', 'label'"),
    ("x y", {"sample": [("A dog.", None)]}, "do not say"),
    ("x y similarity", {"sample": [("A.", "B.", "0.5"), ("C.", "D.", "-1e3")]}, "'similarity' cannot be text"),
    *((f"x y {name}", {}, rf"\('{name}' cannot be text\).*columns=\[\.\.\.\]")
      for name in ("idx", "id", "label", "gold_label", "score", "pair_id")),
]  # fmt: skip


@pytest.mark.parametrize(("column_names", "options", "message"), REFUSED)
def test_a_choice_that_is_missing_doubtful_or_of_another_width_is_refused(column_names, options, message):
    with pytest.raises(ValueError, match=message):
        resolve(column_names, **options)


def test_numbers_are_never_text_but_in_the_only_column():
    assert resolve("x y", sample=[("A dog.", 3)]) == ["x"]
    assert resolve("text", sample=[("1984",), ("42",)]) == ["text"]


def test_logs_which_column_plays_which_part(caplog):
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        resolve("hard_neg sent1 sent0 source")
        resolve("text")
        resolve("sentence1 sentence2 label")
    assert caplog.messages[:2] == [
        "data.csv: anchor 'sent0', positive 'sent1', hard negatives 'hard_neg'; ignored 'source'.",
        "data.csv: the sentences are in column 'text'.",
    ]
    assert "ignored 'label'. Every row counts as a positive pair" in caplog.messages[2]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING"]


def test_parts_are_found_by_their_names_in_any_case():
    assert find_parts(["id", " Sentence_A", "SENTENCE_B", "relatedness_score"], ("sentence1", "score"), "a.csv") == [
        " Sentence_A", "relatedness_score"
    ]  # fmt: skip
    assert find_part(["text"], "split") is None
    with pytest.raises(ValueError, match=r"a\.csv: no column 'label' \(also accepted: category, .*\)\. The columns"):
        find_parts(["text"], ("text", "label"), "a.csv")


TRIPLET = {"sent0": "a", "sent1": "p", "sent2": "n"}


@pytest.mark.parametrize(
    "row",
    [
        {"anchor": "a", "negative": "n", "positive": "p"},
        {"hard_neg": "n", "sent0": "a", "sent1": "p", "label": 1},
        {"id": 7, "neg": ["n"], "pos": ["p"], "query": "a"},
        {"score": 0.5, "query": "a", "negative": "n", "positive": "p"},
    ],
)
def test_the_columns_of_a_dataset_are_put_in_order_by_name(row):
    resolved = resolve_dataset_columns(Dataset.from_list([row]))
    assert resolved.to_list() == [TRIPLET]
    assert resolved.features == Features({name: Value("string") for name in TRIPLET})


def test_each_listed_positive_becomes_a_row_and_listed_negatives_become_columns(caplog):
    rows = [
        {"query": "q1", "pos": ["p1", "p2", None], "neg": ["n1", "n2"]},
        {"query": "q2", "pos": ["p3"], "neg": ["n3", "n4", "n5"]},
        {"query": "q3", "pos": ["p4"], "neg": []},
        {"query": "q4", "pos": ["", ""], "neg": ["n6", "n7"]},
    ]
    resolved = resolve_dataset_columns(Dataset.from_list(rows))
    assert [list(row.values()) for row in resolved] == [
        ["q1", "p1", "n1", "n2", None],
        ["q1", "p2", "n1", "n2", None],
        ["q2", "p3", "n3", "n4", "n5"],
        ["q3", "p4", None, None, None],
    ]
    assert "1 of 5 rows dropped for an empty cell: row 4." in caplog.text
    assert "1 of 5 rows with an empty text in a list, which is left out: row 1." in caplog.text
    assert "with fewer hard negatives than others: row 1, 3" in caplog.text


@pytest.mark.parametrize("columns", [{"input_ids": [[[1, 2]]]}, {"texts": [["a", "b"]], "relations": [[0]]}])
def test_tokenised_and_grouped_datasets_stay_as_they_are(columns):
    dataset = Dataset.from_dict(columns)
    assert resolve_dataset_columns(dataset) is dataset


PAIRS = {"id": [1, 2, 3], "sentence1": ["a cat", "a dog", ""], "sentence2": ["the cat", "a bird", "it"]}


def test_texts_and_scores_are_selected_and_empty_rows_dropped_together(caplog):
    for scores in ([4, 1, 2], ["4", "1.0", "2"]):
        pairs = resolve_scored_pairs(Dataset.from_dict(PAIRS | {"score": scores}))
        assert pairs.to_dict() == {"sent0": ["a cat", "a dog"], "sent1": ["the cat", "a bird"], "score": [4.0, 1.0]}
        assert resolve_scored_pairs(pairs) is pairs
    assert "1 of 3 rows dropped for an empty cell: row 3" in caplog.text
    assert "Every row counts as a positive pair" not in caplog.text


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        *(({"score": [4.0, score, 1.0]}, f"pairs, row 2: the score {score} is not a finite number. Correct or remove")
          for score in (math.nan, None, math.inf)),
        ({}, "pairs: there is no column 'score'.*; the columns are 'id', 'sentence1'"),
        ({"sentence2": [1, 2, 3], "score": [1.0] * 3}, "pairs.*sentence2"),
    ],
)  # fmt: skip
def test_scored_pairs_without_two_texts_and_a_number_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        resolve_scored_pairs(Dataset.from_dict(PAIRS | columns), "pairs")
