"""Reranking and retrieval from users' files, against trec_eval, with ties, splits and prompts."""

import gzip
import json

import numpy as np
import pytest
from data_helpers import content_of
from data_helpers import write as write_bytes
from evaluation_helpers import WORDS, encode, random_texts, write, write_beir, write_rows

from simcse_hf import evaluate, read_task


def read_reranking(folder, rows):
    return read_task("reranking", write_rows(folder / "mine.jsonl", ["query", "positive", "negative"], rows))


# --- reranking ---


def test_queries_that_cannot_be_reranked_are_left_out_with_a_warning(tmp_path, caplog):
    rows = [
        ("a", [], ["b"]),
        ("a", ["b"], None),
        ("a", ["b"], ["c", "b"]),
        ("a", ["b"], ["c"]),
    ]
    task = read_reranking(tmp_path, rows)
    assert len(task) == 2 and "left out 2 of 4 queries" in caplog.text
    assert task.units[0].documents(relevant=False) == ["c"] and "1 candidate(s) are among both" in caplog.text


# --- a document that is the query itself ---


@pytest.mark.parametrize(
    "title, text, is_left_out", [("", "1984", True), ("Orwell", "1984", True), ("1984", "a novel", False)]
)
def test_only_a_document_with_the_id_and_the_whole_text_of_a_query_is_left_out(title, text, is_left_out, tmp_path):
    """`beir` leaves out every document with the id of the query."""
    folder = write_beir(tmp_path, {"1": "a dog"}, {"0": "1984"}, {"0": {"1": 1}})
    documents = [{"_id": "0", "title": title, "text": text}, {"_id": "1", "title": "", "text": "a dog"}]
    write(folder / "corpus.jsonl", [json.dumps(document) for document in documents])
    vectors = {"1984": [1, 0], "a dog": [0.6, 0.8], f"{title} {text}".strip(): [1, 0.1]}
    task = read_task("retrieval", folder)
    result = task.evaluate(lambda texts: np.array([vectors[each] for each in texts]))
    assert result.metrics["mrr@10"] == (100 if is_left_out else 50)


# --- the files of a collection ---


def test_a_collection_is_read_with_titles_from_plain_and_compressed_files(tmp_path, caplog):
    write_beir(tmp_path, {"d": "a"}, {"q0": "a cat", "q1": "a dog"}, {"q0": {"d0": 1}, "q1": {"d1": 2}})
    documents = [{"_id": f"d{i}", "title": f"title {i}", "text": "body"} for i in range(4)]
    lines = "".join(json.dumps(document) + "\n" for document in [*documents, {"_id": "e", "text": ""}])
    (tmp_path / "corpus.jsonl").unlink()
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    write_rows(tmp_path / "qrels/dev.tsv", ["query-id", "corpus-id", "score"], [("q0", "d0", 1)])
    task = read_task("retrieval", tmp_path)
    assert len(task) == 2 and "title 3 body" in task.texts
    assert len(task.shared) == 4 and "left out 1 document(s) without text, such as 'e'" in caplog.text
    assert len(read_task("retrieval", tmp_path / "qrels/dev.tsv")) == 1


JUDGEMENTS = [("q0", "d0", 0.9), ("q0", "d1", 0.0), ("q0", "d2", 2.0)]


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "parquet"])
def test_a_judgement_counts_as_it_is_in_every_format_and_one_of_what_is_not_there_is_left_out(
    suffix, tmp_path, caplog
):
    write_beir(tmp_path, {"d0": "a", "d1": "b", "d2": "c"}, {"q0": "a cat"}, {})
    (tmp_path / "qrels/test.tsv").unlink()
    names = ["query-id", "corpus-id", "score"]
    unknown = [("q0", "gone", 1.0), ("q0", "lost", 1.0), ("q9", "d0", 1.0)]
    rows = [dict(zip(names, row, strict=True)) for row in JUDGEMENTS + unknown]
    write_bytes(tmp_path / f"qrels/test.{suffix}", content_of(suffix, rows))
    task = read_task("retrieval", tmp_path)
    assert task.units[0].relevance == {"d0": 0.9, "d1": 0.0, "d2": 2.0}
    assert task.units[0].documents(relevant=True) == ["d0", "d2"]
    assert "2 judgement(s) of a document that is not in this folder, such as 'gone'" in caplog.text
    assert "1 judgement(s) of a query" in caplog.text


# --- ties: trec_eval's rules ---


def trec_eval(run, judged):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    measures = {"ndcg_cut_10", "recip_rank", "recall_100", "map"}
    evaluator = pytrec_eval.RelevanceEvaluator({"q": judged}, measures)
    return evaluator.evaluate({"q": run})["q"]


def mean_of(measure, judged):
    """The mean of a measure of trec_eval, times 100; a first relevant document after the tenth has the rank 0."""
    values = np.array([each[measure] for each in judged])
    return 100 * np.where((measure == "recip_rank") & (values < 0.1), 0, values).mean()


def encode_rounded(texts):
    """Embeddings that are equal for texts of the same words in another order."""
    return encode(texts).round(2)


