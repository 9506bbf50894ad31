"""A study: several ways to train with the same seeds, one table and one verdict, that can be killed and goes on."""

import html
import json
import shutil
from functools import partial
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from conftest import save_encoder, tiny_config
from evaluation_helpers import write, write_rows
from trainer_helpers import refuses, scored, sentences

from simcse_hf import Recipe, SimCSE, card, evaluate, study
from simcse_hf.apps.study.judge import choose_cells
from simcse_hf.apps.study.result import Outcome, Study, choose_way
from simcse_hf.apps.study.runs import plan_runs
from simcse_hf.apps.study.ways import Way, read_ways
from simcse_hf.evaluation.verdict import PairDifference
from simcse_hf.runtime.files import read_json

#: Objectives of somebody's own: one has a mistake, and one is interrupted in its third step, the first time.
OWN = """
from pathlib import Path
from simcse_hf import Objective

class Fails(Objective):
    def forward(self, batch):
        raise IndexError("there is no row 7")

class Stops(Objective):
    steps = 0

    def forward(self, batch):
        Stops.steps += 1
        if Stops.steps == 3:
            raise KeyboardInterrupt
        return batch.embeddings.square().mean()
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """What a study reads: an encoder, texts, a dev set and two test sets."""
    folder = tmp_path_factory.mktemp("inputs")
    save_encoder(folder / "start")
    write(folder / "texts.txt", sentences(32, 0))
    scored(12).to_csv(folder / "dev.tsv", sep="\t")
    scored(20, seed=13).to_csv(folder / "pairs.tsv", sep="\t")
    write_rows(folder / "labels.csv", ["text", "label"], zip(sentences(24, 5), 12 * ["red", "blue"], strict=True))
    (folder / "own_losses.py").write_text(OWN)
    return folder


@pytest.fixture(scope="module")
def base(inputs):
    """The recipe of all ways: 4 steps, evaluated and saved every 2 steps."""
    return Recipe.read(
        "unsup",
        {
            "model_name_or_path": str(inputs / "start"),
            "train_file": str(inputs / "texts.txt"),
            "dev_file": str(inputs / "dev.tsv"),
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-3,
            "max_steps": 4,
            "eval_steps": 2,
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
        },
    )


@pytest.fixture(scope="module")
def tests(inputs):
    return [str(inputs / "pairs.tsv"), f"knn={inputs}/labels.csv"]


@pytest.fixture(scope="module")
def content(base):
    """The content of a file: two ways, of which one is a grid of two cells."""
    given = {"command": "unsup", **base.given}
    return {"base": given, "ways": {"simcse": {"temp": 0.1}, "grid": {"temp": [0.05, 0.5]}}, "seeds": 2}


@pytest.fixture(scope="module")
def finished(content, tests, tmp_path_factory):
    """The study on two tests, and its output folder."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    return study(content, test=tests, output=folder), folder


def mean_of(outcome):
    return fmean(outcome.scores["mean"].values())


# --- what it says ---


def test_every_way_is_trained_with_every_seed_and_judged_beside_the_start(finished, inputs, tests):
    found, folder = finished
    assert [outcome.name for outcome in found.outcomes] == ["simcse", "grid", "start"]
    assert found.seeds == [42, 43] and found.tasks == ["pairs", "knn"] and found.judged_on == "test"
    assert found.failures == {} and found.missing == [] and found.exit_status == 0
    simcse, grid, start = found.outcomes
    for seed, run in simcse.folders.items():
        results = evaluate(folder / run, pairs=tests[:1], task=tests[1:]).results
        assert simcse.scores["pairs"][seed] == pytest.approx(results["pairs"]["spearman"], abs=1e-9)
        assert simcse.scores["knn"][seed] == pytest.approx(results["knn"]["accuracy"], abs=1e-9)
        assert read_json(folder / run / "results.json")["seed"] == int(seed)
    for outcome in found.outcomes:
        assert outcome.mean["mean"] == pytest.approx((outcome.mean["pairs"] + outcome.mean["knn"]) / 2)
    assert grid.difference["mean"]["value"] == pytest.approx(mean_of(grid) - mean_of(simcse))
    assert simcse.difference == {} and start.operations == 0 and simcse.operations == grid.operations > 0
    poolers = {}
    for pooler in ("avg", "cls_before_pooler"):
        on_dev = evaluate(inputs / "start", pairs=inputs / "dev.tsv", pooler_type=pooler)
        poolers[pooler] = on_dev.results["dev"]["spearman"]
    best = SimCSE(inputs / "start", pooler_type=max(poolers, key=poolers.get))
    assert start.scores["pairs"][""] == pytest.approx(evaluate(best, pairs=tests[:1]).results["pairs"]["spearman"])


