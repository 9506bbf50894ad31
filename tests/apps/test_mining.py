"""Hard negatives: what is found equals a slow search, and what is left out is counted by its reason."""

import json
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset

from simcse_hf import load_text_dataset
from simcse_hf.apps.mining import (
    SUSPICIONS,
    MiningOptions,
    false_negatives,
    fold_text,
    group_texts,
    mine_hard_negatives,
)


def pairs_of(**partners):
    """A data set of pairs, from a list of anchors and one of positives."""
    return Dataset.from_dict(partners)


def rows_of(dataset):
    """The rows of a data set as tuples."""
    return list(zip(*dataset[:].values(), strict=True))


class Lookup:
    """A model whose embeddings are drawn from the folded text, so that equal texts have equal embeddings."""

    def encode(self, texts):
        vectors = []
        for text in texts:
            vector = np.random.default_rng(list(fold_text(text).encode())).standard_normal(8)
            vectors.append(vector / np.linalg.norm(vector))
        return np.array(vectors, dtype=np.float32)


def mine(dataset, *, corpus=(), backend="exact", output_format="n-tuple", **options):
    """The rows and the report of the model above."""
    chosen = MiningOptions(**options)
    return mine_hard_negatives(
        dataset, Lookup(), corpus=corpus, options=chosen, backend=backend, output_format=output_format
    )


@pytest.fixture(scope="module")
def ninety_pairs():
    """Ninety pairs of 40 anchors and 60 texts, so that both repeat."""
    drawing = np.random.default_rng(0)
    return pairs_of(
        sent0=[f"anchor {i}" for i in drawing.integers(40, size=90)],
        sent1=[f"text {i}" for i in drawing.integers(60, size=90)],
    )


# --- a slow search ---


def reason_to_drop(score, positive, options):
    """The first bound that a similarity fails, or `None`."""
    limits = {"max_score": options.max_score, "absolute_margin": None, "relative_margin": None}
    if options.absolute_margin is not None:
        limits["absolute_margin"] = positive - options.absolute_margin
    if options.relative_margin is not None:
        limits["relative_margin"] = positive - abs(positive) * options.relative_margin
    for name, limit in limits.items():
        if limit is not None and score > limit:
            return name
    if options.min_score is not None and score < options.min_score:
        return "min_score"
    return None


def slow_mining(dataset, options, corpus=()):
    """The negatives of each pair, one candidate at a time in float64, and the reasons of what is dropped."""
    candidates = {}
    for text in [*dataset["sent1"], *corpus]:
        candidates.setdefault(fold_text(text), text)
    vectors = {folded: Lookup().encode([text])[0].astype(np.float64) for folded, text in candidates.items()}
    negatives = []
    dropped = Counter()
    for anchor, positive in rows_of(dataset):
        own = {fold_text(anchor)}
        for other, text in rows_of(dataset):
            if fold_text(other) == fold_text(anchor):
                own.add(fold_text(text))
        query = Lookup().encode([anchor])[0].astype(np.float64)
        ranked = [(vectors[folded] @ query, text) for folded, text in candidates.items() if folded not in own]
        ranked.sort(key=lambda candidate: -candidate[0])
        kept = []
        for score, text in ranked[: options.last_rank]:
            reason = reason_to_drop(score, vectors[fold_text(positive)] @ query, options)
            if reason is None:
                kept.append(text)
            else:
                dropped[reason] += 1
        negatives.append(kept[options.range_min :][: options.num_negatives])
    return negatives, dropped


#: Hard negatives of the data set are candidates, too.
GIVEN = [f"given {number % 9}" for number in range(90)]
CORPUS = ["text 3", "an unrelated sentence", "TEXT  7"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_negatives": 3, "range_min": 2},
        {"num_negatives": 2, "range_max": 30, "relative_margin": 0.05},  # as NV-Retriever
        {"range_min": 5, "range_max": 40, "relative_margin": 0.05},  # bounds come before the skip
        {"num_negatives": 2, "absolute_margin": 0.1, "max_score": 0.5, "min_score": -0.2},
    ],
)
def test_the_negatives_and_what_the_report_counts_are_those_of_a_slow_search(options, ninety_pairs, monkeypatch):
    monkeypatch.setattr("simcse_hf.apps.mining._ANCHORS", 16)  # several blocks
    triplets = ninety_pairs.add_column("hard_neg", GIVEN)
    rows, report = mine(triplets, corpus=CORPUS, output_format="triplet", **options)
    expected, dropped = slow_mining(ninety_pairs, MiningOptions(**options), [*GIVEN, *CORPUS])
    found = {}
    for anchor, positive, negative in rows_of(rows):
        found.setdefault((anchor, positive), []).append(negative)
    times = Counter(rows_of(ninety_pairs))
    for pair, negatives in zip(rows_of(ninety_pairs), expected, strict=True):
        assert found.get(pair, []) == negatives * times[pair]
    assert {name: report.dropped[name] for name in dropped} == dropped
    wanted = options.get("num_negatives", 1)
    assert report.pairs_without_negatives == sum(len(each) < wanted for each in expected)
    assert report.rows == len(rows) == sum(map(len, expected))


def test_texts_that_differ_in_case_and_spacing_count_once_and_are_no_negatives_of_each_other():
    """In the corpus only "three" is none of the texts of the pairs."""
    dataset = pairs_of(sent0=["A  Cat", "a cat", "a dog"], sent1=["one", "Two", "a cat"])
    rows, report = mine(dataset, corpus=["two ", "ONE", "three"])
    assert rows["hard_neg"][:2] == ["three", "three"]
    assert report.anchors == 2 and report.candidates == 4
    assert report.dropped["repeated candidate"] == 2
    assert report.dropped["the anchor itself"] == 1
    assert report.dropped["positive of the same anchor"] == 3
    groups = group_texts(["A  cat", "dog", "a cat", "bird"])
    assert list(groups.items()) == [("a cat", [0, 2]), ("dog", [1]), ("bird", [3])]


