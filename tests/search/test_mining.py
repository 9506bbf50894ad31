"""Hard negatives: what is found equals a slow search, and what is left out is counted by its reason."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset

from simcse_hf import load_text_dataset
from simcse_hf.indexes.exact import ExactIndex
from simcse_hf.search.mining import (
    SUSPICIONS,
    MiningOptions,
    choose_negatives,
    fold_text,
    group_texts,
    make_rows,
    mine_hard_negatives,
    search_candidates,
    suspect,
)


class Lookup:
    """A model whose embeddings are drawn from the folded text, so that equal texts have equal embeddings."""

    def encode(self, texts, **options):
        drawn = [
            np.random.default_rng(list(fold_text(text).encode())).standard_normal(8)
            for text in texts
        ]
        return np.array(
            [vector / np.linalg.norm(vector) for vector in drawn], dtype=np.float32
        )

    encode_query = encode_document = encode


def pairs():
    rng = np.random.default_rng(0)
    return Dataset.from_dict(
        {
            "sent0": [f"anchor {i}" for i in rng.integers(40, size=90)],
            "sent1": [f"text {i}" for i in rng.integers(60, size=90)],
        }
    )


def slow_mining(dataset, model, options, corpus=()):
    """The negatives of each pair, one candidate at a time in float64, and the reasons of what is dropped."""
    candidates = {}
    for text in [*dataset["sent1"], *corpus]:
        candidates.setdefault(fold_text(text), text)
    vector = {
        text: model.encode([text])[0].astype(np.float64)
        for text in {*dataset["sent0"], *candidates.values()}
    }
    bound = {
        name: np.nan if value is None else value
        for name, value in vars(options).items()
    }
    negatives, dropped = [], Counter()
    for anchor, positive in zip(dataset["sent0"], dataset["sent1"], strict=True):
        own = {
            fold_text(p)
            for a, p in zip(*dataset[:].values(), strict=True)
            if fold_text(a) == fold_text(anchor)
        }
        left = [
            text
            for folded, text in candidates.items()
            if folded not in own | {fold_text(anchor)}
        ]
        left.sort(key=lambda c: -(vector[c] @ vector[anchor]))
        reference = vector[anchor] @ model.encode([positive])[0]
        kept = []
        for candidate in left[options.range_min : options.last_rank]:
            score = vector[candidate] @ vector[anchor]
            reasons = [  # comparisons with NaN are false
                ("max_score", score > bound["max_score"]),
                ("absolute_margin", score > reference - bound["absolute_margin"]),
                (
                    "relative_margin",
                    score > reference - abs(reference) * bound["relative_margin"],
                ),
                ("min_score", score < bound["min_score"]),
            ]
            reason = next((name for name, fails in reasons if fails), None)
            if reason is None:
                kept.append(candidate)
            dropped[reason] += 1
        negatives.append(kept[: options.num_negatives])
    del dropped[None]
    return negatives, dropped


@pytest.mark.parametrize(
    "options",
    [
        MiningOptions(),
        MiningOptions(num_negatives=3, range_min=2),
        MiningOptions(num_negatives=2, range_max=30, relative_margin=0.05),
        MiningOptions(
            num_negatives=2, absolute_margin=0.1, max_score=0.5, min_score=-0.2
        ),
    ],
)
def test_negatives_and_counts_are_those_of_a_slow_search(options, monkeypatch):
    monkeypatch.setattr("simcse_hf.search.mining._BLOCK", 16)  # several blocks
    dataset, model = pairs(), Lookup()
    given = [
        f"given {number % 9}" for number in range(90)
    ]  # hard negatives of the data set are candidates
    corpus = ["text 3", "an unrelated sentence", "TEXT  7"]
    triplets = dataset.add_column("hard_neg", given)
    rows, report = mine_hard_negatives(
        triplets, model, corpus=corpus, options=options, output_format="triplet"
    )
    expected, dropped = slow_mining(dataset, model, options, [*given, *corpus])
    found = {}
    for row in rows:
        found.setdefault((row["sent0"], row["sent1"]), []).append(row["hard_neg"])
    for (anchor, positive), negatives in zip(
        zip(*dataset[:].values(), strict=True), expected, strict=True
    ):
        repeats = sum(row == {"sent0": anchor, "sent1": positive} for row in dataset)
        assert found.get((anchor, positive), []) == negatives * repeats
    assert {name: report.dropped[name] for name in dropped} == dropped
    assert report.pairs_without_negatives == sum(
        len(each) < options.num_negatives for each in expected
    )
    assert report.rows == len(rows) == sum(map(len, expected))


def test_a_negative_is_never_a_positive_of_the_same_anchor_nor_the_anchor_in_other_case_or_spacing():
    dataset = Dataset.from_dict(
        {"sent0": ["A  Cat", "a cat", "a dog"], "sent1": ["one", "Two", "a cat"]}
    )
    rows, report = mine_hard_negatives(
        dataset, Lookup(), corpus=["two ", "ONE", "three"]
    )
    assert rows["hard_neg"][:2] == ["three", "three"], (
        "the others are the anchor itself or its positives"
    )
    assert report.anchors == 2 and report.candidates == 4
    assert report.dropped["repeated candidate"] == 2
    assert report.dropped["the anchor itself"] == 1
    assert report.dropped["positive of the same anchor"] >= 2


def test_the_audit_lists_suspicious_negatives_by_reason_and_then_by_their_lead(
    tmp_path,
):
    """Each reason by itself, with the similarities that a list of vectors gives."""
    angles = {
        "q": 0.0,
        "p": 0.5,
        "P!": 0.9,
        "other": 1.2,
        "near": 0.55,
        "above": 0.1,
        "far": 2.0,
        "r": 3.0,
    }

    class Angles:
        def encode(self, texts, **options):
            return np.array(
                [[np.cos(angles[text]), np.sin(angles[text])] for text in texts],
                dtype=np.float32,
            )

        encode_query = encode_document = encode

    dataset = Dataset.from_dict(
        {"sent0": ["q", "other", "r"], "sent1": ["p", "p", "far"]}
    )
    corpus = ["P!", "other", "near", "above"]
    options, file = MiningOptions(num_negatives=5), tmp_path / "audit.jsonl"
    _, report = mine_hard_negatives(
        dataset, Angles(), corpus=corpus, options=options, audit=file
    )
    audit = [
        row
        for row in map(json.loads, file.read_text().splitlines())
        if row["anchor"] == "q"
    ]
    assert [(row["negative"], row["reason"]) for row in audit] == [
        ("P!", "equal words"),
        ("other", "in a pair with either text"),
        ("above", "above the positive"),
        ("near", "near the positive"),
    ]
    assert all(row["positive_score"] == pytest.approx(np.cos(0.5)) for row in audit)
    assert audit[2]["negative_score"] == pytest.approx(np.cos(0.1))
    assert report.suspicious == len(
        file.read_text().splitlines()
    ) and f": {report.suspicious}\n" in str(report)


def test_suspicions_are_those_of_a_slow_audit():
    rng = np.random.default_rng(0)
    words = lambda: " ".join(rng.choice(["a", "b", "A", "b."], size=2))  # noqa: E731
    anchors, positives = [words() for _ in range(30)], [words() for _ in range(30)]
    limits = rng.uniform(-1, 1, 30).tolist()
    negatives = [
        [(words(), float(score)) for score in rng.uniform(-1, 1, 3)] for _ in range(30)
    ]
    expected = []
    for anchor, positive, limit, chosen in zip(
        anchors, positives, limits, negatives, strict=True
    ):
        for text, score in chosen:
            plain = [each.lower().replace(".", "") for each in (text, anchor, positive)]
            pairs_of_text = [
                {a.lower(), p.lower()} for a, p in zip(anchors, positives, strict=True)
            ]
            if plain[0] in plain[1:]:
                reason = 0
            elif any(
                {text.lower(), each.lower()} == pair
                for each in (anchor, positive)
                for pair in pairs_of_text
            ):
                reason = 1
            elif score > limit:
                reason = 2
            elif score > limit - 0.05 * abs(limit):
                reason = 3
            else:
                continue
            expected.append((reason, limit - score, text))
    found = suspect(anchors, positives, limits, negatives)
    assert [SUSPICIONS[reason] for reason, _, _ in sorted(expected)] == found["reason"][
        :
    ]
    assert [text for _, _, text in sorted(expected)] == found["negative"][:]
    assert {0, 1, 2} <= {reason for reason, _, _ in expected}


def test_a_pair_without_a_row_is_not_audited(tmp_path):
    dataset = Dataset.from_dict({"sent0": ["one", "two"], "sent1": ["three", "four"]})
    rows, report = mine_hard_negatives(
        dataset, Lookup(), options=MiningOptions(num_negatives=5)
    )
    assert (len(rows), report.suspicious) == (0, 0)


def test_several_negatives_become_numbered_columns_that_the_readers_accept(tmp_path):
    rows, _ = mine_hard_negatives(
        pairs(), Lookup(), options=MiningOptions(num_negatives=3)
    )
    assert rows.column_names == [
        "sent0",
        "sent1",
        "hard_neg_1",
        "hard_neg_2",
        "hard_neg_3",
    ]
    rows.to_csv(tmp_path / "rows.csv")
    read = load_text_dataset(tmp_path / "rows.csv", cache_dir=tmp_path)
    assert read.num_columns == 5 and read["sent3"] == rows["hard_neg_2"]


def test_a_pair_with_too_few_negatives_gives_no_row_of_columns_but_is_counted():
    dataset = Dataset.from_dict({"sent0": ["a", "a", "b"], "sent1": ["x", "y", "z"]})
    options = MiningOptions(num_negatives=2)
    rows, report = mine_hard_negatives(dataset, Lookup(), options=options)
    assert rows["sent0"] == ["b"] and report.pairs_without_negatives == 2
    triplets, _ = mine_hard_negatives(
        dataset, Lookup(), options=options, output_format="triplet"
    )
    assert triplets["sent0"] == ["a", "a", "b", "b"]


def test_random_negatives_come_from_the_range_and_follow_the_seed():
    dataset, model = pairs(), Lookup()
    options = {
        "num_negatives": 2,
        "range_min": 3,
        "range_max": 12,
        "sampling_strategy": "random",
    }
    first, _ = mine_hard_negatives(
        dataset, model, options=MiningOptions(**options, seed=1)
    )
    again, _ = mine_hard_negatives(
        dataset, model, options=MiningOptions(**options, seed=1)
    )
    other, _ = mine_hard_negatives(
        dataset, model, options=MiningOptions(**options, seed=2)
    )
    assert first[:] == again[:] and first[:] != other[:]
    allowed, _ = slow_mining(
        dataset, model, MiningOptions(num_negatives=9, range_min=3, range_max=12)
    )
    for row, candidates in zip(first, allowed, strict=True):
        assert {row["hard_neg_1"], row["hard_neg_2"]} <= set(candidates)


@pytest.mark.parametrize("backend", ["Flat", "hnsw", "ivf"])
def test_faiss_finds_what_exact_search_finds_among_few_candidates(backend):
    pytest.importorskip("faiss")
    exact, _ = mine_hard_negatives(pairs(), Lookup())
    found, _ = mine_hard_negatives(pairs(), Lookup(), backend=backend)
    agree = np.mean(
        [a == b for a, b in zip(exact["hard_neg"], found["hard_neg"], strict=True)]
    )
    assert agree == 1 if backend == "Flat" else agree > 0.6


# --- the steps -----------------------------------------------------------------------------------------------------


def test_equal_texts_are_grouped_in_the_order_of_the_first_of_each():
    groups = group_texts(["A  cat", "dog", "a cat", "bird"])
    assert list(groups.items()) == [("a cat", [0, 2]), ("dog", [1]), ("bird", [3])]


def test_each_anchor_is_searched_past_its_own_positives(monkeypatch):
    monkeypatch.setattr("simcse_hf.search.mining._BLOCK", 1)
    index = ExactIndex(2)
    index.add(np.array([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]], dtype=np.float32))
    anchors = [("a", [0]), ("b", [1, 2])]
    queries = np.array([[1, 0], [0, 1]], dtype=np.float32)
    found = search_candidates(index, anchors, queries, last_rank=1)
    assert [[number for number, _ in candidates] for candidates in found] == [
        [0, 1, 2],
        [2, 1, 0, 3],
    ]


def test_faiss_that_finds_too_few_gives_no_candidate_for_the_rest():
    class Few:
        def __len__(self):
            return 3

        def search(self, queries, top_k):
            return np.array([[0.5, -1, -1]]), np.array([[2, -1, -1]])

    [candidates] = search_candidates(Few(), [("a", [0])], np.ones((1, 2)), 5)
    assert candidates == [(2, 0.5)]


@pytest.mark.parametrize(
    ("bounds", "left", "reason"),
    [
        ({"max_score": 0.8}, [1, 2, 3], "max_score"),
        ({"absolute_margin": 0.1}, [2, 3], "absolute_margin"),
        ({"relative_margin": 0.5}, [3], "relative_margin"),
        ({"min_score": 0.5}, [0, 1, 2], "min_score"),
    ],
)
def test_a_bound_drops_and_counts_what_fails_it(bounds, left, reason):
    ranked, dropped = [(0, 0.9), (1, 0.8), (2, 0.6), (3, 0.2)], Counter()
    options = MiningOptions(num_negatives=4, **bounds)
    chosen = choose_negatives(ranked, 0.8, options, random.Random(0), dropped)
    assert [number for number, _ in chosen] == left and dropped == {
        reason: 4 - len(left)
    }


def test_drawn_negatives_come_in_the_order_of_their_ranks():
    ranked = [(number, 1 - number / 10) for number in range(9)]
    options = MiningOptions(num_negatives=4, sampling_strategy="random")
    draws = [
        choose_negatives(ranked, 1.0, options, random.Random(seed), Counter())
        for seed in range(20)
    ]
    assert all(drawn == sorted(drawn) and len(set(drawn)) == 4 for drawn in draws)
    assert len({tuple(drawn) for drawn in draws}) > 5
    assert (
        choose_negatives(ranked[:2], 1.0, options, random.Random(0), Counter())
        == ranked[:2]
    )


def test_negatives_that_do_not_fill_a_row_are_left_out():
    negatives = [["n1", "n2", "n3"], ["n4"]]
    assert make_rows(["a", "b"], ["p", "q"], negatives, 2)[:] == {
        "sent0": ["a"],
        "sent1": ["p"],
        "hard_neg_1": ["n1"],
        "hard_neg_2": ["n2"],
    }
    assert make_rows(["a", "b"], ["p", "q"], negatives, 1)["hard_neg"] == [
        "n1",
        "n2",
        "n3",
        "n4",
    ]
