"""Files that tables make, scans with quantiles, and models that are measured after a transform or without training."""

import csv
import gzip
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
import yaml
from evaluation_helpers import random_pairs

from simcse_hf.evaluation.pairs import read_scored_pairs
from simcse_hf.evaluation.per_set import score_per_set
from simcse_hf.evaluation.run import read_tasks
from simcse_hf.training.reproduction.figures import DEV, Measured, figure, measure, resample
from simcse_hf.training.reproduction.prepared import content_digest, make_file, source_files
from simcse_hf.training.reproduction.reproduce import Options, Planned, _samples, plan
from simcse_hf.training.reproduction.runs import RunStore
from simcse_hf.training.reproduction.specs import Sources, differences, runs_of, scan_points, with_values
from simcse_hf.training.reproduction.table import load_table
from simcse_hf.training.reproduction.variants import Variant, split_variant

TABLE = {
    "paper": "simcse",
    "table": "3",
    "title": "A test",
    "figure": "alignment",
    "recipe": "unsup-simcse-bert-base-uncased",
    "columns": [
        {"name": "max", "metric": "alignment"},
        {"name": "q75", "metric": "alignment", "quantile": 0.75},
        {"name": "q50", "metric": "alignment", "quantile": 0.5},
    ],
    "rows": [{"name": "scanned", "scan": {"small": {"temp": [0.1, 0.5, 1.0], "learning_rate": [1e-5, 3e-5]}}}],
}


def table_of(folder, **changes):
    path = folder / "table.yaml"
    path.write_text(yaml.safe_dump(TABLE | changes))
    return load_table(str(path))


class RandomVectors:
    """An encoder whose vectors of 4 dimensions vary in all of them."""

    def encode(self, texts):
        return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=4) for text in texts])


class FinishedRuns:
    """Stands for a store of finished runs, whose figure is a function of their settings and seed."""

    def __init__(self, figure_of):
        self.figure_of = figure_of

    def measured(self, run):
        return Measured({"geometry": {"geometry": {"alignment": self.figure_of(run)}}}, {"geometry": {}})


def test_a_scanned_row_shows_quantiles_over_all_combinations(tmp_path):
    """Table 1 of the non-contrastive paper: the best, the upper quartile and the median of a scan."""
    table = table_of(tmp_path)
    planned = plan(table, Options(Sources(tmp_path, tmp_path), seeds=2))
    assert len({each.run.key(Sources(tmp_path, tmp_path)) for each in planned}) == 6 * 2  # columns share the runs
    store = FinishedRuns(lambda run: 100 * run.settings["temp"] + 1e6 * run.settings["learning_rate"] + run.seed)
    samples, _ = _samples(table, planned, planned, store)
    grid = [100 * t + rate for t in (0.1, 0.5, 1.0) for rate in (10, 30)]
    for column, quantile in enumerate((1.0, 0.75, 0.5)):
        expected = {seed: np.quantile(grid, quantile) + seed for seed in (42, 43)}
        assert samples["scanned", column].figures == pytest.approx(expected)
        assert samples["scanned", column].resampled[42] == pytest.approx(expected[42])


def test_an_unfinished_scan_has_no_figure(tmp_path):
    table = table_of(tmp_path)
    planned = plan(table, Options(Sources(tmp_path, tmp_path), seeds=2))
    first = planned[0].run.key(Sources(tmp_path, tmp_path))
    finished = [each for each in planned if each.run.key(Sources(tmp_path, tmp_path)) != first]
    samples, _ = _samples(table, planned, finished, FinishedRuns(lambda run: 1.0))
    assert {seed for sample in samples.values() for seed in sample.figures} == {43}


def test_a_scan_changes_single_options_of_an_objective():
    settings = {"objective_options": {"projector_dim": 8, "weight": 1.0}, "seed": 1}
    assert with_values(settings, {"objective_options.weight": 2.0, "temp": 0.1}) == {
        "objective_options": {"projector_dim": 8, "weight": 2.0},
        "seed": 1,
        "temp": 0.1,
    }
    assert settings["objective_options"]["weight"] == 1.0
    assert scan_points({}) == [{}] and len(scan_points({"a": [1, 2], "b": [3, 4, 5]})) == 6


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rows": [{"name": "a", "postprocess": {"method": "flow"}}]}, "row a: postprocess must have method"),
        ({"rows": [{"name": "a", "scan": {"temp": [0.1]}}]}, "row a: scan must name scales and their arguments"),
        ({"columns": [{"name": "c", "quantile": 75}]}, "column c: quantile must be from 0 to 1"),
    ],
)
def test_a_wrong_scan_or_transform_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        table_of(tmp_path, **changes)


@pytest.fixture
def scored(tmp_path):
    pairs = random_pairs(40, 0)
    path = tmp_path / "dev.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("sentence1", "sentence2", "score"), *pairs])
    return path


