"""Reranking and retrieval from users' files, against loops and against sentence-transformers."""

import gzip
import json
from dataclasses import dataclass

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

from simcse_hf.evaluation.embeddings import embed_all
from simcse_hf.evaluation.scoring import score_tasks
from simcse_hf.evaluation.tasks import read_task


def cosines(query, documents, encode=encode):
    """The cosines of a query and each of the documents, in float64."""
    x, y = (encode(texts).astype(np.float64) for texts in ([query], documents))
    return (x @ y.T)[0] / np.linalg.norm(x) / np.linalg.norm(y, axis=1)


def gain(grades):
    """The discounted cumulative gain of the first ten."""
    return sum(grade / np.log2(rank + 2) for rank, grade in enumerate(grades[:10]))


# --- reranking ---


def write_reranking(folder, rows):
    return write(folder / "mine.jsonl", [json.dumps(row) for row in rows])


def read_reranking(folder, rows):
    return read_task("reranking", write_reranking(folder, rows))


def reranking_rows(count):
    """Queries with one to three relevant candidates, which share words with them, and five others."""
    random = np.random.RandomState(0)
    rows = []
    for i, query in enumerate(random_texts(count, seed=0)):
        positives = []
        for j in range(1 + i % 3):
            shared = random.permutation(query.split())[:3]
            positives.append(" ".join([*shared, f"p{i}", str(j)]))
        negatives = [f"{text} n{i}" for text in random_texts(5, seed=i)]
        rows.append({"query": f"{query} q{i}", "positive": positives, "negative": negatives})
    return rows


TWENTY_QUERIES = reranking_rows(20)


@pytest.fixture(scope="module")
def reranking(tmp_path_factory):
    """The task of twenty queries."""
    return read_reranking(tmp_path_factory.mktemp("reranking"), TWENTY_QUERIES)


@pytest.fixture(scope="module")
def reranked(reranking):
    return reranking.evaluate(encode)


@pytest.fixture(scope="module")
def relevant_in_order():
    """Of each query: whether its candidates are relevant, the most similar one first."""
    queries = []
    for row in TWENTY_QUERIES:
        scores = cosines(row["query"], row["positive"] + row["negative"])
        queries.append([place < len(row["positive"]) for place in np.argsort(-scores)])
    return queries


def average_precision(relevant):
    precisions = []
    for place, is_relevant in enumerate(relevant, start=1):
        if is_relevant:
            precisions.append(sum(relevant[:place]) / place)
    return np.mean(precisions)


@pytest.fixture(scope="module")
def average_precisions(relevant_in_order):
    return np.array([average_precision(relevant) for relevant in relevant_in_order])


def test_map_is_the_mean_precision_at_the_relevant_candidates(reranked, average_precisions):
    assert reranked.metrics["map"] == pytest.approx(100 * average_precisions.mean())


def test_the_score_of_a_reranked_query_is_its_average_precision(reranked, average_precisions):
    assert reranked.scores["reranking"]["value"] == pytest.approx(average_precisions)


def test_mrr_is_the_mean_reciprocal_rank_of_the_first_relevant_candidate(reranked, relevant_in_order):
    reciprocal = [1 / (1 + relevant.index(True)) for relevant in relevant_in_order]
    assert reranked.metrics["mrr@10"] == pytest.approx(100 * np.mean(reciprocal))


def test_a_reranking_counts_its_queries(reranked):
    assert reranked.details["examples"] == 20


def test_a_reranking_counts_its_candidates(reranked):
    """Six, seven or eight of each query."""
    expected = sum(6 + number % 3 for number in range(20))
    assert reranked.details["candidates"] == expected


# --- queries that cannot be reranked ---


@pytest.fixture
def incomplete():
    """Four queries: without positives, without negatives, with a candidate that is both, and one as it should be."""
    rows = reranking_rows(4)
    rows[0]["positive"] = []
    rows[1]["negative"] = None
    rows[2]["negative"].append(rows[2]["positive"][0])
    return rows


def test_queries_without_positives_or_negatives_are_left_out(incomplete, tmp_path):
    assert len(read_reranking(tmp_path, incomplete)) == 2


def test_the_warning_counts_the_queries_that_are_left_out(incomplete, tmp_path, caplog):
    read_reranking(tmp_path, incomplete)
    assert "left out 2 of 4 queries" in caplog.text


def test_a_candidate_among_both_positives_and_negatives_is_no_negative(incomplete, tmp_path):
    task = read_reranking(tmp_path, incomplete)
    negatives = task.units[0].documents(relevant=False)
    assert negatives == incomplete[2]["negative"][:-1]


