"""Files that tables make, scans with quantiles, and models that are measured after a transform or without training."""

import csv
import zlib

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
from simcse_hf.evaluation.scoring import TaskData
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.postprocessing import fit_flow, fit_whitening

ALIGNMENT = [{"name": "max", "metric": "alignment"}, {"name": "q50", "metric": "alignment", "quantile": 0.5}]
SCANNED = [{"name": "scanned", "scan": {"small": {"temp": [0.1, 0.5, 1.0], "learning_rate": [1e-5, 3e-5]}}}]


class RandomVectors:
    """An encoder whose vectors of 4 dimensions vary in all of them."""

    def encode(self, texts):
        return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=4) for text in texts])


class FinishedRuns:
    """Stands for a store of finished runs, whose score is a function of their settings and seed."""

    def measured(self, run):
        score = 100 * run.settings["temp"] + 1e6 * run.settings["learning_rate"] + run.seed
        return Measured({"geometry": {"geometry": {"alignment": score}}}, {"geometry": {}})


def test_a_scanned_row_shows_quantiles_over_all_combinations_once_all_are_finished(tmp_path):
    table, sources = table_of(tmp_path, columns=ALIGNMENT, rows=SCANNED), Sources(tmp_path, tmp_path)
    planned = plan(table, Options(sources, seeds=2))
    assert len({each.run.key(sources) for each in planned}) == 6 * 2  # columns share the runs
    samples, _ = _samples(table, planned, planned, FinishedRuns())
    grid = [100 * t + rate for t in (0.1, 0.5, 1.0) for rate in (10, 30)]
    for column, quantile in enumerate((1.0, 0.5)):
        expected = {seed: np.quantile(grid, quantile) + seed for seed in (42, 43)}
        assert samples["scanned", column].figures == pytest.approx(expected)
        assert samples["scanned", column].resampled[42] == pytest.approx(expected[42])
    first = planned[0].run.key(sources)
    finished = [each for each in planned if each.run.key(sources) != first]
    partly, _ = _samples(table, planned, finished, FinishedRuns())
    assert {seed for sample in partly.values() for seed in sample.figures} == {43}


@pytest.fixture
def scored(tmp_path):
    return write_rows(tmp_path / "dev.csv", ["sentence1", "sentence2", "score"], random_pairs(40, 0))


def test_a_model_is_measured_with_each_transform_and_encoded_once(tmp_path, scored):
    write_rows(tmp_path / "nli.csv", ["sent0", "sent1"], [pair[:2] for pair in random_pairs(60, 1)])
    variants = [Variant(), Variant(method="whitening", fit_on="target"), Variant(method="whitening", fit_on="nli")]
    assert all(split_variant(variant.of("dev")) == ("dev", variant) for variant in variants)
    loaded = []

    def load(pooler):
        loaded.append(pooler)
        return RandomVectors()

    measured = measure(load, [variant.of("dev") for variant in variants], tmp_path, scored, tmp_path / "nli.csv")
    assert loaded == [None]
    scores = [figure(measured, "dev", "all", "spearman", variant)[0] for variant in variants]
    assert len(set(scores)) == 3
    drawn = resample(measured, "dev", "all", "spearman", variants[1], resamples=20)
    assert drawn.shape == (20,) and abs(drawn.mean() - scores[1]) < 30
    with pytest.raises(ValueError, match="put data/nli_for_simcse.csv or nli/nli_triplets.csv into --data_dir"):
        measure(load, [variants[2].of("dev")], tmp_path, scored, None)


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_each_set_is_scored_with_a_transform_fitted_on_its_own_texts(method):
    def pairs(name, count=40):
        first, second = ([f"{name} {side} {i}" for i in range(count)] for side in "xy")
        return ScoredPairs(name, first, second, np.random.default_rng(1).uniform(0, 5, count).tolist())

    embed = RandomVectors().encode
    sts_b, extra = pairs("b"), pairs("c")
    data = TaskData(sts={"STSBenchmark": {"test": sts_b}}, pairs={"c": extra}, missing={"STS12": "no folder"})
    results = score_per_set(data, embed, method).results
    for score, of in ((results["STSBenchmark"]["splits"]["test"], sts_b), (results["c"], extra)):
        x = torch.from_numpy(embed([*of.sentences1, *of.sentences2]))
        transform = fit_whitening([x]) if method == "whitening" else fit_flow(x)[0]
        expected = spearman(cosine_similarity_pairs(*transform.transform(x).chunk(2)), of.scores)
        assert score["spearman"] == pytest.approx(100 * expected, abs=1e-6)
    assert results["STS12"] == {"missing": "no folder"}
    with pytest.raises(
        ValueError, match="c: no whitening can be fitted on its texts: .*give at least 5 different sentences"
    ):
        score_per_set(TaskData(pairs={"c": pairs("c", 2)}), embed, "whitening")
    with pytest.raises(ValueError, match="leave out MR"):
        score_per_set(TaskData(transfer={"MR": {}}), embed, method)