def test_a_study_shows_itself_as_a_table_a_sentence_and_a_picture_also_in_the_card_of_its_models(finished):
    found, folder = finished
    assert Study.read(folder) == found and (folder / "study.png").stat().st_size > 1000
    text = str(found)
    assert found.summary in text and f"Take {found.take}" in text and "42, 43" in text
    of_simcse, of_grid = (f"{each.mean['pairs']:.2f} ± {each.sd['pairs']:.2f}" for each in found.outcomes[:2])
    assert of_simcse in text
    page = found._repr_html_()
    assert html.escape(text) in page and "data:image/png" in page

    run = folder / found.outcomes[0].folders["43"]
    card(run, repo_id="me/mine")
    said = " ".join((run / "README.md").read_text().split())
    assert "this model is `simcse` with seed 43" in said and found.summary in said and of_grid in said


def test_a_grid_is_judged_by_the_cells_that_the_other_seeds_choose(finished):
    found, _ = finished
    grid = found.outcomes[1]
    assert list(grid.cells) == ["grid, temp=0.05", "grid, temp=0.5"]
    assert grid.cell == max(grid.cells, key=grid.cells.get) and f"The dev set chooses {grid.cell}" in str(found)
    dev = {"a": {1: 80.0, 2: 70.0, 3: 70.0}, "b": {1: 75.0, 2: 76.0, 3: 75.5}}
    assert choose_cells(dev) == ["b", "a", "b"] or choose_cells(dev) == ["b", "b", "b"]


def test_a_list_that_an_option_of_the_objective_takes_is_no_grid():
    [way] = read_ways(Recipe.read("unsup"), {"nested": {"objective_options": {"matryoshka_dims": [32, 64]}}})
    assert way.grid is None and way.recipe.given["objective_options"] == {"matryoshka_dims": [32, 64]}


def outcome(name, mean, operations, size=4):
    return Outcome(name, {}, {"sts": mean}, {"sts": 0.1}, operations=operations, model_bytes=size)


@pytest.mark.parametrize(
    "better, taken, said",
    [
        ([], "start", "cheapest of the ways that were not shown to be worse"),
        (["start"], "plain", "cheapest of the ways that were not shown to be worse"),
        (["start", "plain"], "large", "better than every cheaper way (start, plain)"),
    ],
)
def test_the_cheapest_way_that_was_not_shown_to_be_worse_is_taken(better, taken, said):
    ways = [outcome("large", 81.0, 900), outcome("plain", 80.0, 100), outcome("start", 70.0, 0)]
    found = {}
    for each in ways[1:]:
        low = 0.1 if each.name in better else -0.1
        found["large", each.name] = PairDifference(81.0 - each.mean["sts"], low, 20.0, 3)
    name, sentence = choose_way(ways, found, "sts")
    assert name == taken and said in sentence


# --- what is not done twice, and what goes on ---


def test_a_file_a_name_a_way_and_a_seed_more_train_only_what_is_new(finished, content, tests, tmp_path):
    found, folder = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/results.json")}
    changed = {
        **content,
        "ways": {"called otherwise": {"temp": 0.1}, "slow": {"learning_rate": 1e-5}},
        "seeds": [43, 44],
        "test": tests,
        "output": str(folder),
    }
    (tmp_path / "study.yaml").write_text(json.dumps(changed))
    other = study(tmp_path / "study.yaml")
    first = other.outcomes[0]
    assert first.folders["43"] == found.outcomes[0].folders["43"]
    assert first.scores["knn"]["43"] == found.outcomes[0].scores["knn"]["43"]
    after = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/results.json")}
    assert before.items() < after.items() and len(after) == len(before) + 3