def test_the_warning_counts_candidates_among_both_positives_and_negatives(incomplete, tmp_path, caplog):
    read_reranking(tmp_path, incomplete)
    words = "1 candidate(s) are among both the positives and the negatives"
    assert words in caplog.text


# --- retrieval ---


@dataclass
class Collection:
    """Documents and queries by id, and grades by query and document."""

    corpus: dict
    queries: dict
    qrels: dict

    def read(self, folder):
        return read_task("retrieval", write_beir(folder, self.corpus, self.queries, self.qrels))


def collection(documents=150, queries=12):
    """Queries share words with three documents, whose grades are 1, 2 and 0."""
    random = np.random.RandomState(0)
    drawn = random_texts(2 * documents, seed=0, length=8)
    texts = list(dict.fromkeys(drawn))[:documents]
    made = Collection({f"d{i}": text for i, text in enumerate(texts)}, {}, {})
    for i in range(queries):
        chosen = random.choice(documents, 3, replace=False)
        words = []
        for document in chosen:
            words += texts[document].split()[:4]
        made.queries[f"q{i}"] = " ".join(words)
        grades = zip(chosen, (1, 2, 0), strict=True)
        made.qrels[f"q{i}"] = {f"d{document}": grade for document, grade in grades}
    return made


@pytest.fixture(scope="module")
def hard():
    """Six hundred documents and short queries, so that relevant documents are missed."""
    hard = collection(documents=600, queries=20)
    for id, text in hard.queries.items():
        hard.queries[id] = " ".join(text.split()[:4])
    return hard


@pytest.fixture(scope="module")
def retrieved(hard, tmp_path_factory):
    return hard.read(tmp_path_factory.mktemp("hard")).evaluate(encode)


@pytest.fixture(scope="module")
def grades_in_order(hard):
    """Of each query: the grades of all documents, the most similar one first."""
    ids = list(hard.corpus)
    texts = list(hard.corpus.values())
    queries = []
    for id, judged in hard.qrels.items():
        order = np.argsort(-cosines(hard.queries[id], texts), kind="stable")
        queries.append([judged.get(ids[document], 0) for document in order])
    return queries


@pytest.fixture(scope="module")
def ndcg(grades_in_order):
    return np.array([gain(grades) / gain(sorted(grades)[::-1]) for grades in grades_in_order])


def reciprocal_rank(grades):
    """That of the first relevant document, or 0 if it is not among the first ten."""
    for rank, grade in enumerate(grades[:10], start=1):
        if grade > 0:
            return 1 / rank
    return 0


def recall(grades):
    """The share of the relevant documents among the first hundred."""
    relevant = np.array(grades) > 0
    return relevant[:100].sum() / relevant.sum()


def test_the_score_of_a_query_of_retrieval_is_its_ndcg(retrieved, ndcg):
    assert retrieved.scores["retrieval"]["value"] == pytest.approx(ndcg)


def test_the_metrics_of_retrieval_are_ndcg_mrr_and_recall(retrieved):
    assert set(retrieved.metrics) == {"ndcg@10", "mrr@10", "recall@100"}


def test_ndcg_is_the_mean_over_the_queries(retrieved, ndcg):
    assert retrieved.metrics["ndcg@10"] == pytest.approx(100 * ndcg.mean())


def test_mrr_is_the_mean_reciprocal_rank_among_the_first_ten_documents(retrieved, grades_in_order):
    expected = 100 * np.mean([reciprocal_rank(grades) for grades in grades_in_order])
    assert 0 < expected < 100
    assert retrieved.metrics["mrr@10"] == pytest.approx(expected)


def test_recall_is_the_share_of_relevant_documents_among_the_first_hundred(retrieved, grades_in_order):
    expected = 100 * np.mean([recall(grades) for grades in grades_in_order])
    assert 0 < expected < 100
    assert retrieved.metrics["recall@100"] == pytest.approx(expected)


# --- a document that is the query itself ---


def test_the_query_itself_is_not_retrieved_but_another_document_of_its_number_is(
    tmp_path,
):
    """Query 1 is document 1, and its best other document is 2. Document 3 is third for query 3."""
    task = Collection(
        corpus={"1": "a cat", "2": "a dog", "3": "the bird"},
        queries={"1": "a cat", "3": "a dog"},
        qrels={"1": {"2": 1}, "3": {"3": 1}},
    ).read(tmp_path)
    vectors = {"a cat": [1.0, 0.0], "a dog": [0.8, 0.6], "the bird": [0.0, 1.0]}
    result = task.evaluate(lambda texts: [vectors[text] for text in texts])
    assert result.metrics["mrr@10"] == pytest.approx(100 * np.mean([1, 1 / 3]))