def test_a_row_without_training_is_one_run_for_all_seeds(tmp_path):
    rows = [{"name": "start", "recipe": "evaluation", "pooler": "avg"}, {"name": "trained"}]
    table = table_of(tmp_path, rows=rows)
    keys = {"start": set(), "trained": set()}
    for row, _, run in runs_of(table, "small", 3, Sources(tmp_path, tmp_path)):
        keys[row.name].add(run.key(Sources(tmp_path, tmp_path)))
    assert [len(each) for each in keys.values()] == [1, 3]
    planned = plan(table, Options(Sources(tmp_path, tmp_path)))
    assert [each.groups for each in planned[:2]] == [("dev;avg;;",), ("dev",)]


def test_training_files_are_made_from_the_files_of_others(tmp_path):
    rows = [
        ("A dog runs.", "An animal moves.", "entailment", "snli-train"),
        ("A dog runs.", "A dog is brown.", "neutral", "snli-train"),
        ("A dog runs.", "A dog sleeps.", "contradiction", "mnli-train"),
        ("A dog runs.", "A dog rests.", "entailment", "breaking-nli"),
    ]
    text = write_rows(tmp_path / "nli/pairs.csv", ["premise", "hypothesis", "label", "source"], rows).read_text()
    data_helpers.write(tmp_path / "nli/nli_pairs.csv.gz", text)
    (tmp_path / "qqp").mkdir()
    questions = ['id\tquestion1\tquestion2\tis_duplicate\n1\t"Why ""x""?"\tWhy x?\t1\n2\ta\tb\t0\n3\tsame\tsame\t1\n']
    (tmp_path / "qqp/quora_duplicate_questions.tsv").write_text(questions[0])

    def made(name):
        with make_file(f"prepared/{name}.csv", tmp_path, tmp_path / "out").open(newline="") as stream:
            return list(csv.reader(stream))[1:]

    first = "A dog runs."
    assert made("entailment") == [[first, "An animal moves."]]  # not the pair of breaking-nli
    assert made("contradiction") == [[first, "A dog sleeps."]] and len(made("all-labels")) == 3
    assert made("with-neutral") == [[first, "An animal moves.", "A dog sleeps.", "A dog is brown."]]
    assert made("qqp") == [['Why "x"?', "Why x?"]]
    before = content_digest("prepared/neutral.csv", tmp_path)
    data_helpers.write(tmp_path / "nli/nli_pairs.csv.gz", text + "B,C,neutral,snli-dev\n")
    assert content_digest("prepared/neutral.csv", tmp_path) != before
    assert content_digest("prepared/paranmt.csv", tmp_path) is None
    with pytest.raises(ValueError, match=r"prepared/none\.csv: prepared\.yaml defines no such file"):
        source_files("prepared/none.csv")
