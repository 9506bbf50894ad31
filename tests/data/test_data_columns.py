"""Columns are chosen by request or by name, never by a silent guess, and a log line says which plays which part."""

import logging

import pytest
from datasets import Dataset, Features, Value

from simcse_hf.data.columns import resolve_columns, resolve_dataset_columns


def resolve(column_names, **options):
    return resolve_columns(column_names.split(), name="data.csv", **options)[0]


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
    ],
)
def test_columns_are_chosen_by_their_names_and_put_in_order(column_names, expected):
    assert resolve(column_names) == expected.split()


@pytest.mark.parametrize(
    "column_names",
    [
        "x y",
        "x y z",
        "sent1 sent0b",
        "text sentence",
        "text positive",
        "anchor positive sentence1 sentence2",
        "id label",
    ],
)
def test_asks_for_columns_if_the_names_are_not_clear(column_names):
    listed = ", ".join(map(repr, column_names.split()))
    with pytest.raises(
        ValueError, match=rf"data\.csv: the column names do not say .*--columns .*columns are {listed}"
    ):
        resolve(column_names)
    requested = column_names.split()[::-1]
    assert resolve(column_names, columns=requested) == requested


def test_logs_which_column_plays_which_part(caplog):
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        resolve("hard_neg sent1 sent0 source")
        resolve("text")
    assert caplog.messages == [
        "data.csv: anchor 'sent0', positive 'sent1', hard negatives 'hard_neg'; ignored 'source'.",
        "data.csv: the sentences are in column 'text'.",
    ]


def test_requested_columns_override_known_names():
    assert resolve("sent0 sent1 hard_neg", columns=["hard_neg", "sent0"]) == ["hard_neg", "sent0"]


def test_refuses_a_requested_column_that_is_missing():
    with pytest.raises(ValueError, match="data.csv: no column 'premise'; the columns are 'a', 'b'"):
        resolve("a b", columns=["a", "premise"])


@pytest.mark.parametrize("columns", [[], "a"])
def test_requested_columns_must_be_a_list(columns):
    with pytest.raises(ValueError, match="columns must be a non-empty list"):
        resolve("a b", columns=columns)


def test_refuses_a_column_that_is_requested_twice():
    with pytest.raises(ValueError, match="list of different column names"):
        resolve("a b", columns=["a", "a"])


@pytest.mark.parametrize("other", ["idx", "id", "label", "gold_label", "score", "pair_id"])
def test_identifiers_labels_and_scores_are_never_text(other):
    with pytest.raises(ValueError, match=rf"data\.csv: .*\('{other}' cannot be text\).*columns=\[\.\.\.\]"):
        resolve(f"x y {other}")


def test_a_column_of_numbers_is_never_text_whatever_its_name():
    sample = [("A dog.", "An animal.", "0.5"), ("A cat.", "An animal.", "-1e3")]
    with pytest.raises(ValueError, match="'similarity' cannot be text"):
        resolve("x y similarity", sample=sample)
    with pytest.raises(ValueError) as error:
        resolve("x y similarity", sample=[*sample, ("A.", "B.", "none of it")])
    assert "cannot be text" not in str(error.value)
    assert resolve("x y", sample=[("A dog.", 3)]) == ["x"]
    with pytest.raises(ValueError, match="do not say"):
        resolve("x y", sample=[("A dog.", None)])


def test_the_only_column_is_taken_even_when_it_holds_numbers():
    assert resolve("text", sample=[("1984",), ("42",)]) == ["text"]


@pytest.mark.parametrize(
    ("column_names", "missing"),
    [("sent0 hard_neg", "sent1"), ("anchor negative_1 x", "positive"), ("query neg", "pos")],
)
def test_refuses_negatives_without_a_positive(column_names, missing):
    with pytest.raises(ValueError, match=f"but no '{missing}'"):
        resolve(column_names)


def test_refuses_two_negatives_with_the_same_number():
    with pytest.raises(ValueError, match="two of 'hard_neg1', 'hard_neg_1' have the same number"):
        resolve("sent0 sent1 hard_neg1 hard_neg_1")


