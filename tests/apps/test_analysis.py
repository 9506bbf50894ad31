"""`simcse-hf analyze` draws runs and evaluated models, and analysis.json holds the numbers of the pictures."""

import json

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the extra plot")
from scipy.integrate import trapezoid

from simcse_hf.apps import analysis
from simcse_hf.cli.main import main
from simcse_hf.evaluation.report import write_results

PNG = b"\x89PNG"


def write_run(folder, steps=30, dev=True):
    """Write the log of a run: a loss every 5 steps, and dev scores every 10."""
    log = [{"step": step, "loss": 3 - step / 50} for step in range(5, steps + 1, 5)]
    if dev:
        for step in range(0, steps + 1, 10):
            scores = {
                "step": step,
                "eval_a_spearman": 60 + step / 10,
                "eval_a_alignment": 0.1,
                "eval_a_uniformity": -1 - step / 20,
            }
            log.append(scores)
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    return folder


def write_model(path):
    """Write an evaluation: 200 pairs of each of five gold scores, whose cosines lie at a tenth of them."""
    random = np.random.default_rng(0)
    gold = np.repeat([0.5, 1.5, 2.5, 3.5, 5.0], 200)
    results = {
        "STSBenchmark": {"all": {"spearman": 0.5}},
        "geometry": {
            "alignment": 0.2,
            "uniformity": -2.0,
            "singular_spectrum": [1.0, 0.5, 0.25],
        },
    }
    document = {"protocol": {"mode": "test", "aggregation": "all"}, "results": results}
    predicted = random.normal(gold / 10, 0.05)
    write_results(
        path,
        document,
        {"STSBenchmark": {"test": {"predicted": predicted, "gold": gold}}},
    )
    return path


