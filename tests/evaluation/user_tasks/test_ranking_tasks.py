"""Reranking and retrieval from users' files, against loops and against sentence-transformers."""

import gzip
import json

import numpy as np
import pytest
from evaluation_helpers import (
    WORDS,
    encode,
    random_texts,
    write,
    write_beir,
    write_rows,
)

from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.scoring import TaskData, score_tasks
from simcse_hf.evaluation.user_tasks import read_task


def cosines(query, documents, encode=encode):
    x, y = (encode(texts).astype(np.float64) for texts in ([query], documents))
    return (x @ y.T)[0] / np.linalg.norm(x) / np.linalg.norm(y, axis=1)


# --- reranking -------------------------------------------------------------------------------------------------------


def reranking_rows(n=20, seed=0):
    """Queries with one to three relevant candidates, which share words with them, and five others."""
    random = np.random.RandomState(seed)
    rows = []
    for i, query in enumerate(random_texts(n, seed)):
        words = query.split()
        positives = [
            " ".join([*random.permutation(words)[:3], f"p{i}", str(j)])
            for j in range(1 + i % 3)
        ]
        negatives = [f"{text} n{i}" for text in random_texts(5, 1000 * seed + i)]
        rows.append(
            {"query": f"{query} q{i}", "positive": positives, "negative": negatives}
        )
    return rows


@pytest.fixture
def reranking(tmp_path):
    return read_task(
        "reranking", write(tmp_path / "mine.jsonl", map(json.dumps, reranking_rows()))
    )


def test_map_is_the_mean_precision_at_the_relevant_candidates(reranking):
    result = reranking.evaluate(encode)
    precisions, reciprocal = [], []
    for row in reranking_rows():
        scores = cosines(row["query"], row["positive"] + row["negative"])
        relevant = [i < len(row["positive"]) for i in np.argsort(-scores)]
        precisions.append(
            np.mean(
                [np.mean(relevant[: i + 1]) for i, hit in enumerate(relevant) if hit]
            )
        )
        reciprocal.append(1 / (1 + relevant.index(True)))
    assert result.metrics["map"] == pytest.approx(100 * np.mean(precisions))
    assert result.metrics["mrr@10"] == pytest.approx(100 * np.mean(reciprocal))
    assert result.scores["value"] == pytest.approx(np.array(precisions))
    assert result.details["examples"] == 20 and result.details["candidates"] == sum(
        6 + i % 3 for i in range(20)
    )


def test_queries_without_positives_or_negatives_are_left_out_with_a_warning(
    tmp_path, caplog
):
    rows = reranking_rows(4)
    rows[0]["positive"], rows[1]["negative"] = [], None
    rows[2]["negative"].append(rows[2]["positive"][0])
    task = read_task("reranking", write(tmp_path / "mine.jsonl", map(json.dumps, rows)))
    assert (
        len(task) == 2
        and task.units[0].documents(relevant=False) == rows[2]["negative"][:-1]
    )
    assert "left out 2 of 4 queries" in caplog.text
    assert (
        "1 candidate(s) are among both the positives and the negatives" in caplog.text
    )


# --- retrieval -------------------------------------------------------------------------------------------------------


def beir(n_documents=150, n_queries=12, seed=0):
    """A corpus, queries that share words with some documents, and graded judgements."""
    random = np.random.RandomState(seed)
    texts = list(dict.fromkeys(random_texts(2 * n_documents, seed, length=8)))[
        :n_documents
    ]
    corpus = {f"d{i}": text for i, text in enumerate(texts)}
    queries, qrels = {}, {}
    for i in range(n_queries):
        chosen = random.choice(n_documents, 3, replace=False)
        queries[f"q{i}"] = " ".join(
            word for d in chosen for word in texts[d].split()[:4]
        )
        qrels[f"q{i}"] = {
            f"d{d}": grade for d, grade in zip(chosen, (1, 2, 0), strict=True)
        }
    return corpus, queries, qrels


