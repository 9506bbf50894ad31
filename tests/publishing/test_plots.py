"""`simcse-hf analyze` draws runs and evaluated models, and analysis.json holds the numbers of the pictures."""

import json

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the extra plot")
from scipy.integrate import trapezoid

from simcse_hf.cli.main import main
from simcse_hf.evaluation.report import write_results
from simcse_hf.publishing import analysis, plots

PNG = b"\x89PNG"


def write_run(folder, steps=30, dev=True):
    log = [{"step": step, "loss": 3 - step / 50} for step in range(5, steps + 1, 5)]
    if dev:
        log += [
            {"step": x, "eval_a_spearman": 60 + x / 10, "eval_a_alignment": 0.1, "eval_a_uniformity": -1 - x / 20}
            for x in range(0, steps + 1, 10)
        ]
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    return folder


def write_model(path):
    random = np.random.default_rng(0)
    gold = np.repeat([0.5, 1.5, 2.5, 3.5, 5.0], 200)
    geometry = {"alignment": 0.2, "uniformity": -2.0, "singular_spectrum": [1.0, 0.5, 0.25]}
    results = {"STSBenchmark": {"all": {"spearman": 0.5}}, "geometry": geometry}
    scores = {"STSBenchmark": {"test": {"predicted": random.normal(gold / 10, 0.05), "gold": gold}}}
    write_results(path, {"protocol": {"mode": "test", "aggregation": "all"}, "results": results}, scores)
    return path


def test_the_command_draws_four_pictures_and_writes_their_numbers(tmp_path, capsys):
    run, model = write_run(tmp_path / "run"), write_model(tmp_path / "model.json")
    assert main(["analyze", str(run), str(model), "--output", str(tmp_path / "out")]) == 0
    document = json.loads((tmp_path / "out" / "analysis.json").read_text())
    names = ["alignment_uniformity", "cosine_densities", "singular_values", "training_curves"]
    assert sorted(document) == sorted([*names, "omitted"]) and document["omitted"] == {}
    assert all((tmp_path / "out" / f"{name}.png").read_bytes().startswith(PNG) for name in names)
    assert document["alignment_uniformity"]["model"] == [[0, 0.2, -2.0]]
    assert document["alignment_uniformity"]["run"] == [[x, 0.1, -1 - x / 20] for x in (0, 10, 20, 30)]
    assert document["singular_values"] == {"model": [1.0, 0.5, 0.25]}
    assert list(document["training_curves"]) == ["loss", "eval_a_spearman", "alignment", "uniformity"]
    assert document["training_curves"]["eval_a_spearman"]["run"]["30"] == 63
    assert "training_curves.png" in capsys.readouterr().out


def test_a_picture_without_numbers_is_named_with_the_reason(tmp_path):
    drawn = analysis.analyze([write_run(tmp_path / "run", dev=False)], tmp_path / "out")
    assert set(drawn.omitted) == {"alignment_uniformity", "cosine_densities", "singular_values"}
    assert (
        list(drawn.numbers["training_curves"]) == ["loss"] and not (tmp_path / "out" / "singular_values.png").exists()
    )


def test_a_density_integrates_to_one_and_lies_at_its_cosines(tmp_path):
    drawn = analysis.analyze([write_model(tmp_path / "m.json")], tmp_path / "out")
    bands = drawn.numbers["cosine_densities"]["m"]
    assert [band["gold"] for band in bands] == [[low, low + 1] for low in range(5)]
    for number in (0, 4):  # the highest score, 5.0, belongs to the last band
        cosine, density = np.array(bands[number]["cosine"]), np.array(bands[number]["density"])
        assert bands[number]["pairs"] == 200 and trapezoid(density, cosine) == pytest.approx(1, abs=0.01)
        assert cosine[density.argmax()] == pytest.approx(0.5 if number else 0.05, abs=0.03)


def test_a_band_with_few_cosines_has_its_mean_and_no_density():
    gold, predicted = np.array([0.0, 1.5, 2.5, 3.5, 5.0]), np.array([0.1, 0.2, np.nan, 0.3, 0.4])
    bands = analysis.cosine_densities({"m": {"pairs": {"all": {"predicted": predicted, "gold": gold}}}})["m"]
    assert [band["pairs"] for band in bands] == [1, 1, 0, 1, 1]
    assert bands[0]["mean"] == 0.1 and not any("density" in band for band in bands) and "mean" not in bands[2]
    assert plots.draw_cosine_densities({"m": bands}).axes


def test_the_log_of_an_interrupted_run_is_that_of_its_last_checkpoint(tmp_path):
    for step in (5, 10):
        write_run(tmp_path / "run" / f"checkpoint-{step}", step)
    assert max(analysis.read_log(tmp_path / "run")["loss"]) == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "holds no training run .* evaluate it first"), ({"log_history": 3}, "the file is damaged")],
)
def test_a_folder_without_a_run_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "trainer_state.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        analysis.read_log(tmp_path)


def test_two_sources_of_one_name_need_names(tmp_path):
    runs = [write_run(tmp_path / name / "run") for name in "ab"]
    with pytest.raises(ValueError, match="names must give 2 different names"):
        analysis.analyze(runs, tmp_path / "out")
    assert main(["analyze", *map(str, runs), "--names", "a", "b", "--output", str(tmp_path / "out")]) == 0