# --- the command ---


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """The folder that the command wrote for a run and a model."""
    folder = tmp_path_factory.mktemp("analysis")
    run = write_run(folder / "run")
    model = write_model(folder / "model.json")
    assert main(["analyze", str(run), str(model), "--output", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture
def numbers(pictures):
    """What analysis.json holds."""
    return json.loads((pictures / "analysis.json").read_text())


NAMES = [
    "alignment_uniformity",
    "cosine_densities",
    "singular_values",
    "training_curves",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_draws_four_pictures(pictures, name):
    assert (pictures / f"{name}.png").read_bytes().startswith(PNG)


def test_the_numbers_of_each_picture_are_written(numbers):
    assert numbers.keys() == {*NAMES, "omitted"}
    assert numbers["omitted"] == {}


def test_a_model_is_one_point_of_alignment_and_uniformity(numbers):
    assert numbers["alignment_uniformity"]["model"] == [[0, 0.2, -2.0]]


def test_a_run_is_a_point_of_alignment_and_uniformity_for_each_evaluation(numbers):
    assert numbers["alignment_uniformity"]["run"] == [
        [0, 0.1, -1.0],
        [10, 0.1, -1.5],
        [20, 0.1, -2.0],
        [30, 0.1, -2.5],
    ]


def test_a_model_has_singular_values(numbers):
    assert numbers["singular_values"] == {"model": [1.0, 0.5, 0.25]}


def test_a_run_has_curves_of_what_it_logged(numbers):
    curves = numbers["training_curves"]
    assert list(curves) == ["loss", "eval_a_spearman", "alignment", "uniformity"]
    assert curves["eval_a_spearman"]["run"]["30"] == 63


def test_the_command_prints_what_it_draws(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    main(["analyze", str(run), "--output", str(tmp_path / "out")])
    assert "training_curves.png" in capsys.readouterr().out


# --- pictures without numbers ---


@pytest.fixture
def run_without_evaluation(tmp_path):
    return analysis.analyze([write_run(tmp_path / "run", dev=False)], tmp_path / "out")


def test_a_picture_without_numbers_is_named_with_the_reason(run_without_evaluation):
    omitted = run_without_evaluation.omitted
    assert omitted.keys() == {
        "alignment_uniformity",
        "cosine_densities",
        "singular_values",
    }
    assert all(omitted.values())


def test_a_picture_without_numbers_is_not_drawn(run_without_evaluation, tmp_path):
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["training_curves.png"]


def test_curves_without_numbers_are_left_out(run_without_evaluation):
    assert list(run_without_evaluation.numbers["training_curves"]) == ["loss"]


# --- densities of cosines, in bands of gold scores ---


@pytest.fixture(scope="module")
def bands(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bands")
    drawn = analysis.analyze([write_model(folder / "m.json")], folder / "out")
    return drawn.numbers["cosine_densities"]["m"]


def test_a_band_holds_the_pairs_of_one_point_of_score(bands):
    assert [band["gold"] for band in bands] == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]


# The highest score, 5.0, belongs to the last band.
FIRST_AND_LAST = pytest.mark.parametrize("number, mode", [(0, 0.05), (4, 0.5)], ids=["first", "last"])


@FIRST_AND_LAST
def test_a_band_counts_its_pairs(bands, number, mode):
    assert bands[number]["pairs"] == 200


@FIRST_AND_LAST
def test_a_density_integrates_to_one(bands, number, mode):
    band = bands[number]
    assert trapezoid(band["density"], band["cosine"]) == pytest.approx(1, abs=0.01)


@FIRST_AND_LAST
def test_a_density_lies_at_its_cosines(bands, number, mode):
    band = bands[number]
    highest = np.argmax(band["density"])
    assert band["cosine"][highest] == pytest.approx(mode, abs=0.03)


@pytest.fixture
def bands_of_single_pairs():
    """One pair in each band; the cosine of the third is missing."""
    gold = np.array([0.0, 1.5, 2.5, 3.5, 5.0])
    predicted = np.array([0.1, 0.2, np.nan, 0.3, 0.4])
    scores = {"pairs": {"all": {"predicted": predicted, "gold": gold}}}
    return analysis.cosine_densities({"m": scores})["m"]


def test_a_pair_without_a_cosine_is_not_counted(bands_of_single_pairs):
    assert [band["pairs"] for band in bands_of_single_pairs] == [1, 1, 0, 1, 1]


def test_a_band_with_few_cosines_has_no_density(bands_of_single_pairs):
    assert not [band for band in bands_of_single_pairs if "density" in band]


def test_a_band_with_few_cosines_has_its_mean(bands_of_single_pairs):
    assert bands_of_single_pairs[0]["mean"] == 0.1


def test_a_band_without_cosines_has_no_mean(bands_of_single_pairs):
    assert "mean" not in bands_of_single_pairs[2]


def test_bands_with_few_cosines_are_drawn(bands_of_single_pairs):
    assert analysis.draw_cosine_densities({"m": bands_of_single_pairs}).axes


# --- runs ---


def test_the_log_of_an_interrupted_run_is_that_of_its_last_checkpoint(tmp_path):
    for step in (5, 10):
        write_run(tmp_path / "run" / f"checkpoint-{step}", step)
    assert max(analysis.read_log(tmp_path / "run")["loss"]) == 10


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no training run .* evaluate it first"):
        analysis.read_log(tmp_path)


def test_a_damaged_log_is_refused(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"log_history": 3}')
    with pytest.raises(ValueError, match="the file is damaged"):
        analysis.read_log(tmp_path)


@pytest.fixture
def runs_of_one_name(tmp_path):
    return [write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run")]


def test_two_sources_of_one_name_are_refused(tmp_path, runs_of_one_name):
    with pytest.raises(ValueError, match="names must give 2 different names"):
        analysis.analyze(runs_of_one_name, tmp_path / "out")


def test_two_sources_of_one_name_may_be_given_names(tmp_path, runs_of_one_name):
    sources = [str(run) for run in runs_of_one_name]
    output = ["--output", str(tmp_path / "out")]
    assert main(["analyze", *sources, "--names", "a", "b", *output]) == 0
