"""Training with several seeds: every run as if it were alone, resumable, and the best one on dev published."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest
import torch
from conftest import save_encoder
from process_helpers import launch
from safetensors.torch import load_file
from trainer_helpers import scored, sentences, train_command
from transformers import AutoModel, set_seed

from simcse_hf import SimCSE
from simcse_hf.publishing.hub import files_to_push
from simcse_hf.runtime.files import entries
from simcse_hf.training import recipe as recipe_module
from simcse_hf.training.recipe import Recipe
from simcse_hf.training.run_results import Results
from simcse_hf.training.seeds import prepare_seeds, release, seed_list, summarise
from simcse_hf.training.trainer import SimCSETrainer


def write_inputs(folder):
    """Write an encoder, texts and a dev set, and return the arguments of a run without --output_dir.

    It has 4 steps, and is evaluated and saved every 2 steps.
    """
    save_encoder(folder / "start")
    (folder / "texts.txt").write_text("\n".join(sentences(32, 0)) + "\n")
    scored(12).to_csv(folder / "dev.tsv", sep="\t")
    line = (
        f"--model_name_or_path {folder}/start --train_file {folder}/texts.txt --dev_file {folder}/dev.tsv "
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
    return json.loads((Path(folder) / "results.json").read_text())


def log_of(folder):
    """The log of a run without the figures that depend on the clock."""
    state = json.loads((Path(folder) / "trainer_state.json").read_text())
    log = []
    for entry in state["log_history"]:
        log.append(
            {name: value for name, value in entry.items() if "runtime" not in name and "per_second" not in name}
        )
    return log


def have_the_same_weights(one, two):
    first = load_file(Path(one) / "model.safetensors")
    second = load_file(Path(two) / "model.safetensors")
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# --- each run is as if it were alone ---

OBJECTIVES = pytest.mark.parametrize(
    "objective",
    [
        "simcse",
        # It keeps a queue and a second encoder, and draws the words that it repeats.
        pytest.param("esimcse", marks=pytest.mark.slow),
    ],
    scope="module",
)


@pytest.fixture(scope="module")
def several(objective, three_seeds, train_in, tmp_path_factory):
    """The folder of a run with the seeds 42, 43 and perhaps 44."""
    if objective == "simcse":
        return three_seeds
    folder = tmp_path_factory.mktemp("several")
    return train_in(folder, f"--objective {objective} --seeds 42 43")


@pytest.fixture(scope="module")
def alone(objective, train_in, tmp_path_factory):
    """The folder of a run with the seed 43 alone."""
    folder = tmp_path_factory.mktemp("alone")
    return train_in(folder, f"--objective {objective} --seed 43")


@OBJECTIVES
def test_a_seed_gives_the_same_bits_alone_and_after_another_seed(several, alone):
    assert have_the_same_weights(several / "seed-43", alone)


@OBJECTIVES
def test_a_seed_has_the_same_log_alone_and_after_another_seed(several, alone):
    assert log_of(several / "seed-43") == log_of(alone)


@OBJECTIVES
def test_another_seed_gives_other_weights(several):
    assert not have_the_same_weights(several / "seed-43", several / "seed-42")


#: Entries of results.json that hold times, or that the one seed or the objective was given.
OF_THE_RUN_ITSELF = {
    "model",
    "command",
    "train_seconds",
    "initial",
    "best",
    "final",
    "saved",
}


def without_times(results):
    return {name: value for name, value in results.items() if name not in OF_THE_RUN_ITSELF}


@OBJECTIVES
def test_a_seed_has_the_same_results_alone_and_after_another_seed(several, alone):
    after_another = without_times(results_of(several / "seed-43"))
    assert after_another == without_times(results_of(alone))


# --- the published model ---

SEEDS = (42, 43, 44)


@pytest.fixture(scope="module")
def three_seeds(train_in, tmp_path_factory):
    """The folder of a run with three seeds."""
    return train_in(tmp_path_factory.mktemp("three") / "out", "--seeds 3")


@pytest.fixture(scope="module")
def runs(three_seeds):
    """The results of each seed."""
    return {seed: results_of(three_seeds / f"seed-{seed}") for seed in SEEDS}


@pytest.fixture(scope="module")
def scores(runs):
    """The saved dev score of each seed."""
    return {seed: run["saved"]["stsb_spearman"] for seed, run in runs.items()}


@pytest.fixture(scope="module")
def best(scores):
    """The seed of the best run."""
    return max(scores, key=scores.get)


@pytest.fixture(scope="module")
def results(three_seeds):
    """The results of all seeds."""
    return results_of(three_seeds)


def test_the_best_run_on_dev_is_published(three_seeds, best):
    assert have_the_same_weights(three_seeds, three_seeds / f"seed-{best}")


def test_the_results_say_which_seed_is_published(results, best):
    assert results["seeds"]["published"] == best


def test_the_results_say_by_what_the_seed_was_chosen(results):
    assert results["seeds"]["chosen_by"] == "stsb_spearman"


def test_the_results_are_those_of_the_published_seed(results, best):
    assert results["seed"] == best


def test_the_results_list_the_runs_of_all_seeds(results):
    assert [run["seed"] for run in results["seeds"]["runs"]] == list(SEEDS)


def test_the_results_have_the_mean_of_all_seeds(results, scores):
    mean = results["seeds"]["mean"]["saved"]["stsb_spearman"]
    assert mean == pytest.approx(fmean(scores.values()))


def test_the_results_have_the_deviation_of_all_seeds(results, scores):
    deviation = results["seeds"]["sd"]["saved"]["stsb_spearman"]
    assert deviation == pytest.approx(stdev(scores.values()))


def test_the_change_is_that_of_all_seeds(results):
    assert results["change"]["seeds"] == 3


def test_the_change_of_a_run_is_that_of_its_seed_alone(runs):
    assert runs[42]["change"]["seeds"] == 1


def test_the_change_is_that_of_the_mean(results, scores, runs):
    expected = fmean(scores.values()) - runs[42]["start"]["stsb_spearman"]
    assert results["change"]["difference"] == pytest.approx(expected)


def test_the_change_has_an_interval(results):
    assert results["change"]["low"] <= results["change"]["high"]


def test_the_printed_results_have_the_mean_and_the_deviation(three_seeds, scores):
    mean = fmean(scores.values())
    deviation = stdev(scores.values())
    assert f"{mean:6.2f} ± {deviation:.2f}" in str(Results.read(three_seeds))


def test_no_checkpoint_stands_beside_the_published_model(three_seeds):
    assert not list(three_seeds.glob("checkpoint-*"))


def test_the_published_model_encodes_texts(three_seeds):
    assert SimCSE(three_seeds, device="cpu").encode("the cat").shape == (32,)


@pytest.mark.parametrize("keys", ["missing_keys", "unexpected_keys"])
def test_the_published_model_opens_in_transformers(three_seeds, keys):
    _, info = AutoModel.from_pretrained(three_seeds, output_loading_info=True)
    assert not info[keys]


def test_only_the_published_model_is_pushed(three_seeds):
    assert not [path for path in files_to_push(three_seeds) if "seed" in path]


@pytest.fixture(scope="module")
def without_dev_set(words, tmp_path_factory):
    """The results of two seeds without a dev set."""
    place = words.index("--dev_file")
    without = words[:place] + words[place + 2 :]
    folder = tmp_path_factory.mktemp("without_dev_set")
    options = ["--output_dir", str(folder), "--max_steps", "1", "--seeds", "7", "8"]
    train_command("unsup", [*without, *options])
    return Results.read(folder)


@pytest.mark.parametrize(("name", "value"), [("published", 7), ("chosen_by", None), ("mean", {})])
def test_without_a_dev_set_the_first_seed_is_published(without_dev_set, name, value):
    assert without_dev_set.seeds[name] == value


def test_without_a_dev_set_the_results_say_that_no_seed_is_known_to_be_best(
    without_dev_set,
):
    assert "nothing says which seed is best" in str(without_dev_set)


def run_with(saved, best):
    """The results of a run with these dev scores of the saved model and of the best evaluation."""
    initial, saved, best = ({"step": 1, "m": value} for value in (1.0, saved, best))
    start = initial | {"pooler": None, "metric": "m"}
    scores = {"start": start, "initial": initial, "best": best, "final": saved, "saved": saved}
    return Results(dev_set="dev.csv", dev_metric="m", model="out", run={}, **scores)


def test_a_model_is_chosen_by_what_it_saved_and_not_by_a_better_evaluation_on_the_way():
    runs = {1: run_with(saved=3.0, best=9.0), 2: run_with(saved=4.0, best=5.0)}
    assert summarise(runs)["published"] == 2


# --- the same command again ---


@pytest.fixture
def out(three_seeds, tmp_path):
    """A copy of the folder of three seeds."""
    return shutil.copytree(three_seeds, tmp_path / "out")


@pytest.fixture
def trained(monkeypatch):
    """The seeds of the runs that train from now on."""
    seeds = []

    def remember(seed):
        """This is called before each training."""
        seeds.append(seed)
        set_seed(seed)

    monkeypatch.setattr(recipe_module, "set_seed", remember)
    return seeds


def times_of_weights(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}


def test_repeating_the_command_trains_nothing(out, train, trained):
    train("--seeds 3")
    assert trained == []


def test_repeating_the_command_writes_no_weights(out, train):
    before = times_of_weights(out)
    train("--seeds 3")
    assert times_of_weights(out) == before


@pytest.fixture
def with_a_further_seed(out, train, trained):
    """The folder after the command was given with one more seed than there are."""
    shutil.rmtree(out / "seed-44")
    train("--seeds 3 --resume_from_checkpoint true")
    return out


def test_only_a_further_seed_is_trained(with_a_further_seed, trained):
    assert trained == [44]


def test_a_further_seed_is_added_to_the_results(with_a_further_seed):
    assert len(results_of(with_a_further_seed)["seeds"]["runs"]) == 3


@pytest.fixture
def without_a_checkpoint(out, train, trained):
    """The folder after the command was given again, where one seed had neither results nor a whole checkpoint."""
    (out / "seed-43/results.json").unlink()
    for checkpoint in (out / "seed-43").glob("checkpoint-*"):
        (checkpoint / "model.safetensors").unlink()
    train("--seeds 3")
    return out


def test_without_a_whole_checkpoint_the_run_of_a_seed_starts_again(without_a_checkpoint, trained):
    assert trained == [43]


def test_a_run_that_starts_again_ends_with_the_same_bits(without_a_checkpoint, three_seeds):
    folder = without_a_checkpoint / "seed-43"
    assert have_the_same_weights(folder, three_seeds / "seed-43")


@pytest.fixture(scope="module")
def interrupted(train_in, tmp_path_factory):
    """The folder after SIGTERM in the middle of the second run."""
    out = tmp_path_factory.mktemp("interrupted") / "out"
    step = SimCSETrainer.training_step

    def interrupted_step(self, *args, **kwargs):
        if self.args.seed == 43 and self.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimCSETrainer, "training_step", interrupted_step)
        with pytest.raises(SystemExit) as ended:
            train_in(out, "--seeds 42 43")
    assert ended.value.code == 143
    return out


def test_an_interrupted_command_writes_no_results(interrupted):
    assert not (interrupted / "results.json").exists()


def test_an_interrupted_seed_has_a_checkpoint(interrupted):
    assert (interrupted / "seed-43/checkpoint-3").is_dir()


@pytest.fixture(scope="module")
def resumed(interrupted, train_in):
    """The folder after the same command was given again."""
    folder = shutil.copytree(interrupted, interrupted.with_name("resumed"))
    return train_in(folder, "--seeds 42 43")


@pytest.mark.parametrize("seed", [42, 43])
def test_an_interrupted_seed_is_resumed_and_ends_with_the_same_bits(resumed, three_seeds, seed):
    folder = f"seed-{seed}"
    assert have_the_same_weights(resumed / folder, three_seeds / folder)


def test_the_best_of_resumed_seeds_is_published_with_the_same_bits(resumed, three_seeds, scores):
    best_of_two = max((42, 43), key=scores.get)
    assert have_the_same_weights(resumed, three_seeds / f"seed-{best_of_two}")


def test_a_resumed_seed_has_the_losses_of_an_uninterrupted_one(resumed, three_seeds):
    found = [entry for entry in log_of(resumed / "seed-43") if "loss" in entry]
    whole = [entry for entry in log_of(three_seeds / "seed-43") if "loss" in entry]
    assert found == whole


# --- the option ---


@pytest.mark.parametrize(
    "given, expected",
    [
        (3, [42, 43, 44]),
        ([3], [42, 43, 44]),
        ([1], [42]),
        ([7, 3], [7, 3]),
        ([0, 1], [0, 1]),
    ],
)
def test_seeds_are_a_number_of_runs_or_a_list(given, expected):
    assert seed_list(given, first=42) == expected


@pytest.mark.parametrize(
    "more, message",
    [
        ("--seeds 42", "asks for 42 runs. For one run with this seed, write --seed 42"),
        ("--seeds 0", "needs a number of runs above 0"),
        ("--seeds 42 42", "each seed must be at least 0 and occur once"),
        ("--seeds 3 --seed 7", "seed is 7 and seeds [3]: give one of the two"),
        (
            "--seeds 2 --resume_from_checkpoint checkpoint-2",
            "names the checkpoint of one run",
        ),
        (
            "--seeds 2 --resume_from_checkpoint true",
            "holds no runs of --seeds to resume",
        ),
    ],
)
def test_contradictions_are_refused(tmp_path, train, more, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(more)
    assert not entries(tmp_path / "out"), "nothing is written"


# --- seeds of the same run only ---


@pytest.fixture
def prepare(tmp_path):
    """Prepares the seed 42 of a run with a dev task, and says what is there of it."""
    words = write_inputs(tmp_path)
    labelled = "".join(f"{text},0\n" for text in sentences(9, 5))
    (tmp_path / "labels.csv").write_text("text,label\n" + labelled)
    words += ["--output_dir", str(tmp_path / "out")]
    words += ["--dev_task", f"classification={tmp_path}/labels.csv"]

    def prepare():
        decided = Recipe.read("unsup", [*words, "--seeds", "1"]).decide()
        return prepare_seeds(decided, overwrites=False)

    return prepare


def change_a_letter(path):
    """Change a file without changing its size."""
    content = path.read_bytes()
    changed = bytes([content[-2] ^ 1])
    path.write_bytes(content[:-2] + changed + content[-1:])


def test_a_seed_is_new_as_long_as_it_was_not_trained(prepare):
    assert prepare() == {42: "new"}
    assert prepare() == {42: "new"}


@pytest.mark.parametrize("changed", ["texts.txt", "dev.tsv", "start/model.safetensors", "labels.csv"])
def test_seeds_are_not_added_to_those_of_other_texts_or_weights(tmp_path, prepare, changed):
    prepare()
    file = tmp_path / changed
    change_a_letter(file)
    with pytest.raises(ValueError, match=f"digest of .*{file.name}: .* there, .* here"):
        prepare()


def test_seeds_are_not_added_to_those_of_other_settings(out, train):
    words = r"other settings \(learning_rate: 0.001 there, 0.5 here\)"
    with pytest.raises(ValueError, match=words):
        train("--seeds 3 --learning_rate 0.5")


def test_a_run_of_one_seed_does_not_go_into_the_folder_of_several(out, train):
    with pytest.raises(ValueError, match="holds an earlier run"):
        train()


@pytest.mark.slow
def test_overwriting_removes_the_runs_of_other_seeds(out, train):
    train("--max_steps 1 --seeds 8 9 --overwrite_output_dir")
    assert sorted(path.name for path in out.glob("seed-*")) == ["seed-8", "seed-9"]


@pytest.fixture
def of_one_seed(out, train):
    """The folder, in which the runs of several seeds were replaced by one run."""
    return train("--max_steps 1 --overwrite_output_dir")


@pytest.mark.slow
def test_one_run_may_overwrite_those_of_several_seeds(of_one_seed):
    assert "seeds" not in results_of(of_one_seed)


@pytest.mark.slow
def test_runs_of_several_seeds_do_not_go_into_the_folder_of_one(of_one_seed, train):
    with pytest.raises(ValueError, match="holds an earlier run"):
        train("--max_steps 1 --seeds 2")


# --- a run that cannot start ---


@pytest.fixture
def of_seed_42(three_seeds, tmp_path):
    """The folder of a run with two checkpoints."""
    return shutil.copytree(three_seeds / "seed-42", tmp_path / "out")


@pytest.fixture
def checkpoint(of_seed_42):
    return of_seed_42 / "checkpoint-4"


def test_a_run_that_starts_from_a_checkpoint_does_not_delete_it(checkpoint, train):
    words = "checkpoint-4 is a part of the earlier run .*: choose another --output_dir"
    with pytest.raises(ValueError, match=words):
        train(f"--overwrite_output_dir --model_name_or_path {checkpoint}")
    assert checkpoint.exists()


def test_a_run_that_cannot_start_deletes_nothing(checkpoint, train):
    with pytest.raises(ValueError, match="nothing"):
        train("--overwrite_output_dir --columns nothing")
    assert checkpoint.exists()


# --- what is around the runs ---


@pytest.fixture
def ended(monkeypatch):
    """The runs of a tracker that were ended."""
    ended = []
    tracker = SimpleNamespace(finish=lambda: ended.append(True))
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    return ended


@pytest.mark.parametrize(
    ("trackers", "process", "times"),
    [(["wandb"], 0, 1), ([], 0, 0), (["wandb"], 1, 0)],
    ids=["a tracker", "no tracker", "the second process"],
)
def test_a_tracker_begins_a_run_of_its_own_for_each_seed(ended, trackers, process, times):
    """The tracker of the Trainer logs into the run that is open in its library, if there is one."""
    release(SimpleNamespace(report_to=trackers, process_index=process))
    assert len(ended) == times


def train_in_process(words):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    train_command("unsup", words)


@pytest.fixture(scope="module", params=["at first", "with a seed missing"])
def of_two_processes(request, words, tmp_path_factory):
    """The folder of two seeds that were trained in two processes, at once or one after the other."""
    out = tmp_path_factory.mktemp("two_processes") / "out"
    options = "--per_device_train_batch_size 4 --max_steps 2 --seeds 2".split()
    words = [*words, *options, "--output_dir", str(out)]
    launch(train_in_process, words)
    if request.param == "with a seed missing":
        shutil.rmtree(out / "seed-43")
        launch(train_in_process, words)
    return out


@pytest.mark.slow
def test_two_processes_train_together(of_two_processes):
    assert results_of(of_two_processes)["processes"] == 2


@pytest.mark.slow
def test_two_processes_train_every_seed(of_two_processes):
    assert len(results_of(of_two_processes)["seeds"]["runs"]) == 2


@pytest.mark.slow
def test_two_processes_publish_the_best_seed(of_two_processes):
    best = results_of(of_two_processes)["seeds"]["published"]
    assert have_the_same_weights(of_two_processes, of_two_processes / f"seed-{best}")


def test_the_separator_of_labels_also_holds_for_the_dev_task_of_several_seeds(train, tmp_path):
    """Without it, each text of this file would have a class of its own, which is refused."""
    labels = ["red;1", "red;2", "blue;1", "blue;2", "red", "blue", "1", "2"]
    texts = [text.replace(",", "") for text in sentences(len(labels), 1)]
    rows = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    task = f"--dev_task classification={tmp_path}/labels.csv --label_separator ;"
    out = train(f"{task} --max_steps 1 --seeds 42 43")
    assert len(results_of(out)["seeds"]["runs"]) == 2