def test_a_model_is_measured_with_each_transform(tmp_path, scored):
    nli = tmp_path / "nli.csv"
    texts = [text for first, second, _ in random_pairs(60, 1) for text in (first, second)]
    with nli.open("w", newline="") as stream:
        csv.writer(stream).writerows([("sent0", "sent1"), *zip(texts[::2], texts[1::2], strict=True)])
    variants = [Variant(), Variant(method="whitening", fit_on="target"), Variant(method="whitening", fit_on="nli")]
    assert all(split_variant(variant.of("dev")) == ("dev", variant) for variant in variants)
    loaded = []

    def load(pooler):
        loaded.append(pooler)
        return RandomVectors()

    measured = measure(load, [variant.of("dev") for variant in variants], tmp_path, scored, nli)
    assert loaded == [None]  # the texts are encoded once for all transforms
    figures = [figure(measured, "dev", "all", "spearman", variant)[0] for variant in variants]
    assert len(set(figures)) == 3
    data = read_tasks((), None, pairs=(read_scored_pairs(scored, DEV),))
    target = score_per_set(data, RandomVectors().encode, (), method="whitening")
    assert figures[1] == pytest.approx(target.results[DEV]["spearman"])
    drawn = resample(measured, "dev", "all", "spearman", variants[1], resamples=20)
    assert drawn.shape == (20,) and abs(drawn.mean() - figures[1]) < 30
    with pytest.raises(ValueError, match="put data/nli_for_simcse.csv or nli/nli_triplets.csv into --data_dir"):
        measure(load, [variants[2].of("dev")], tmp_path, scored, None)


def test_transfer_tasks_are_measured_on_the_same_few_examples_for_every_model(tmp_path, scored):
    (tmp_path / "SUBJ").mkdir()
    texts = list(dict.fromkeys(text for first, second, _ in random_pairs(100, 2) for text in (first, second)))
    for name, part in (("objective", texts[:60]), ("subjective", texts[60:120])):
        (tmp_path / f"SUBJ/subj.{name}").write_text("\n".join(part) + "\n")
    encoded = []

    class Recording(RandomVectors):
        def encode(self, texts):
            encoded.append(texts)
            return super().encode(texts)

    few = [measure(lambda pooler: Recording(), ["transfer_dev"], tmp_path, scored, None, 50) for _ in range(2)]
    assert [each.results["transfer_dev"]["SUBJ"]["examples"] for each in few] == [{"train": 50}] * 2
    assert few[0].results == few[1].results and encoded[0] == encoded[1] and len(encoded[0]) == 50
    whole = measure(lambda pooler: RandomVectors(), ["transfer_dev"], tmp_path, scored, None)
    assert whole.results["transfer_dev"]["SUBJ"]["examples"] == {"train": 120}


def test_the_small_scale_says_its_start_model_and_that_transfer_tasks_have_fewer_examples(tmp_path):
    rows, columns = [{"name": "start", "recipe": "evaluation"}, {"name": "trained"}], [{"name": "MR", "metric": "MR"}]
    table, sources = table_of(tmp_path, rows=rows, columns=columns), Sources(tmp_path, tmp_path)
    assert any("at most 2,000 examples" in text for text in differences(table, "small"))
    assert not any("at most 2,000 examples" in text for text in differences(table_of(tmp_path), "small"))
    assert any("minilm-remasked-6x384" in text for text in differences(table, "small"))
    for scale in ("small", "paper"):
        start, *others = differences(table, scale, "models/wiki-mlm-4x256")
        assert "wiki-mlm-4x256" in start and not any("start model" in text for text in others)
    small, paper = ([run for *_, run in runs_of(table, scale, 1, sources)] for scale in ("small", "paper"))
    assert [run.transfer_examples for run in small + paper] == [2000, 2000, None, None]
    start = small[0]  # the same model measured on other examples is another run
    assert replace(start, transfer_examples=None).key(sources) != start.key(sources)


