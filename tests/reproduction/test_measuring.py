"""Files that tables make, scans with quantiles, and models that are measured after a transform or without training."""

import csv
import zlib
from itertools import product

import data_helpers
import numpy as np
import pytest
import torch
from evaluation_helpers import random_pairs, write_rows
from reproduction_helpers import table_of

from reproduction.figures import Measured, figure, measure, resample
from reproduction.prepared import content_digest, make_file, source_files
from reproduction.reproduce import Options, _samples, plan
from reproduction.specs import Sources, runs_of
from reproduction.variants import Variant, score_per_set, split_variant
from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman
from simcse_hf.evaluation.tasks.senteval import (
    MissingTask,
    ScoredPairs,
    ScoredPairsTask,
)
from simcse_hf.postprocessing import fit_flow, fit_whitening


def text_vector(text):
    return np.random.default_rng(zlib.crc32(text.encode())).normal(size=4)


class RandomVectors:
    """An encoder whose vectors of 4 dimensions vary in all of them."""

    def encode(self, texts):
        return np.stack([text_vector(text) for text in texts])


@pytest.fixture
def sources(tmp_path):
    return Sources(tmp_path, tmp_path)


# --- scans ---

#: The best of all runs, and their median.
COLUMNS = [
    {"name": "max", "metric": "alignment"},
    {"name": "q50", "metric": "alignment", "quantile": 0.5},
]
TEMPERATURES = [0.1, 0.5, 1.0]
LEARNING_RATES = [1e-5, 3e-5]
SCANNED = {
    "name": "scanned",
    "scan": {"small": {"temp": TEMPERATURES, "learning_rate": LEARNING_RATES}},
}


def score_of(temp, learning_rate):
    return 100 * temp + 1e6 * learning_rate


class FinishedRuns:
    """Stands for a store of finished runs, whose score is a function of their settings and seed."""

    def measured(self, run):
        score = score_of(run.settings["temp"], run.settings["learning_rate"]) + run.seed
        return Measured({"geometry": {"geometry": {"alignment": score}}}, {"geometry": {}})


@pytest.fixture
def table(tmp_path):
    return table_of(tmp_path, columns=COLUMNS, rows=[SCANNED])


def test_a_scanned_row_shows_quantiles_over_all_combinations_of_finished_seeds(table, sources):
    planned = plan(table, Options(sources, seeds=2))
    assert len({each.run.key(sources) for each in planned}) == len(TEMPERATURES) * len(LEARNING_RATES) * 2
    samples, _ = _samples(table, planned, planned, FinishedRuns())
    scores = [score_of(*values) for values in product(TEMPERATURES, LEARNING_RATES)]
    for column, quantile in enumerate((1.0, 0.5)):
        expected = {seed: np.quantile(scores, quantile) + seed for seed in (42, 43)}
        sample = samples["scanned", column]
        assert sample.figures == pytest.approx(expected)
        assert sample.resampled[42] == pytest.approx(expected[42])
    finished = [each for each in planned if each.run.key(sources) != planned[0].run.key(sources)]
    samples, _ = _samples(table, planned, finished, FinishedRuns())
    assert {seed for sample in samples.values() for seed in sample.figures} == {43}


# --- transforms ---

PLAIN = Variant()
FITTED_ON_TARGET = Variant(method="whitening", fit_on="target")
FITTED_ON_NLI = Variant(method="whitening", fit_on="nli")
VARIANTS = [PLAIN, FITTED_ON_TARGET, FITTED_ON_NLI]


@pytest.fixture
def scored(tmp_path):
    header = ["sentence1", "sentence2", "score"]
    return write_rows(tmp_path / "dev.csv", header, random_pairs(40, 0))


@pytest.fixture
def nli(tmp_path):
    pairs = [(first, second) for first, second, _ in random_pairs(60, 1)]
    return write_rows(tmp_path / "nli.csv", ["sent0", "sent1"], pairs)


def test_a_model_is_loaded_once_and_scored_with_each_transform(tmp_path, scored, nli):
    poolers = []

    def load(pooler):
        poolers.append(pooler)
        return RandomVectors()

    names = [variant.of("dev") for variant in VARIANTS]
    assert [split_variant(name) for name in names] == [("dev", variant) for variant in VARIANTS]
    measured = measure(load, names, tmp_path, scored, nli)
    assert poolers == [None]
    scores = [figure(measured, "dev", "all", "spearman", variant)[0] for variant in VARIANTS]
    assert len(set(scores)) == 3
    drawn = resample(measured, "dev", "all", "spearman", FITTED_ON_TARGET, resamples=20)
    assert drawn.shape == (20,) and drawn.mean() == pytest.approx(scores[1], abs=30)
    with pytest.raises(ValueError, match="put data/nli_for_simcse.csv or nli/nli_triplets.csv into --data_dir"):
        measure(load, [FITTED_ON_NLI.of("dev")], tmp_path, scored, None)