@pytest.mark.parametrize(
    "title, text, is_left_out",
    [
        pytest.param("", "1984", True, id="the whole text"),
        pytest.param("Orwell", "1984", True, id="the text beside a title"),
        pytest.param("", "of 1984", False, id="more text"),
        pytest.param("1984", "a novel", False, id="the title alone"),
    ],
)
def test_only_a_document_with_the_id_and_the_whole_text_of_a_query_is_left_out(title, text, is_left_out, tmp_path):
    """`beir` leaves out every document with the id of the query."""
    folder = write_beir(tmp_path, {"1": "a dog"}, {"0": "1984"}, {"0": {"1": 1}})
    documents = [
        {"_id": "0", "title": title, "text": text},
        {"_id": "1", "title": "", "text": "a dog"},
    ]
    write(folder / "corpus.jsonl", [json.dumps(document) for document in documents])
    vectors = {"1984": [1, 0], "a dog": [0.6, 0.8], f"{title} {text}".strip(): [1, 0.1]}
    task = read_task("retrieval", folder)
    result = task.evaluate(lambda texts: np.array([vectors[each] for each in texts]))
    assert result.metrics["mrr@10"] == (100 if is_left_out else 50)


# --- the files of a collection ---


@pytest.fixture
def other_files(tmp_path):
    """A collection with titles, a document without text, a compressed corpus, and other judgements of one query."""
    folder = tmp_path / "mine"
    small = collection()
    write_beir(folder, small.corpus, small.queries, small.qrels)
    documents = []
    for i in range(150):
        documents.append({"_id": f"d{i}", "title": f"title {i}", "text": "body"})
    documents.append({"_id": "e", "text": ""})
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    header = ["query-id", "corpus-id", "score"]
    write_rows(folder / "qrels/dev.tsv", header, [("q0", "d0", 1)])
    return folder


def test_a_folder_has_the_queries_of_its_test_judgements(other_files):
    assert len(read_task("retrieval", other_files)) == 12


def test_other_judgements_are_read_by_their_file(other_files):
    assert len(read_task("retrieval", other_files / "qrels/dev.tsv")) == 1


def test_a_compressed_corpus_is_read_with_its_titles(other_files):
    assert "title 3 body" in read_task("retrieval", other_files).texts


def test_a_document_without_text_is_left_out(other_files):
    assert len(read_task("retrieval", other_files).shared) == 150


def test_the_warning_names_a_document_without_text(other_files, caplog):
    read_task("retrieval", other_files)
    assert "left out 1 document(s) without text, such as 'e'" in caplog.text


# --- ties: trec_eval's rules ---


def slow_trec_eval(run, judged):
    """nDCG@10, reciprocal rank, recall@100 and average precision, one document at a time, by trec_eval's rules."""
    ranking = sorted(run, key=lambda id: (run[id], id), reverse=True)
    grades = [judged.get(id, 0) for id in ranking]
    ideal = sorted(judged.values(), reverse=True)
    ranks_of_hits = [rank for rank, grade in enumerate(grades, start=1) if grade]
    relevant = sum(grade > 0 for grade in ideal)
    precisions = 0
    for number, rank in enumerate(ranks_of_hits, start=1):
        precisions += number / rank
    return {
        "ndcg_cut_10": gain(grades) / gain(ideal),
        "recip_rank": 1 / ranks_of_hits[0] if ranks_of_hits else 0,
        "recall_100": sum(rank <= 100 for rank in ranks_of_hits) / relevant,
        "map": precisions / relevant,
    }


def trec_eval(run, judged):
    """The same, by trec_eval itself."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    measures = {"ndcg_cut_10", "recip_rank", "recall_100", "map"}
    evaluator = pytrec_eval.RelevanceEvaluator({"q": judged}, measures)
    return evaluator.evaluate({"q": run})["q"]


JUDGES = pytest.mark.parametrize("judge", [slow_trec_eval, trec_eval], scope="module")


def mean_reciprocal_rank_of_the_first_ten(judged):
    """trec_eval's has no limit."""
    ranks = [each["recip_rank"] for each in judged]
    return np.mean([rank if rank >= 0.1 else 0 for rank in ranks])


