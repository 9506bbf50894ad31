"""Classification and clustering tasks: their files, their scores and their errors."""

import numpy as np
import pytest
from evaluation_helpers import LABELS, encode, labelled_rows, write_rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize

from simcse_hf import read_task

HEADER = ["text", "label"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A file of 60 texts with three labels."""
    return write_rows(tmp_path_factory.mktemp("table") / "mine.csv", HEADER, labelled_rows())


# --- classification by cross-validation ---


def encode_islands(texts):
    """Each text is an island: its vector is orthogonal to all others."""
    numbers = [int(text.removeprefix("island")) for text in texts]
    return np.eye(200)[numbers]


def test_a_row_is_never_scored_by_a_classifier_that_saw_it(tmp_path):
    """The labels are random, so a classifier that had seen its row would be right every time."""
    random = np.random.RandomState(0)
    rows = [(f"island{i}", LABELS[random.randint(3)]) for i in range(90)]
    result = read_task("classification", write_rows(tmp_path / "islands.csv", HEADER, rows)).evaluate(encode_islands)
    assert max(result.metrics.values()) < 60 and list(result.metrics) == ["accuracy", "knn_accuracy"]
    assert result.metrics["accuracy"] == 100 * result.scores["classification"]["correct"].mean()
    assert "5-fold" in result.details["protocol"]


# --- classification with training rows ---

TRAIN = labelled_rows(60, seed=1)
TEST = labelled_rows(30, seed=2)


def features_and_labels(rows):
    """Normalized embeddings in float64, and the labels."""
    texts, labels = zip(*rows, strict=True)
    return normalize(encode(texts).astype(np.float64)), labels


def test_classifiers_are_fitted_on_the_training_rows_of_a_folder(tmp_path):
    write_rows(tmp_path / "train.csv", HEADER, TRAIN)
    write_rows(tmp_path / "test.tsv", HEADER, TEST)
    found = read_task("classification", tmp_path).evaluate(encode)
    classifiers = {
        "accuracy": make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000)),
        "knn_accuracy": KNeighborsClassifier(5, metric="cosine", weights="distance"),
    }
    expected = {}
    for name, classifier in classifiers.items():
        expected[name] = 100 * classifier.fit(*features_and_labels(TRAIN)).score(*features_and_labels(TEST))
    assert found.metrics == pytest.approx(expected, abs=100 / 30)
    assert found.details["examples"] == 30 and found.details["train_examples"] == 60


def test_test_texts_among_the_training_rows_are_reported(tmp_path, caplog):
    write_rows(tmp_path / "set/train.csv", HEADER, labelled_rows(30))
    write_rows(tmp_path / "set/test.csv", HEADER, labelled_rows(6))
    read_task("classification", tmp_path / "set")
    assert "6 of 6 test texts also occur among the training rows" in caplog.text


# --- clustering ---


def test_clustering_gives_the_mean_v_measure_of_five_seeds(table):
    result = read_task("clustering", table).evaluate(encode)
    scores = result.scores["clustering"]
    assert scores["clusters"].shape == (60, 5) and set(scores["clusters"][:, 0]) == {0, 1, 2}
    expected = [100 * v_measure_score(scores["gold"], clusters) for clusters in scores["clusters"].T]
    assert result.details["by_seed"] == pytest.approx(expected)
    assert result.metrics["v_measure"] == pytest.approx(np.mean(expected))


# --- splits ---


@pytest.mark.parametrize("kind", ["classification", "clustering"])
def test_a_split_loses_no_row_and_keeps_the_labels(kind, table):
    task = read_task(kind, table)
    first, second = task.split(0.4, seed=3)
    assert len(first) == pytest.approx(24, abs=3) and len(first) + len(second) == 60
    assert not set(first.texts) & set(second.texts)
    for part in (first, second):
        assert {label for _, label in part.units} == set(LABELS)
        assert part.evaluate(encode).metrics[part.metric] <= 100
    again, other = (task.split(0.4, seed)[0].texts for seed in (3, 4))
    assert again == first.texts != other


def test_two_rows_of_each_label_are_enough_for_a_split_and_one_row_goes_to_one_part(tmp_path):
    rows = [(f"text {number}", ("good", "bad")[number % 2]) for number in range(4)]
    task = read_task("clustering", write_rows(tmp_path / "four.csv", HEADER, rows))
    for part in task.split(0.5):
        assert sorted(label for _, label in part.units) == ["bad", "good"]
    task = read_task("clustering", write_rows(tmp_path / "two.csv", HEADER, rows[:2]))
    for seed in (0, 1):
        with pytest.raises(ValueError, match="all 1 scored rows have the label|cannot be split"):
            task.split(0.5, seed)


# --- rows ---


@pytest.mark.parametrize("kind", ["classification", "knn"])
def test_a_class_that_cannot_be_learned_is_left_out_and_reported(kind, table, tmp_path, caplog):
    rows = labelled_rows()
    path = write_rows(tmp_path / "mine.csv", HEADER, [*rows, ("alone", "single")])
    assert read_task(kind, path).units == read_task(kind, table).units
    split = [(*row, "train") for row in TRAIN] + [(*row, "test") for row in [*TEST, ("alone", "new")]]
    task = read_task(kind, write_rows(tmp_path / "split.csv", [*HEADER, "split"], split))
    assert ("alone", "new") not in task.units and len(task) == len(TEST)
    assert "1 of 4 labels: single" in caplog.text and "1 of 4 labels: new" in caplog.text


def test_repeated_texts_are_left_out_and_reported(tmp_path, caplog):
    rows = labelled_rows(30)
    file = write_rows(tmp_path / "mine.csv", HEADER, [*rows, rows[0], (rows[1][0], "other")])
    assert len(read_task("clustering", file)) == 30
    assert "2 row(s) that repeat the text of an earlier row, 1 with another label" in caplog.text
