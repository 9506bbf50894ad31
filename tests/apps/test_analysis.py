"""`simcse-hf analyze` draws runs and evaluated models, and analysis.json holds the numbers of the pictures."""

import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from scipy.integrate import trapezoid

from simcse_hf.apps import analysis
from simcse_hf.cli.main import main
from simcse_hf.evaluation.report import write_results


def write_run(folder, steps=30, dev=True):
    """Write the log of a run: a loss every 5 steps, and dev scores every 10."""
    log = [{"step": step, "loss": 3 - step / 50} for step in range(5, steps + 1, 5)]
    if dev:
        for step in range(0, steps + 1, 10):
            scores = {"eval_a_spearman": 60 + step / 10, "eval_a_alignment": 0.1, "eval_a_uniformity": -1 - step / 20}
            log.append(scores | {"step": step})
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    return folder


def write_model(path):
    """Write an evaluation: 200 pairs of each of five gold scores, whose cosines lie at a tenth of them."""
    random = np.random.default_rng(0)
    gold = np.repeat([0.5, 1.5, 2.5, 3.5, 5.0], 200)
    results = {
        "STSBenchmark": {"all": {"spearman": 0.5}},
        "geometry": {"alignment": 0.2, "uniformity": -2.0, "singular_spectrum": [1.0, 0.5, 0.25]},
    }
    document = {"protocol": {"mode": "test", "aggregation": "all"}, "results": results}
    predicted = random.normal(gold / 10, 0.05)
    write_results(path, document, {"STSBenchmark": {"test": {"predicted": predicted, "gold": gold}}})
    return path


# --- the command ---


NAMES = ["alignment_uniformity", "cosine_densities", "singular_values", "training_curves"]


def test_the_command_draws_four_pictures_and_writes_their_numbers(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    model = write_model(tmp_path / "model.json")
    assert main(f"analyze {run} {model} --output {tmp_path / 'out'}".split()) == 0
    printed = capsys.readouterr().out
    for name in NAMES:
        assert (tmp_path / f"out/{name}.png").read_bytes().startswith(b"\x89PNG") and f"{name}.png" in printed
    numbers = json.loads((tmp_path / "out/analysis.json").read_text())
    assert numbers.keys() == {*NAMES, "omitted"} and numbers["omitted"] == {}
    assert numbers["alignment_uniformity"] == {
        "model": [[0, 0.2, -2.0]],
        "run": [[0, 0.1, -1.0], [10, 0.1, -1.5], [20, 0.1, -2.0], [30, 0.1, -2.5]],
    }
    assert numbers["singular_values"] == {"model": [1.0, 0.5, 0.25]}
    curves = numbers["training_curves"]
    assert list(curves) == ["loss", "eval_a_spearman", "alignment", "uniformity"]
    assert curves["eval_a_spearman"]["run"]["30"] == 63


# --- pictures without numbers ---


def test_a_picture_without_numbers_is_named_with_the_reason_and_not_drawn(tmp_path):
    found = analysis.analyze([write_run(tmp_path / "run", dev=False)], tmp_path / "out")
    assert found.omitted.keys() == set(NAMES[:3]) and all(found.omitted.values())
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["training_curves.png"]
    assert list(found.numbers["training_curves"]) == ["loss"]


# --- densities of cosines, in bands of gold scores ---


def test_a_density_of_each_point_of_score_integrates_to_one_and_lies_at_its_cosines(tmp_path):
    bands = analysis.analyze([write_model(tmp_path / "m.json")], tmp_path / "out").numbers["cosine_densities"]["m"]
    assert [band["gold"] for band in bands] == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    for number, mode in ((0, 0.05), (4, 0.5)):  # the highest score, 5.0, belongs to the last band
        band = bands[number]
        assert band["pairs"] == 200
        assert trapezoid(band["density"], band["cosine"]) == pytest.approx(1, abs=0.01)
        assert band["cosine"][np.argmax(band["density"])] == pytest.approx(mode, abs=0.03)


def test_a_band_with_few_cosines_has_no_density_and_one_without_a_cosine_no_mean():
    gold = np.array([0.0, 1.5, 2.5, 3.5, 5.0])
    predicted = np.array([0.1, 0.2, np.nan, 0.3, 0.4])
    scores = {"pairs": {"all": {"predicted": predicted, "gold": gold}}}
    bands = analysis.cosine_densities({"m": scores})["m"]
    assert [(band["pairs"], band.get("mean")) for band in bands] == [(1, 0.1), (1, 0.2), (0, None), (1, 0.3), (1, 0.4)]
    assert not [band for band in bands if "density" in band]
    assert analysis.draw_cosine_densities({"m": bands}).axes


# --- runs ---


def test_the_log_of_an_interrupted_run_is_that_of_its_last_checkpoint_and_a_folder_without_one_is_refused(tmp_path):
    for step in (5, 10):
        write_run(tmp_path / "run" / f"checkpoint-{step}", step)
    assert max(analysis.read_log(tmp_path / "run")["loss"]) == 10
    with pytest.raises(ValueError, match="holds no training run .* evaluate it first"):
        analysis.read_log(tmp_path)


def test_two_sources_of_one_name_are_refused_unless_they_are_given_names(tmp_path):
    runs = [write_run(tmp_path / name / "run") for name in "ab"]
    with pytest.raises(ValueError, match="names must give 2 different names"):
        analysis.analyze(runs, tmp_path / "out")
    assert main(f"analyze {runs[0]} {runs[1]} --names a b --output {tmp_path / 'out'}".split()) == 0