def test_a_study_that_was_killed_and_one_in_two_parts_end_with_the_same_table(
    base, inputs, tests, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(inputs)
    run = partial(study, {"own": base.but(objective="own_losses:Stops")}, seeds=2, test=tests)
    with pytest.raises(KeyboardInterrupt):
        run(output=tmp_path / "killed")
    run(output=tmp_path / "killed")
    half = run(output=tmp_path / "parts", part="2/2")
    assert half.missing == ["own, seed 42"] and half.take is None and "Call the study again" in str(half)
    run(output=tmp_path / "parts", part="1/2")
    killed, parts = ((tmp_path / name / "study.json").read_bytes() for name in ("killed", "parts"))
    assert killed == parts


def test_a_run_that_fails_is_named_and_the_others_go_on(base, inputs, tests, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(inputs)
    ways = {"simcse": base, "broken": base.but(objective="own_losses:Fails")}
    found = study(ways, seeds=2, test=tests[1:], output=tmp_path, keep_models=False)
    assert list(found.failures) == ["broken, seed 42", "broken, seed 43"] and found.exit_status == 1
    assert "IndexError: there is no row 7" in str(found) and [each.name for each in found.outcomes] == [
        "simcse",
        "start",
        "bm25",
    ]
    [trace, _] = tmp_path.glob("runs/broken*/failure.txt")
    assert "in forward" in trace.read_text()
    assert not [*tmp_path.glob("runs/*/*.safetensors")], "no models are kept"
    again = study({"simcse": base}, seeds=2, test=tests[1:], output=tmp_path)
    assert again.outcomes == found.outcomes


def test_a_run_whose_weights_were_not_kept_is_made_again_for_another_test(finished, content, tests, tmp_path):
    found, _ = finished
    content = {**content, "ways": {"simcse": {"temp": 0.1}}}
    study(content, test=tests[:1], output=tmp_path, keep_models=False)
    again = study(content, test=tests, output=tmp_path, keep_models=False)
    assert again.outcomes[0].scores == found.outcomes[0].scores


def test_a_run_is_known_by_what_it_reads_wherever_that_lies(inputs, base, tmp_path, monkeypatch):
    def folders(**given):
        decided = base.but(**given)
        [run, _] = plan_runs([Way("simcse", decided)], [1, 2], tmp_path)
        return run.folder

    first = folders()
    monkeypatch.chdir(inputs)
    assert folders(train_file="./texts.txt", dev_file="dev.tsv", model_name_or_path="start") == first
    copy = shutil.copytree("start", tmp_path / "copy")
    assert folders(model_name_or_path=str(copy)) == first
    config = read_json(copy / "config.json")
    (copy / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.3}))
    assert folders(model_name_or_path=str(copy)) != first

    frame = pd.DataFrame({"text": sentences(200, 0)})
    in_memory = folders(train_file=frame)
    assert folders(train_file=frame[frame.text.str.len() > 0].copy()) == in_memory
    frame.loc[100, "text"] = "another one"
    assert folders(train_file=frame) != in_memory

    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    write(files[0], sentences(3, 1))
    write(files[1], sentences(3, 2))
    before = folders(train_file=files)
    write(files[1], sentences(3, 3))
    assert folders(train_file=files) != before


def test_data_frames_are_looked_at_like_files(inputs, base, tmp_path):
    dev = pd.read_csv(inputs / "dev.tsv", sep="\t")
    with refuses("test dev set simcse"):
        study({"simcse": base.but(dev_file=dev)}, test=[dev], output=tmp_path)
    frames = [pd.DataFrame({"text": sentences(200, 0)}) for _ in range(2)]
    frames[1].loc[100, "text"] = dev.sentence1[0]
    ways = {
        str(number): base.but(train_file=frame, dev_file=str(inputs / "pairs.tsv"))
        for number, frame in enumerate(frames)
    }
    with refuses("'1' advantage row 101"):
        study(ways, test=[dev], output=tmp_path)
    other = dev.copy()
    other.loc[5, "score"] = 5.0
    dev_sets = {str(number): base.but(dev_file=frame) for number, frame in enumerate([dev, other])}
    with refuses("different dev sets"):
        study(dev_sets, output=tmp_path)


def test_a_dry_run_says_runs_and_steps_and_leaves_nothing(content, tests, tmp_path):
    said = study(content, test=tests, output=tmp_path / "out", dry_run=True)
    assert "simcse: 2 runs of 4 steps are left" in str(said)
    assert len(said.runs) == 6 and said.minutes > 0 and not [*tmp_path.glob("out/runs/*")]
    ways = {"simcse": {}, "asked": {"prompts": {"anchor": "a ", "positive": "the "}}}
    with refuses("asked prompts"):
        study({**content, "ways": ways}, test=tests, output=tmp_path / "out", dry_run=True)


