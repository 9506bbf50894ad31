"""Training with several seeds: every run as if it were alone, resumable, and the best one on dev published."""

import os
import shutil
import signal
import sys
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest
from conftest import read_json, save_encoder
from evaluation_helpers import write, write_rows
from process_helpers import launch
from trainer_helpers import refuses, scored, sentences, train_command, without_times
from transformers import set_seed

import simcse_hf
from simcse_hf import SimCSE, compare, evaluate
from simcse_hf.publishing.hub import files_to_push
from simcse_hf.runtime.files import entries
from simcse_hf.training import recipe as recipe_module
from simcse_hf.training.recipe import Recipe
from simcse_hf.training.run_results import Results
from simcse_hf.training.seeds import prepare_seeds, release, summarise
from simcse_hf.training.trainer import SimCSETrainer


def write_inputs(folder):
    """Write an encoder, texts and a dev set, and return the arguments of a run without --output_dir.

    It has 4 steps, and is evaluated and saved every 2 steps.
    """
    save_encoder(folder / "start")
    write(folder / "texts.txt", sentences(32, 0))
    scored(12).to_csv(folder / "dev.tsv", sep="\t")
    # A text has several labels. Without the separator, each would have a class of its own, which is refused.
    labels = zip(sentences(4, 5), ["red;1", "red", "1;2", "2"], strict=True)
    write_rows(folder / "labels.csv", ["text", "label"], labels)
    line = (
        f"--model_name_or_path {folder}/start --train_file {folder}/texts.txt --dev_file {folder}/dev.tsv "
        f"--dev_task classification={folder}/labels.csv --label_separator ; "
        "--per_device_train_batch_size 8 --learning_rate 1e-3 --max_steps 4 --eval_steps 2 --logging_steps 1 "
        "--use_cpu --report_to none --disable_tqdm true"
    )
    return line.split()


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The arguments of a run without --output_dir."""
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def train_in(words):
    """`train_in(folder, more)` trains with these arguments and further ones, and returns the folder."""

    def train(folder, more=""):
        train_command("unsup", [*words, "--output_dir", str(folder), *more.split()])
        return folder

    return train


@pytest.fixture
def train(tmp_path, train_in):
    """`train(more)` trains into the folder `out` of the test."""
    return lambda more="": train_in(tmp_path / "out", more)


def results_of(folder):
    return read_json(Path(folder) / "results.json")


def log_of(folder):
    """The log of a run without the figures that depend on the clock."""
    return without_times(read_json(Path(folder) / "trainer_state.json")["log_history"])


def have_the_same_weights(one, two):
    first, second = (Path(folder) / "model.safetensors" for folder in (one, two))
    return first.read_bytes() == second.read_bytes()


@pytest.fixture(scope="module")
def three_seeds(train_in, tmp_path_factory):
    """The folder of a run with the seeds 42, 43 and 44."""
    return train_in(tmp_path_factory.mktemp("three") / "out", "--seeds 3")


def results_but_for_the_command(folder):
    """The results of a run without times, its folder and the command with its seeds."""
    results = without_times(results_of(folder))
    return {name: value for name, value in results.items() if name not in ("model", "command")}


@pytest.mark.parametrize(
    "objective",
    # The second keeps a queue and a second encoder, and draws the words that it repeats.
    ["simcse", pytest.param("esimcse", marks=pytest.mark.slow)],
)
def test_a_seed_ends_with_the_same_bits_alone_and_after_another_seed(objective, three_seeds, train_in, tmp_path):
    several = three_seeds
    if objective != "simcse":
        several = train_in(tmp_path / "several", f"--objective {objective} --seeds 42 43")
    alone = train_in(tmp_path / "alone", f"--objective {objective} --seed 43")
    assert have_the_same_weights(several / "seed-43", alone)
    assert not have_the_same_weights(several / "seed-42", alone)
    assert log_of(several / "seed-43") == log_of(alone)
    assert results_but_for_the_command(several / "seed-43") == results_but_for_the_command(alone)


# --- the published model ---


def test_the_best_seed_on_dev_is_published_with_the_mean_and_the_change_of_all(three_seeds):
    runs = {seed: results_of(three_seeds / f"seed-{seed}") for seed in (42, 43, 44)}
    scores = {seed: run["saved"]["stsb_spearman"] for seed, run in runs.items()}
    best = max(scores, key=scores.get)
    assert have_the_same_weights(three_seeds, three_seeds / f"seed-{best}")
    results = results_of(three_seeds)
    seeds, change = results["seeds"], results["change"]
    assert (seeds["published"], seeds["chosen_by"], results["seed"]) == (best, "stsb_spearman", best)
    assert [run["seed"] for run in seeds["runs"]] == [42, 43, 44]
    mean, deviation = fmean(scores.values()), stdev(scores.values())
    assert seeds["mean"]["saved"]["stsb_spearman"] == pytest.approx(mean)
    assert seeds["sd"]["saved"]["stsb_spearman"] == pytest.approx(deviation)
    assert (change["seeds"], runs[42]["change"]["seeds"]) == (3, 1)
    assert change["difference"] == pytest.approx(mean - runs[42]["start"]["stsb_spearman"])
    assert f"{mean:6.2f} ± {deviation:.2f}" in str(Results.read(three_seeds))
    # It stands alone.
    assert not list(three_seeds.glob("checkpoint-*"))
    assert not [path for path in files_to_push(three_seeds) if "seed" in path]
    assert SimCSE(three_seeds, device="cpu").encode("the cat").shape == (32,)


def test_without_a_dev_set_the_first_seed_is_published(words, tmp_path):
    place = words.index("--dev_file")
    options = ["--output_dir", str(tmp_path), "--max_steps", "1", "--seeds", "7", "0"]
    train_command("unsup", [*words[:place], *words[place + 6 :], *options])
    results = Results.read(tmp_path)
    assert [results.seeds[name] for name in ("published", "chosen_by", "mean")] == [7, None, {}]
    assert [run["seed"] for run in results.seeds["runs"]] == [7, 0]
    assert "nothing says which seed is best" in str(results)


def test_a_model_is_chosen_by_what_it_saved_and_not_by_a_better_evaluation_on_the_way(three_seeds):
    runs = {seed: Results.read(three_seeds / f"seed-{seed}") for seed in (42, 43, 44)}
    published = summarise(runs)["published"]
    for seed, run in runs.items():
        run.best["stsb_spearman"] = 0.0 if seed == published else 99.0
    assert summarise(runs)["published"] == published


# --- the same command again ---


@pytest.fixture
def out(three_seeds, tmp_path):
    """A copy of the folder of three seeds."""
    return shutil.copytree(three_seeds, tmp_path / "out")


def test_the_same_command_trains_what_is_missing_and_a_run_without_a_whole_checkpoint_starts_again(
    out, train, three_seeds, monkeypatch
):
    trained = []
    # It is called before each training.
    monkeypatch.setattr(recipe_module, "set_seed", lambda seed: trained.append(seed) or set_seed(seed))

    def times_of_weights():
        return {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}

    before = times_of_weights()
    train("--seeds 3")
    assert trained == []
    assert times_of_weights() == before
    shutil.rmtree(out / "seed-44")
    (out / "seed-43/results.json").unlink()
    for weights in (out / "seed-43").glob("checkpoint-*/model.safetensors"):
        weights.unlink()
    train("--seeds 3 --resume_from_checkpoint true")
    assert trained == [43, 44]
    assert len(results_of(out)["seeds"]["runs"]) == 3
    assert have_the_same_weights(out / "seed-43", three_seeds / "seed-43")


def test_an_interrupted_seed_is_resumed_and_ends_with_the_same_bits(tmp_path, train, three_seeds, monkeypatch):
    step = SimCSETrainer.training_step

    def interrupted_step(self, *args, **kwargs):
        if self.args.seed == 43 and self.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(SimCSETrainer, "training_step", interrupted_step)
        with pytest.raises(SystemExit) as ended:
            train("--seeds 42 43")
    out = tmp_path / "out"
    assert ended.value.code == 143
    assert not (out / "results.json").exists()
    assert (out / "seed-43/checkpoint-3").is_dir()

    train("--seeds 42 43")
    for folder in ("seed-42", "seed-43"):
        assert have_the_same_weights(out / folder, three_seeds / folder)
    assert have_the_same_weights(out, out / f"seed-{results_of(out)['seeds']['published']}")


def test_a_comparison_is_over_the_models_of_all_seeds(three_seeds, tmp_path):
    """A copy that somebody has put aside is the run of no seed."""
    scored(20, seed=13).to_csv(tmp_path / "pairs.tsv", sep="\t")
    pairs = [str(tmp_path / "pairs.tsv")]
    runs = shutil.copytree(three_seeds, tmp_path / "runs")
    shutil.copytree(runs / "seed-43", runs / "seed-43.bak")
    alone = three_seeds / "seed-43"
    found = compare([str(runs), str(alone)], pairs=pairs)
    each = [evaluate(three_seeds / f"seed-{seed}", pairs=pairs).results["pairs"]["spearman"] for seed in (42, 43, 44)]
    assert found.scores[str(runs)]["pairs"] == pytest.approx(fmean(each))
    assert found.scores[str(alone)]["pairs"] == pytest.approx(each[1])
    assert found.seeds == {str(runs): [42, 43, 44]} and "seeds 42, 43, 44" in str(found)


# --- the option ---


@pytest.mark.parametrize(
    "more, named",
    [
        ("--seeds 42", "42 runs --seed"),
        ("--seeds 0", "--seeds above 0"),
        ("--seeds 42 42", "--seeds once"),
        ("--seeds 3 --seed 7", "seed 7 seeds 3"),
        ("--seeds 2 --resume_from_checkpoint checkpoint-2", "checkpoint-2 one run"),
        ("--seeds 2 --resume_from_checkpoint true", "no runs --resume_from_checkpoint"),
    ],
)
def test_contradictions_are_refused(tmp_path, train, more, named):
    with refuses(named):
        train(more)
    assert not entries(tmp_path / "out"), "nothing is written"


def test_rows_that_can_be_read_once_are_no_rows_of_several_seeds(tmp_path):
    save_encoder(tmp_path / "start")
    with refuses("generator list file"):
        simcse_hf.train(
            "unsup",
            model_name_or_path=str(tmp_path / "start"),
            train_file=iter(sentences(16)),
            seeds=2,
            max_steps=1,
            output_dir=str(tmp_path / "out"),
        )


# --- seeds of the same run only ---


@pytest.mark.parametrize("changed", ["texts.txt", "start/model.safetensors", "labels.csv"])
def test_seeds_are_not_added_to_those_of_other_texts_or_weights(tmp_path, changed):
    words = [*write_inputs(tmp_path), "--output_dir", str(tmp_path / "out"), "--seeds", "1"]
    (tmp_path / "start/tokenizer").mkdir()  # is named like a file that counts

    def prepare():
        return prepare_seeds(Recipe.read("unsup", words).decide(), overwrites=False)

    assert prepare() == prepare() == [42]
    file = tmp_path / changed
    content = file.read_bytes()
    file.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    with refuses(f"digest of {file.name}: there, here"):
        prepare()


def test_a_run_with_other_settings_or_of_one_seed_does_not_go_into_the_folder_of_several(out, train):
    with refuses("other settings (learning_rate: 0.001 there, 0.5 here)"):
        train("--seeds 3 --learning_rate 0.5")
    with refuses("holds an earlier run"):
        train()


@pytest.mark.slow
def test_runs_of_one_and_of_several_seeds_may_overwrite_each_other(out, train):
    train("--max_steps 1 --seeds 8 9 --overwrite_output_dir")
    assert sorted(path.name for path in out.glob("seed-*")) == ["seed-8", "seed-9"]
    train("--max_steps 1 --overwrite_output_dir")
    assert "seeds" not in results_of(out)
    with refuses("holds an earlier run"):
        train("--max_steps 1 --seeds 2")


# --- a run that cannot start ---


@pytest.mark.parametrize(
    "more, named",
    [("--model_name_or_path {}", "checkpoint-4 earlier --output_dir"), ("--columns nothing", "nothing")],
)
def test_a_run_that_cannot_start_deletes_nothing(three_seeds, tmp_path, train, more, named):
    checkpoint = shutil.copytree(three_seeds / "seed-42", tmp_path / "out") / "checkpoint-4"
    with refuses(named):
        train(f"--overwrite_output_dir {more.format(checkpoint)}")
    assert checkpoint.exists()


# --- what is around the runs ---


def test_a_tracker_begins_a_run_of_its_own_for_each_seed(monkeypatch):
    """The tracker of the Trainer logs into the run that is open in its library, if there is one."""
    ended = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(finish=lambda: ended.append(True)))
    for trackers, process, times in ([], 0, 0), (["wandb"], 1, 0), (["wandb"], 0, 1):
        release(SimpleNamespace(report_to=trackers, process_index=process))
        assert len(ended) == times


def train_in_process(words):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    train_command("unsup", words)


@pytest.mark.slow
def test_two_processes_train_every_seed_together_and_publish_the_best_one(words, tmp_path):
    options = "--per_device_train_batch_size 4 --max_steps 2 --seeds 2".split()
    words = [*words, *options, "--output_dir", str(tmp_path)]
    for seed in ("seed-42", "seed-43"):  # at once, and one that is missing
        shutil.rmtree(tmp_path / seed, ignore_errors=True)
        launch(train_in_process, words)
        results = results_of(tmp_path)
        assert (results["processes"], len(results["seeds"]["runs"])) == (2, 2)
        assert have_the_same_weights(tmp_path, tmp_path / f"seed-{results['seeds']['published']}")