def encode_rounded(texts):
    """Embeddings that are equal for texts of the same words in another order."""
    return encode(texts).round(2)


def scores_of(query, texts):
    """Cosines by id, so rounded that equal embeddings have equal ones."""
    scores = cosines(query, list(texts.values()), encode_rounded)
    return dict(zip(texts, scores.round(5).tolist(), strict=True))


def tied_collection(seed):
    """Ids that queries and documents share, texts that repeat, and texts whose words are in another order."""
    random = np.random.RandomState(seed)
    texts = []
    for _ in range(random.randint(20, 160)):
        texts.append(" ".join(random.choice(WORDS[:6], 2)))
    corpus = {str(number): text for number, text in enumerate(texts)}
    queries = {str(number): random.choice(texts) for number in range(10)}
    qrels = {}
    for query in queries:
        chosen = random.choice(list(corpus), 8, replace=False).tolist()
        judged = {"1": 1} | {id: int(random.randint(3)) for id in chosen}
        judged.pop(query, None)
        if any(judged.values()):
            qrels[query] = judged
    return Collection(corpus, queries, qrels)


def is_the_query(tied, query, document):
    return document == query and tied.corpus[document] == tied.queries[query]


def judge_tied(judge, tied):
    """The metrics that a judge computes for each query, over all documents but the query itself."""
    judged = []
    for query, grades in tied.qrels.items():
        others = {document: text for document, text in tied.corpus.items() if not is_the_query(tied, query, document)}
        judged.append(judge(scores_of(tied.queries[query], others), grades))
    return judged


@pytest.fixture(scope="module")
def tied_collections():
    return [tied_collection(seed) for seed in range(25)]


@pytest.fixture(scope="module")
def results_of_tied(tied_collections, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied")
    return [tied.read(folder / str(number)).evaluate(encode_rounded) for number, tied in enumerate(tied_collections)]


@pytest.fixture(scope="module")
def judged_tied(judge, tied_collections):
    return [judge_tied(judge, tied) for tied in tied_collections]


def test_some_queries_of_the_tied_collections_are_documents_themselves(
    tied_collections,
):
    left_out = 0
    for tied in tied_collections:
        for query in tied.qrels:
            left_out += is_the_query(tied, query, query)
    assert left_out > 5


@JUDGES
def test_ndcg_is_that_of_trec_eval_where_scores_are_equal(judged_tied, results_of_tied):
    for judged, result in zip(judged_tied, results_of_tied, strict=True):
        expected = [each["ndcg_cut_10"] for each in judged]
        assert result.scores["retrieval"]["value"] == pytest.approx(expected)


@JUDGES
def test_recall_is_that_of_trec_eval_where_scores_are_equal(judged_tied, results_of_tied):
    for judged, result in zip(judged_tied, results_of_tied, strict=True):
        expected = 100 * np.mean([each["recall_100"] for each in judged])
        assert result.metrics["recall@100"] == pytest.approx(expected)


@JUDGES
def test_mrr_is_that_of_trec_eval_where_scores_are_equal(judged_tied, results_of_tied):
    for judged, result in zip(judged_tied, results_of_tied, strict=True):
        expected = 100 * mean_reciprocal_rank_of_the_first_ten(judged)
        assert result.metrics["mrr@10"] == pytest.approx(expected)


def tied_reranking_rows():
    """Queries of two words with 20 candidates of two words, many of which have equal scores."""
    random = np.random.RandomState(0)
    pairs = [f"{first} {second}" for first in WORDS[:6] for second in WORDS[:6]]
    rows = []
    for query in random_texts(100, seed=0, length=2):
        candidates = random.permutation(pairs).tolist()
        rows.append({"query": query, "positive": candidates[:4], "negative": candidates[4:20]})
    return rows


TIED_QUERIES = tied_reranking_rows()


@pytest.fixture(scope="module")
def result_of_tied_queries(tmp_path_factory):
    task = read_reranking(tmp_path_factory.mktemp("reranking"), TIED_QUERIES)
    return task.evaluate(encode_rounded)


@pytest.fixture(scope="module")
def judged_queries(judge):
    """The metrics that a judge computes for each query, where the ids of the candidates are their texts."""
    judged = []
    for row in TIED_QUERIES:
        texts = row["positive"] + row["negative"]
        run = scores_of(row["query"], {text: text for text in texts})
        judged.append(judge(run, dict.fromkeys(row["positive"], 1)))
    return judged


@JUDGES
def test_the_average_precision_of_a_query_is_that_of_trec_eval_where_scores_are_equal(
    judged_queries, result_of_tied_queries
):
    expected = [each["map"] for each in judged_queries]
    assert result_of_tied_queries.scores["reranking"]["value"] == pytest.approx(expected)


@JUDGES
def test_the_mrr_of_a_reranking_is_that_of_trec_eval_where_scores_are_equal(judged_queries, result_of_tied_queries):
    expected = 100 * mean_reciprocal_rank_of_the_first_ten(judged_queries)
    assert result_of_tied_queries.metrics["mrr@10"] == pytest.approx(expected)


@pytest.mark.parametrize("order", ["01234567", "76543210", "30716524"])
def test_the_order_of_a_corpus_of_equal_texts_decides_nothing(order, tmp_path):
    corpus = {f"d{number}": "the same" for number in order} | {"e": "another text"}
    task = Collection(corpus, {"q": "the same"}, {"q": {"d0": 1}}).read(tmp_path)
    ndcg = task.evaluate(encode_rounded).metrics["ndcg@10"]
    assert ndcg == pytest.approx(31.5465, abs=1e-3)


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_candidates_with_equal_scores_decides_nothing(order, tmp_path):
    negatives = ["bird dog", "cat dog", "cat bird"][::order]
    row = {"query": "cat", "positive": ["dog bird"], "negative": negatives}
    metrics = read_reranking(tmp_path, [row]).evaluate(encode_rounded).metrics
    assert metrics == pytest.approx({"map": 100 / 3, "mrr@10": 100 / 3})


# --- reranking and retrieval ---

BOTH_KINDS = pytest.mark.parametrize("kind", ["reranking", "retrieval"], scope="module")


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory):
    """The task of twelve queries and 150 documents."""
    return collection().read(tmp_path_factory.mktemp("retrieval"))


