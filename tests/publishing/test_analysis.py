"""The pictures of an analysis show the numbers in their CSV files, and the report stands alone."""

import csv
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import scipy.integrate

pytest.importorskip("matplotlib", reason="needs the extra plot")
pytest.importorskip("adjustText", reason="needs the extra plot")

from evaluation_helpers import BagOfWords, write_stsb

from simcse_hf.evaluation import Evaluation
from simcse_hf.evaluation.geometry import effective_rank as effective_rank_of
from simcse_hf.publishing.analysis import curves, document, drawing, geometry, grids, neighbours, report, similarity
from simcse_hf.publishing.analysis.models import MeasuredModel, measure_model, prepare_data
from simcse_hf.publishing.analysis.runs import Run, is_run, read_run

NAN = float("nan")


class Noisy(BagOfWords):
    """A bag of words with noise, which makes a model worse."""

    def __init__(self, noise, dim=32):
        super().__init__(dim)
        self.noise = noise

    def encode(self, texts):
        random = np.random.default_rng(len(texts))
        return super().encode(texts) + self.noise * random.standard_normal((len(texts), self.dim)).astype(np.float32)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_stsb(folder)
    data = prepare_data(("STSBenchmark",), folder)
    noise = {"first": 0, "second": 1, "equal to the first": 0, "worse": 12}
    return {name: measure_model(Noisy(value), data, {"model": name}) for name, value in noise.items()}


def history(steps, dev=True):
    """The log of a run that is evaluated every 10 steps."""
    log = [{"step": step, "loss": 3 - step / 50} for step in range(5, steps + 1, 5)]
    if dev:
        log += [
            {
                "step": step,
                "eval_stsb_spearman": 60 + step / 10,
                "eval_stsb_alignment": 0.1 + step / 1000,
                "eval_stsb_uniformity": -1 - step / 20,
                "eval_runtime": 1.0,
            }
            for step in range(0, steps + 1, 10)
        ]
    return log


