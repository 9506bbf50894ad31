"""Files that tables make, quantiles of scans, and figures after a transform."""

import csv

import data_helpers
import numpy as np
import pytest
import torch
from evaluation_helpers import random_pairs, word_vector, write_rows
from reproduction_helpers import table_of
from trainer_helpers import refuses

from reproduction.measures import METRICS, TransformedTask, quantile_sample, read_group, sample_metric
from reproduction.prepared import content_digest, make_file, source_files
from reproduction.reproduce import plan
from reproduction.rows import Options
from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman
from simcse_hf.evaluation.protocol import PAPER_PROTOCOL
from simcse_hf.evaluation.scoring import load_encoder, score_model
from simcse_hf.evaluation.tasks.senteval import MissingTask, ScoredPairs, ScoredPairsTask
from simcse_hf.evaluation.verdict import Sample
from simcse_hf.postprocessing import fit_flow, fit_whitening


class RandomVectors:
    """An encoder whose vectors of 4 dimensions vary in all of them."""

    def encode(self, texts):
        return np.stack([word_vector(text, 4) for text in texts])


def score(tasks):
    return score_model(load_encoder(RandomVectors(), {}), tasks, PAPER_PROTOCOL, False)


def test_a_scanned_row_shows_quantiles_over_all_combinations_of_seeds_that_are_finished(tmp_path):
    scan = {"small": {"temp": [0.1, 0.5, 1.0], "objective_options.encoders": [1, 2]}}
    start = {"name": "start", "recipe": "evaluation", "pooler": "avg"}
    table = table_of(tmp_path, rows=[{"name": "scanned", "scan": scan}, start])
    runs = plan(table, Options(tmp_path, tmp_path, seeds=2))
    assert len({run.folder for run in runs}) == 6 * 2 + 1  # without training, one run for all seeds
    assert {run.way.recipe.given["objective_options"]["encoders"] for run in runs if run.way.is_trained} == {1, 2}
    points = [
        Sample({42: score, 43: score + 1}, {42: np.full(3, score), 43: np.full(3, score)}) for score in (1.0, 9.0)
    ]
    assert quantile_sample(points, 0.5).figures == {42: 5.0, 43: 6.0}
    best = quantile_sample([*points, Sample({43: 0.0}, {43: np.zeros(3)})], 1.0)
    assert best.figures == {43: 10.0} and best.resampled[43].tolist() == [9.0, 9.0, 9.0]


# --- transforms ---


def pairs_of(name, count=40):
    """Pairs of different texts with a random score."""
    first = [f"{name} x {i}" for i in range(count)]
    second = [f"{name} y {i}" for i in range(count)]
    return ScoredPairs(name, first, second, np.random.default_rng(1).uniform(0, 5, count).tolist())


STS_B = pairs_of("b")


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_a_set_is_scored_with_a_transform_fitted_on_its_own_texts(method):
    task = ScoredPairsTask.of("STSBenchmark", {"test": STS_B}, "folder")
    absent = MissingTask("folder", "STS12", ["no folder"])
    tasks = {each.name: TransformedTask.of(each, method, each.texts) for each in (task, absent)}
    results = score(tasks).results
    vectors = torch.from_numpy(RandomVectors().encode([*STS_B.sentences1, *STS_B.sentences2]))
    transform = fit_whitening([vectors]) if method == "whitening" else fit_flow(vectors)[0]
    first, second = transform.transform(vectors).chunk(2)
    by_hand = 100 * spearman(cosine_similarity_pairs(first, second), STS_B.scores)
    assert results["STSBenchmark"]["splits"]["test"]["spearman"] == pytest.approx(by_hand, abs=1e-6)
    assert results["STS12"] == {"missing": "no folder"}
    small = ScoredPairsTask.of("c", {"pairs": pairs_of("c", 2)}, "c.csv")
    with refuses("c: no whitening at least 5"):
        score({"c": TransformedTask.of(small, "whitening", small.texts)})


def test_a_model_is_scored_with_each_transform_and_resampled(tmp_path):
    write_rows(tmp_path / "dev.csv", ["sentence1", "sentence2", "score"], random_pairs(40, 0))
    (tmp_path / "nli").mkdir()
    pairs = [(first, second) for first, second, _ in random_pairs(60, 1)]

    def read(transform):
        return read_group("dev", transform, tmp_path, "dev.csv", None)

    with refuses("put data/nli_for_simcse.csv or nli/nli_triplets.csv into --data_dir"):
        read(("whitening", "nli"))
    write_rows(tmp_path / "nli/nli_triplets.csv", ["sent0", "sent1"], pairs)
    transforms = [(), ("whitening", "target"), ("whitening", "nli")]
    evaluation = score({name: task for transform in transforms for name, task in read(transform).items()})
    figures = []
    for transform in transforms:
        sample, averaged = sample_metric({42: evaluation}, METRICS["dev"], transform, "all", "spearman")
        assert averaged == ["STS-B dev"] and sample.resampled[42].mean() == pytest.approx(sample.mean, abs=30)
        figures.append(sample.mean)
    assert len(set(figures)) == 3
    with refuses("no flow fitted on target metrics of geometry"):
        read_group("geometry", ("flow", "target"), tmp_path, None, None)


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
    with refuses("prepared/none.csv: prepared.yaml defines no such file"):
        source_files("prepared/none.csv")