def test_without_a_test_the_dev_set_judges_with_an_allowance_for_the_choice(base, tmp_path):
    found = study({"simcse": base}, seeds=2, output=tmp_path)
    assert found.judged_on == "dev" and found.tasks == ["stsb_spearman"]
    simcse, start = found.outcomes
    results = [read_json(tmp_path / run / "results.json") for run in simcse.folders.values()]
    assert list(simcse.scores["stsb_spearman"].values()) == [each["saved"]["stsb_spearman"] for each in results]
    change = start.difference["stsb_spearman"]["value"]
    allowed = -fmean(each["saved"]["stsb_spearman"] - each["change"]["optimism"] for each in results)
    assert change == pytest.approx(start.mean["stsb_spearman"] + allowed)


def test_a_study_takes_what_a_program_has_and_an_empty_entry_is_none(content, inputs, tests, tmp_path):
    pairs = pd.read_csv(inputs / "pairs.tsv", sep="\t")
    labels = pd.read_csv(inputs / "labels.csv")
    ways = {"simcse": None, "supervised": {"command": "sup", "train_file": str(inputs / "dev.tsv")}}
    given = {**content, "ways": ways, "seeds": np.arange(2), "confidence": None, "output": None}
    for test in (inputs / "pairs.tsv", pairs, [pairs, ("knn", labels)], tests[0]):
        said = study(given, test=test, output=tmp_path, dry_run=True)
        assert said.runs == [f"{way}, seed {seed}" for seed in (0, 1) for way in ways]


def test_the_start_is_of_the_revision_that_is_trained(base, tests, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub = tmp_path / "models--me--start"
    (hub / "refs").mkdir(parents=True)
    for number, (revision, width) in enumerate({"main": 0.2, "old": 0.4}.items()):
        commit = f"{number}" * 40
        (hub / "refs" / revision).write_text(commit)
        save_encoder(hub / "snapshots" / commit, config=tiny_config(initializer_range=width))
    way = base.but(model_name_or_path="me/start", model_revision="old", max_steps=2, dev_file=None)
    ways = {"old": way, "new": way.but(model_revision="main")}
    starts = study(ways, seeds=2, test=tests[:1], output=tmp_path / "out").outcomes[2:]
    assert [start.name for start in starts] == ["start me/start@old", "start me/start"]
    for start, revision in zip(starts, ("old", "main"), strict=True):
        own = evaluate(SimCSE("me/start", revision=revision, pooler_type="avg"), pairs=tests[:1])
        assert start.scores["pairs"][""] == pytest.approx(own.results["pairs"]["spearman"])


# --- what is refused before anything is trained ---


def test_what_makes_no_sense_is_refused_before_training(content, inputs, tests, tmp_path):
    write(inputs / "leak.txt", [*sentences(1, 9), *sentences(3, 5)])
    for changed, named in (
        ({"ways": {"simcse": {"temprature": 0.1}}}, "simcse temprature temp"),
        ({"ways": {"simcse": {}, "same": {"temp": 0.05}}}, "simcse same alike"),
        ({"ways": {"start": {}}}, "start not trained"),
        ({"ways": {"simcse": {"seed": 7}}}, "simcse seed"),
        ({"ways": {"simcse": {"train_file": "no.txt"}}}, "simcse no.txt"),
        ({"ways": {"simcse": {"push_to_hub": True}}}, "simcse push_to_hub"),
        ({"seeds": 1}, "seeds 1 two"),
        ({"confidence": 95}, "confidence 95"),
        ({"confidence": "high"}, "confidence number 'high'"),
        ({"keep_models": "no"}, "keep_models true or false 'no'"),
        ({"seeds": [4, -1]}, "seeds integer -1"),
        ({"ways": None}, "ways"),
        ({"ways": {"simcse": {"temp": []}}}, "simcse empty list"),
        ({"ways": {"a": {"temp": [0.1, 0.2]}, "a, temp=0.1": {}}}, "two ways a, temp=0.1"),
        ({"ways": {1: {}, "1": {"temp": 0.1}}}, "two ways '1'"),
        ({"ways": {"a": {"command": "supervised"}}}, "a supervised unsup sup"),
        ({"data_dir": f"{inputs}"}, "data_dir STS12"),
        ({"sedes": 2}, "sedes"),
        ({"test": [f"{inputs}/dev.tsv"]}, "test dev set simcse"),
        ({"test": ["STS12"]}, "data_dir"),
        ({"test": []}, "grid, temp=0.05 test"),
        ({"ways": {"one": {}, "other": {"train_file": f"{inputs}/leak.txt"}}}, "other leak.txt, line 2 knn"),
    ):
        with refuses(named):
            study({**content, "test": tests, "output": str(tmp_path / "out"), **changed})
    assert not [*tmp_path.glob("out/runs/*")]