def written(picture, folder):
    """The rows of a picture's CSV file, as dictionaries of text."""
    picture.save(folder)
    assert (folder / f"{picture.name}.png").read_bytes()[:4] == b"\x89PNG"
    with open(folder / f"{picture.name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def texts_of(figure):
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


# --- pictures and their numbers --------------------------------------------------------------------------------------


def test_the_singular_values_are_those_of_the_csv(tmp_path):
    spectra = {"a": [1.0, 0.5, 0.25], "b": [1.0, 0.9]}
    picture = geometry.draw_singular_values({name: {"singular_spectrum": values} for name, values in spectra.items()})
    rows = written(picture, tmp_path)
    lines = {line.get_label().split(" ")[1]: line for line in picture.figure.axes[0].lines}
    for name, values in spectra.items():
        assert [float(row["singular_value"]) for row in rows if row["model"] == name] == values
        np.testing.assert_allclose(lines[name].get_ydata(), values)


def test_the_effective_rank_of_a_spectrum_is_that_of_the_embeddings():
    import torch

    from simcse_hf.evaluation.geometry import singular_spectrum

    x = torch.randn(30, 6, dtype=torch.float64) * torch.tensor([5.0, 3, 2, 1, 1, 0.5])
    assert geometry.effective_rank(singular_spectrum(x)) == pytest.approx(effective_rank_of(x))


def test_every_model_is_drawn_at_its_alignment_and_uniformity(tmp_path):
    models = {"a": {"alignment": 0.2, "uniformity": -2.0}, "b": {"alignment": 0.3, "uniformity": -3.0}}
    picture = geometry.draw_alignment_uniformity(models, {"a": 70.0, "b": 60.0})
    drawn = [points.get_offsets()[0].tolist() for points in picture.figure.axes[0].collections]
    assert drawn == [[-2.0, 0.2], [-3.0, 0.3]]
    assert {"a (70.0)", "b (60.0)"} <= set(texts_of(picture.figure))
    assert [row["average_sts"] for row in written(picture, tmp_path)] == ["70.0", "60.0"]


def test_equal_models_share_a_label():
    models = {name: {"alignment": 0.2, "uniformity": -2.0} for name in ("a", "b")}
    picture = geometry.draw_alignment_uniformity(models, {})
    assert "a\nb" in texts_of(picture.figure)


def test_a_model_without_finite_figures_is_left_out_and_nan_is_never_written(tmp_path):
    models = {"a": {"alignment": 0.2, "uniformity": -2.0}, "broken": {"alignment": NAN, "uniformity": -1.0}}
    picture = geometry.draw_alignment_uniformity(models, {"a": NAN})
    assert "a" in texts_of(picture.figure) and not any("nan" in text for text in texts_of(picture.figure))
    assert [(row["model"], row["average_sts"]) for row in written(picture, tmp_path)] == [("a", "")]
    with pytest.raises(drawing.CannotDraw, match="no model has alignment"):
        geometry.draw_alignment_uniformity({"broken": models["broken"]}, {})


def test_cosines_are_split_at_whole_scores_and_the_highest_score_belongs_to_the_last_band():
    gold = np.array([0.0, 0.99, 1.0, 4.9, 5.0])
    bands = similarity.cosines_by_band(np.arange(5) / 10, gold, np.arange(6))
    assert [band.tolist() for band in bands] == [[0.0, 0.1], [0.2], [], [], [0.3, 0.4]]


def test_densities_integrate_to_one_inside_the_range_of_cosines(tmp_path):
    random = np.random.default_rng(0)
    gold = np.repeat([0.5, 1.5, 2.5, 3.5, 4.5], 200)
    scores = {"a": {"predicted": random.normal(gold / 10, 0.05), "gold": gold}}
    rows = written(similarity.draw_cosine_densities(scores, "STS-B"), tmp_path)
    for band in ("0-1", "4-5"):
        points = [(float(row["cosine"]), float(row["density"])) for row in rows if row["gold_score"] == band]
        cosine, density = np.array(points).T
        assert scipy.integrate.trapezoid(density, cosine) == pytest.approx(1, abs=0.01)
        assert cosine[density.argmax()] == pytest.approx(float(band[0]) / 10 + 0.05, abs=0.03)


def test_a_band_with_few_pairs_or_none_is_drawn_without_a_density(tmp_path):
    scores = {"a": {"predicted": np.array([0.1, 0.1, 0.9]), "gold": np.array([0.0, 0.5, 5.0])}}
    picture = similarity.draw_cosine_densities(scores, "pairs")
    rows = written(picture, tmp_path)
    assert [(row["pairs"], row["density"]) for row in rows] == [("2", ""), ("0", ""), ("0", ""), ("0", ""), ("1", "")]
    assert "n = 0" in texts_of(picture.figure)


def test_curves_and_trajectory_are_those_of_the_log(tmp_path):
    runs = [Run("a", history(40)), Run("b", history(20))]
    picture = curves.draw_training_curves(runs)
    rows = written(picture, tmp_path)
    panels = {axes.get_ylabel(): axes for axes in picture.figure.axes}
    assert "dev stsb: Spearman × 100" in panels
    drawn = panels["training loss"].lines[0].get_xydata().tolist()
    assert drawn == [[step, 3 - step / 50] for step in range(5, 41, 5)]
    assert drawn == [[float(r["step"]), float(r["value"])] for r in rows if r["run"] == "a" and r["figure"] == "loss"]
    path = curves.draw_trajectory(runs)
    x, y = path.figure.axes[0].lines[0].get_data()
    assert y.tolist() == [float(row["alignment"]) for row in written(path, tmp_path) if row["run"] == "a"]
    assert x.tolist() == pytest.approx([-1.0, -1.5, -2.0, -2.5, -3.0])


def test_a_run_of_two_steps_without_a_dev_set_says_why_nothing_is_drawn():
    runs = [Run("short", [{"step": 2, "train_loss": 3.1, "train_runtime": 1.0}])]
    result = document.analyse({}, runs)
    assert result.pictures == []
    assert "short logged neither a loss nor dev figures" in result.document["omitted"]["training curves"]
    assert "--dev_file" in result.document["omitted"]["alignment and uniformity during training"]
    assert result.document["runs"]["short"]["mean_loss"] == 3.1
    two = document.analyse({}, [Run("short", [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}])])
    assert [picture.name for picture in two.pictures] == ["training_curves"]


