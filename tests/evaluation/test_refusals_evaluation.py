"""What the evaluation refuses: the message names the file, the row, the argument or the setting."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from evaluation_helpers import BagOfWords, Fixed, compare_systems, write_beir, write_sts, write_transfer

from simcse_hf import ScoredPairs, read_task
from simcse_hf.evaluation import (
    Evaluation,
    alignment,
    compare,
    cosine_similarity_pairs,
    evaluate,
    isotropy,
    pearson,
    read_scored_pairs,
    singular_spectrum,
    uniformity,
)
from simcse_hf.evaluation.embeddings import embed_all
from simcse_hf.evaluation.report import write_results
from simcse_hf.evaluation.tasks.senteval import ScoredPairsTask, read_sts_task, read_transfer_task, score_parts

STSB = "g\tf\t2012\t1\t4.5\ta cat\ta dog\n"
PAIRS = "sentence1\tsentence2\tscore\n"
TASK_PAIRS = "sentence1,sentence2,label\nc,d,0\n"
GOOD = "text,label\n" + "".join(f"text {i},{('good', 'bad')[i % 2]}\n" for i in range(12))
RANKED = '{"query": "a", "positive": ["b"], "negative": ["c"]}\n'


SCORED = read_scored_pairs
STS = partial(ScoredPairsTask.read, label_separator=None)
PAIR, CLASSES, RERANKING, RETRIEVAL = (
    partial(read_task, kind) for kind in ("pairs", "classification", "reranking", "retrieval")
)


@pytest.mark.parametrize(
    "read, name, text, words",
    [
        (SCORED, "x.csv", STSB + "g\tf\t2012\t3\t1.0\tonly one\n", "line 2: 6 columns"),
        (STS, "x.tsv", PAIRS + "a\tb\t2\nc\td\t2\n", r"all 2 pair\(s\) have the score 2"),
        (SCORED, "x.csv", "one\ttwo\na\tb\n", "line 1: expected the columns"),
        (PAIR, "x.csv", TASK_PAIRS + "e,f,0.5\n", "pair 2 .'e', ....*label 0.5"),
        (CLASSES, "x.csv", "words,topic\na,b\n", "no column 'text' .*no column 'label'"),
        (CLASSES, "x.csv", "text,label\na,same\nb,same\n", "all 2 scored rows have the label 'same'"),
        (CLASSES, "x.csv", "text,label\na,new\nb,old\n", "a label needs 2 row.s. .* none has as many"),
        (CLASSES, "x.csv", GOOD + " ,good\n", "line 14: the text is empty"),
        (CLASSES, "x.csv", GOOD + "a text,\n", "line 14: the label is empty"),
        (CLASSES, "x.csv", "text,label\n", "holds no rows"),
        (CLASSES, "x.csv", "text,label,split\na,b,dev\n", "holds 'dev', but no 'test'"),
        (RERANKING, "x.jsonl", RANKED + RANKED.replace('["b"]', '"b"'), "line 2, column positive: .* got 'b'"),
        (RERANKING, "x.jsonl", RANKED.replace('"b"', ""), "none of the 1 queries has both"),
        (Evaluation.read, "x.json", "[]", 'with the entry "results".*Name a result file'),
    ],
)
def test_a_malformed_file_is_refused_by_name_and_line(tmp_path, read, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path}.*{words}"):
        read(path)


def write_folder(folder):
    write_beir(folder, {"d0": "a", "d1": "b"}, {"q0": "c"}, {"q0": {"d0": 1}})
    write_sts(folder, "STS13")
    write_transfer(folder)


QRELS, INPUT, DEV = "qrels/test.tsv", "STS/STS13-en-test/STS.input.FNWN.txt", "SST/binary/sentiment-dev"
STS13 = partial(read_sts_task, "STS13", splits=("test",))
SST2 = partial(read_transfer_task, "SST2")


@pytest.mark.parametrize(
    "read, name, text, words",
    [
        (RETRIEVAL, QRELS, "+q0\td1\thigh", "test.tsv, line 3: the score 'high'"),
        (RETRIEVAL, QRELS, "+q0\td0\t0", "'d0' is judged a second time for query 'q0'"),
        (RETRIEVAL, "corpus.jsonl", '+{"_id": "d0", "text": "x"}', "line 3: the _id 'd0' occurs a second"),
        (RETRIEVAL, "corpus.jsonl", '+{"_id": null, "text": "x"}', "line 3: the _id is empty"),
        (RETRIEVAL, QRELS, None, "no qrels/test.tsv"),
        (RETRIEVAL, "corpus.jsonl.gz", "", "both corpus.jsonl and corpus.jsonl.gz"),
        (CLASSES, "queries.jsonl", None, "has no test.csv"),
        (STS13, INPUT, "+only one text", "STS.gs.FNWN.txt has 30 lines but"),
        (STS13, INPUT, "one\n" * 30, "STS.input.FNWN.txt .*line 1: 1 tab-separated"),
        (STS13, INPUT, None, "STS.input.FNWN.txt"),
        (SST2, DEV, "", "the files of SST2 hold no dev examples"),
        (SST2, DEV, "a\t7", "line 1: label '7'"),
    ],
)
def test_a_malformed_folder_is_refused_by_file_and_line(tmp_path, read, name, text, words):
    write_folder(tmp_path)
    path = tmp_path / name
    if text is None:
        path.unlink()
    else:
        path.write_text(path.read_text() + text[1:] if text.startswith("+") else text)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        read(tmp_path)


def hub_set(folder):
    (folder / "test.jsonl").write_text(json.dumps({"sentence1": " ", "sentence2": "b", "score": 2.0}))
    read_scored_pairs(f"{folder}:test")


def stored(gold, task="STS12"):
    """An evaluation of nine pairs."""
    scores = {"predicted": gold, "gold": gold, "group": np.arange(9)}
    return Evaluation({task: {"aggregate": {"all": {"spearman": 50.0}}}}, {task: {"a": scores}})


NINE = stored(np.arange(9.0))


def compared(other=NINE, **settings):
    compare_systems({"x": NINE, "y": other}, **settings)


def of_modes(folder):
    for mode in ("test", "dev"):
        write_results(folder / f"{mode}.json", {"results": {}, "protocol": {"mode": mode}}, {})
    compare([folder / "test.json", folder / "dev.json"])


def of_other_texts(folder):
    """Compare results on a data set and on its translation, without the scores of single pairs."""
    for name, words in {"a": "the cat", "b": "le chat"}.items():
        pairs = ScoredPairs("sts", [words] * 3, [words, f"{words} 1", f"{words} 2"], [3.0, 2.0, 1.0])
        evaluate(BagOfWords(), pairs=[pairs], output=folder / f"{name}.json")
        (folder / f"{name}.scores.npz").unlink()
    compare([folder / "a.json", folder / "b.json"])


def scored(folder, **options):
    evaluate(BagOfWords(), data_dir=folder, **options)


def encoded(vectors):
    embed_all(Fixed(np.array(vectors)), {None: ["bb", "a"]})


CONSTANT = {"dev": {"predicted": np.arange(3.0), "gold": np.full(3, 2.0)}}


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: scored(x, tasks="STS11"), "unknown task STS11. Use names out of STS12"),
        (lambda x: scored(x, mode="train"), "mode"),
        (scored, "data_dir .* has none of the tasks STS12"),
        (lambda x: scored(x, tasks=(), geometry=True), "STSBenchmark"),
        (lambda x: scored(None, tasks="STS12", mteb=["STS"]), "data_dir is missing"),
        (lambda x: scored(None), "give data_dir, pairs, task or mteb"),
        (lambda x: scored("hub", tasks="MR"), "MR: .* are read from SentEval's folders only"),
        (lambda x: scored(None, mteb=["STS"], max_length=8), "max_length"),
        (lambda x: compare([BagOfWords(), BagOfWords()]), "at least two different models or result files"),
        (lambda x: compare(["absent.json", "a"]), "absent.json: there is no such file"),
        # whose scores would take the place of those of own.json
        (lambda x: scored(x, output=x / "own.txt"), r"output must end in \.json, got .*own\.txt"),
        (lambda x: compare(["a", "b"], pairs=["c"], output="own.txt"), r"output must end in \.json, got own\.txt"),
        (of_modes, "dev.json was evaluated with mode 'dev', not 'test'"),
        (lambda x: compare(["a", "b"]), "a is a model .*: give data_dir, pairs or task"),
        (PAIR, "is a folder. Name a file of pairs"),
        (lambda x: read_task("ranking", x), "'ranking' is no kind of task. Use one of classification"),
        (lambda x: read_task("classification", x / "no.csv"), "no.csv: no such file"),
        (lambda x: scored(None, task=["own.csv"]), "task 1 must be KIND=FILE, .* got 'own.csv'"),
        (lambda x: scored(None, task=[("retrieval", [{"text": "a"}])]), "task 1: retrieval is not read from rows"),
        (lambda x: scored(None, task=[("MR", [{"text": "a"}])]), "MR is read from a folder"),
        (hub_set, "test, row 1: a sentence is empty"),
        (lambda x: score_parts("STS-B", CONSTANT), "^STS-B dev: all 3 values"),
        (of_other_texts, "sts: .*b.json were evaluated on other texts. Results on different rows are"),
        (lambda x: compared(stored(np.arange(9.0)[::-1])), "STS12: y and x were not evaluated on the same examples"),
        (lambda x: compared(stored(np.arange(9.0), "STS13")), "no task in common"),
        (lambda x: compared(confidence="x"), "confidence .*'x'"),
        (lambda x: compared(resamples=1.5), "resamples .*1.5"),
        (lambda x: compared(resamples=39), "resamples must be at least 40 .*39"),
        (lambda x: pearson([1, 2], [1, 2, 3]), "of equal length"),
        (lambda x: cosine_similarity_pairs(np.eye(2), np.array([[1, np.nan], [1, 2]])), "row 0 of the second .*NaN"),
        (lambda x: encoded([[1, 2], [np.nan, 1]]), r"text 1 \('a'\) has an embedding that is not finite"),
        (lambda x: encoded([[1.0, 2.0], [1.0 + 1e-7, 2.0]]), "collapsed"),
        (lambda x: encoded([[1.0, 2.0]]), r"shape \(1, 2\) for 2 texts"),
    ],
)
def test_wrong_arguments_and_numbers_are_refused(tmp_path, call, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        call(tmp_path)


@pytest.mark.parametrize("measure", [uniformity, singular_spectrum, isotropy, lambda x: alignment(x, x)])
@pytest.mark.parametrize("value, words", [(math.nan, "NaN"), (0.0, "row 3 is zero")])
def test_broken_embeddings_are_named(measure, value, words):
    broken = torch.eye(5)
    broken[2] = value
    with pytest.raises(ValueError, match=words):
        measure(broken)
