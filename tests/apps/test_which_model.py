"""`which-model`: which model to take on a user's own tasks, and evaluations that are made once."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cli_helpers import status
from conftest import save_encoder, tiny_config
from evaluation_helpers import BagOfWords, binary_pairs, compare_systems, labelled_rows, write, write_rows
from trainer_helpers import refuses, scored, sentences

from simcse_hf import SettingError, which_model
from simcse_hf.evaluation import Comparison, Evaluation, evaluate, scoring
from simcse_hf.runtime.identity import Identity


def answers(correct, speed, task="knn"):
    """The evaluation of a model that is right in some rows and encodes so many texts in a second."""
    rows = np.arange(len(correct))
    part = {"correct": np.array(correct), "gold": rows, "unit": rows, "group": rows}
    result = {"kind": task, "metrics": ["accuracy"], "accuracy": 100 * float(np.mean(correct))}
    return Evaluation({task: result}, {task: {task: part}}, cost={"texts_per_second": speed, "megabytes": 1.0})


def rows_right(share, seed):
    return np.random.default_rng(seed).random(400) < share


MODELS = {
    "slow": answers(rows_right(0.83, 0), 10.0),
    "fast": answers(rows_right(0.79, 1), 100.0),
    "words": answers(rows_right(0.50, 2), 1000.0),
}


def test_the_fastest_model_that_was_not_shown_to_be_worse_than_the_best_is_named():
    comparison = compare_systems(MODELS, choose=True)
    assert comparison.baseline == "slow" and comparison.choice == "fast"
    assert comparison.differences["words"]["mean"]["high"] < 0 < comparison.differences["fast"]["mean"]["high"]
    printed = str(comparison)
    assert "Take fast, the fastest of those that were not shown to be worse than the best (slow)." in printed
    assert [line.split()[-2] for line in printed.splitlines()[3:6]] == ["10.0", "100.0", "1,000.0"]
    apart = {"words": MODELS["words"], "slow": MODELS["slow"]}
    assert compare_systems(apart, choose=True).choice == "slow"
    for lacks in ({"cost": {}}, {"scores": {}}):
        with refuses("old was evaluated without"):
            compare_systems(MODELS | {"old": replace(MODELS["fast"], **lacks)}, choose=True)


def test_an_interval_against_the_best_allows_for_all_pairs_of_models():
    comparison = compare_systems(MODELS, choose=True, resamples=400, confidence=0.9)
    alone = compare_systems(MODELS, confidence=0.9)
    bonferroni = compare_systems(MODELS, resamples=1200, confidence=1 - 0.1 / 3)
    widths = []
    for each in (alone, comparison, bonferroni):
        found = each.differences["fast"]["knn"]
        widths.append(found["high"] - found["low"])
    assert widths[0] < widths[1] < widths[2]
    assert comparison.confidence == 0.9 and comparison.resamples == 400


def test_the_score_is_the_mean_over_the_tasks():
    def of_two(first, second, speed):
        one, other = answers(first, speed), answers(second, speed, "retrieval")
        return replace(one, results=one.results | other.results, scores=one.scores | other.scores)

    good, bad = rows_right(0.8, 0), rows_right(0.6, 1)
    comparison = compare_systems({"x": of_two(good, bad, 1.0), "y": of_two(bad, bad, 2.0)}, choose=True)
    assert comparison.averages["mean"]["x"] == pytest.approx(100 * (good.mean() + bad.mean()) / 2)
    assert list(comparison.differences["y"]) == ["knn", "retrieval", "mean"] and comparison.choice == "x"
    assert "Mean over knn, retrieval" in str(comparison) and "aggregation" not in str(comparison)


# --- evaluations are kept --------------------------------------------------------------------------------------------


class Known(BagOfWords):
    """An encoder with an identity, which counts its calls."""

    def __init__(self, name, dim=64, **identity):
        super().__init__(dim)
        self.name_or_path = name
        self.known = Identity(name, **({"weights": str(dim), "tokenizer": "words"} | identity))

    def identity(self):
        return self.known


@pytest.fixture
def task(tmp_path):
    return f"knn={write_rows(tmp_path / 'rows.csv', ['text', 'label'], labelled_rows(60))}"


def called(tmp_path, tasks, *models):
    """How often each model encodes, and the comparison."""
    comparison = which_model(models, task=tasks, output=tmp_path / "choice.json", overwrite=True)
    return [len(model.calls) for model in models], comparison


def test_a_model_is_evaluated_once_on_a_task_whatever_its_name_and_again_after_a_change(tmp_path, task):
    pairs = write_rows(tmp_path / "pairs.csv", ["sentence1", "sentence2", "label"], binary_pairs(40))
    first, before = called(tmp_path, [task], Known("a"), Known("b", 8))
    again, after = called(tmp_path, [task], Known("moved"), Known("b", 8), Known("c", 2))
    more, both = called(tmp_path, [task, f"pairs={pairs}"], Known("a"), Known("c", 2))
    assert first == [1, 1] and again == [0, 0, 1] and more == [1, 1], "the other task alone is encoded"
    assert after.scores["moved"] == before.scores["a"] and after.costs["moved"] == before.costs["a"]
    assert both.scores["a"]["knn"] == before.scores["a"]["knn"]
    assert evaluate(Known("a"), task=[task]).results["knn"]["accuracy"] == before.scores["a"]["knn"]
    for change in ({"weights": "trained"}, {"prompts": {"query": "q: "}}, {"max_length": 8}):
        assert called(tmp_path, [task], Known("a", **change), Known("b", 8))[0] == [1, 0]


def test_a_task_is_its_rows_and_a_model_without_a_known_tokenizer_is_always_evaluated(tmp_path, task):
    rows = labelled_rows(60)
    moved = write_rows(tmp_path / "moved.tsv", ["text", "label"], rows)
    for file, calls in ((task, [1, 1]), (f"knn={moved}", [1, 0])):
        assert called(tmp_path, [file], BagOfWords(), Known("b", 8))[0] == calls
    rows[0] = (rows[0][0], rows[1][1])
    write_rows(tmp_path / "rows.csv", ["text", "label"], rows)
    assert called(tmp_path, [task], BagOfWords(), Known("b", 8))[0] == [1, 1]


def test_each_kept_evaluation_is_one_of_evaluate(tmp_path, task):
    called(tmp_path, [task], Known("a"), Known("b", 8))
    kept = sorted((tmp_path / "choice.evaluations").glob("*.json"))
    comparison = which_model([str(path) for path in kept])
    assert len(kept) == 2 and {Evaluation.read(path).identity.name_or_path for path in kept} == {"a", "b"}
    assert comparison.choice in map(str, kept)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_names_one_of_bm25_and_a_model(tmp_path, task, monkeypatch, capsys):
    pytest.importorskip("bm25s")
    monkeypatch.setattr(scoring, "load_model", lambda name, **loading: Known(name))
    line = f"which-model bm25 a --task {task} --output {tmp_path / 'c.json'} --json"
    assert status(*line.split()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["choice"] in ("bm25", "a") and set(printed["costs"]) == {"bm25", "a"}
    assert Comparison.read(tmp_path / "c.json").to_dict() == printed


def test_with_a_recipe_every_model_is_trained_and_compared_before_and_after(tmp_path):
    for width, name in ((0.2, "one"), (0.3, "two")):
        save_encoder(tmp_path / name, config=tiny_config(initializer_range=width))
    write(tmp_path / "texts.txt", sentences(32))
    scored(20, seed=13).to_csv(tmp_path / "pairs.tsv", sep="\t")
    recipe = {"train_file": f"{tmp_path}/texts.txt", "max_steps": 1, "use_cpu": True, "report_to": "none"}
    (tmp_path / "recipe.yaml").write_text(json.dumps({"command": "unsup", **recipe}))
    models = [str(tmp_path / "one"), str(tmp_path / "two")]
    shared = {"train": tmp_path / "recipe.yaml", "seeds": 2, "output": tmp_path / "out"}
    shared["pairs"] = [str(tmp_path / "pairs.tsv")]
    found = which_model(models, **shared)
    assert [each.name for each in found.outcomes] == [*models, *(f"start {name}" for name in models)]
    assert found.take in str(found)
    assert which_model(models, confidence=0.5, **shared).confidence == 0.5
    for given in ({"resamples": 10}, {"overwrite": True}):
        with refuses("leave out resamples and overwrite", SettingError):
            which_model(models, **given, **shared)
    with refuses("seeds is 5 and nothing is trained", SettingError):
        which_model(models, seeds=5, pairs=shared["pairs"])
    with refuses("leave out pooler_type", SettingError):
        which_model(models, pooler_type="avg", **shared)
    with refuses("each is trained from its files", SettingError):
        which_model([models[0], BagOfWords()], **shared)
