"""The evidence continues after a kill, chooses the best run of the grid, and measures what embeddings encode."""

import json
import pickle
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="needs scikit-learn")
from scipy.stats import rankdata, spearmanr

from benchmarks.evidence import domains, grid
from benchmarks.evidence.contents import Contents
from benchmarks.evidence.training import run_missing
from benchmarks.harness import Report
from simcse_hf.evaluation.pairs import ScoredPairs
from simcse_hf.evaluation.user_tasks import read_task

SENTENCES = [
    "a cat sits on the mat",
    "the cat is on a mat",
    "a dog runs",
    "stocks fell sharply in early trading on monday",
    "shares dropped on monday",
    "a dog runs in the park with a ball",
]


@pytest.fixture
def contents():
    pairs = ScoredPairs("pairs", SENTENCES[0:5], SENTENCES[1:6], [4.8, 1.0, 0.2, 4.1, 0.1])
    return Contents(pairs, ["the cat and the dog", "the park", "a ball"])


@pytest.fixture
def random_contents():
    generator = np.random.default_rng(0)
    words = np.array("red blue green cat dog bird runs sleeps eats park house".split())
    first, second = ([" ".join(generator.choice(words, generator.integers(3, 9))) for _ in range(40)] for _ in "ab")
    return Contents(ScoredPairs("pairs", first, second, list(generator.random(40))), ["red cat runs", "a house"])


def point(step, dev):
    return {"step": step, "dev": dev, "alignment": 0.1, "uniformity": -1.0}


def test_a_killed_benchmark_goes_on_with_the_run_that_was_lost(tmp_path):
    specs = {"first": {"start": "a"}, "second": {"start": "b"}, "once": {"start": "c", "number_of_seeds": 1}}
    started = []

    def run(spec, seed):
        started.append((spec["start"], seed))
        if len(started) == 3:
            raise KeyboardInterrupt
        return {"dev": seed}

    path = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        run_missing(Report(path), specs, [1, 2], run)
    run_missing(Report(path), specs, [1, 2], run)
    assert started == [("a", 1), ("b", 1), ("c", 1), ("c", 1), ("a", 2), ("b", 2)]
    runs = json.loads(path.read_text())["runs"]
    assert {name: list(run["seeds"]) for name, run in runs.items()} == {
        "first": ["1", "2"],
        "second": ["1", "2"],
        "once": ["1"],
    }


def test_the_best_run_of_the_grid_is_repeated_with_its_best_number_of_steps():
    runs = {
        name: {"settings": spec, "seeds": {"42": {"curve": [point(0, 60.0), point(10, 50.0), point(25, 40.0)]}}}
        for name, spec in grid.grid().items()
    }
    best = "mean, learning rate 1e-05, batch 32, temperature 0.2, dropout 0.1"
    runs[best]["seeds"]["42"]["curve"][1] = point(10, 60.09)
    assert grid.best({"runs": runs}) == {}, "a lift that small is not worth several seeds"
    runs[best]["seeds"]["42"]["curve"][1] = point(10, 60.2)
    chosen = grid.best({"runs": runs})
    assert list(chosen) == [f"best mean: {best}"]
    assert chosen[f"best mean: {best}"]["arguments"]["max_steps"] == 10
    with_dropout = grid.dropout_grid()
    assert len(with_dropout) == len(grid.POOLERS) * len(grid.DROPOUTS) * len(grid.DROPOUT_RATES)
    name, spec = next(iter(with_dropout.items()))
    runs[name] = {"settings": spec, "seeds": {"42": {"curve": [point(0, 60.0), point(100, 61.0)]}}}
    assert grid.best({"runs": runs})[f"best [CLS]: {name}"]["arguments"]["max_steps"] == 100


def test_word_overlap_is_the_jaccard_index_of_the_words(contents):
    assert contents.overlap[0] == pytest.approx(5 / 7)
    assert contents.overlap[1] == pytest.approx(1 / 8)
    expected = 100 * spearmanr(contents.overlap, contents.pairs.scores).statistic
    assert contents.baselines()["overlap"] == pytest.approx(expected, abs=0.01)


def test_the_partial_correlation_holds_word_overlap_constant(random_contents):
    contents = random_contents
    embeddings = torch.randn(len(contents.texts), 8, generator=torch.Generator().manual_seed(0))
    measured = contents.measure(embeddings)
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1).numpy()
    cosine = (unit[contents.first] * unit[contents.second]).sum(1)
    ranks = [rankdata(values) for values in (cosine, contents.pairs.scores, contents.overlap)]
    x, y, z = (rank - rank.mean() for rank in ranks)
    residuals = [values - z * (values @ z) / (z @ z) for values in (x, y)]
    assert measured["gold"] == pytest.approx(100 * np.corrcoef(x, y)[0, 1], abs=0.01)
    assert measured["gold_given_overlap"] == pytest.approx(100 * np.corrcoef(*residuals)[0, 1], abs=0.01)


def test_an_embedding_that_holds_only_the_length_is_found_out(random_contents):
    length = torch.tensor(random_contents.log_length)
    noise = 1e-3 * torch.randn(len(length), 2, generator=torch.Generator().manual_seed(0))
    measured = random_contents.measure(torch.cat([length[:, None], noise], dim=1))
    assert measured["first_component_length"] > 0.99 and measured["length_r2"] > 0.99
    assert measured["variance_of_1"] > 0.99 and measured["effective_components"] < 1.1


def test_an_interval_needs_the_scores_of_every_seed(tmp_path, capsys):
    """The second seed was run in another folder. An interval of the first seed alone would look like that of both."""
    table = tmp_path / "pairs.csv"
    rows = [f"{first},{second},{number % 2}" for number, (first, second) in enumerate(pairwise(SENTENCES))]
    table.write_text("\n".join(["sentence1,sentence2,label", *rows]) + "\n")
    bench, task = SimpleNamespace(work_dir=tmp_path), read_task("pairs", table)
    report = Report(tmp_path / "results.json")
    runs = report.results["runs"] = {
        "d, m: start": {"settings": {"method": "none"}, "seeds": {"1": {}}},
        "d, m: SimCSE": {"settings": {"method": "objective"}, "seeds": {"1": {}, "2": {}}},
    }
    result = task.evaluate(lambda texts: np.random.default_rng(0).normal(size=(len(texts), 4)))
    (tmp_path / "scores").mkdir()

    def save_scores(name, seed):
        path = domains.scores_file(bench, runs[name]["settings"], seed)
        path.write_bytes(pickle.dumps({"pairs": result}))

    save_scores("d, m: start", 1)
    save_scores("d, m: SimCSE", 1)
    domains.add_intervals(bench, report, runs, [task])
    assert "gain" not in runs["d, m: SimCSE"]
    assert "d, m: SimCSE: no interval" in capsys.readouterr().out
    save_scores("d, m: SimCSE", 2)
    domains.add_intervals(bench, report, runs, [task])
    assert runs["d, m: SimCSE"]["gain"] == {"pairs": [0, 0, 0]}
