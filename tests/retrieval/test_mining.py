"""Hard negatives: what is found equals a slow search, and what is left out is counted by its reason."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset

from simcse_hf import load_text_dataset
from simcse_hf.apps.mining import (
    SUSPICIONS,
    MiningOptions,
    choose_negatives,
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

    def encode(self, texts, **options):
        vectors = []
        for text in texts:
            drawing = np.random.default_rng(list(fold_text(text).encode()))
            vector = drawing.standard_normal(8)
            vectors.append(vector / np.linalg.norm(vector))
        return np.array(vectors, dtype=np.float32)

    encode_query = encode_document = encode


def mine(dataset, *, corpus=(), backend="exact", output_format="n-tuple", **options):
    """The rows and the report of the model above."""
    return mine_hard_negatives(
        dataset,
        Lookup(),
        corpus=corpus,
        options=MiningOptions(**options),
        backend=backend,
        output_format=output_format,
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


def slow_candidates(texts):
    """The first of all texts that fold to the same, by what they fold to."""
    candidates = {}
    for text in texts:
        candidates.setdefault(fold_text(text), text)
    return candidates


def slow_vector(text):
    return Lookup().encode([text])[0].astype(np.float64)


def reason_to_drop(score, positive, options):
    """The first bound that a similarity fails, or `None`."""
    limits = {
        "max_score": options.max_score,
        "absolute_margin": None,
        "relative_margin": None,
    }
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


def slow_ranking(anchor, dataset, candidates):
    """The candidates and their similarities, the best first, without the anchor and its positives."""
    own = {fold_text(anchor)}
    for other_anchor, positive in rows_of(dataset):
        if fold_text(other_anchor) == fold_text(anchor):
            own.add(fold_text(positive))
    query = slow_vector(anchor)
    ranked = []
    for folded, text in candidates.items():
        if folded not in own:
            ranked.append((slow_vector(text) @ query, text))
    return sorted(ranked, key=lambda candidate: -candidate[0])


def slow_mining(dataset, options, corpus=()):
    """The negatives of each pair, one candidate at a time in float64, and the reasons of what is dropped."""
    candidates = slow_candidates([*dataset["sent1"], *corpus])
    rankings = {anchor: slow_ranking(anchor, dataset, candidates) for anchor in set(dataset["sent0"])}
    negatives = []
    dropped = Counter()
    for anchor, positive in rows_of(dataset):
        score_of_positive = slow_vector(anchor) @ slow_vector(positive)
        kept = []
        for score, text in rankings[anchor][options.range_min : options.last_rank]:
            reason = reason_to_drop(score, score_of_positive, options)
            if reason is None:
                kept.append(text)
            else:
                dropped[reason] += 1
        negatives.append(kept[: options.num_negatives])
    return negatives, dropped


EVERY_WAY_TO_MINE = pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="by default"),
        pytest.param({"num_negatives": 3, "range_min": 2}, id="from a rank on"),
        pytest.param(
            {"num_negatives": 2, "range_max": 30, "relative_margin": 0.05},
            id="as NV-Retriever",
        ),
        pytest.param(
            {
                "num_negatives": 2,
                "absolute_margin": 0.1,
                "max_score": 0.5,
                "min_score": -0.2,
            },
            id="between bounds",
        ),
    ],
    scope="module",
)
#: Hard negatives of the data set are candidates, too.
GIVEN = [f"given {number % 9}" for number in range(90)]
CORPUS = ["text 3", "an unrelated sentence", "TEXT  7"]


@pytest.fixture(scope="module")
def mined(options, ninety_pairs):
    """The rows and the report, where the anchors are searched in several blocks."""
    triplets = ninety_pairs.add_column("hard_neg", GIVEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simcse_hf.apps.mining._ANCHORS", 16)
        return mine(triplets, corpus=CORPUS, output_format="triplet", **options)


@pytest.fixture(scope="module")
def slowly_mined(options, ninety_pairs):
    return slow_mining(ninety_pairs, MiningOptions(**options), [*GIVEN, *CORPUS])


@EVERY_WAY_TO_MINE
def test_the_negatives_of_each_pair_are_those_of_a_slow_search(mined, slowly_mined, ninety_pairs):
    found = {}
    for anchor, positive, negative in rows_of(mined[0]):
        found.setdefault((anchor, positive), []).append(negative)
    times = Counter(rows_of(ninety_pairs))
    for pair, negatives in zip(rows_of(ninety_pairs), slowly_mined[0], strict=True):
        assert found.get(pair, []) == negatives * times[pair]


@EVERY_WAY_TO_MINE
def test_the_report_counts_what_each_bound_dropped(mined, slowly_mined):
    dropped = slowly_mined[1]
    assert {name: mined[1].dropped[name] for name in dropped} == dropped


@EVERY_WAY_TO_MINE
def test_the_report_counts_the_pairs_with_too_few_negatives(mined, slowly_mined, options):
    wanted = options.get("num_negatives", 1)
    too_few = [each for each in slowly_mined[0] if len(each) < wanted]
    assert mined[1].pairs_without_negatives == len(too_few)


@EVERY_WAY_TO_MINE
def test_the_report_counts_the_rows(mined, slowly_mined):
    rows, report = mined
    assert report.rows == len(rows) == sum(map(len, slowly_mined[0]))


# --- texts that are the same but for case and spacing ---


@pytest.fixture
def mined_from_equal_texts():
    """Three pairs of two anchors; in the corpus only "three" is none of their texts."""
    dataset = pairs_of(sent0=["A  Cat", "a cat", "a dog"], sent1=["one", "Two", "a cat"])
    return mine(dataset, corpus=["two ", "ONE", "three"])


def test_a_negative_is_never_a_positive_of_the_same_anchor_nor_the_anchor_in_other_case_or_spacing(
    mined_from_equal_texts,
):
    rows, _ = mined_from_equal_texts
    assert rows["hard_neg"][:2] == ["three", "three"]


@pytest.mark.parametrize("counted, number", [("anchors", 2), ("candidates", 4)])
def test_equal_texts_are_counted_once(counted, number, mined_from_equal_texts):
    _, report = mined_from_equal_texts
    assert getattr(report, counted) == number


@pytest.mark.parametrize("reason, number", [("repeated candidate", 2), ("the anchor itself", 1)])
def test_the_report_counts_what_is_left_out_as_an_equal_text(reason, number, mined_from_equal_texts):
    _, report = mined_from_equal_texts
    assert report.dropped[reason] == number


def test_the_report_counts_the_positives_of_the_same_anchor(mined_from_equal_texts):
    _, report = mined_from_equal_texts
    assert report.dropped["positive of the same anchor"] >= 2


# --- the audit ---

ANGLES = {
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
    """A model whose similarities are the cosines of differences of angles."""

    def encode(self, texts, **options):
        angles = np.array([ANGLES[text] for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    encode_query = encode_document = encode


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """The rows of the audit, and the report; of the pair of "q" and "p", each reason holds for one negative."""
    file = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    _, report = mine_hard_negatives(
        pairs_of(sent0=["q", "other", "r"], sent1=["p", "p", "far"]),
        Angles(),
        corpus=["P!", "other", "near", "above"],
        options=MiningOptions(num_negatives=5),
        audit=file,
    )
    return [json.loads(line) for line in file.read_text().splitlines()], report


@pytest.fixture
def audit_of_q(audited):
    return [row for row in audited[0] if row["anchor"] == "q"]


def test_the_audit_lists_suspicious_negatives_by_reason_and_then_by_their_lead(
    audit_of_q,
):
    assert [(row["negative"], row["reason"]) for row in audit_of_q] == [
        ("P!", "equal words"),
        ("other", "in a pair with either text"),
        ("above", "above the positive"),
        ("near", "near the positive"),
    ]


def test_the_audit_has_the_similarity_of_the_positive(audit_of_q):
    for row in audit_of_q:
        assert row["positive_score"] == pytest.approx(np.cos(0.5))


def test_the_audit_has_the_similarity_of_the_negative(audit_of_q):
    assert audit_of_q[2]["negative_score"] == pytest.approx(np.cos(0.1))


def test_the_report_counts_the_suspicious_negatives(audited):
    audit, report = audited
    assert report.suspicious == len(audit)


def test_the_printed_report_has_the_number_of_suspicious_negatives(audited):
    audit, report = audited
    assert f": {len(audit)}\n" in str(report)


class Drawn:
    """Thirty pairs of random words, which often repeat, with random similarities and three negatives each."""

    def __init__(self):
        drawing = np.random.default_rng(0)

        def words():
            return " ".join(drawing.choice(["a", "b", "A", "b."], size=2))

        self.anchors = [words() for _ in range(30)]
        self.positives = [words() for _ in range(30)]
        self.scores = drawing.uniform(-1, 1, 30).tolist()
        self.negatives = []
        for _ in range(30):
            scores = drawing.uniform(-1, 1, 3)
            self.negatives.append([(words(), float(score)) for score in scores])

    def suspects(self):
        return false_negatives(self.anchors, self.positives, self.scores, self.negatives)

    def are_a_pair(self, one, other):
        """Whether two texts stand in a pair, whatever their case."""
        for anchor, positive in zip(self.anchors, self.positives, strict=True):
            if {one.lower(), other.lower()} == {anchor.lower(), positive.lower()}:
                return True
        return False

    def suspicion(self, number, text, score):
        """The place of the first reason for a negative of a pair, or `None`."""
        own = [self.anchors[number], self.positives[number]]
        limit = self.scores[number]
        if plain(text) in [plain(each) for each in own]:
            return 0
        if any(self.are_a_pair(text, each) for each in own):
            return 1
        if score > limit:
            return 2
        if score > limit - 0.05 * abs(limit):
            return 3
        return None

    def slow_audit(self):
        """(reason, lead of the positive, negative) of the suspicious negatives, in order."""
        found = []
        for number, limit in enumerate(self.scores):
            for text, score in self.negatives[number]:
                reason = self.suspicion(number, text, score)
                if reason is not None:
                    found.append((reason, limit - score, text))
        return sorted(found)


def plain(text):
    return text.lower().replace(".", "")


@pytest.fixture(scope="module")
def drawn():
    return Drawn()


@pytest.mark.parametrize("reason", SUSPICIONS[:3])
def test_the_slow_audit_finds_negatives_of_every_reason_but_the_weakest(reason, drawn):
    reasons = {SUSPICIONS[place] for place, _, _ in drawn.slow_audit()}
    assert reason in reasons


def test_the_reasons_are_those_of_a_slow_audit(drawn):
    expected = [SUSPICIONS[reason] for reason, _, _ in drawn.slow_audit()]
    assert drawn.suspects()["reason"][:] == expected


def test_the_suspicious_negatives_are_those_of_a_slow_audit(drawn):
    expected = [text for _, _, text in drawn.slow_audit()]
    assert drawn.suspects()["negative"][:] == expected


@pytest.fixture
def mined_without_rows():
    """Two pairs with too few candidates for a row."""
    dataset = pairs_of(sent0=["one", "two"], sent1=["three", "four"])
    return mine(dataset, num_negatives=5)


def test_pairs_with_too_few_candidates_give_no_row(mined_without_rows):
    rows, _ = mined_without_rows
    assert len(rows) == 0


def test_a_pair_without_a_row_is_not_audited(mined_without_rows):
    _, report = mined_without_rows
    assert report.suspicious == 0


# --- the rows ---


@pytest.fixture(scope="module")
def rows_of_three_negatives(ninety_pairs):
    rows, _ = mine(ninety_pairs, num_negatives=3)
    return rows


def test_several_negatives_become_numbered_columns(rows_of_three_negatives):
    negatives = ["hard_neg_1", "hard_neg_2", "hard_neg_3"]
    assert rows_of_three_negatives.column_names == ["sent0", "sent1", *negatives]


def test_the_readers_accept_numbered_columns(rows_of_three_negatives, tmp_path):
    rows_of_three_negatives.to_csv(tmp_path / "rows.csv")
    read = load_text_dataset(tmp_path / "rows.csv", cache_dir=tmp_path)
    assert read.num_columns == 5
    assert read["sent3"] == rows_of_three_negatives["hard_neg_2"]


@pytest.fixture(scope="module")
def few_candidates():
    """Three pairs, of which only the last one has two negatives."""
    return pairs_of(sent0=["a", "a", "b"], sent1=["x", "y", "z"])


def test_a_pair_with_too_few_negatives_gives_no_row_of_columns(few_candidates):
    rows, _ = mine(few_candidates, num_negatives=2)
    assert rows["sent0"] == ["b"]


def test_a_pair_with_too_few_negatives_is_counted(few_candidates):
    _, report = mine(few_candidates, num_negatives=2)
    assert report.pairs_without_negatives == 2


def test_a_pair_with_too_few_negatives_gives_the_triplets_that_it_has(few_candidates):
    triplets, _ = mine(few_candidates, num_negatives=2, output_format="triplet")
    assert triplets["sent0"] == ["a", "a", "b", "b"]


# --- random negatives ---


@pytest.fixture(scope="module")
def draw_with_seed(ninety_pairs):
    """A function that draws two negatives of each pair from the ranks 3 to 11."""

    def draw(seed):
        rows, _ = mine(
            ninety_pairs,
            num_negatives=2,
            range_min=3,
            range_max=12,
            sampling_strategy="random",
            seed=seed,
        )
        return rows

    return draw


def test_random_negatives_are_the_same_with_the_same_seed(draw_with_seed):
    assert draw_with_seed(1)[:] == draw_with_seed(1)[:]


def test_random_negatives_differ_with_another_seed(draw_with_seed):
    assert draw_with_seed(1)[:] != draw_with_seed(2)[:]


def test_random_negatives_come_from_the_range(draw_with_seed, ninety_pairs):
    every_rank = MiningOptions(num_negatives=9, range_min=3, range_max=12)
    allowed, _ = slow_mining(ninety_pairs, every_rank)
    for row, candidates in zip(draw_with_seed(1), allowed, strict=True):
        assert {row["hard_neg_1"], row["hard_neg_2"]} <= set(candidates)


NINE_RANKED = [(number, 1 - number / 10) for number in range(9)]


def draw_four(ranked, seed=0):
    options = MiningOptions(num_negatives=4, sampling_strategy="random")
    return choose_negatives(ranked, 1.0, options, random.Random(seed), Counter())


@pytest.fixture(scope="module")
def twenty_draws():
    return [draw_four(NINE_RANKED, seed) for seed in range(20)]


def test_drawn_negatives_come_in_the_order_of_their_ranks(twenty_draws):
    for drawn in twenty_draws:
        assert drawn == sorted(drawn)


def test_as_many_different_negatives_are_drawn_as_asked_for(twenty_draws):
    for drawn in twenty_draws:
        assert len(set(drawn)) == 4


def test_each_seed_draws_other_negatives(twenty_draws):
    assert len({tuple(drawn) for drawn in twenty_draws}) > 5


def test_all_candidates_are_drawn_if_there_are_fewer_than_asked_for():
    assert draw_four(NINE_RANKED[:2]) == NINE_RANKED[:2]


# --- faiss ---


@pytest.mark.parametrize("backend, least", [("Flat", 1), ("hnsw", 0.6), ("ivf", 0.6)])
def test_faiss_finds_what_exact_search_finds_among_few_candidates(backend, least, ninety_pairs):
    """The approximate indexes find most of it."""
    pytest.importorskip("faiss")
    exact, _ = mine(ninety_pairs)
    found, _ = mine(ninety_pairs, backend=backend)
    agree = np.array(exact["hard_neg"]) == np.array(found["hard_neg"])
    assert agree.mean() >= least


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


# --- the steps ---


def test_equal_texts_are_grouped_in_the_order_of_the_first_of_each():
    groups = group_texts(["A  cat", "dog", "a cat", "bird"])
    assert list(groups.items()) == [("a cat", [0, 2]), ("dog", [1]), ("bird", [3])]


FOUR_RANKED = [(0, 0.9), (1, 0.8), (2, 0.6), (3, 0.2)]


def choose_with(bounds):
    """The numbers of the negatives that the bounds leave to a positive of 0.8, and what they drop."""
    dropped = Counter()
    options = MiningOptions(num_negatives=4, **bounds)
    chosen = choose_negatives(FOUR_RANKED, 0.8, options, random.Random(0), dropped)
    return [number for number, _ in chosen], dropped


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ({"max_score": 0.8}, [1, 2, 3]),
        ({"absolute_margin": 0.1}, [2, 3]),
        ({"relative_margin": 0.5}, [3]),
        ({"min_score": 0.5}, [0, 1, 2]),
    ],
)
def test_a_bound_drops_what_fails_it(bounds, left):
    chosen, _ = choose_with(bounds)
    assert chosen == left


@pytest.mark.parametrize(
    ("bounds", "dropped"),
    [
        ({"max_score": 0.8}, {"max_score": 1}),
        ({"absolute_margin": 0.1}, {"absolute_margin": 2}),
        ({"relative_margin": 0.5}, {"relative_margin": 3}),
        ({"min_score": 0.5}, {"min_score": 1}),
    ],
)
def test_what_fails_a_bound_is_counted_under_its_name(bounds, dropped):
    _, counted = choose_with(bounds)
    assert counted == dropped