@pytest.fixture(scope="module")
def task(kind, reranking, retrieval):
    return {"reranking": reranking, "retrieval": retrieval}[kind]


@pytest.fixture(scope="module")
def halves(task):
    return task.split(0.5, seed=1)


def queries_of(task):
    return {query.text for query in task.units}


@BOTH_KINDS
def test_a_split_has_all_queries(task, halves):
    first, second = halves
    assert len(first) + len(second) == len(task)


@BOTH_KINDS
def test_a_split_in_two_has_half_of_the_queries_each(task, halves):
    assert len(halves[0]) == len(task) // 2


@BOTH_KINDS
def test_the_parts_of_a_split_share_no_query(halves):
    first, second = halves
    assert not queries_of(first) & queries_of(second)


@BOTH_KINDS
def test_a_query_has_the_same_score_after_a_split(task, halves):
    of_parts = [part.evaluate(encode).scores[task.kind]["value"] for part in halves]
    of_whole = task.evaluate(encode).scores[task.kind]["value"]
    assert sorted(np.concatenate(of_parts)) == pytest.approx(sorted(of_whole))


def test_the_parts_of_a_split_keep_the_corpus(retrieval):
    first, second = retrieval.split(0.5, seed=1)
    assert first.shared is retrieval.shared
    assert second.shared is retrieval.shared


# --- prompts ---


class PromptedModel:
    """A model that reads whole texts after a prompt, and only the last word of others."""

    prompts = {"query": "ask: ", "document": "tell: ", "other": "x"}

    def encode(self, texts):
        return encode([text.partition(": ")[2] or text.split()[-1] for text in texts])


@pytest.fixture(scope="module")
def unprompted(task):
    """The result of a model that reads whole texts without a prompt."""
    return task.evaluate(encode)


@pytest.fixture(scope="module")
def prompted(kind, task):
    """The scores of the model with prompts."""
    return score_tasks({kind: task}, embed_all(PromptedModel(), task.roles))


@BOTH_KINDS
def test_queries_and_documents_get_the_prompts_of_the_model(kind, task, unprompted, prompted):
    found = prompted.results[kind][task.metric]
    assert found == pytest.approx(unprompted.metrics[task.metric])


@BOTH_KINDS
def test_the_model_with_prompts_is_worse_without_them(task, unprompted):
    without = task.evaluate(PromptedModel().encode).metrics[task.metric]
    assert unprompted.metrics[task.metric] > without + 10


@BOTH_KINDS
def test_prompts_change_no_unit_of_the_scores(kind, unprompted, prompted):
    """So that compare accepts both."""
    assert (prompted.scores[kind][kind]["unit"] == unprompted.scores[kind]["unit"]).all()