@pytest.fixture
def folder(tmp_path):
    return write_beir(tmp_path / "mine", *beir())


def test_retrieval_metrics_equal_their_definitions(tmp_path):
    corpus, queries, qrels = beir(n_documents=600, n_queries=20)
    queries = {id: " ".join(text.split()[:4]) for id, text in queries.items()}
    result = read_task(
        "retrieval", write_beir(tmp_path / "mine", corpus, queries, qrels)
    ).evaluate(encode)
    ndcg, mrr, recall = [], [], []
    for id, judged in qrels.items():
        order = np.argsort(-cosines(queries[id], list(corpus.values())), kind="stable")
        grades = [judged.get(list(corpus)[d], 0) for d in order]
        ideal = sorted(judged.values(), reverse=True)
        gain = [
            sum(g / np.log2(rank + 2) for rank, g in enumerate(x[:10]))
            for x in (grades, ideal)
        ]
        ndcg.append(gain[0] / gain[1])
        mrr.append(next((1 / (rank + 1) for rank, g in enumerate(grades[:10]) if g), 0))
        recall.append(sum(g > 0 for g in grades[:100]) / sum(g > 0 for g in ideal))
    assert result.scores["value"] == pytest.approx(np.array(ndcg))
    expected = {"ndcg@10": ndcg, "mrr@10": mrr, "recall@100": recall}
    assert result.metrics == {
        name: pytest.approx(100 * np.mean(values)) for name, values in expected.items()
    }
    assert 0 < result.metrics["mrr@10"] < 100 and 0 < result.metrics["recall@100"] < 100


def test_the_query_itself_is_not_retrieved_but_another_document_of_its_number_is(
    tmp_path,
):
    corpus = {"1": "a cat", "2": "a dog", "3": "the bird"}
    queries = {"1": "a cat", "3": "a dog"}
    task = read_task(
        "retrieval",
        write_beir(tmp_path / "mine", corpus, queries, {"1": {"2": 1}, "3": {"3": 1}}),
    )
    vectors = {"a cat": [1.0, 0.0], "a dog": [0.8, 0.6], "the bird": [0.0, 1.0]}
    result = task.evaluate(lambda texts: [vectors[text] for text in texts])
    # Query 1 is document 1, and its best other document is 2. Document 3 is third for query 3.
    assert result.metrics["mrr@10"] == pytest.approx(100 * np.mean([1, 1 / 3]))


# --- ties ------------------------------------------------------------------------------------------------------------


def slow_trec_eval(run, judged):
    """nDCG@10, reciprocal rank, recall@100 and average precision, one document at a time, by trec_eval's rules."""
    ranking = sorted(run, key=lambda id: (run[id], id), reverse=True)
    grades = [judged.get(id, 0) for id in ranking]
    ideal = sorted(judged.values(), reverse=True)
    gains = [
        sum(grade / np.log2(rank + 2) for rank, grade in enumerate(x[:10]))
        for x in (grades, ideal)
    ]
    hits = [rank for rank, grade in enumerate(grades, start=1) if grade]
    relevant = sum(grade > 0 for grade in ideal)
    precisions = sum(number / rank for number, rank in enumerate(hits, start=1))
    return {
        "ndcg_cut_10": gains[0] / gains[1],
        "recip_rank": 1 / hits[0] if hits else 0,
        "recall_100": sum(rank <= 100 for rank in hits) / relevant,
        "map": precisions / relevant,
    }


