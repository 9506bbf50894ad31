"""Texts with class labels, and anchors with several positives: which columns they are, and what is left out."""

import logging

import pytest
from data_helpers import content_of, write
from datasets import ClassLabel, Dataset

from simcse_hf.data.columns import class_columns
from simcse_hf.data.read import is_labelled, load_class_rows


@pytest.mark.parametrize(
    "columns, expected",
    [
        ("text label", "text label"),
        ("text labels", "text labels"),
        ("Category sentence", "sentence Category"),
        ("id text label label_text", "text label"),
        ("sentence1 sentence2 label", None),
        ("text score", None),
        ("label", None),
        ("a b label", None),
        ("title body text label", "text label"),
    ],
)
def test_one_text_and_a_label_are_a_class_row_and_pairs_are_not(columns, expected):
    assert class_columns(columns.split()) == (expected and expected.split())


def test_the_texts_of_each_class_get_its_number(tmp_path, caplog):
    path = tmp_path / "intents.csv"
    path.write_text("text,category\na cat,animal\na car,thing\na dog,animal\na bus,thing\nno,\na rose,plant\n")
    with caplog.at_level(logging.INFO, "simcse_hf"):
        rows = load_class_rows(path)
    assert rows.to_dict() == {
        "sent0": ["a cat", "a car", "a dog", "a bus"],
        "label": [0, 1, 0, 1],
    }
    assert "1 of 6 rows dropped for an empty cell: line 6" in caplog.text
    assert "3 classes in column 'category', of which 1 have one text. It has no positive" in caplog.text
    assert "left out: 'plant'" in caplog.text
    assert load_class_rows(rows) is rows and is_labelled(path) and not is_labelled(path, columns=["a", "b"])


SEVERAL = {
    "text": list("abcdef"),
    "label": [["x", "y", "x"], ["y"], ["x", "z"], ["z", " y "], [], ["w"]],
}


@pytest.mark.parametrize("form", ["jsonl", "csv", "memory"])
def test_a_text_may_have_several_labels(form, tmp_path, caplog):
    """Each label counts once; a text without one, and a label of one text, are left out and counted."""
    source = Dataset.from_dict(SEVERAL)
    separator = None
    if form == "csv":
        separator = ";"
        cells = [f"{text},{'; '.join(labels)}" for text, labels in zip(*SEVERAL.values(), strict=True)]
        source = write(tmp_path / "several.csv", "\n".join(["text,label", *cells]) + "\n")
    elif form == "jsonl":
        source = write(tmp_path / "several.jsonl", content_of("jsonl", source.to_list()))
    rows = load_class_rows(source, label_separator=separator)
    assert rows.to_dict() == {"sent0": list("abcd"), "label": [[0, 1], [1], [0, 2], [2, 1]]}
    assert "1 texts have no label and are left out" in caplog.text
    assert "of which 1 have one text. It has no positive and is left out: 'w'" in caplog.text


def test_a_cell_without_a_separator_is_one_label(tmp_path):
    path = write(tmp_path / "one.csv", "text,label\na,x;y\nb,x;y\nc,z\nd,z\n")
    assert load_class_rows(path)["label"][:] == [0, 0, 1, 1]
    assert load_class_rows(path, label_separator=";")["label"][:] == [[0, 1], [0, 1], [2], [2]]


def test_labels_may_be_lists_of_one_numbers_or_names_of_a_dataset_and_texts_numbers(tmp_path):
    texts = list("abcd")
    numbers = Dataset.from_dict({"text": texts, "label": [0, 1, 0, 1]})
    named = numbers.cast_column("label", ClassLabel(names=["x", "y"]))
    for source in ({"text": texts, "label": [["x"], ["y"], ["x"], ["y"]]}, numbers, named):
        assert load_class_rows(source)["label"][:] == [0, 1, 0, 1]
    path = write(tmp_path / "numbers.csv", "text,label\n911,help\n112,help\n411,ask\n311,ask\n")
    assert is_labelled(path) and load_class_rows(path)["sent0"][:] == ["911", "112", "411", "311"]


def test_an_anchor_with_several_positives_is_one_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"anchor": "q", "positives": ["p1", "", "p2"], "negative": ["n1"]}\n'
        '{"anchor": "r", "positives": "p3", "negative": ["n2", "n3"]}\n'
    )
    rows = load_class_rows(path)
    assert rows["texts"][:] == [["q", "p1", "p2", "n1"], ["r", "p3", "n2", "n3"]]
    assert rows["relations"][:] == [[0, 0, 2], [0, 2, 2]]
