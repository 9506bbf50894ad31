"""Classification of texts with several labels: the files, the scores, their intervals and the errors."""

import json

import numpy as np
import pytest
from evaluation_helpers import write_rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from simcse_hf.evaluation.tasks import paired_interval, read_task

HEADER = ["text", "label"]


def rows_of_several(number, seed):
    """Texts whose embedding shows the labels x and y; some have neither."""
    random = np.random.default_rng(seed)
    return [
        (f"{seed}-{i} {' '.join(has)}".strip(), tuple(has)) for i in range(number) for has in [drawn_labels(random)]
    ]


def drawn_labels(random):
    return [label for label in ("x", "y", "z") if random.random() < 0.4]


def encode_several(texts):
    noise = np.random.default_rng(len(texts)).standard_normal((len(texts), 5))
    return np.array([[label in text.split()[1:] for label in ("x", "y", "z", "-", "-")] for text in texts]) + noise


def write_several(folder, name, rows, form):
    if form == "csv":
        return write_rows(
            folder / f"{name}.csv",
            HEADER,
            [(text, ";".join(labels)) for text, labels in rows],
        )
    lines = [json.dumps({"text": text, "label": list(labels)}) for text, labels in rows]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder / f"{name}.jsonl"


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_several_labels_are_scored_by_the_f1_of_a_classifier_of_each(tmp_path, form):
    train, test = rows_of_several(60, 1), rows_of_several(40, 2)
    (tmp_path / "set").mkdir()
    write_several(tmp_path / "set", "train", train, form)
    write_several(tmp_path / "set", "test", test, form)
    task = read_task("classification", tmp_path / "set", ";" if form == "csv" else None)
    texts = [text for text, _ in [*test, *train]]
    vectors = encode_several(texts)
    result = task.evaluate(lambda asked: vectors[[texts.index(text) for text in asked]])
    assert () in [labels for _, labels in test] and len(task) == 40

    x = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    x = x.astype(np.float32)
    mean, deviation = x[40:].mean(0), x[40:].std(0)
    x = (x - mean) / deviation
    scores = []
    for label in ("x", "y", "z"):
        gold = [label in labels for _, labels in [*test, *train]]
        probe = LogisticRegression(C=0.1, max_iter=300, tol=1e-3, class_weight="balanced").fit(x[40:], gold[40:])
        scores.append(f1_score(gold[:40], probe.predict(x[:40])))
    assert result.metrics["macro_f1"] == pytest.approx(100 * np.mean(scores))
    assert list(result.metrics) == ["macro_f1", "knn_macro_f1"] and task.metric == "macro_f1"
    assert result.details["labels"] == 3 and result.details["train_examples"] == 60


def test_a_row_of_several_labels_is_never_scored_by_a_classifier_that_saw_it(tmp_path):
    task = read_task(
        "classification",
        write_several(tmp_path, "own", rows_of_several(60, 3), "jsonl"),
    )
    islands = {text: number for number, (text, _) in enumerate(task.rows)}
    result = task.evaluate(lambda texts: np.eye(60)[[islands[text] for text in texts]])
    assert result.metrics["macro_f1"] < 70 and result.details["protocol"].startswith("5-fold cross-validation")


def test_the_interval_of_f1_is_that_of_a_bootstrap_written_out_with_loops(tmp_path):
    task = read_task(
        "classification",
        write_several(tmp_path, "own", rows_of_several(60, 4), "jsonl"),
    )
    before = task.evaluate(lambda texts: np.random.default_rng(0).standard_normal((len(texts), 5)))
    after = task.evaluate(encode_several)
    difference, low, high = paired_interval(task, [before], [after], resamples=200)
    differences = []
    for rows in np.random.default_rng(0).integers(60, size=(200, 60)):
        scores = []
        for result in (before, after):
            of_labels = []
            for assigned, gold in zip(
                result.scores["classification"]["assigned"][rows].T,
                result.scores["classification"]["labels"][rows].T,
                strict=True,
            ):
                if gold.any():
                    of_labels.append(f1_score(gold, assigned, zero_division=0))
            scores.append(100 * np.mean(of_labels))
        differences.append(scores[1] - scores[0])
    assert [low, high] == pytest.approx(np.quantile(differences, [0.025, 0.975]))
    assert difference == pytest.approx(after.metrics["macro_f1"] - before.metrics["macro_f1"])


def test_parts_of_a_task_of_several_labels_are_scored(tmp_path):
    task = read_task(
        "classification",
        write_several(tmp_path, "own", rows_of_several(80, 5), "csv"),
        ";",
    )
    first, second = task.split(0.4)
    assert (len(first), len(second)) == (32, 48)
    assert first.evaluate(encode_several).metrics["macro_f1"] > 0


def test_a_label_of_one_row_is_refused_without_training_rows(tmp_path):
    rows = [*rows_of_several(30, 6), ("alone", ("x", "w"))]
    with pytest.raises(
        ValueError,
        match="each label needs 2 row.s. to fit its classifier, and the label 'w' has 1",
    ):
        read_task("classification", write_several(tmp_path, "own", rows, "jsonl"))


def test_rows_without_any_label_are_no_task(tmp_path):
    with pytest.raises(ValueError, match="and no row has a label"):
        read_task(
            "classification",
            write_several(tmp_path, "own", [("a", ()), ("b", ())], "jsonl"),
        )


@pytest.mark.parametrize("kind", ["clustering", "knn"])
def test_several_labels_of_a_text_are_refused_where_one_is_read(tmp_path, kind):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": ["x", "y"]}\n')
    with pytest.raises(
        ValueError,
        match=f"mine.jsonl: texts have several labels, which {kind} does not read",
    ):
        read_task(kind, path)


def test_a_label_that_is_no_name_is_refused_with_its_row(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": [["x"], "y"]}\n')
    with pytest.raises(ValueError, match=r"mine.jsonl, line 2: the label \['x'\]"):
        read_task("classification", path)