def scores_of(query, texts):
    """Cosines by id, so rounded that equal embeddings have equal ones."""
    x, y = (encode_rounded(each).astype(np.float64) for each in ([query], list(texts.values())))
    scores = (y @ x[0]) / np.linalg.norm(x) / np.linalg.norm(y, axis=1)
    return dict(zip(texts, scores.round(5).tolist(), strict=True))


def tied_collection(seed):
    """Documents and queries by id, and grades, of texts that repeat, and texts whose words are in another order."""
    random = np.random.RandomState(seed)
    texts = []
    for _ in range(random.randint(20, 160)):
        texts.append(" ".join(random.choice(WORDS[:6], 2)))
    corpus = {str(number): text for number, text in enumerate(texts)}
    queries = {f"q{number}": random.choice(texts) for number in range(10)}
    qrels = {}
    for query in queries:
        chosen = random.choice(list(corpus), 8, replace=False).tolist()
        qrels[query] = {id: int(random.randint(3)) for id in chosen} | {"1": 1}
    return corpus, queries, qrels


def test_a_retrieval_is_scored_as_by_trec_eval_where_scores_are_equal(tmp_path):
    for seed in range(25):
        corpus, queries, qrels = tied_collection(seed)
        task = read_task("retrieval", write_beir(tmp_path / str(seed), corpus, queries, qrels))
        result = task.evaluate(encode_rounded)
        judged = []
        for query, grades in qrels.items():
            judged.append(trec_eval(scores_of(queries[query], corpus), grades))
        assert result.scores["retrieval"]["value"] == pytest.approx([each["ndcg_cut_10"] for each in judged])
        for metric, measure in (("ndcg@10", "ndcg_cut_10"), ("recall@100", "recall_100"), ("mrr@10", "recip_rank")):
            assert result.metrics[metric] == pytest.approx(mean_of(measure, judged))


def tied_reranking_rows():
    """Queries of two words with 20 candidates of two words, many of which have equal scores."""
    random = np.random.RandomState(0)
    pairs = [f"{first} {second}" for first in WORDS[:6] for second in WORDS[:6]]
    for query in random_texts(100, seed=0, length=2):
        candidates = random.permutation(pairs).tolist()
        yield query, candidates[:4], candidates[4:20]


def test_a_reranking_is_scored_as_by_trec_eval_where_scores_are_equal(tmp_path):
    """The ids of the candidates are their texts."""
    rows = list(tied_reranking_rows())
    result = read_reranking(tmp_path, rows).evaluate(encode_rounded)
    judged = []
    for query, positive, negative in rows:
        run = scores_of(query, {text: text for text in positive + negative})
        judged.append(trec_eval(run, dict.fromkeys(positive, 1)))
    assert result.scores["reranking"]["value"] == pytest.approx([each["map"] for each in judged])
    assert result.details["examples"] == 100 and result.details["candidates"] == 2000
    for metric, measure in (("map", "map"), ("mrr@10", "recip_rank")):
        assert result.metrics[metric] == pytest.approx(mean_of(measure, judged))


# --- splits ---


@pytest.fixture
def task(tmp_path):
    """Twenty queries with a document of the same words, which share no text."""
    texts = dict(enumerate(random_texts(20, seed=0)))
    corpus = {f"d{i}": f"{text} d{i}" for i, text in texts.items()}
    queries = {f"q{i}": f"{text} q{i}" for i, text in texts.items()}
    judged = {f"q{i}": {f"d{i}": 1} for i in texts}
    return read_task("retrieval", write_beir(tmp_path, corpus, queries, judged))


def test_a_split_shares_the_queries_out_and_keeps_the_corpus(task):
    first, second = task.split(0.5, seed=1)
    assert len(first) == len(task) // 2 and len(first) + len(second) == len(task)
    assert not {query.text for query in first.units} & {query.text for query in second.units}
    assert first.shared is second.shared is task.shared
    values = [each.evaluate(encode).scores["retrieval"]["value"] for each in (first, second, task)]
    assert sorted(np.concatenate(values[:2])) == pytest.approx(sorted(values[2]))


# --- prompts ---


class PromptedModel:
    """A model that reads whole texts after a prompt, and only the last word of others."""

    prompts = {"query": "ask: ", "document": "tell: ", "other": "x"}

    def encode(self, texts):
        return encode([text.partition(": ")[2] or text.split()[-1] for text in texts])


def test_queries_and_documents_get_the_prompts_of_the_model(task):
    """The scored units stay the same, so that compare accepts results with other prompts."""
    whole = task.evaluate(encode)
    prompted = evaluate(PromptedModel(), task=[task])
    assert prompted.results["retrieval"][task.metric] == pytest.approx(whole.metrics[task.metric])
    assert (prompted.scores["retrieval"]["retrieval"]["unit"] == whole.scores["retrieval"]["unit"]).all()
    without = task.evaluate(PromptedModel().encode).metrics[task.metric]
    assert whole.metrics[task.metric] > without + 10
