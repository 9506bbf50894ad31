"""The STS tasks: SentEval's folders, tables and hub data sets, and the aggregations."""

import numpy as np
import pytest
import scipy.stats
from evaluation_helpers import SHARED, BagOfWords, random_pairs, write, write_rows, write_sts

from simcse_hf import evaluate
from simcse_hf.evaluation.tasks import senteval
from simcse_hf.evaluation.tasks.senteval import STS_PAIRS, STS_SUBSETS, TaskNotFound, read_sts_task, score_subsets


def test_senteval_subsets_are_read_in_order_without_unscored_lines(tmp_path, caplog):
    write_sts(tmp_path, "STS15")
    scores = tmp_path / "STS/STS15-en-test/STS.gs.belief.txt"
    lines = scores.read_text().splitlines()
    write(scores, ["", *lines[1:5], " ", *lines[6:]])
    parts = read_sts_task("STS15", tmp_path, ("test",))
    assert tuple(parts) == STS_SUBSETS["STS15"]
    assert "158 scored pairs, but SentEval has 3000" in caplog.text
    texts = (tmp_path / "STS/STS15-en-test/STS.input.belief.txt").read_text().splitlines()
    for line, text, score in parts["belief"].rows():
        assert float(lines[texts.index(f"{line}\t{text}")]) == score
    assert len(parts["belief"]) == len(lines) - 2


def test_folders_of_tables_are_read(tmp_path):
    rows = random_pairs(5, 0)
    scored = [f"{score}\t{a}\t{b}" for a, b, score in rows]
    write(tmp_path / "STS16/headlines.tsv", scored)
    write_rows(tmp_path / "STS16/plagiarism.jsonl", HEADER, rows)
    write(tmp_path / "STS16/notes.md", ["not a table"])
    sizes = {part: len(pairs) for part, pairs in read_sts_task("STS16", tmp_path, ("test",)).items()}
    assert sizes == {"headlines": 5, "plagiarism": 5}
    write(tmp_path / "SICKRelatedness/test.tsv", scored)
    write(tmp_path / "STSBenchmark/sts-dev.csv", [f"g\tf\t1\t1\t{score}\t{a}\t{b}" for a, b, score in rows])
    assert list(read_sts_task("SICKRelatedness", tmp_path, ("test", "dev"))) == ["test"]
    assert list(read_sts_task("STSBenchmark", tmp_path, ("dev",))) == ["dev"]


HEADER = ["sentence1", "sentence2", "score"]


@pytest.fixture
def rows_of_hub(tmp_path, monkeypatch):
    """The rows of the test split of each data set of the hub, for which a folder stands in."""
    rows = random_pairs(6, 0)
    for split, number in (("train", 2), ("validation", 3), ("test", 6)):
        write_rows(tmp_path / f"set/{split}.jsonl", HEADER, rows[:number])
    local = str(tmp_path / "set")
    monkeypatch.setattr(senteval, "HUB_DATASETS", dict.fromkeys(senteval.HUB_DATASETS, local))
    return rows


def test_hub_data_sets_are_loaded_by_split(rows_of_hub):
    splits = read_sts_task("STSBenchmark", "hub", ("test", "dev"))
    assert {split: len(pairs) for split, pairs in splits.items()} == {"test": 6, "dev": 3}
    whole = read_sts_task("STS12", "hub", ("test",))
    assert list(whole) == ["STS12"] and whole["STS12"].scores == [score for *_, score in rows_of_hub]
    with pytest.raises(TaskNotFound, match="no dev split"):
        read_sts_task("SICKRelatedness", "hub", ("dev",))


def test_results_name_the_commits_of_data_sets_of_the_hub_only(rows_of_hub, tmp_path):
    write_sts(tmp_path, "STS12")
    commits = {}
    for data_dir in ("hub", tmp_path):
        commits[data_dir] = evaluate(BagOfWords(), data_dir=data_dir, tasks="STS12").dataset_revisions
    assert len(commits["hub"]["STS12"]) == 40 and not commits[tmp_path]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the evaluation data of ../shared")
@pytest.mark.parametrize("folder", ["senteval/downstream", "sts_raw"])
def test_the_real_sets_have_their_published_sizes(folder):
    data_dir = SHARED / "data" / folder
    for task in ("STS12", "STS13", "STS14", "STS15"):
        assert sum(map(len, read_sts_task(task, data_dir, ("test",)).values())) == STS_PAIRS[task][task]
    splits = read_sts_task("STSBenchmark", data_dir, ("test", "dev", "train"))
    assert {split: len(pairs) for split, pairs in splits.items()} == STS_PAIRS["STSBenchmark"]


random = np.random.RandomState(0)
GOLD = {"a": random.rand(20), "b": 5 + random.rand(60), "c": random.rand(7)}
PREDICTED = {part: gold + random.randn(len(gold)) for part, gold in GOLD.items()}
PARTS = {part: {"predicted": PREDICTED[part], "gold": GOLD[part]} for part in GOLD}


@pytest.mark.parametrize("metric, reference", [("spearman", scipy.stats.spearmanr), ("pearson", scipy.stats.pearsonr)])
def test_aggregations_equal_sentevals(metric, reference):
    result = score_subsets("STS12", PARTS)
    a, b, c = (100 * reference(PREDICTED[part], GOLD[part]).statistic for part in GOLD)
    whole = reference(np.concatenate([*PREDICTED.values()]), np.concatenate([*GOLD.values()])).statistic
    assert [scores[metric] for scores in result["subsets"].values()] == pytest.approx([a, b, c])
    expected = [100 * whole, (a + b + c) / 3, (20 * a + 60 * b + 7 * c) / 87]
    assert [aggregate[metric] for aggregate in result["aggregate"].values()] == pytest.approx(expected)
    assert result["pairs"] == 87 and result["subsets"]["c"]["pairs"] == 7
    unknown = score_subsets("STS12", {"STS12": PARTS["a"]})
    assert unknown["aggregate"]["mean"] == {"spearman": None, "pearson": None}
    assert unknown["aggregate"]["all"][metric] == pytest.approx(a)
