"""The STS tasks: scored pairs in every layout, SentEval's folders, tables and hub data sets, and the aggregations."""

from dataclasses import replace

import data_helpers
import numpy as np
import pandas
import pytest
import scipy.stats
from datasets import Dataset
from evaluation_helpers import SHARED, BagOfWords, random_pairs, write, write_rows, write_sts

from simcse_hf.data import read
from simcse_hf.data.read import load_text_dataset
from simcse_hf.evaluation import ScoredPairs, evaluate, read_scored_pairs
from simcse_hf.evaluation.tasks import senteval
from simcse_hf.evaluation.tasks.senteval import (
    STS_PAIRS,
    STS_SUBSETS,
    TaskNotFound,
    read_sts_task,
    score_subsets,
)

EXPECTED = ScoredPairs("x", ["a cat", 'he said "no"'], ["a dog", "it is , red"], [4.5, 0.0])
STSB = 'g\tf\t2012\t1\t4.5\ta cat\ta dog\ng\tf\t2012\t2\t0.0\the said "no"\tit is , red\textra\tsource\n'
RECORDS = [
    {"sentence1": "a cat", "sentence2": "a dog", "similarity_score": 4.5},
    {"sentence1": 'he said "no"', "sentence2": "it is , red", "similarity_score": 0.0},
    {"sentence1": "not", "sentence2": "scored", "similarity_score": None},
]


@pytest.mark.parametrize(
    "name, text",
    [
        ("x.csv", STSB),
        ("x.tsv", '4.5\ta cat\ta dog\n0.0\the said "no"\tit is , red\n'),
        (
            "x.tsv",
            'sentence1\tsentence2\tscore\na cat\ta dog\t4.5\nhe said "no"\tit is , red\t0.0\n',
        ),
        (
            "x.csv",
            '\ufeffsent1,sent2,label\r\na cat,a dog,4.5\r\n"he said ""no""","it is , red",0\r\n',
        ),
        (
            "x.txt",
            "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n"
            '1\ta cat\ta dog\t4.5\n2\the said "no"\tit is , red\t0',
        ),
        (
            "x.csv",
            'score,Positive,anchor\n4.5,a dog,a cat\n0.0,"it is , red","he said ""no"""\n',
        ),
        ("x.csv", STSB + "g\tf\t2012\t3\t\tnot\tscored\n"),
        ("x.csv", STSB.replace("a cat", "  a \u00a0cat ")),
        ("x.csv", STSB.replace("a cat", "a\rcat")),
        ("x.jsonl", data_helpers.content_of("jsonl", RECORDS)),
        ("x.parquet", data_helpers.content_of("parquet", RECORDS)),
    ],
)
def test_every_layout_is_read(tmp_path, name, text):
    assert read_scored_pairs(data_helpers.write(tmp_path / name, text)) == EXPECTED


TEXTS = [
    'he said "no"',
    '"Yes," she said',
    "two  spaces",
    'all of it is "quoted"',
    "plain",
]


def test_a_table_of_pandas_gives_training_and_dev_sets_the_same_text(tmp_path):
    frame = pandas.DataFrame({"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": range(5)})
    frame.to_csv(tmp_path / "pairs.tsv", sep="\t", index=False)
    pairs = read_scored_pairs(tmp_path / "pairs.tsv")
    assert pairs.sentences1 == TEXTS and pairs.sentences2 == TEXTS[::-1]
    assert read_scored_pairs(frame).to_dataset()[:] == pairs.to_dataset()[:]
    assert load_text_dataset(tmp_path / "pairs.tsv")[:] == pairs.to_dataset().remove_columns("score")[:]


def test_quotation_marks_of_the_raw_files_are_text(tmp_path, caplog):
    raw = write(tmp_path / "raw.tsv", ['4.0\t"quoted as a whole"\t"Yes," she said', "1.0\ta\tb"])
    pairs = read_scored_pairs(raw)
    assert pairs.sentences1 == ['"quoted as a whole"', "a"]
    assert pairs.sentences2 == ['"Yes," she said', "b"]
    glue = write(
        tmp_path / "glue.tsv",
        ["score\tsentence1\tsentence2", '4.0\t"quoted as a whole"\t"Yes," she said'],
    )
    pairs = read_scored_pairs(glue)
    assert [*pairs.sentences1, *pairs.sentences2] == ['"quoted as a whole"', '"Yes," she said']
    assert "glue.tsv, line 2: not valid csv" in caplog.text and "read as part of the text" in caplog.text


needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the evaluation data of ../shared")


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


def test_the_pairs_argument_is_a_file_or_a_data_set_with_a_split(tmp_path, monkeypatch):
    path = write(tmp_path / "mine.tsv", ["1\ta\tb", "2\tc\td"])
    assert read_scored_pairs(str(path)).name == "mine"
    asked = []

    def load_from_hub(source, split, **options):
        asked.append((source, split))
        return Dataset.from_list(RECORDS)

    monkeypatch.setattr(read, "load_from_hub", load_from_hub)
    for name in ("someone/sts-nl", "someone/sts-nl:validation"):
        assert read_scored_pairs(name) == replace(EXPECTED, name="someone/sts-nl")
    assert asked == [("someone/sts-nl", "test"), ("someone/sts-nl:validation", "test")]


@needs_shared
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
