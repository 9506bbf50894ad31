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
from conftest import fast_first, tiny_config
from process_helpers import launch
from safetensors.torch import load_file
from trainer_helpers import scored, sentences, train_command
from transformers import AutoModel, BertForMaskedLM

from simcse_hf import SimCSE
from simcse_hf.ops.files import entries
from simcse_hf.publishing.hub import files_to_push
from simcse_hf.training import recipe as recipe_module
from simcse_hf.training.recipe import Recipe, inputs_of
from simcse_hf.training.run_results import DevHistory, Results, Scored, Start
from simcse_hf.training.seeds import prepare_seeds, release, seed_list, summarise
from simcse_hf.training.trainer import SimCSETrainer


@pytest.fixture
def start(save_checkpoint):
    return save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)), "start")


@pytest.fixture
def words(tmp_path, start):
    """The arguments of a run of 4 steps that is evaluated and saved every 2 steps, without --output_dir."""
    (tmp_path / "texts.txt").write_text("\n".join(sentences(32, 0)) + "\n")
    scored(12).to_csv(tmp_path / "dev.tsv", sep="\t")
    line = (
        f"--model_name_or_path {start} --train_file {tmp_path}/texts.txt --dev_file {tmp_path}/dev.tsv "
        "--per_device_train_batch_size 8 --learning_rate 1e-3 --max_steps 4 --eval_steps 2 --logging_steps 1 "
        "--use_cpu --report_to none --disable_tqdm true"
    )
    return line.split()


@pytest.fixture
def train(tmp_path, words):
    """`train(more, output="out")` trains with these arguments and further ones, and returns the output directory."""

    def train(more="", output="out"):
        train_command(
            "unsup", [*words, "--output_dir", str(tmp_path / output), *more.split()]
        )
        return tmp_path / output

    return train


def _results(folder):
    return json.loads((Path(folder) / "results.json").read_text())


def _log(folder):
    """The log of a run without the figures that depend on the clock."""
    history = json.loads((Path(folder) / "trainer_state.json").read_text())[
        "log_history"
    ]
    return [
        {k: v for k, v in x.items() if "runtime" not in k and "per_second" not in k}
        for x in history
    ]


def _same_weights(one, two, name="model.safetensors"):
    a, b = (load_file(Path(folder) / name) for folder in (one, two))
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("objective", fast_first("simcse", "esimcse"))
def test_a_seed_gives_the_same_bits_alone_and_after_another_seed(train, objective):
    """The objective esimcse keeps a queue and a second encoder, and draws the words that it repeats."""
    alone = train(f"--objective {objective} --seed 43", "alone")
    both = train(f"--objective {objective} --seeds 42 43", "both") / "seed-43"
    assert _same_weights(both, alone) and _log(both) == _log(alone)
    assert not _same_weights(both, both.with_name("seed-42"))
    # These hold times, or that the one seed was given.
    left_out = (
        "model",
        "command",
        "train_seconds",
        "initial",
        "best",
        "final",
        "saved",
        "decided_by",
    )
    a, b = (
        {k: v for k, v in _results(x).items() if k not in left_out}
        for x in (both, alone)
    )
    assert a == b


def test_the_best_run_on_dev_is_published_with_the_mean_and_deviation_of_all(train):
    out = train("--seeds 3")
    runs = {seed: _results(out / f"seed-{seed}") for seed in (42, 43, 44)}
    figures = {seed: run["saved"]["stsb_spearman"] for seed, run in runs.items()}
    results = _results(out)
    summary = results["seeds"]
    best = max(figures, key=figures.get)
    assert (summary["published"], summary["chosen_by"], results["seed"]) == (
        best,
        "stsb_spearman",
        best,
    )
    assert [run["seed"] for run in summary["runs"]] == [42, 43, 44]
    mean, sd = fmean(figures.values()), stdev(figures.values())
    assert summary["mean"]["saved"]["stsb_spearman"] == pytest.approx(mean)
    assert summary["sd"]["saved"]["stsb_spearman"] == pytest.approx(sd)
    assert _same_weights(out, out / f"seed-{best}")
    change = results["change"]
    assert change["seeds"] == 3 and change["difference"] == pytest.approx(
        mean - runs[42]["start"]["stsb_spearman"]
    )
    assert change["low"] <= change["high"] and runs[42]["change"]["seeds"] == 1
    assert not list(out.glob("checkpoint-*"))
    assert SimCSE(out, device="cpu").encode("the cat").shape == (32,)
    _, info = AutoModel.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert f"{mean:6.2f} ± {sd:.2f}" in str(Results.read(out))
    assert not [path for path in files_to_push(out) if "seed" in path], (
        "only the published model is pushed"
    )


