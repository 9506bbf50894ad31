"""Columns are chosen by request or by name, never by a silent guess, and a log line says which plays which part."""

import logging

import pytest
from datasets import Dataset

from simcse_hf import load_text_dataset
from simcse_hf.data.columns import resolve_columns
from simcse_hf.data.scored_pairs import read_scored_pairs


def resolve(column_names, **options):
    return resolve_columns(column_names.split(), name="data.csv", **options)


@pytest.mark.parametrize(
    "column_names, expected",
    [
        ("hard_neg_10 sent0 hard_neg_2 sent1 hard_neg", "sent0 sent1 hard_neg hard_neg_2 hard_neg_10"),
        ("sent3 sent2 sent1 sent0", "sent0 sent1 sent2 sent3"),
        ("hard_negatives positive hard_negative_1 query", "query positive hard_negatives hard_negative_1"),
        ("id neg pos query", "query pos neg"),
        ("idx text label", "text"),
        ("id review score", "review"),
        ("x", "x"),
        (f"sent0 sent1 hard_neg_{'1' * 5000}", "sent0 sent1"),
        ("answer question", "question answer"),
        ("x y", "x y"),
        ("negative x y", "x y negative"),
        ("positive text", "text positive"),
        ("Hard_Neg_2 Sent1 Hard_Neg_1 Sent0", "Sent0 Sent1 Hard_Neg_1 Hard_Neg_2"),
        ("Sentence2 SENTENCE1 Score", "SENTENCE1 Sentence2"),
        ("negative Document query", "query Document negative"),
        ("document query positive", "query positive"),
        ("text query", "query text"),
    ],
)
def test_columns_are_chosen_by_their_names_and_put_in_order(column_names, expected):
    assert resolve(column_names) == expected.split()
    assert resolve(column_names, columns=expected.split()[::-1]) == expected.split()[::-1]


@pytest.mark.parametrize(
    "names, is_said",
    [("x y z", True), ("anchor x y", True), ("query x", False), ("document query", False), ("x", False)],
)
def test_a_warning_says_where_only_the_order_tells_the_anchor(caplog, names, is_said):
    load_text_dataset([dict.fromkeys(names.split(), "a")])
    assert ("and their order was taken" in caplog.text) == is_said
    caplog.clear()
    load_text_dataset([dict.fromkeys(names.split(), "a")], columns=names.split())
    assert not caplog.text


def test_numbers_are_never_text_but_in_the_only_column():
    assert resolve("x y", sample=[("A dog.", 3)]) == ["x"]
    assert resolve("text", sample=[("1984",), ("42",)]) == ["text"]


def test_logs_which_column_plays_which_part(caplog):
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        load_text_dataset([dict.fromkeys(("hard_neg", "sent1", "sent0", "source"), "a")])
        load_text_dataset([{"text": "a"}])
        load_text_dataset([{"text": "a", "intent": "b"}])
        load_text_dataset([dict.fromkeys(("hard_neg", "sent1", "sent0", "label"), "a")])
        load_text_dataset([{"query": "a", "pos": ["b"], "neg": ["c"], "scores": [3.0, 1.0]}])
    parts = "list of 1 rows: anchor 'sent0', positive 'sent1', hard negatives 'hard_neg'; ignored "
    assert caplog.messages[:2] == [f"{parts}'source'.", "list of 1 rows: the sentences are in column 'text'."]
    assert "`--objective class_labels` learns from them" in caplog.messages[2]
    assert caplog.messages[3].startswith(f"{parts}'label'. Every row counts as a positive pair")
    assert "`--objective distill --objective_options loss=kl` learns from them" in caplog.messages[4]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING", "WARNING", "WARNING"]


def test_rows_without_a_hard_negative_are_kept_and_those_without_a_positive_are_not(caplog):
    columns = {"sent0": ["a", "b", "", "d"], "sent1": ["p", "q", "r", None], "hard_neg": ["n", " ", "m", "o"]}
    rows = load_text_dataset(Dataset.from_dict(columns))
    assert [list(row.values()) for row in rows] == [["a", "p", "n"], ["b", "q", None]]
    assert "2 of 4 rows dropped for an empty cell: row 3, 4." in caplog.text
    assert "with fewer hard negatives than others: row 2" in caplog.text


def test_scores_of_minus_one_are_said(caplog):
    pairs = {"sentence1": ["a", "b", "c"], "sentence2": ["d", "e", "f"]}
    read_scored_pairs(Dataset.from_dict(pairs | {"score": [1.0, -1.0, -0.5]}))
    assert not caplog.text, "-1 is one of several negative scores"
    read_scored_pairs(Dataset.from_dict(pairs | {"score": [4.0, -1.0, 2.0]}), "pairs")
    assert "pairs: 1 of 3 scores are -1" in caplog.text


TOKENS = Dataset.from_dict({"input_ids": [[[1, 2]]]})


@pytest.mark.parametrize(
    "dataset",
    [
        TOKENS,
        TOKENS.with_transform(lambda batch: {"input_ids": [[[3]]]}),
        Dataset.from_dict({"texts": [["a", "b"]], "relations": [[0]]}),
    ],
    ids=["token ids", "token ids that are drawn whenever a row is read", "groups"],
)
def test_tokenized_and_grouped_datasets_stay_as_they_are(dataset):
    assert load_text_dataset(dataset) is dataset


def test_texts_and_scores_are_selected_and_empty_rows_dropped_together(caplog):
    """The sentences beside a score may be named as those of pairs are."""
    texts = {"id": [1, 2, 3], "query": ["a cat", "a dog", ""], "positive": ["the cat", "a bird", "it"]}
    for scores in ([4, 1, 2], ["4", "1.0", "2"]):
        pairs = read_scored_pairs(Dataset.from_dict(texts | {"score": scores}), "x", drop_empty=True)
        assert list(pairs.rows()) == [("a cat", "the cat", 4.0), ("a dog", "a bird", 1.0)]
        assert list(read_scored_pairs(pairs.to_dataset()).rows()) == list(pairs.rows())
    assert "1 of 3 rows dropped for an empty cell: x, row 3" in caplog.text
    assert "Every row counts as a positive pair" not in caplog.text
