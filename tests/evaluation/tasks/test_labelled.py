"""Classification and clustering tasks: their files, their scores and their errors."""

import numpy as np
import pytest
from evaluation_helpers import LABELS, encode, labelled_rows, write_rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score
from sklearn.neighbors import KNeighborsClassifier

from simcse_hf.evaluation.tasks import read_task

HEADER = ["text", "label"]
KINDS = pytest.mark.parametrize("kind", ["classification", "clustering"])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A file of 60 texts with three labels."""
    return write_rows(tmp_path_factory.mktemp("table") / "mine.csv", HEADER, labelled_rows())


# --- classification by cross-validation ---


def encode_islands(texts):
    """Each text is an island: its vector is orthogonal to all others."""
    numbers = [int(text.removeprefix("island")) for text in texts]
    return np.eye(200)[numbers]


@pytest.fixture(scope="module")
def result_of_islands(tmp_path_factory):
    """The labels are random, so a classifier that had seen its row would be right every time."""
    random = np.random.RandomState(0)
    rows = [(f"island{i}", LABELS[random.randint(3)]) for i in range(90)]
    file = write_rows(tmp_path_factory.mktemp("islands") / "islands.csv", HEADER, rows)
    return read_task("classification", file).evaluate(encode_islands)


@pytest.mark.parametrize("metric", ["accuracy", "knn_accuracy"])
def test_a_row_is_never_scored_by_a_classifier_that_saw_it(result_of_islands, metric):
    assert result_of_islands.metrics[metric] < 60


def test_the_accuracy_is_the_share_of_correct_rows(result_of_islands):
    correct = result_of_islands.scores["classification"]["correct"]
    assert result_of_islands.metrics["accuracy"] == 100 * correct.mean()


def test_the_protocol_of_a_single_file_is_cross_validation(result_of_islands):
    assert "5-fold" in result_of_islands.details["protocol"]


# --- classification with training rows ---

TRAIN = labelled_rows(60, seed=1)
TEST = labelled_rows(30, seed=2)


@pytest.fixture(scope="module")
def result_of_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    write_rows(folder / "train.csv", HEADER, TRAIN)
    write_rows(folder / "test.tsv", HEADER, TEST)
    return read_task("classification", folder).evaluate(encode)


def features_and_labels(rows):
    """Normalized embeddings in float64, and the labels."""
    x = encode([text for text, _ in rows]).astype(np.float64)
    labels = np.array([label for _, label in rows])
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels


def test_classification_fits_a_probe_on_the_training_rows_of_a_folder(result_of_folder):
    x, labels = features_and_labels(TRAIN)
    test_x, test_labels = features_and_labels(TEST)
    mean = x.mean(0)
    deviation = x.std(0)
    probe = LogisticRegression(C=0.1, max_iter=1000).fit((x - mean) / deviation, labels)
    expected = 100 * probe.score((test_x - mean) / deviation, test_labels)
    assert result_of_folder.metrics["accuracy"] == pytest.approx(expected, abs=100 / 30)


def test_classification_asks_the_nearest_training_rows_of_a_folder(result_of_folder):
    nearest = KNeighborsClassifier(5, metric="cosine", weights="distance")
    nearest.fit(*features_and_labels(TRAIN))
    expected = 100 * nearest.score(*features_and_labels(TEST))
    assert result_of_folder.metrics["knn_accuracy"] == pytest.approx(expected, abs=100 / 30)


def test_a_result_says_how_many_rows_there_were(result_of_folder):
    assert result_of_folder.details["examples"] == 30
    assert result_of_folder.details["train_examples"] == 60


def test_test_texts_among_the_training_rows_are_reported(tmp_path, caplog):
    write_rows(tmp_path / "set/train.csv", HEADER, labelled_rows(30))
    write_rows(tmp_path / "set/test.csv", HEADER, labelled_rows(6))
    read_task("classification", tmp_path / "set")
    assert "6 of 6 test texts also occur among the training rows" in caplog.text


# --- clustering ---


@pytest.fixture(scope="module")
def result_of_clustering(table):
    return read_task("clustering", table).evaluate(encode)


def test_there_are_as_many_clusters_as_labels_for_each_of_five_seeds(
    result_of_clustering,
):
    clusters = result_of_clustering.scores["clustering"]["clusters"]
    assert clusters.shape == (60, 5)
    assert set(clusters[:, 0]) == {0, 1, 2}


def test_clustering_gives_the_v_measure_of_its_clusters(result_of_clustering):
    gold = result_of_clustering.scores["clustering"]["gold"]
    of_each_seed = result_of_clustering.scores["clustering"]["clusters"].T
    expected = [100 * v_measure_score(gold, clusters) for clusters in of_each_seed]
    assert result_of_clustering.details["by_seed"] == pytest.approx(expected)


def test_the_v_measure_is_the_mean_over_the_seeds(result_of_clustering):
    expected = np.mean(result_of_clustering.details["by_seed"])
    assert result_of_clustering.metrics["v_measure"] == pytest.approx(expected)


# --- splits ---


@pytest.fixture
def task(kind, table):
    return read_task(kind, table)


@pytest.fixture
def parts(task):
    """40% and 60% of the rows."""
    return task.split(0.4, seed=3)


@KINDS
def test_a_split_has_the_sizes_asked_for_and_loses_no_row(parts):
    first, second = parts
    assert len(first) == pytest.approx(24, abs=3)
    assert len(first) + len(second) == 60


@KINDS
def test_a_split_keeps_labels(parts):
    for part in parts:
        assert {label for _, label in part.units} == set(LABELS)


@KINDS
def test_a_split_shares_no_text(parts):
    first, second = parts
    assert not set(first.texts) & set(second.texts)


@KINDS
def test_the_parts_of_a_split_can_be_evaluated(parts):
    for part in parts:
        assert part.evaluate(encode).metrics[part.metric] <= 100


@KINDS
def test_the_same_seed_gives_the_same_split(task, parts):
    again, _ = task.split(0.4, seed=3)
    assert again.texts == parts[0].texts


@KINDS
def test_another_seed_gives_another_split(task, parts):
    other, _ = task.split(0.4, seed=4)
    assert other.texts != parts[0].texts


@pytest.mark.parametrize("seed", range(5))
def test_a_part_of_a_split_with_one_label_is_refused(tmp_path, seed):
    """A label with one row goes to one part as a whole."""
    rows = [("a good text", "good"), ("a bad text", "bad")]
    task = read_task("clustering", write_rows(tmp_path / "two.csv", HEADER, rows))
    with pytest.raises(ValueError, match="all 1 scored rows have the label|cannot be split"):
        task.split(0.5, seed)


# --- rows ---


@pytest.fixture
def file_with_repeated_texts(tmp_path):
    """30 rows, one of them again, and one of them again with another label."""
    rows = labelled_rows(30)
    first = rows[0]
    second_text, _ = rows[1]
    return write_rows(tmp_path / "mine.csv", HEADER, [*rows, first, (second_text, "other")])


def test_repeated_texts_are_left_out(file_with_repeated_texts):
    assert len(read_task("clustering", file_with_repeated_texts)) == 30


def test_repeated_texts_are_reported(file_with_repeated_texts, caplog):
    read_task("clustering", file_with_repeated_texts)
    words = "2 row(s) that repeat the text of an earlier row, 1 with another label"
    assert words in caplog.text