def test_repeating_the_command_trains_nothing_and_a_further_seed_is_added(
    tmp_path, train, monkeypatch
):
    trained = []
    monkeypatch.setattr(
        recipe_module, "release", lambda args: trained.append(args.seed)
    )  # called after each training
    out = train("--max_steps 2 --seeds 2")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    train("--max_steps 2 --seeds 2")
    assert trained == [42, 43]
    assert before == {
        path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")
    }
    train("--max_steps 2 --seeds 3 --resume_from_checkpoint true")
    assert trained == [42, 43, 44] and len(_results(out)["seeds"]["runs"]) == 3
    shutil.copytree(out / "seed-43", tmp_path / "before")
    (out / "seed-43/results.json").unlink()
    (out / "seed-43/checkpoint-2/model.safetensors").unlink()
    train("--max_steps 2 --seeds 3")
    assert trained[3:] == [43], (
        "without a whole checkpoint, the run of a seed starts again"
    )
    assert _same_weights(out / "seed-43", tmp_path / "before")


def test_an_interrupted_seed_is_resumed_and_ends_with_the_same_bits(
    tmp_path, train, monkeypatch
):
    """SIGTERM arrives in the middle of the second run, and the same command is given again."""
    whole, out = train("--seeds 42 43", "whole"), tmp_path / "out"
    step = SimCSETrainer.training_step

    def interrupted(self, *args, **kwargs):
        if self.args.seed == 43 and self.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(SimCSETrainer, "training_step", interrupted)
        train("--seeds 42 43")
    assert ended.value.code == 143
    assert (
        not (out / "results.json").exists() and (out / "seed-43/checkpoint-3").is_dir()
    )
    train("--seeds 42 43")
    for folder in ("seed-42", "seed-43", "."):
        assert _same_weights(whole / folder, out / folder)
    first, second = (
        [x for x in _log(path / "seed-43") if "loss" in x] for path in (whole, out)
    )
    assert first == second


def test_without_a_dev_set_the_first_seed_is_published(train, words):
    at = words.index("--dev_file")
    del words[at : at + 2]
    results = Results.read(train("--max_steps 1 --seeds 7 8"))
    summary = results.seeds
    assert (summary["published"], summary["chosen_by"], summary["mean"]) == (
        7,
        None,
        {},
    )
    assert "nothing says which seed is best" in str(results)


def test_a_model_is_chosen_by_what_it_saved_and_not_by_a_better_evaluation_on_the_way():
    def run(saved, best):
        start = Start(0, {"m": 1.0}, "m")
        initial, saved, best = (Scored(1, {"m": value}) for value in (1.0, saved, best))
        return Results(
            DevHistory("dev.csv", "m", start, initial, best, saved, saved),
            model="out",
            run={},
        )

    assert summarise({1: run(3.0, 9.0), 2: run(4.0, 5.0)})["published"] == 2


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
    assert not entries(tmp_path / "out")


