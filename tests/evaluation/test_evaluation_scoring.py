"""An evaluation from folder to results: shape of the results, what is encoded, what is missing."""

import numpy as np
import pytest
import torch
from evaluation_helpers import BagOfWords, write_sick, write_sts, write_stsb, write_transfer

from simcse_hf.evaluation import Protocol, alignment, evaluate, read_scored_pairs, uniformity
from simcse_hf.evaluation.scoring import read_tasks

STS = ("STS12", "STS13", "STSBenchmark", "SICKRelatedness")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("downstream")
    write_sts(folder, "STS12")
    write_sts(folder, "STS13")
    write_stsb(folder)
    write_sick(folder)
    write_transfer(folder)
    return folder


def test_results_have_the_documented_names(folder):
    results = evaluate(BagOfWords(), data_dir=folder).results
    for task, subset in (("STS12", "MSRpar"), ("STS13", "FNWN")):
        for metric in ("spearman", "pearson"):
            assert all(-100 <= results[task]["aggregate"][a][metric] <= 100 for a in ("all", "mean", "wmean"))
            assert isinstance(results[task]["subsets"][subset][metric], float)
        assert results[task]["subsets"][subset]["pairs"] == 30
    assert results["STSBenchmark"]["splits"]["test"]["spearman"] > 30
    assert results["average"]["tasks"] == list(STS)
    assert results["average"]["missing"] == ["STS14", "STS15", "STS16"]
    options = {"tasks": ("MR", "CR"), "mode": "fasttest", "device": "cpu"}
    transfer = evaluate(BagOfWords(), data_dir=folder, **options).results
    assert 50 < transfer["MR"]["accuracy"] <= 100 and transfer["average"]["missing"] == ["CR"]


def test_each_distinct_text_of_all_tasks_is_encoded_once(folder):
    model = BagOfWords()
    tasks = (*STS, "MR", "TREC")
    evaluate(model, data_dir=folder, tasks=tasks, mode="fasttest", geometry=True, device="cpu")
    (encoded,) = model.calls
    assert len(encoded) == len(set(encoded))
    assert len(encoded[0].split()) > len(encoded[-1].split()), "the longest texts are first"
    assert set(encoded) == set(read_tasks(tasks, folder, Protocol("fasttest"), geometry=True).texts())


def test_mode_dev_encodes_and_scores_dev_splits_only(folder):
    model = BagOfWords()
    results = evaluate(model, data_dir=folder, mode="dev").results
    assert list(results) == ["STSBenchmark", "SICKRelatedness", "average"]
    dev = read_scored_pairs(folder / "STS/STSBenchmark/sts-dev.csv")
    sick = read_scored_pairs(folder / "SICK/SICK_trial.txt")
    assert set(model.calls[0]) == {t for p in (dev, sick) for t in p.sentences1 + p.sentences2}
    scores = [results[task]["splits"]["dev"]["spearman"] for task in ("STSBenchmark", "SICKRelatedness")]
    assert results["average"]["value"] == pytest.approx(np.mean(scores))
    named = evaluate(model, data_dir=folder, tasks="STS12,STSBenchmark", mode="dev").results
    assert named["STS12"]["missing"] == "the task has no dev split"
    accuracy = evaluate(model, data_dir=folder, tasks=["TREC"], mode="dev", device="cpu").results
    assert accuracy["average"]["value"] == accuracy["TREC"]["dev_accuracy"]


def test_geometry_is_measured_on_all_of_stsb(folder):
    results = evaluate(BagOfWords(), data_dir=folder, tasks=(), geometry=True).results
    rows = []
    for split in ("train", "dev", "test"):
        pairs = read_scored_pairs(folder / f"STS/STSBenchmark/sts-{split}.csv")
        rows += zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
    positives = [row for row in rows if row[2] > 4]
    sentences = sorted({text for row in rows for text in row[:2]})
    encode = lambda texts: torch.tensor(BagOfWords().encode(texts))  # noqa: E731
    expected = alignment(encode([row[0] for row in positives]), encode([row[1] for row in positives]))
    assert results["geometry"]["alignment"] == pytest.approx(expected, abs=1e-6)
    assert results["geometry"]["uniformity"] == pytest.approx(uniformity(encode(sentences)), abs=1e-5)
    assert results["geometry"]["positive_pairs"] == len(positives)
    assert results["geometry"]["sentences"] == len(sentences)
    assert results["geometry"]["singular_spectrum"][0] == 1