# --- a transform for each set ---


def pairs_of(name, count=40):
    """Pairs of different texts with a random score."""
    first = [f"{name} x {i}" for i in range(count)]
    second = [f"{name} y {i}" for i in range(count)]
    scores = np.random.default_rng(1).uniform(0, 5, count).tolist()
    return ScoredPairs(name, first, second, scores)


STS_B = pairs_of("b")
OF_USER = pairs_of("c")


def score_by_hand(pairs, method):
    """Spearman's correlation after a transform that is fitted on the texts of the pairs."""
    vectors = torch.from_numpy(RandomVectors().encode([*pairs.sentences1, *pairs.sentences2]))
    transform = fit_whitening([vectors]) if method == "whitening" else fit_flow(vectors)[0]
    first, second = transform.transform(vectors).chunk(2)
    return 100 * spearman(cosine_similarity_pairs(first, second), pairs.scores)


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_each_set_is_scored_with_a_transform_fitted_on_its_own_texts(method):
    data = {
        "STSBenchmark": ScoredPairsTask.of("STSBenchmark", {"test": STS_B}, "folder"),
        "c": ScoredPairsTask.of("c", {"pairs": OF_USER}, "c.csv"),
        "STS12": MissingTask("folder", "STS12", ["no folder"]),
    }
    results = score_per_set(data, RandomVectors().encode, method).results
    found = results["STSBenchmark"]["splits"]["test"]["spearman"], results["c"]["spearman"]
    assert found == pytest.approx((score_by_hand(STS_B, method), score_by_hand(OF_USER, method)), abs=1e-6)
    assert results["STS12"] == {"missing": "no folder"}


def test_a_set_that_no_transform_can_be_fitted_on_is_named():
    task = ScoredPairsTask.of("c", {"pairs": pairs_of("c", 2)}, "c.csv")
    with pytest.raises(ValueError, match="c: no whitening .*at least 5"):
        score_per_set({"c": task}, RandomVectors().encode, "whitening")


# --- rows without training ---


def test_a_row_without_training_is_one_run_for_all_seeds_with_its_pooler(sources, tmp_path):
    start = {"name": "start", "recipe": "evaluation", "pooler": "avg"}
    table = table_of(tmp_path, rows=[start, {"name": "trained"}])
    runs = {"start": set(), "trained": set()}
    for row, _, run in runs_of(table, "small", 3, sources):
        runs[row.name].add(run.key(sources))
    assert len(runs["start"]) == 1 and len(runs["trained"]) == 3
    first, second, *_ = plan(table, Options(sources))
    assert first.groups == ("dev;avg;;",) and second.groups == ("dev",)


# --- training files ---

PAIRS = [
    ("A dog runs.", "An animal moves.", "entailment", "snli-train"),
    ("A dog runs.", "A dog is brown.", "neutral", "snli-train"),
    ("A dog runs.", "A dog sleeps.", "contradiction", "mnli-train"),
    ("A dog runs.", "A dog rests.", "entailment", "breaking-nli"),
]


@pytest.fixture
def write_nli(tmp_path):
    """`write_nli(pairs)` writes labelled pairs, packed, as the shared data has them."""

    def write(pairs):
        header = ["premise", "hypothesis", "label", "source"]
        text = write_rows(tmp_path / "pairs.csv", header, pairs).read_text()
        (tmp_path / "nli").mkdir(exist_ok=True)
        data_helpers.write(tmp_path / "nli/nli_pairs.csv.gz", text)

    return write


@pytest.fixture
def made(tmp_path, write_nli):
    """`made(name)` makes a training file of labelled pairs, and reads its rows."""
    write_nli(PAIRS)

    def read(name):
        path = make_file(f"prepared/{name}.csv", tmp_path, tmp_path / "out")
        with path.open(newline="") as stream:
            return list(csv.reader(stream))[1:]

    return read


def test_pairs_of_a_label_are_taken_from_the_training_sets(made):
    """And so not from breaking-nli; a neutral hypothesis may follow the contradicted one."""
    assert made("entailment") == [["A dog runs.", "An animal moves."]]
    assert made("contradiction") == [["A dog runs.", "A dog sleeps."]]
    assert len(made("all-labels")) == 3
    assert made("with-neutral") == [["A dog runs.", "An animal moves.", "A dog sleeps.", "A dog is brown."]]


def test_the_digest_of_a_file_changes_with_its_source(made, write_nli, tmp_path):
    before = content_digest("prepared/neutral.csv", tmp_path)
    write_nli([*PAIRS, ("B", "C", "neutral", "snli-dev")])
    assert content_digest("prepared/neutral.csv", tmp_path) != before
    assert content_digest("prepared/paranmt.csv", tmp_path) is None  # its source is missing
    with pytest.raises(ValueError, match=r"prepared/none\.csv: prepared\.yaml defines no such file"):
        source_files("prepared/none.csv")
