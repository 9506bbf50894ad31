"""An evaluation from folder to results: shape of the results, what is encoded, what is missing."""

import pytest
from evaluation_helpers import (
    BagOfWords,
    write_sick,
    write_sts,
    write_stsb,
    write_transfer,
)

from simcse_hf.evaluation import (
    evaluate,
    read_scored_pairs,
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


def read_stsb(folder, split):
    return read_scored_pairs(folder / f"STS/STSBenchmark/sts-{split}.csv")


# --- STS ---


def test_the_average_names_its_tasks_and_those_that_are_missing(folder):
    results = evaluate(BagOfWords(), data_dir=folder).results
    assert results["average"]["tasks"] == list(STS)
    assert results["average"]["missing"] == ["STS14", "STS15", "STS16"]


# --- what is encoded ---

TASKS = (*STS, "MR", "TREC")


def test_every_text_is_encoded_once_in_one_call_the_longest_first(folder):
    model = BagOfWords()
    options = {"data_dir": folder, "tasks": TASKS, "mode": "fasttest", "geometry": True, "device": "cpu"}
    evaluate(model, **options)
    [encoded] = model.calls
    assert len(encoded) == len(set(encoded)) and len(encoded[0].split()) > len(encoded[-1].split())
    tasks, _, _ = read_tasks(**options)
    assert set(encoded) == set(roles_of(tasks)[None])


# --- mode dev ---


def test_mode_dev_scores_and_encodes_dev_splits_only(folder):
    model = BagOfWords()
    results = evaluate(model, data_dir=folder, mode="dev").results
    assert list(results) == ["STSBenchmark", "SICKRelatedness", "average"]
    texts = set()
    for pairs in (read_stsb(folder, "dev"), read_scored_pairs(folder / "SICK/SICK_trial.txt")):
        texts.update(pairs.sentences1, pairs.sentences2)
    assert set(model.calls[0]) == texts
    scores = [results[task]["splits"]["dev"]["spearman"] for task in ("STSBenchmark", "SICKRelatedness")]
    assert results["average"]["value"] == pytest.approx(sum(scores) / 2)


def test_a_task_without_a_dev_split_is_missing_in_mode_dev(folder):
    results = evaluate(BagOfWords(), data_dir=folder, tasks="STS12,STSBenchmark", mode="dev").results
    assert results["STS12"]["missing"] == "the task has no dev split"