def trec_eval(run, judged):
    """The same, by trec_eval itself."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    measures = {"ndcg_cut_10", "recip_rank", "recall_100", "map"}
    return pytrec_eval.RelevanceEvaluator({"q": judged}, measures).evaluate({"q": run})[
        "q"
    ]


def tied_task(seed):
    """Ids that queries and documents share, texts that repeat, and texts whose words are in another order."""
    random = np.random.RandomState(seed)
    texts = [
        " ".join(random.choice(WORDS[:6], 2)) for _ in range(random.randint(20, 160))
    ]
    corpus = {str(number): text for number, text in enumerate(texts)}
    queries = {str(number): random.choice(texts) for number in range(10)}
    qrels = {}
    for query in queries:
        judged = random.choice(list(corpus), 8, replace=False).tolist()
        qrels[query] = {"1": 1} | {id: int(random.randint(3)) for id in judged}
        qrels[query].pop(query, None)
    return (
        corpus,
        queries,
        {query: judged for query, judged in qrels.items() if any(judged.values())},
    )


def encode_rounded(texts):
    """Embeddings that are equal for texts of the same words in another order."""
    return encode(texts).round(2)


def scores_of(query, texts):
    """Cosines by id, so rounded that equal embeddings have equal ones."""
    scores = cosines(query, list(texts.values()), encode_rounded)
    return dict(zip(texts, scores.round(5).tolist(), strict=True))


@pytest.mark.parametrize("judge", [slow_trec_eval, trec_eval])
def test_retrieval_scores_are_those_of_trec_eval_where_scores_are_equal(
    judge, tmp_path
):
    left_out = 0
    for seed in range(50):
        corpus, queries, qrels = tied_task(seed)
        task = read_task(
            "retrieval", write_beir(tmp_path / str(seed), corpus, queries, qrels)
        )
        expected = []
        for query, judged in qrels.items():
            others = {
                id: text
                for id, text in corpus.items()
                if (id, text) != (query, queries[query])
            }
            left_out += len(corpus) - len(others)
            expected.append(judge(scores_of(queries[query], others), judged))
        result = task.evaluate(encode_rounded)
        assert result.scores["value"] == pytest.approx(
            [each["ndcg_cut_10"] for each in expected]
        )
        recall = np.mean([each["recall_100"] for each in expected])
        reciprocal = np.mean(
            [each["recip_rank"] * (each["recip_rank"] >= 0.1) for each in expected]
        )
        assert (
            result.metrics["recall@100"],
            result.metrics["mrr@10"],
        ) == pytest.approx((100 * recall, 100 * reciprocal))
    assert left_out > 5, "some queries are documents themselves"


@pytest.mark.parametrize("judge", [slow_trec_eval, trec_eval])
def test_reranking_scores_are_those_of_trec_eval_with_texts_as_ids(judge, tmp_path):
    random = np.random.RandomState(0)
    pairs = [f"{a} {b}" for a in WORDS[:6] for b in WORDS[:6]]
    rows = []
    expected = []
    for query in random_texts(100, seed=0, length=2):
        candidates = random.permutation(pairs).tolist()
        rows.append(
            {"query": query, "positive": candidates[:4], "negative": candidates[4:20]}
        )
        run = scores_of(query, {text: text for text in candidates[:20]})
        expected.append(judge(run, dict.fromkeys(candidates[:4], 1)))
    result = read_task(
        "reranking", write(tmp_path / "mine.jsonl", map(json.dumps, rows))
    ).evaluate(encode_rounded)
    assert result.scores["value"] == pytest.approx([each["map"] for each in expected])
    reciprocal = np.mean(
        [each["recip_rank"] * (each["recip_rank"] >= 0.1) for each in expected]
    )
    assert result.metrics["mrr@10"] == pytest.approx(100 * reciprocal)


@pytest.mark.parametrize("order", ["01234567", "76543210", "30716524"])
def test_the_order_of_a_corpus_of_equal_texts_decides_nothing(order, tmp_path):
    corpus = {f"d{number}": "the same" for number in order} | {"e": "another text"}
    task = read_task(
        "retrieval",
        write_beir(tmp_path / "mine", corpus, {"q": "the same"}, {"q": {"d0": 1}}),
    )
    assert task.evaluate(encode_rounded).metrics["ndcg@10"] == pytest.approx(
        31.5465, abs=1e-3
    )


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_candidates_with_equal_scores_decides_nothing(order, tmp_path):
    row = {
        "query": "cat",
        "positive": ["dog bird"],
        "negative": ["bird dog", "cat dog", "cat bird"][::order],
    }
    task = read_task("reranking", write(tmp_path / "mine.jsonl", [json.dumps(row)]))
    assert task.evaluate(encode_rounded).metrics == pytest.approx(
        {"map": 100 / 3, "mrr@10": 100 / 3}
    )


@pytest.mark.parametrize(
    "title, text, own",
    [
        ("", "1984", True),
        ("Orwell", "1984", True),
        ("", "of 1984", False),
        ("1984", "a novel", False),
    ],
)
def test_only_a_document_with_the_id_and_the_whole_text_of_a_query_is_left_out(
    title, text, own, tmp_path
):
    """`beir` leaves out every document with the id of the query."""
    folder = write_beir(
        tmp_path / "mine", {"1": "a dog"}, {"0": "1984"}, {"0": {"1": 1}}
    )
    documents = [
        {"_id": "0", "title": title, "text": text},
        {"_id": "1", "title": "", "text": "a dog"},
    ]
    write(folder / "corpus.jsonl", map(json.dumps, documents))
    vectors = {"1984": [1, 0], "a dog": [0.6, 0.8], f"{title} {text}".strip(): [1, 0.1]}
    result = read_task("retrieval", folder).evaluate(
        lambda texts: np.array([vectors[text] for text in texts])
    )
    assert result.metrics["mrr@10"] == (100 if own else 50)


def test_titles_other_judgements_and_compressed_files_are_read(folder, caplog):
    rows = [
        {"_id": f"d{i}", "title": f"title {i}", "text": "body"} for i in range(150)
    ] + [{"_id": "e", "text": ""}]
    corpus = write(folder / "corpus.jsonl", map(json.dumps, rows))
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    corpus.unlink()
    write_rows(
        folder / "qrels/dev.tsv", ["query-id", "corpus-id", "score"], [("q0", "d0", 1)]
    )
    task = read_task("retrieval", folder)
    assert (
        len(task) == 12 and len(read_task("retrieval", folder / "qrels/dev.tsv")) == 1
    )
    assert "title 3 body" in task.texts and len(task.shared) == 150
    assert "left out 1 document(s) without text, such as 'e'" in caplog.text


# --- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reranking", "retrieval"])
def test_a_split_shares_no_query_and_keeps_the_corpus(kind, reranking, folder):
    task = reranking if kind == "reranking" else read_task("retrieval", folder)
    first, second = task.split(0.5, seed=1)
    assert len(first) + len(second) == len(task) and len(first) == len(task) // 2
    assert not {query.text for query in first.units} & {
        query.text for query in second.units
    }
    if kind == "retrieval":
        assert first.shared is second.shared is task.shared
    values = [part.evaluate(encode).scores["value"] for part in (first, second)]
    whole = task.evaluate(encode).scores["value"]
    assert sorted(np.concatenate(values)) == pytest.approx(sorted(whole))


# --- prompts ---------------------------------------------------------------------------------------------------------


class PromptedModel:
    """A model that reads whole texts after a prompt, and only the last word of others."""

    prompts = {"query": "ask: ", "document": "tell: ", "other": "x"}

    def encode(self, texts):
        return encode([text.partition(": ")[2] or text.split()[-1] for text in texts])


@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_queries_and_documents_get_the_prompts_of_the_model(kind, reranking, folder):
    task = read_task(kind, folder) if kind == "retrieval" else reranking
    plain, model = task.evaluate(encode), PromptedModel()
    data = TaskData(user_tasks={kind: task})
    prompted = score_tasks(data, SentenceEmbeddings(model, data.roles))
    assert prompted.results[kind][task.metric] == pytest.approx(
        plain.metrics[task.metric]
    )
    assert (
        plain.metrics[task.metric]
        > task.evaluate(model.encode).metrics[task.metric] + 10
    )
    assert (
        prompted.scores[kind][kind]["unit"] == plain.scores["unit"]
    ).all()  # so that compare accepts both
