"""Classification of texts with several labels: the files, the scores, their intervals and the errors."""

import numpy as np
import pytest
from evaluation_helpers import write_rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer, StandardScaler, normalize

from simcse_hf import read_task

HEADER = ["text", "label"]


def rows_of_several(number, seed):
    """Texts whose embedding shows the labels x and y; some have neither."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(number):
        labels = [label for label in "xyz" if random.random() < 0.4]
        rows.append((f"{seed}-{i} {' '.join(labels)}".strip(), tuple(labels)))
    return rows


def encode_several(texts):
    noise = np.random.default_rng(len(texts)).standard_normal((len(texts), 5))
    return np.array([[label in text.split()[1:] for label in "xyz--"] for text in texts]) + noise


def read_several(folder, rows):
    return read_task("classification", write_rows(folder / "own.jsonl", HEADER, rows))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_several_labels_are_scored_by_the_f1_of_a_classifier_of_each(tmp_path, form):
    train, test = rows_of_several(60, 1), rows_of_several(40, 2)
    for name, rows in (("train", train), ("test", test)):
        if form == "csv":
            rows = [(text, ";".join(labels)) for text, labels in rows]
        write_rows(tmp_path / f"{name}.{form}", HEADER, rows)
    task = read_task("classification", tmp_path, ";" if form == "csv" else None)
    texts = [text for text, _ in [*test, *train]]
    vectors = encode_several(texts)
    result = task.evaluate(lambda asked: vectors[[texts.index(text) for text in asked]])
    assert () in [labels for _, labels in test] and len(task) == 40

    x = normalize(vectors).astype(np.float32)
    x = StandardScaler().fit(x[40:]).transform(x)
    gold = MultiLabelBinarizer(classes=list("xyz")).fit_transform([labels for _, labels in [*test, *train]])
    classifier = LogisticRegression(C=0.1, max_iter=300, tol=1e-3, class_weight="balanced")
    probe = OneVsRestClassifier(classifier).fit(x[40:], gold[40:])
    expected = 100 * f1_score(gold[:40], probe.predict(x[:40]), average="macro")
    assert result.metrics["macro_f1"] == pytest.approx(expected)
    assert list(result.metrics) == ["macro_f1", "knn_macro_f1"] and task.metric == "macro_f1"
    assert result.details["labels"] == 3 and result.details["train_examples"] == 60


def test_parts_of_a_task_of_several_labels_are_scored(tmp_path):
    first, second = read_several(tmp_path, rows_of_several(80, 5)).split(0.4)
    assert len(first) == 32 and len(second) == 48
    assert first.evaluate(encode_several).metrics["macro_f1"] > 0


def test_a_label_of_one_row_is_left_out_and_its_row_stays(tmp_path, caplog):
    rows = rows_of_several(30, 6)
    task = read_several(tmp_path, [*rows, ("alone", ("w", "x"))])
    assert task.units[-1] == ("alone", ("x",)) and "Left out 1 of 4 labels: w." in caplog.text
    result = task.evaluate(encode_several)
    assert result.details["labels"] == 3 and "balanced class weights" in result.details["protocol"]


@pytest.mark.parametrize(
    "kind, rows, words",
    [
        ("classification", [("a", "x"), ("b", [["x"], "y"])], r"own.jsonl, line 2: the label \['x'\]"),
        (
            "classification",
            [("a", [1.0, 0.0, 1.0]), ("b", [0, 0, 1])],
            r"line 1: \[1.0, 0.0, 1.0\] holds a mark for each",
        ),
        ("clustering", [("a", "x"), ("b", ["x", "y"])], "own.jsonl: texts have several labels, .* clustering"),
    ],
)
def test_labels_that_cannot_be_scored_are_refused(kind, rows, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read_task(kind, write_rows(tmp_path / "own.jsonl", HEADER, rows))
