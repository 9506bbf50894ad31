"""An evaluation of a folder of SentEval: what is encoded, and what is scored in mode dev."""

import pandas as pd
import pytest
from evaluation_helpers import BagOfWords, labelled_rows, random_pairs, write_rows, write_senteval
from trainer_helpers import refuses

from simcse_hf import analyze, compare
from simcse_hf.evaluation import evaluate, read_scored_pairs
from simcse_hf.evaluation.scoring import read_tasks
from simcse_hf.evaluation.tasks import roles_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("downstream"))


def test_every_text_is_encoded_once_in_one_call_the_longest_first(folder):
    model = BagOfWords()
    tasks = ("STS12", "STSBenchmark", "SICKRelatedness", "MR", "TREC")
    options = {"data_dir": folder, "tasks": tasks, "mode": "fasttest", "geometry": True, "device": "cpu"}
    evaluate(model, **options)
    [encoded] = model.calls
    assert len(encoded) == len(set(encoded)) and len(encoded[0].split()) > len(encoded[-1].split())
    read, _, _ = read_tasks(**options)
    assert set(encoded) == set(roles_of(read)[None])


def test_mode_dev_scores_and_encodes_dev_splits_only(folder):
    model = BagOfWords()
    results = evaluate(model, data_dir=folder, mode="dev").results
    assert list(results) == ["STSBenchmark", "SICKRelatedness", "average"]
    texts = set()
    for file in ("STS/STSBenchmark/sts-dev.csv", "SICK/SICK_trial.txt"):
        pairs = read_scored_pairs(folder / file)
        texts.update(pairs.sentences1, pairs.sentences2)
    assert set(model.calls[0]) == texts
    scores = [results[task]["splits"]["dev"]["spearman"] for task in ("STSBenchmark", "SICKRelatedness")]
    assert results["average"]["value"] == pytest.approx(sum(scores) / 2)
    named = evaluate(model, data_dir=folder, tasks="STS12,STSBenchmark", mode="dev").results
    assert named["STS12"]["missing"] == "the task has no dev split"


def test_one_file_table_or_task_stands_for_a_list_of_it(tmp_path):
    pairs = write_rows(tmp_path / "pairs.csv", ["sentence1", "sentence2", "score"], random_pairs(20, 1))
    labels = write_rows(tmp_path / "labels.csv", ["text", "label"], labelled_rows())
    expected = evaluate(BagOfWords(), pairs=[pairs], task=[f"knn={labels}"]).results
    for one in (str(pairs), pairs):
        found = evaluate(BagOfWords(), pairs=one, task=f"knn={labels}").results
        assert found["pairs"]["spearman"] == expected["pairs"]["spearman"] and found["knn"] == expected["knn"]
    [of_frame, _] = evaluate(BagOfWords(), pairs=pd.read_csv(pairs)).results.values()
    assert of_frame["spearman"] == expected["pairs"]["spearman"]
    with refuses("at least two"):
        compare(str(labels), pairs=pairs)
    with refuses("labels.csv"):
        analyze(str(labels), tmp_path / "analysis")