# --- the audit ---


def test_the_audit_is_a_file_of_suspicious_negatives_with_both_similarities(ninety_pairs, tmp_path):
    file = tmp_path / "audit.jsonl"
    _, report = mine_hard_negatives(ninety_pairs, Lookup(), options=MiningOptions(num_negatives=5), audit=file)
    audit = [json.loads(line) for line in file.read_text().splitlines()]
    assert report.suspicious == len(audit) > 0 and f": {len(audit)}\n" in str(report)
    for row in audit:
        anchor, *others = Lookup().encode([row[name] for name in ("anchor", "positive", "negative")])
        assert [row["positive_score"], row["negative_score"]] == pytest.approx([anchor @ text for text in others])


def test_the_audit_orders_negatives_of_one_reason_by_how_far_they_exceed_the_positive():
    """Texts are compared without case and punctuation. A known pair is one of the anchor or of the positive."""
    anchors, positives, scores = ["a b", "c", "e"], ["x", "D.", "f"], [0.5, 0.5, -0.4]
    negatives = [[("A b.", 0.1), ("one", 0.6), ("two", 0.9)], [("d", 0.7), ("X y", 0.2)], [("three", -0.41)]]
    suspects = false_negatives([*anchors, "D."], [*positives, "x Y"], [*scores, 0.0], [*negatives, [("C", -1.0)]])
    found = list(zip(suspects["negative"][:], suspects["reason"][:], strict=True))
    assert found == [
        ("d", SUSPICIONS[0]),
        ("A b.", SUSPICIONS[0]),
        ("X y", SUSPICIONS[1]),
        ("C", SUSPICIONS[1]),
        ("two", SUSPICIONS[2]),
        ("one", SUSPICIONS[2]),
        ("three", SUSPICIONS[3]),
    ]


# --- the rows ---


def test_several_negatives_become_numbered_columns_that_the_readers_accept(ninety_pairs, tmp_path):
    rows, _ = mine(ninety_pairs, num_negatives=3)
    assert rows.column_names == ["sent0", "sent1", "hard_neg_1", "hard_neg_2", "hard_neg_3"]
    rows.to_csv(tmp_path / "rows.csv")
    read = load_text_dataset(tmp_path / "rows.csv", cache_dir=tmp_path)
    assert read.num_columns == 5
    assert read["sent3"] == rows["hard_neg_2"]


def test_a_pair_with_too_few_negatives_gives_no_row_of_columns_but_the_triplets_that_it_has():
    few = pairs_of(sent0=["a", "a", "b"], sent1=["x", "y", "z"])  # of which only the last one has two negatives
    rows, report = mine(few, num_negatives=2)
    assert rows["sent0"] == ["b"]
    assert report.pairs_without_negatives == 2
    triplets, _ = mine(few, num_negatives=2, output_format="triplet")
    assert triplets["sent0"] == ["a", "a", "b", "b"]
    rows, report = mine(few, num_negatives=5)
    assert len(rows) == report.suspicious == 0, "a pair without a row is not audited"


# --- the choice ---


def test_random_negatives_come_from_the_range_in_the_order_of_their_ranks_and_are_those_of_the_seed(ninety_pairs):
    def draw(seed):
        options = {"num_negatives": 2, "range_min": 3, "range_max": 12, "sampling_strategy": "random"}
        return mine(ninety_pairs, seed=seed, **options)[0]

    assert draw(1)[:] == draw(1)[:] != draw(2)[:]
    allowed, _ = slow_mining(ninety_pairs, MiningOptions(num_negatives=9, range_min=3, range_max=12))
    for row, candidates in zip(draw(1), allowed, strict=True):
        assert candidates.index(row["hard_neg_1"]) < candidates.index(row["hard_neg_2"])


# --- faiss ---


def test_faiss_finds_what_exact_search_finds(ninety_pairs):
    pytest.importorskip("faiss")
    exact, _ = mine(ninety_pairs)
    found, _ = mine(ninety_pairs, backend="Flat")
    assert found["hard_neg"] == exact["hard_neg"]


class FindsOne:
    """An index of three vectors that finds one of them."""

    def __len__(self):
        return 3

    def add(self, vectors):
        pass

    def search(self, queries, top_k):
        return np.array([[0.5, -1, -1]]), np.array([[2, -1, -1]])


def test_faiss_that_finds_too_few_gives_no_candidate_for_the_rest(monkeypatch):
    monkeypatch.setattr("simcse_hf.apps.mining.new_index", lambda *given: FindsOne())
    rows, _ = mine(pairs_of(sent0=["a"], sent1=["b"]), corpus=["c", "d"], num_negatives=2, output_format="triplet")
    assert rows_of(rows) == [("a", "b", "d")]


# --- refusals ---


def test_what_cannot_be_mined_is_refused():
    for options, words in (
        ({"num_negatives": 0}, "num_negatives"),
        ({"range_min": -1}, "range_min"),
        ({"num_negatives": 3, "range_min": 4, "range_max": 6}, "range_min = 4 and range_max = 6"),
        ({"relative_margin": float("nan")}, "relative_margin"),
        ({"sampling_strategy": "best"}, "sampling_strategy"),
        ({"min_score": -1.1}, "min_score"),
        ({"output_format": "rows"}, "output_format"),
    ):
        with pytest.raises(ValueError, match=words):
            mine(pairs_of(sent0=["a"], sent1=["b"]), **options)
    with pytest.raises(ValueError, match="a row holds one text"):
        mine(pairs_of(sent0=["a", "b"]))
