"""The three protocols of the transfer tasks."""

import numpy as np
import pytest
from evaluation_helpers import BagOfWords, write_transfer

from simcse_hf.evaluation import transfer
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.transfer import pair_features, read_transfer_task, score_transfer_task


def score(task, folder, mode="fasttest"):
    splits = read_transfer_task(task, folder)
    texts = [text for part in splits.values() for text in part.texts + (part.texts2 or [])]
    return score_transfer_task(task, splits, SentenceEmbeddings(BagOfWords(), texts), mode, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("downstream")
    write_transfer(folder)
    return folder


@pytest.mark.parametrize("task, tested", [("MR", 120), ("SST2", 60), ("TREC", 72), ("MRPC", 60)])
def test_each_protocol_scores_every_test_example(folder, task, tested):
    result, scored = score(task, folder)
    assert len(scored["gold"]) == len(scored["correct"]) == tested
    # The folds of nested cross-validation are of one size here, so that their mean is the mean over examples.
    assert result["accuracy"] == pytest.approx(100 * scored["correct"].mean())
    assert 100 * np.bincount(scored["gold"]).max() / tested < result["accuracy"] <= 100
    assert ("f1" in result) == (task == "MRPC")
    if task == "MRPC":
        hits = (scored["correct"] & (scored["gold"] == 1)).sum()
        assert hits > 0 and result["f1"] == pytest.approx(100 * 2 * hits / (2 * hits + (~scored["correct"]).sum()))
    assert sum(result["examples"].values()) >= tested


def test_the_mode_selects_the_classifier_settings(folder, monkeypatch):
    seen = []

    class Spy(transfer.LogisticRegressionGrid):
        def __init__(self, classes, config, *rest):
            seen.append(config)
            super().__init__(classes, config, *rest)

    monkeypatch.setattr(transfer, "LogisticRegressionGrid", Spy)
    score("TREC", folder, "fasttest")
    score("TREC", folder, "test")
    assert [(c.folds, c.optimizer, c.batch_size, c.tenacity, c.epoch_size) for c in dict.fromkeys(seen)] == [
        (5, "rmsprop", 128, 3, 2),
        (10, "adam", 64, 5, 4),
    ]


def test_pair_features_are_the_difference_and_the_product():
    a, b = np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]])
    assert pair_features(a, b).tolist() == [[2.0, 3.0, 3.0, -2.0]]