def test_a_loss_that_is_not_finite_leaves_a_gap(tmp_path):
    run = Run("broken", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": NAN}, {"step": 3, "loss": 1.0}])
    rows = written(curves.draw_training_curves([run]), tmp_path)
    assert [row["value"] for row in rows] == ["2.0", "", "1.0"]


def test_a_grid_is_drawn_with_the_mean_over_seeds_and_the_best_cell_framed(tmp_path):
    runs = {
        f"{rate} {batch}": {
            "settings": {"pooler": "cls", "arguments": {"learning_rate": rate, "batch": batch}},
            "seeds": {"1": {"dev": 70 + batch}, "2": {"curve": [{"dev": 0}, {"dev": 74 + batch}]}},
        }
        for rate in (1e-5, 3e-5, 5e-5)
        for batch in (4, 8)
        if (rate, batch) != (5e-5, 8)
    }
    (tmp_path / "search.json").write_text(json.dumps({"runs": runs}))
    picture = grids.draw_grid(grids.read_grid(tmp_path / "search.json"))
    assert {(float(r["learning_rate"]), r["batch"], r["mean"], r["seeds"]) for r in written(picture, tmp_path)} == {
        (rate, str(batch), f"{72.0 + batch}", "2")
        for rate in (1e-5, 3e-5, 5e-5)
        for batch in (4, 8)
        if (rate, batch) != (5e-5, 8)
    }
    assert texts_of(picture.figure).count("80.0") >= 2  # of three cells, one is empty
    (frame,) = picture.figure.axes[0].patches
    assert frame.get_y() > 1  # batch 8 is the second row


def test_the_runs_of_a_reproduction_are_a_grid_whose_seeds_are_averaged(tmp_path):
    (tmp_path / "runs").mkdir()
    for number, (rate, batch, seed) in enumerate((r, b, s) for r in (1e-5, 3e-5) for b in (64, 128) for s in (1, 2)):
        run = {
            "recipe": "unsup",
            "settings": {"learning_rate": rate, "per_device_train_batch_size": batch, "seed": seed},
            "curve": [{"step": 5, "dev": 70.0 + seed}, {"step": 9, "dev": 1.0}],
            "best_step": 5,
        }
        (tmp_path / f"runs/{number}.json").write_text(json.dumps(run))
    grid = grids.read_grid(tmp_path)
    assert [figures for _, figures in grid.runs] == [[71.0, 72.0]] * 4
    assert grids.draw_grid(grid).columns == ("learning_rate", "per_device_train_batch_size", "mean", "seeds")
    with pytest.raises(FileNotFoundError, match="holds no runs"):
        grids.read_grid(tmp_path / "runs")


def test_settings_that_always_change_together_are_one_setting():
    runs = [{"pooler": name, "pooler_type": name[0], "rate": rate} for name in ("cls", "avg") for rate in (1, 2)]
    assert grids.varied_settings(runs) == {"pooler": ["avg", "cls"], "rate": [1, 2]}
    with pytest.raises(drawing.CannotDraw, match="varies rate, and a heat map needs two settings"):
        grids.draw_grid(grids.Grid("one", "dev", [({"rate": 1}, [1.0]), ({"rate": 2}, [2.0])]))


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": []}', '{"runs": {"a": {}}}'])
def test_a_file_that_is_no_search_is_refused_by_name(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="x.json: not"):
        grids.read_grid(tmp_path / "x.json")


# --- runs ------------------------------------------------------------------------------------------------------------


def test_an_interrupted_run_is_read_from_its_last_checkpoint(tmp_path):
    for step in (9, 10):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": step, "loss": 1.0}]}))
    assert read_run(tmp_path / "run").steps == 10 and is_run(tmp_path / "run")


def test_a_run_with_nothing_but_its_results_has_three_evaluations(tmp_path):
    points = {
        when: {"step": step, "stsb_spearman": 60 + step}
        for when, step in zip(("initial", "best", "final"), (0, 5, 9), strict=True)
    }
    (tmp_path / "results.json").write_text(json.dumps({"dev_metric": "stsb_spearman", "seed": 1, **points}))
    run = read_run(tmp_path, "mine")
    assert run.series("eval_stsb_spearman") == [(0, 60.0), (5, 65.0), (9, 69.0)]
    assert run.summary()["best"] == 69.0


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no training run"):
        read_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_run(tmp_path / "absent")
    (tmp_path / "trainer_state.json").write_text("{")
    with pytest.raises(ValueError, match="trainer_state.json: not a JSON file"):
        read_run(tmp_path)


# --- neighbours ------------------------------------------------------------------------------------------------------


def test_the_nearest_rows_are_those_of_a_slow_search():
    import torch

    embeddings = torch.randn(20, 5)
    cosines, rows = neighbours.nearest(embeddings, [3, 17], 4)
    unit = embeddings.double() / embeddings.double().norm(dim=1, keepdim=True)
    for query, found, similar in zip((3, 17), rows.tolist(), cosines, strict=True):
        slow = sorted((i for i in range(20) if i != query), key=lambda i: -float(unit[i] @ unit[query]))
        assert found == slow[:4]
        np.testing.assert_allclose(similar, (unit @ unit[query])[found], atol=1e-5)


def test_queries_come_from_every_part_of_the_file():
    assert neighbours.select_queries(list(range(10)), 5) == [1, 3, 5, 7, 9]
    assert neighbours.select_queries(["only"], 5) == [0]
    assert neighbours.find_neighbours(lambda texts: np.ones((1, 2)), ["only"]) == []


# --- the report ------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects tags, the addresses that a page loads, and its text; checks that tags are closed."""

    VOID = {"meta", "link", "br", "img", "hr"}

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.ids, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.collect(attributes)

    def handle_startendtag(self, tag, attributes):
        self.collect(attributes)

    def collect(self, attributes):
        self.addresses += [value for name, value in attributes if name in ("href", "src", "xlink:href")]
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)