@pytest.mark.parametrize(
    "changed", ["texts.txt", "dev.tsv", "start/model.safetensors", "labels.csv"]
)
def test_seeds_are_not_added_to_those_of_other_texts_or_weights(
    tmp_path, words, changed
):
    (tmp_path / "labels.csv").write_text(
        "text,label\n" + "".join(f"{x},0\n" for x in sentences(9, 5))
    )
    words = [
        *words,
        "--output_dir",
        str(tmp_path / "out"),
        "--dev_task",
        f"classification={tmp_path}/labels.csv",
    ]

    def prepare():
        recipe = Recipe.read("unsup", words)
        decided = recipe.decide()
        chosen = vars(decided.model) | vars(decided.data)
        return prepare_seeds(
            [42], decided.training, chosen, inputs_of(recipe.given), False
        )

    assert prepare() == prepare() == {42: "new"}
    file = tmp_path / changed
    content = file.read_bytes()
    file.write_bytes(
        content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]
    )  # of the same size
    with pytest.raises(ValueError, match=f"digest of .*{file.name}: .* there, .* here"):
        prepare()


@pytest.mark.slow
def test_an_output_directory_with_another_run_or_other_settings_is_refused(train):
    out = train("--max_steps 1 --seeds 2")
    with pytest.raises(
        ValueError, match=r"other settings \(learning_rate: 0.001 there, 0.5 here\)"
    ):
        train("--max_steps 1 --seeds 2 --learning_rate 0.5")
    with pytest.raises(ValueError, match="holds an earlier run"):
        train("--max_steps 1")
    train("--max_steps 1 --seeds 8 9 --overwrite_output_dir")
    assert sorted(path.name for path in out.glob("seed-*")) == ["seed-8", "seed-9"]
    train("--max_steps 1 --overwrite_output_dir")
    assert "seeds" not in _results(out)
    with pytest.raises(ValueError, match="holds an earlier run"):
        train("--max_steps 1 --seeds 2")


def test_a_tracker_begins_a_run_of_its_own_for_each_seed(monkeypatch):
    """The tracker of the Trainer logs into the run that is open in its library, if there is one."""
    ended = []
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(finish=lambda: ended.append(True))
    )
    for trackers, process in ((["wandb"], 0), ([], 0), (["wandb"], 1)):
        release(SimpleNamespace(report_to=trackers, process_index=process))
    assert ended == [True]


def train_in_process(words):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    train_command("unsup", words)


@pytest.mark.slow
def test_two_processes_train_every_seed_and_publish_the_best_once(tmp_path, words):
    words += [
        "--per_device_train_batch_size",
        "4",
        "--max_steps",
        "2",
        "--seeds",
        "2",
        "--output_dir",
        str(tmp_path / "out"),
    ]
    for _ in range(2):  # the second time, one seed is missing
        launch(train_in_process, words)
        results = _results(tmp_path / "out")
        assert results["processes"] == 2 and len(results["seeds"]["runs"]) == 2
        assert _same_weights(
            tmp_path / "out", tmp_path / f"out/seed-{results['seeds']['published']}"
        )
        shutil.rmtree(tmp_path / "out/seed-43")


def test_a_run_that_starts_from_a_checkpoint_does_not_delete_it(train):
    out = train()
    with pytest.raises(
        ValueError,
        match="checkpoint-4 is a part of the earlier run .*: choose another --output_dir",
    ):
        train(f"--overwrite_output_dir --model_name_or_path {out / 'checkpoint-4'}")
    with pytest.raises(ValueError, match="nothing"):
        train("--overwrite_output_dir --columns nothing")
    assert (out / "checkpoint-4").exists(), "a run that cannot start deletes nothing"


def test_the_separator_of_labels_also_holds_for_the_dev_task_of_several_seeds(
    train, tmp_path
):
    """Without it, each text of this file would have a class of its own, which is refused."""
    names = ["red;1", "red;2", "blue;1", "blue;2", "red", "blue", "1", "2"]
    rows = zip(sentences(len(names), 1), names, strict=True)
    lines = [
        "text,label",
        *(f"{text.replace(',', '')},{label}" for text, label in rows),
    ]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    task = f"--dev_task classification={tmp_path}/labels.csv --label_separator ;"
    out = train(f"{task} --seeds 42 43")
    assert len(_results(out)["seeds"]["runs"]) == 2
