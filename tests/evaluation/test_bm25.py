"""Keyword search as a model: its scores against loops in float64, its tasks, and what it refuses."""

import json
import math
import re

import numpy as np
import pytest
from cli_helpers import status
from evaluation_helpers import BagOfWords, labelled_rows, random_texts, write, write_rows, write_user_tasks

from simcse_hf import read_task
from simcse_hf.evaluation import Evaluation, compare, evaluate

pytest.importorskip("bm25s")
from simcse_hf.evaluation.bm25 import BM25  # noqa: E402


def slow_scores(query, documents):
    """The BM25 score of each different document for a query in Lucene's form, one word at a time."""
    words_of = {text: re.findall(r"\b\w\w+\b", text.lower()) for text in documents}
    mean_length = sum(map(len, words_of.values())) / len(words_of)
    scores = {}
    for text, words in words_of.items():
        score = 0.0
        for word in re.findall(r"\b\w\w+\b", query.lower()):
            having = sum(word in others for others in words_of.values())
            rarity = math.log(1 + (len(words_of) - having + 0.5) / (having + 0.5))
            count = words.count(word)
            score += rarity * count / (count + 1.5 * (0.25 + 0.75 * len(words) / mean_length))
        scores[text] = score
    return scores


TEXTS = [
    *random_texts(30, 0, 5),
    *random_texts(10, 1, 9),
    "A Cat, a CAT: 2 cats!",
    "?",
    "naïve café 3000",
]


def search_over(texts):
    return BM25(list(dict.fromkeys(texts)))


def test_documents_are_ranked_by_the_formula_of_lucene_and_equal_ones_by_their_ids_descending():
    documents = {f"d{number}": text for number, text in enumerate(TEXTS)}
    queries = ["the cat CAT sleeps near a red house", "café x unknown", "bird bird"]
    rankings = search_over(TEXTS).rank(queries, documents, len(TEXTS))
    for query, ranking in zip(queries, rankings, strict=True):
        slow = slow_scores(query, TEXTS)
        assert ranking == sorted(documents, key=lambda id: (round(slow[documents[id]], 5), id), reverse=True)


def test_texts_without_spaces_between_words_are_told(caplog):
    BM25(["the cat", "the dog", "un chat"])
    assert "in common" not in caplog.text
    BM25(["猫坐在垫子上", "一只猫坐在垫子上", "the cat", "the dog", "狗在公园里跑"])
    assert "3 of 5 texts have no word in common with another one" in caplog.text


def test_a_pair_has_the_mean_share_of_the_scores_of_its_texts_for_themselves():
    first, second = TEXTS[:20], TEXTS[20:40]
    search = search_over(first + second)
    expected = []
    for pair in zip(first, second, strict=True):
        shares = []
        for query, document in (pair, pair[::-1]):
            scores = slow_scores(query, first + second)
            shares.append(scores[document] / scores[query])
        expected.append(np.mean(shares))
    assert search.pairs(first, second) == pytest.approx(expected, abs=1e-5)
    assert search.pairs(second, first) == pytest.approx(expected, abs=1e-5)
    assert search.pairs(first, first) == pytest.approx(np.ones(20))


# --- the tasks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tasks(tmp_path):
    """A task of each kind that keyword search can do."""
    write_user_tasks(tmp_path)
    files = {"knn": "rows.csv", "pairs": "pairs.csv", "reranking": "ranked.jsonl", "retrieval": "beir"}
    return [f"{kind}={tmp_path / file}" for kind, file in files.items()]


def test_the_candidates_of_a_query_are_ranked_with_the_words_of_all_candidates(tasks):
    task = read_task(*tasks[2].split("="))
    precisions = []
    for query in task.units:
        slow = slow_scores(query.text, task.roles["document"])
        ranking = sorted(query.relevance, key=lambda text: (round(slow[text], 5), text), reverse=True)
        [positive] = query.documents(relevant=True)
        precisions.append(1 / (1 + ranking.index(positive)))
    assert evaluate("bm25", task=[task]).results["reranking"]["map"] == pytest.approx(100 * np.mean(precisions))


def test_keyword_search_is_compared_with_a_model_in_the_same_rows(tasks, tmp_path):
    evaluation = evaluate("bm25", task=tasks, output=tmp_path / "bm25.json")
    evaluate(BagOfWords(), task=tasks, output=tmp_path / "words.json")
    assert Evaluation.read(tmp_path / "bm25.json").identity == evaluation.identity == BM25().identity()
    assert evaluation.results["retrieval"]["recall@100"] == 100
    comparison = compare([tmp_path / "words.json", tmp_path / "bm25.json"])
    [differences] = comparison.differences.values()
    assert list(differences) == ["knn", "pairs", "reranking", "retrieval"]
    assert all(each["low"] <= each["difference"] <= each["high"] for each in differences.values())


# --- the label of the nearest text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("other_split", ["train", "test"])
def test_a_text_gets_the_label_of_the_nearest_other_text(other_split, tmp_path):
    rows = [(*row, ("test", other_split)[number % 2]) for number, row in enumerate(labelled_rows())]
    task = read_task("knn", write_rows(tmp_path / "rows.csv", ["text", "label", "split"], rows))
    among = [row for row in rows if row[2] == other_split]
    x = {text: BagOfWords().encode([text])[0] for text, *_ in rows}
    correct = []
    for text, label in task.units:
        others = [(x[text] @ x[other] / np.linalg.norm(x[other]), its) for other, its, _ in among if other != text]
        correct.append(max(others)[1] == label)
    result = task.evaluate(BagOfWords())
    assert result.scores["knn"]["correct"].tolist() == correct
    assert result.metrics["accuracy"] == pytest.approx(100 * np.mean(correct))
    assert 40 < result.metrics["accuracy"] < 100


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, message",
    [
        ("classification=rows.csv", "cannot do classification. It can do the tasks knn, pairs, reranking"),
        ("knn=rows.csv --pairs scored.tsv", "cannot do scored"),
        ("pairs=pairs.csv --threshold f1", "cannot do threshold"),
        ("knn=rows.csv --mteb STS12 --max_length 8", "cannot do mteb, .*max_length"),
    ],
)
def test_what_needs_vectors_is_refused_by_name(words, message, tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "scored.tsv", ["1\ta\tb", "2\tc\td"])
    assert status(*f"evaluate --model bm25 --task {words}".split()) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_word_is_keyword_search_although_a_folder_has_this_name(tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bm25").mkdir()
    assert evaluate("bm25", task=tasks[:1]).identity.backend.startswith("bm25s")
    with pytest.raises(ValueError, match="bm25: this folder holds no model"):
        evaluate("./bm25", task=tasks[:1])


def test_texts_without_any_word_are_refused(tmp_path):
    rows = json.dumps({"query": "a cat", "positive": ["?"], "negative": ["!"]})
    path = write(tmp_path / "ranked.jsonl", [rows])
    with pytest.raises(ValueError, match="bm25 finds no word of two letters in the 2 texts of the task"):
        evaluate("bm25", task=[f"reranking={path}"])
