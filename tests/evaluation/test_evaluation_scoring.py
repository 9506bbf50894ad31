"""An evaluation from folder to results: shape of the results, what is encoded, what is missing."""

import pytest
import torch
from evaluation_helpers import (
    BagOfWords,
    write_sick,
    write_sts,
    write_stsb,
    write_transfer,
)

from simcse_hf.evaluation import (
    alignment,
    evaluate,
    read_scored_pairs,
    uniformity,
)
from simcse_hf.evaluation.scoring import read_tasks
from simcse_hf.evaluation.tasks import roles_of

STS = ("STS12", "STS13", "STSBenchmark", "SICKRelatedness")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """STS12, STS13, STS-B, SICK and some transfer tasks in SentEval's layout; the other tasks are missing."""
    folder = tmp_path_factory.mktemp("downstream")
    write_sts(folder, "STS12")
    write_sts(folder, "STS13")
    write_stsb(folder)
    write_sick(folder)
    write_transfer(folder)
    return folder


def encode(texts):
    return torch.tensor(BagOfWords().encode(texts))


def read_stsb(folder, split):
    return read_scored_pairs(folder / f"STS/STSBenchmark/sts-{split}.csv")


# --- STS ---


@pytest.fixture(scope="module")
def results(folder):
    """The results of the default tasks."""
    return evaluate(BagOfWords(), data_dir=folder).results


METRICS = pytest.mark.parametrize("metric", ["spearman", "pearson"])


@METRICS
@pytest.mark.parametrize("aggregation", ["all", "mean", "wmean"])
@pytest.mark.parametrize("task", ["STS12", "STS13"])
def test_a_task_with_subsets_has_a_score_for_each_aggregation(results, task, aggregation, metric):
    assert -100 <= results[task]["aggregate"][aggregation][metric] <= 100


@METRICS
@pytest.mark.parametrize("task, subset", [("STS12", "MSRpar"), ("STS13", "FNWN")])
def test_a_subset_has_a_score_and_its_number_of_pairs(results, task, subset, metric):
    result = results[task]["subsets"][subset]
    assert isinstance(result[metric], float)
    assert result["pairs"] == 30


def test_stsb_has_a_score_for_its_test_split(results):
    assert results["STSBenchmark"]["splits"]["test"]["spearman"] > 30


def test_the_average_names_its_tasks_and_those_that_are_missing(results):
    assert results["average"]["tasks"] == list(STS)
    assert results["average"]["missing"] == ["STS14", "STS15", "STS16"]


# --- transfer ---


@pytest.fixture(scope="module")
def transfer_results(folder):
    options = {"tasks": ("MR", "CR"), "mode": "fasttest", "device": "cpu"}
    return evaluate(BagOfWords(), data_dir=folder, **options).results


def test_a_transfer_task_has_an_accuracy(transfer_results):
    assert 50 < transfer_results["MR"]["accuracy"] <= 100


def test_a_missing_transfer_task_is_named(transfer_results):
    assert transfer_results["average"]["missing"] == ["CR"]


# --- what is encoded ---

TASKS = (*STS, "MR", "TREC")


@pytest.fixture(scope="module")
def calls(folder):
    """The texts of each call of `encode` in an evaluation of many tasks."""
    model = BagOfWords()
    options = {"mode": "fasttest", "geometry": True, "device": "cpu"}
    evaluate(model, data_dir=folder, tasks=TASKS, **options)
    return model.calls


def test_all_texts_are_encoded_in_one_call(calls):
    assert len(calls) == 1


def test_no_text_is_encoded_twice(calls):
    [encoded] = calls
    assert len(encoded) == len(set(encoded))


def test_the_longest_texts_are_encoded_first(calls):
    [encoded] = calls
    assert len(encoded[0].split()) > len(encoded[-1].split())


def test_the_texts_of_all_tasks_are_encoded(calls, folder):
    [encoded] = calls
    tasks, _, _ = read_tasks(tasks=TASKS, data_dir=folder, mode="fasttest", geometry=True)
    assert set(encoded) == set(roles_of(tasks)[None])


# --- mode dev ---


@pytest.fixture(scope="module")
def dev_model():
    """A model that counts what it encodes."""
    return BagOfWords()


@pytest.fixture(scope="module")
def dev_results(dev_model, folder):
    return evaluate(dev_model, data_dir=folder, mode="dev").results


def test_mode_dev_has_the_tasks_with_a_dev_split(dev_results):
    assert list(dev_results) == ["STSBenchmark", "SICKRelatedness", "average"]


def test_mode_dev_encodes_dev_splits_only(dev_results, dev_model, folder):
    sts_b = read_stsb(folder, "dev")
    sick = read_scored_pairs(folder / "SICK/SICK_trial.txt")
    assert set(dev_model.calls[0]) == {*sts_b.texts, *sick.texts}


def test_mode_dev_averages_the_scores_of_the_dev_splits(dev_results):
    sts_b, sick = (dev_results[task]["splits"]["dev"]["spearman"] for task in ("STSBenchmark", "SICKRelatedness"))
    assert dev_results["average"]["value"] == pytest.approx((sts_b + sick) / 2)


def test_a_task_without_a_dev_split_is_missing_in_mode_dev(folder):
    results = evaluate(BagOfWords(), data_dir=folder, tasks="STS12,STSBenchmark", mode="dev").results
    assert results["STS12"]["missing"] == "the task has no dev split"


def test_mode_dev_averages_the_accuracy_on_the_dev_split(folder):
    options = {"tasks": ["TREC"], "mode": "dev", "device": "cpu"}
    results = evaluate(BagOfWords(), data_dir=folder, **options).results
    assert results["average"]["value"] == results["TREC"]["dev_accuracy"]


# --- geometry ---


@pytest.fixture(scope="module")
def geometry(folder):
    results = evaluate(BagOfWords(), data_dir=folder, tasks=(), geometry=True).results
    return results["geometry"]


@pytest.fixture(scope="module")
def stsb(folder):
    """The pairs of all splits with their scores."""
    rows = []
    for split in ("train", "dev", "test"):
        pairs = read_stsb(folder, split)
        rows += zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
    return rows


@pytest.fixture(scope="module")
def positives(stsb):
    """The pairs with a score above 4."""
    return [(first, second) for first, second, score in stsb if score > 4]


def test_alignment_is_that_of_the_pairs_of_stsb_with_a_high_score(geometry, positives):
    first, second = zip(*positives, strict=True)
    expected = alignment(encode(first), encode(second))
    assert geometry["alignment"] == pytest.approx(expected, abs=1e-6)
    assert geometry["positive_pairs"] == len(positives)


def test_uniformity_is_that_of_all_sentences_of_stsb(geometry, stsb):
    sentences = {text for first, second, _ in stsb for text in (first, second)}
    expected = uniformity(encode(sorted(sentences)))
    assert geometry["uniformity"] == pytest.approx(expected, abs=1e-5)
    assert geometry["sentences"] == len(sentences)


def test_the_singular_spectrum_starts_at_one(geometry):
    assert geometry["singular_spectrum"][0] == 1
