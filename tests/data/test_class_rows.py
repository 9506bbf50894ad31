"""Texts with class labels, and anchors with several positives: which columns they are, and what is left out."""

import logging

import pytest
from datasets import ClassLabel, Dataset

from simcse_hf.data.columns import class_columns
from simcse_hf.data.read import is_labelled, load_class_rows


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["text", "label"], ["text", "label"]),
        (["Category", "sentence"], ["sentence", "Category"]),
        (["utterance", "intent"], ["utterance", "intent"]),
        (["id", "text", "label", "label_text"], ["text", "label"]),
        (["sentence1", "sentence2", "label"], None),
        (["premise", "hypothesis", "label"], None),
        (["text", "score"], None),
        (["label"], None),
        (["a", "b", "label"], None),
    ],
)
def test_one_text_and_a_label_are_a_class_row_and_pairs_are_not(columns, expected):
    assert class_columns(columns) == expected


def test_the_texts_of_each_class_get_its_number(tmp_path, caplog):
    path = tmp_path / "intents.csv"
    path.write_text("text,category\na cat,animal\na car,thing\na dog,animal\na bus,thing\nno,\na rose,plant\n")
    with caplog.at_level(logging.INFO, "simcse_hf"):
        rows = load_class_rows(str(path))
    assert rows.to_dict() == {
        "sent0": ["a cat", "a car", "a dog", "a bus"],
        "label": [0, 1, 0, 1],
    }
    assert "1 of 6 rows dropped for an empty cell: line 6" in caplog.text
    assert "3 classes in column 'category', of which 1 have one text. It has no positive" in caplog.text
    assert "left out: 'plant'" in caplog.text
    assert load_class_rows(rows) is rows and is_labelled(str(path)) and not is_labelled(str(path), columns=["a", "b"])


SEVERAL = {
    "text": ["a", "b", "c", "d", "e", "f"],
    "label": [["x", "y", "x"], ["y"], ["x", "z"], ["z", " y "], [], ["w"]],
}


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv", "memory"])
def test_a_text_may_have_several_labels(form, tmp_path, caplog):
    """Each label counts once; a text without one, and a label of one text, are left out and counted."""
    path = tmp_path / f"several.{form}"
    separator = None
    source = str(path)
    if form == "jsonl":
        Dataset.from_dict(SEVERAL).to_json(path)
    elif form == "parquet":
        Dataset.from_dict(SEVERAL).to_parquet(path)
    elif form == "csv":
        separator = ";"
        cells = [f"{text},{'; '.join(labels)}" for text, labels in zip(*SEVERAL.values(), strict=True)]
        path.write_text("\n".join(["text,label", *cells]) + "\n")
    else:
        source = Dataset.from_dict(SEVERAL)
    rows = load_class_rows(source, label_separator=separator)
    assert rows.to_dict() == {
        "sent0": ["a", "b", "c", "d"],
        "label": [[0, 1], [1], [0, 2], [2, 1]],
    }
    assert "1 of 6 rows dropped for an empty cell" in caplog.text
    assert "of which 1 have one text. It has no positive and is left out: 'w'" in caplog.text


def test_lists_of_one_label_are_labels():
    rows = load_class_rows({"text": ["a", "b", "c", "d"], "label": [["x"], ["y"], ["x"], ["y"]]})
    assert rows["label"][:] == [0, 1, 0, 1]


def test_a_cell_without_the_separator_is_one_label(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("text,label\na,x;y\nb,x;y\nc,z\nd,z\n")
    assert load_class_rows(str(path))["label"][:] == [0, 0, 1, 1]
    assert load_class_rows(str(path), label_separator=";")["label"][:] == [
        [0, 1],
        [0, 1],
        [2],
        [2],
    ]


def test_labels_of_a_dataset_may_be_numbers():
    columns = {"text": ["a", "b", "c", "d"], "label": [0, 1, 0, 1]}
    rows = load_class_rows(Dataset.from_dict(columns).cast_column("label", ClassLabel(names=["x", "y"])))
    assert rows["label"][:] == [0, 1, 0, 1]


def test_texts_with_labels_may_be_numbers(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("text,label\n911,help\n112,help\n411,ask\n311,ask\n")
    assert is_labelled(str(path)) and load_class_rows(str(path))["sent0"][:] == [
        "911",
        "112",
        "411",
        "311",
    ]


def test_an_anchor_with_several_positives_is_one_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"anchor": "q", "positives": ["p1", "", "p2"], "negative": ["n1"]}\n'
        '{"anchor": "r", "positives": "p3", "negative": ["n2", "n3"]}\n'
    )
    rows = load_class_rows(str(path))
    assert rows["texts"][:] == [["q", "p1", "p2", "n1"], ["r", "p3", "n2", "n3"]]
    assert rows["relations"][:] == [[0, 0, 2], [0, 2, 2]]