def test_refuses_another_number_of_columns_than_expected():
    assert resolve("sent0 sent1 hard_neg", expected_columns=3) == ["sent0", "sent1", "hard_neg"]
    with pytest.raises(ValueError) as caught:
        resolve("text label", expected_columns=3)
    assert "data.csv: 1 text column(s) ('text') where 3 are expected" in str(caught.value)
    assert "'text', 'label'" in str(caught.value)


def test_warns_that_labels_and_scores_of_pairs_are_ignored(caplog):
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        resolve("sent0 sent1 source")
        resolve("sentence1 sentence2 label")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "ignored 'source'" in caplog.text
    assert "ignored 'label'. Every row counts as a positive pair" in caplog.text


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
    assert resolved.column_names == list(TRIPLET) and resolved.to_list() == [TRIPLET]
    assert resolved.features == Features({name: Value("string") for name in TRIPLET})


def test_the_columns_of_a_dataset_can_be_requested():
    dataset = Dataset.from_list([{"x": "a", "y": "p", "idx": 3}])
    assert resolve_dataset_columns(dataset, ["y", "x"]).to_list() == [{"sent0": "p", "sent1": "a"}]
    with pytest.raises(ValueError, match="the dataset: the column names do not say"):
        resolve_dataset_columns(dataset)
    with pytest.raises(ValueError, match="the dataset: column 'idx' holds .*int64.*, not strings.*--columns"):
        resolve_dataset_columns(dataset, ["x", "idx"])


def test_each_listed_positive_becomes_a_row_and_listed_negatives_become_columns(caplog):
    rows = [
        {"query": "q1", "pos": ["p1", "p2"], "neg": ["n1", "n2"]},
        {"query": "q2", "pos": ["p3"], "neg": ["n3", "n4", "n5"]},
        {"query": "q3", "pos": ["p4"], "neg": []},
    ]
    resolved = resolve_dataset_columns(Dataset.from_list(rows))
    assert [list(row.values()) for row in resolved] == [
        ["q1", "p1", "n1", "n2"],
        ["q1", "p2", "n1", "n2"],
        ["q2", "p3", "n3", "n4"],
    ]
    assert "dropped 1 of 4 rows for an empty cell: row 3." in caplog.text
    assert "1 rows list more than 2 hard negative(s)" in caplog.text
    with pytest.raises(ValueError, match="4 text column.* where 3 are expected"):
        resolve_dataset_columns(Dataset.from_list(rows), expected_columns=3)


def test_empty_texts_in_lists_are_left_out_and_counted(caplog):
    rows = [
        {"query": "q1", "pos": ["p1", "", " "], "neg": ["", "n1"]},
        {"query": "q2", "pos": ["p2"], "neg": ["n2"]},
        {"query": "q3", "pos": ["p3", None], "neg": ["n3"]},
        {"query": "q4", "pos": ["", ""], "neg": ["n4"]},
    ]
    resolved = resolve_dataset_columns(Dataset.from_list(rows))
    assert [list(row.values()) for row in resolved] == [["q1", "p1", "n1"], ["q2", "p2", "n2"], ["q3", "p3", "n3"]]
    assert "left 4 empty text(s) out of lists of positives or hard negatives: row 1, 3." in caplog.text
    assert "dropped 1 of 4 rows for an empty cell: row 4." in caplog.text


def test_empty_cells_of_a_dataset_are_dropped_with_a_warning(caplog):
    dataset = Dataset.from_list([{"text": "a"}, {"text": None}, {"text": " "}])
    assert resolve_dataset_columns(dataset).to_list() == [{"sent0": "a"}]
    assert "the dataset: dropped 2 of 3 rows for an empty cell: row 2, 3." in caplog.text


@pytest.mark.parametrize("columns", [{"input_ids": [[[1, 2]]]}, {"texts": [["a", "b"]], "relations": [[0]]}])
def test_tokenised_and_grouped_datasets_stay_as_they_are(columns):
    dataset = Dataset.from_dict(columns)
    assert resolve_dataset_columns(dataset) is dataset