def write(folder, models, **parts):
    result = document.analyse(models, resamples=50, **parts)
    folder.mkdir(exist_ok=True)
    report.write_analysis(folder, result, models, "simcse-hf analyze", {"simcse-hf": "0"})
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_report_needs_no_other_file_and_its_ids_are_unique(measured, tmp_path):
    text = write(tmp_path, measured, runs=[Run("run", history(30))])
    page = Page(text)
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert not re.search(r"url\((?!#)|@import|<script", text)
    assert len(page.ids) == len(set(page.ids))
    assert text.count("<svg") == 5
    for address in page.addresses:
        assert address == "data:," or address.startswith("data:image/png") or address[1:] in page.ids


def test_the_report_says_which_differences_are_significant(measured, tmp_path):
    result = json.loads((write(tmp_path, measured), (tmp_path / "analysis.json").read_text())[1])
    differences = result["comparison"]["differences"]
    assert differences["worse"]["STSBenchmark"]["verdict"] == "worse"
    assert differences["equal to the first"]["STSBenchmark"] == {
        "difference": 0.0,
        "low": 0.0,
        "high": 0.0,
        "verdict": "within noise",
    }
    interval = result["models"]["first"]["intervals"]["STSBenchmark"]
    assert interval["low"] < interval["figure"] < interval["high"]


def test_names_and_sentences_cannot_bring_html_into_the_report(measured, tmp_path):
    name = '<script>alert(1)</script> $x_1$ & "quoted"'
    text = write(tmp_path, {name: measured["first"], "_other": measured["second"]})
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "_other" in "".join(Page(text).words)


def test_figures_that_are_not_finite_are_n_a_everywhere(measured, tmp_path):
    results = {
        "STSBenchmark": {"splits": {"test": {"spearman": NAN}}},
        "average": {"value": NAN, "tasks": [], "missing": []},
        "geometry": {"alignment": NAN, "uniformity": NAN, "isotropy": NAN, "singular_spectrum": None},
    }
    broken = MeasuredModel(Evaluation(results, {}), {"model": "broken"}, [])
    text = write(tmp_path, {"broken": broken, "first": measured["first"]})
    assert not re.search(r"\bnan\b", "".join(Page(text).words), re.IGNORECASE)
    assert "NaN" not in (tmp_path / "analysis.json").read_text()


def test_equal_analyses_give_equal_pictures(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        curves.draw_trajectory([Run("run", history(30))]).save(tmp_path / name)
    assert (tmp_path / "a/trajectory.svg").read_bytes() == (tmp_path / "b/trajectory.svg").read_bytes()


# --- style -----------------------------------------------------------------------------------------------------------


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#16181d"])
def test_the_colours_of_series_are_visible_on_light_and_dark_pages(page):
    for colour in drawing.COLOURS:
        light, dark = sorted([luminance(colour), luminance(page)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, colour


def test_series_can_be_told_apart_without_their_colour():
    looks = [drawing.series_style(i) for i in range(16)]
    assert len({(look["marker"], look["markerfacecolor"] == "none") for look in looks}) == 16


def test_long_names_keep_their_beginning_and_end():
    assert drawing.shorten("short") == "short"
    long = drawing.shorten("organisation/" + "x" * 60 + "-v2", 20)
    assert len(long) == 20 and long.startswith("organ") and long.endswith("-v2") and "…" in long


@pytest.mark.parametrize("library", ["matplotlib", "adjustText"])
def test_a_missing_library_names_the_extra(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"pictures need {library}: run pip install 'simcse-hf\[plot\]'"):
        drawing.check_installed()