def test_a_missing_wordnet_is_named_without_the_folders_of_this_machine(tmp_path, monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    table = table_of(tmp_path, rows=[{"name": "synonyms", "settings": {"view": "synonyms"}}])
    run = next(run for *_, run in runs_of(table, "small", 1, Sources(tmp_path, tmp_path)))
    (missing,) = [text for text in run.missing(Sources(tmp_path, tmp_path)) if "WordNet" in text]
    assert "python -m nltk.downloader wordnet" in missing and str(tmp_path) not in missing


def test_a_row_without_training_is_one_run_for_all_seeds(tmp_path):
    rows = [{"name": "start", "recipe": "evaluation", "pooler": "avg"}, {"name": "trained"}]
    table = table_of(tmp_path, rows=rows, columns=[{"name": "dev"}])
    runs = {}
    for row, _, run in runs_of(table, "small", 3, Sources(tmp_path, tmp_path)):
        runs.setdefault(row.name, []).append(run)
    assert len({run.key(Sources(tmp_path, tmp_path)) for run in runs["start"]}) == 1
    assert len({run.key(Sources(tmp_path, tmp_path)) for run in runs["trained"]}) == 3
    assert not runs["start"][0].trained and runs["start"][0].settings["model_name_or_path"] == "minilm-remasked-6x384"
    (paper, *_) = (run for row, _, run in runs_of(table, "paper", 1, Sources(tmp_path, tmp_path)))
    assert paper.settings["model_name_or_path"] == "bert-base-uncased"
    planned = plan(table, Options(Sources(tmp_path, tmp_path)))
    assert [each.groups for each in planned[:2]] == [("dev;avg;;",), ("dev",)]


def test_a_function_is_measured_without_training(tmp_path, scored, monkeypatch):
    """The baselines that the package does not train: `module:function`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other_library.py").write_text("from evaluation_helpers import BagOfWords as make\n")
    settings = {"model_name_or_path": "other_library:make"}
    rows = [{"name": "other", "recipe": "evaluation", "settings": settings}]
    table = table_of(tmp_path, rows=rows, columns=[{"name": "dev"}])
    sources = Sources(tmp_path, tmp_path / "out")
    (tmp_path / "senteval/downstream/STS/STSBenchmark").mkdir(parents=True)
    lines = [f"m\tx\t2017\t{n}\t{score}\t{a}\t{b}" for n, (a, b, score) in enumerate(random_pairs(40, 0))]
    (tmp_path / "senteval/downstream/STS/STSBenchmark/sts-dev.csv").write_text("\n".join(lines) + "\n")
    (each,) = (Planned(row, column, run, ("dev",)) for row, column, run in runs_of(table, "small", 1, sources))
    assert each.run.missing(sources) == []
    store = RunStore(sources)
    assert store.finish(each.run, each.groups)
    document = store.read(each.run)
    assert document["steps"] == 0 and document["curve"] == [] and document["results"]["dev"][DEV]["pairs"] == 40


def test_training_files_are_made_once_from_the_files_of_others(tmp_path):
    folder = tmp_path / "nli"
    folder.mkdir()
    rows = [
        ("A dog runs.", "An animal moves.", "entailment", "snli-train"),
        ("A dog runs.", "A dog sleeps.", "contradiction", "snli-train"),
        ("A dog runs.", "A dog is brown.", "neutral", "snli-train"),
        ("A cat sits.", "A cat rests.", "entailment", "breaking-nli"),
    ]
    names = ("premise", "hypothesis", "label", "source")
    text = "\n".join(",".join(row) for row in (names, *rows)) + "\n"
    (folder / "nli_pairs.csv.gz").write_bytes(gzip.compress(text.encode()))
    made = {}
    for name in ("entailment", "neutral", "contradiction", "all-labels", "with-neutral"):
        path = make_file(f"prepared/{name}.csv", tmp_path, tmp_path / "out")
        with path.open(newline="") as stream:
            made[name] = list(csv.reader(stream))[1:]
    first = "A dog runs."
    assert made["entailment"] == [[first, "An animal moves."]]  # not the pair of breaking-nli
    assert made["neutral"] == [[first, "A dog is brown."]] and made["contradiction"] == [[first, "A dog sleeps."]]
    assert len(made["all-labels"]) == 3
    assert made["with-neutral"] == [[first, "An animal moves.", "A dog sleeps.", "A dog is brown."]]
    before = content_digest("prepared/neutral.csv", tmp_path)
    (folder / "nli_pairs.csv.gz").write_bytes(gzip.compress((text + "B,C,neutral,snli-dev\n").encode()))
    assert content_digest("prepared/neutral.csv", tmp_path) != before
    assert content_digest("prepared/qqp.csv", tmp_path) is None
    assert source_files("prepared/qqp.csv") == ["qqp/quora_duplicate_questions.tsv"]
    with pytest.raises(ValueError, match=r"prepared/none\.csv: scales/prepared\.yaml defines no such file"):
        source_files("prepared/none.csv")


def test_every_prepared_file_that_a_table_names_is_defined_and_its_sources_are_explained(tmp_path):
    sources = Sources(tmp_path, tmp_path)
    missing = [
        text
        for scale in ("small", "paper")
        for name in ("simcse/4", "simcse/7")
        for *_, run in runs_of(load_table(name), scale, 1, sources)
        for text in run.missing(sources)
    ]
    assert any("quora_duplicate_questions.tsv: put Quora's question pairs" in text for text in missing)
    assert any("snli_1.0_train.jsonl: put SNLI 1.0" in text for text in missing)
    assert json.dumps(missing)
