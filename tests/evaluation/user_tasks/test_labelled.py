"""Classification and clustering tasks: their files, their scores and their errors."""

import numpy as np
import pytest
from evaluation_helpers import LABELS, encode, labelled_rows, write_rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score
from sklearn.neighbors import KNeighborsClassifier

from simcse_hf.evaluation.user_tasks import read_task

HEADER = ["text", "label"]
KINDS = ("classification", "clustering")


@pytest.fixture
def table(tmp_path):
    return write_rows(tmp_path / "mine.csv", HEADER, labelled_rows())


def test_a_row_is_never_scored_by_a_classifier_that_saw_it(tmp_path):
    # The labels are random and each text is an island, so a probe that had seen its row would be right every time.
    random = np.random.RandomState(0)
    rows = [(f"island{i}", LABELS[random.randint(3)]) for i in range(90)]
    task = read_task("classification", write_rows(tmp_path / "islands.csv", HEADER, rows))
    result = task.evaluate(lambda texts: np.eye(200)[[int(text.removeprefix("island")) for text in texts]])
    assert result.metrics["accuracy"] == 100 * result.scores["correct"].mean() < 60
    assert result.metrics["knn_accuracy"] < 60 and "5-fold" in result.details["protocol"]


def test_classification_fits_on_the_training_rows_of_a_folder(tmp_path):
    train, test = labelled_rows(60, seed=1), labelled_rows(30, seed=2)
    write_rows(tmp_path / "set/train.csv", HEADER, train)
    write_rows(tmp_path / "set/test.tsv", HEADER, test)
    result = read_task("classification", tmp_path / "set").evaluate(encode)
    assert result.details["examples"] == 30 and result.details["train_examples"] == 60

    def features(rows):
        x = encode([text for text, _ in rows]).astype(np.float64)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    x, y = features(train), [label for _, label in train]
    probe = LogisticRegression(C=0.1, max_iter=1000).fit((x - x.mean(0)) / x.std(0), y)
    nearest = KNeighborsClassifier(5, metric="cosine", weights="distance").fit(x, y)
    held = features(test)
    guesses = {"accuracy": probe.predict((held - x.mean(0)) / x.std(0)), "knn_accuracy": nearest.predict(held)}
    for metric, predicted in guesses.items():
        expected = 100 * np.mean(predicted == np.array([label for _, label in test]))
        assert result.metrics[metric] == pytest.approx(expected, abs=100 / 30)


def test_clustering_gives_the_v_measure_of_its_clusters(table):
    result = read_task("clustering", table).evaluate(encode)
    clusters, gold = result.scores["clusters"], result.scores["gold"]
    assert clusters.shape == (60, 5) and set(clusters[:, 0]) == {0, 1, 2}
    expected = [100 * v_measure_score(gold, column) for column in clusters.T]
    assert result.details["by_seed"] == pytest.approx(expected)
    assert result.metrics["v_measure"] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_keeps_labels_and_shares_no_text(table, kind):
    task = read_task(kind, table)
    first, second = task.split(0.4, seed=3)
    assert len(first) + len(second) == len(task) and abs(len(first) - 24) <= 3
    assert all({label for _, label in part.units} == set(LABELS) for part in (first, second))
    assert not set(first.texts) & set(second.texts)
    for part in (first, second):
        assert part.evaluate(encode).metrics[part.metric] <= 100
    again = task.split(0.4, seed=3)[0]
    assert again.texts == first.texts and task.split(0.4, seed=4)[0].texts != first.texts


def test_repeated_texts_are_left_out_with_a_warning(tmp_path, caplog):
    rows = [*labelled_rows(30), labelled_rows(30)[0], (labelled_rows(30)[1][0], "other")]
    task = read_task("clustering", write_rows(tmp_path / "mine.csv", HEADER, rows))
    assert len(task) == 30
    assert "2 row(s) that repeat the text of an earlier row, 1 with another label" in caplog.text


def test_test_texts_among_the_training_rows_are_reported(tmp_path, caplog):
    write_rows(tmp_path / "set/train.csv", HEADER, labelled_rows(30))
    write_rows(tmp_path / "set/test.csv", HEADER, labelled_rows(6))
    read_task("classification", tmp_path / "set")
    assert "6 of 6 test texts also occur among the training rows" in caplog.text


def test_a_part_of_a_split_with_one_label_is_refused(tmp_path):
    rows = [("a good text", "good"), ("a bad text", "bad")]
    task = read_task("clustering", write_rows(tmp_path / "two.csv", HEADER, rows))
    for seed in range(5):  # a label with one row goes to one part as a whole
        with pytest.raises(ValueError, match="all 1 scored rows have the label|cannot be split"):
            task.split(0.5, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_several_labels_of_a_text_are_refused_with_their_row(tmp_path, kind):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": ["x", "y"]}\n')
    with pytest.raises(ValueError, match=r"mine.jsonl, line 2: the label is \['x', 'y'\], and a text has one label"):
        read_task(kind, path)
