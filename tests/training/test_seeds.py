"""Training with several seeds: every run as if it were alone, resumable, and the best one on dev published."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import fast_first, tiny_config
from process_helpers import launch
from safetensors.torch import load_file
from trainer_helpers import sentences
from transformers import AutoModel, BertForMaskedLM

from simcse_hf import SimCSE
from simcse_hf.ops.files import entries
from simcse_hf.publishing.hub import files_to_push
from simcse_hf.training import run as run_module
from simcse_hf.training.run import UNSUP_DEFAULTS, train_sup, train_unsup
from simcse_hf.training.script_arguments import parse_arguments
from simcse_hf.training.seeds import prepare_seeds, release, seed_list, summarise


@pytest.fixture
def start(save_checkpoint):
    return save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)), "start")


@pytest.fixture
def words(tmp_path, start):
    """The arguments of a run of 4 steps that is evaluated and saved every 2 steps, without --output_dir."""
    (tmp_path / "texts.txt").write_text("\n".join(sentences(32, 0)) + "\n")
    rows = zip(sentences(12, 1), sentences(12, 2), range(12), strict=True)
    lines = "".join(f"{a}\t{b}\t{score % 6}\n" for a, b, score in rows)
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tscore\n" + lines)
    line = (
        f"--model_name_or_path {start} --train_file {tmp_path}/texts.txt --dev_file {tmp_path}/dev.tsv "
        "--per_device_train_batch_size 8 --learning_rate 1e-3 --max_steps 4 --eval_steps 2 --logging_steps 1 "
        "--use_cpu --report_to none --disable_tqdm true"
    )
    return line.split()


def _results(folder):
    return json.loads((Path(folder) / "results.json").read_text())


def _log(folder):
    """The log of a run without the figures that depend on the clock."""
    history = json.loads((Path(folder) / "trainer_state.json").read_text())["log_history"]
    return [{k: v for k, v in x.items() if "runtime" not in k and "per_second" not in k} for x in history]


def _same_weights(one, two, name="model.safetensors"):
    a, b = (load_file(Path(folder) / name) for folder in (one, two))
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("objective", fast_first("simcse", "esimcse"))
def test_a_seed_gives_the_same_bits_alone_and_after_another_seed(tmp_path, words, objective, capsys):
    """The objective esimcse keeps a queue and a second encoder, and draws the words that it repeats."""
    words = [*words, "--objective", objective]
    train_unsup([*words, "--output_dir", f"{tmp_path}/both", "--seeds", "42", "43"])
    train_unsup([*words, "--output_dir", f"{tmp_path}/alone", "--seed", "43"])
    both, alone = tmp_path / "both/seed-43", tmp_path / "alone"
    assert _same_weights(both, alone) and _log(both) == _log(alone)
    assert not _same_weights(both, tmp_path / "both/seed-42")
    # These hold times, or that the one seed was given.
    left_out = ("model", "command", "train_seconds", "initial", "best", "final", "saved", "decided_by")
    a, b = ({k: v for k, v in _results(x).items() if k not in left_out} for x in (both, alone))
    assert a == b


def test_the_best_run_on_dev_is_published_with_the_mean_and_deviation_of_all(tmp_path, words, capsys):
    out = tmp_path / "out"
    train_unsup([*words, "--output_dir", str(out), "--seeds", "3"])
    runs = {seed: _results(out / f"seed-{seed}") for seed in (42, 43, 44)}
    figures = [run["saved"]["stsb_spearman"] for run in runs.values()]
    results = _results(out)
    summary = results["seeds"]
    best = max(runs, key=lambda seed: runs[seed]["saved"]["stsb_spearman"])
    assert (summary["published"], summary["chosen_by"], results["seed"]) == (best, "stsb_spearman", best)
    assert [run["seed"] for run in summary["runs"]] == [42, 43, 44]
    mean = sum(figures) / 3
    assert summary["mean"]["saved"]["stsb_spearman"] == pytest.approx(mean)
    sd = (sum((x - mean) ** 2 for x in figures) / 2) ** 0.5
    assert summary["sd"]["saved"]["stsb_spearman"] == pytest.approx(sd)
    assert _same_weights(out, out / f"seed-{best}")
    change = results["change"]
    assert change["seeds"] == 3 and change["difference"] == pytest.approx(mean - runs[42]["start"]["stsb_spearman"])
    assert change["low"] <= change["high"] and runs[42]["change"]["seeds"] == 1
    assert not list(out.glob("checkpoint-*"))
    assert SimCSE(out, device="cpu").encode("the cat").shape == (32,)
    _, info = AutoModel.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert f"{mean:6.2f} ± {sd:.2f}" in capsys.readouterr().out
    assert not [path for path in files_to_push(out) if "seed" in path], "only the published model is pushed"


def test_repeating_the_command_trains_nothing_and_a_further_seed_is_added(tmp_path, words, monkeypatch):
    out, trained = tmp_path / "out", []
    monkeypatch.setattr(run_module, "release", lambda args: trained.append(args.seed))  # called after each training
    words = [*words, "--max_steps", "2", "--output_dir", str(out), "--seeds"]
    train_unsup([*words, "2"])
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    train_unsup([*words, "2"])
    assert trained == [42, 43]
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    train_unsup([*words, "3", "--resume_from_checkpoint", "true"])
    assert trained == [42, 43, 44] and len(_results(out)["seeds"]["runs"]) == 3
    shutil.copytree(out / "seed-43", tmp_path / "before")
    (out / "seed-43/results.json").unlink()
    (out / "seed-43/checkpoint-2/model.safetensors").unlink()
    train_unsup([*words, "3"])
    assert trained[3:] == [43], "without a whole checkpoint, the run of a seed starts again"
    assert _same_weights(out / "seed-43", tmp_path / "before")


def test_an_interrupted_seed_is_resumed_and_ends_with_the_same_bits(tmp_path, words, monkeypatch):
    """SIGTERM arrives in the middle of the second run, and the same command is given again."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = [*words, "--seeds", "42", "43", "--output_dir"]
    train_unsup([*words, str(whole)])
    from simcse_hf.training.trainer import SimCSETrainer

    step = SimCSETrainer.training_step

    def interrupted(self, *args, **kwargs):
        if self.args.seed == 43 and self.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(SimCSETrainer, "training_step", interrupted)
        train_unsup([*words, str(out)])
    assert ended.value.code == 143
    assert not (out / "results.json").exists() and (out / "seed-43/checkpoint-3").is_dir()
    train_unsup([*words, str(out)])
    for folder in ("seed-42", "seed-43", "."):
        assert _same_weights(whole / folder, out / folder)
    assert [entry for entry in _log(whole / "seed-43") if "loss" in entry] == [
        entry for entry in _log(out / "seed-43") if "loss" in entry
    ]


def test_without_a_dev_set_the_first_seed_is_published(tmp_path, words, capsys):
    at = words.index("--dev_file")
    del words[at : at + 2]
    train_unsup([*words, "--max_steps", "1", "--output_dir", str(tmp_path / "out"), "--seeds", "7", "8"])
    summary = _results(tmp_path / "out")["seeds"]
    assert (summary["published"], summary["chosen_by"], summary["mean"]) == (7, None, {})
    assert "nothing says which seed is best" in capsys.readouterr().out


def test_a_model_is_chosen_by_what_it_saved_and_not_by_a_better_evaluation_on_the_way():
    def run(saved, best):
        figures = {"initial": 1.0, "start": 1.0, "saved": saved, "best": best, "final": saved}
        return {"dev_metric": "m", "train_seconds": 1.0, **{k: {"step": 1, "m": v} for k, v in figures.items()}}

    assert summarise({1: run(3.0, 9.0), 2: run(4.0, 5.0)})["published"] == 2


@pytest.mark.parametrize(
    "given, expected", [(3, [42, 43, 44]), ([3], [42, 43, 44]), ([1], [42]), ([7, 3], [7, 3]), ([0, 1], [0, 1])]
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
        ("--seeds 2 --resume_from_checkpoint checkpoint-2", "names the checkpoint of one run"),
        ("--seeds 2 --resume_from_checkpoint true", "holds no runs of --seeds to resume"),
    ],
)
def test_contradictions_are_refused(tmp_path, words, more, message):
    with pytest.raises(ValueError) as raised:
        train_unsup([*words, "--output_dir", str(tmp_path / "out"), *more.split()])
    assert message in str(raised.value)
    assert not entries(tmp_path / "out")


@pytest.mark.parametrize("changed", ["texts.txt", "dev.tsv", "start/model.safetensors", "labels.csv"])
def test_seeds_are_not_added_to_those_of_other_texts_or_weights(tmp_path, words, changed):
    (tmp_path / "labels.csv").write_text("text,label\n" + "".join(f"{x},0\n" for x in sentences(9, 5)))
    words = [*words, "--output_dir", str(tmp_path / "out"), "--dev_task", f"classification={tmp_path}/labels.csv"]

    def prepare():
        return prepare_seeds([42], parse_arguments(words, UNSUP_DEFAULTS), False)

    assert prepare() == prepare() == {42: "new"}
    file = tmp_path / changed
    content = file.read_bytes()
    file.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])  # of the same size
    with pytest.raises(ValueError, match=f"digest of .*{file.name}: .* there, .* here"):
        prepare()


@pytest.mark.slow
def test_an_output_directory_with_another_run_or_other_settings_is_refused(tmp_path, words):
    out = tmp_path / "out"
    words = [*words, "--max_steps", "1", "--output_dir", str(out)]
    train_unsup([*words, "--seeds", "2"])
    with pytest.raises(ValueError, match=r"other settings \(learning_rate: 0.001 there, 0.5 here\)"):
        train_unsup([*words, "--seeds", "2", "--learning_rate", "0.5"])
    with pytest.raises(ValueError, match="holds an earlier run"):
        train_unsup([*words])
    (tmp_path / "texts.txt").write_text("\n".join(sentences(40, 0)) + "\n")
    with pytest.raises(ValueError, match="digest of .*texts.txt"):
        train_unsup([*words, "--seeds", "2"])
    train_unsup([*words, "--seeds", "8", "9", "--overwrite_output_dir"])
    assert sorted(path.name for path in out.glob("seed-*")) == ["seed-8", "seed-9"]
    train_unsup([*words, "--overwrite_output_dir"])
    assert "seeds" not in _results(out)
    with pytest.raises(ValueError, match="holds an earlier run"):
        train_unsup([*words, "--seeds", "2"])


def test_a_tracker_begins_a_run_of_its_own_for_each_seed(monkeypatch):
    """The tracker of the Trainer logs into the run that is open in its library, if there is one."""
    ended = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(finish=lambda: ended.append(True)))
    for trackers, process in ((["wandb"], 0), ([], 0), (["wandb"], 1)):
        release(SimpleNamespace(report_to=trackers, process_index=process))
    assert ended == [True]


def train_in_process(words):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    train_sup(words)


@pytest.mark.slow
def test_two_processes_train_every_seed_and_publish_the_best_once(tmp_path, words):
    rows = zip(*(sentences(32, seed) for seed in range(3)), strict=True)
    lines = "".join(",".join(row) + "\n" for row in rows)
    (tmp_path / "triplets.csv").write_text("sent0,sent1,hard_neg\n" + lines)
    words = [*words, "--train_file", str(tmp_path / "triplets.csv"), "--per_device_train_batch_size", "4"]
    words += ["--max_steps", "2", "--seeds", "2", "--output_dir", str(tmp_path / "out")]
    for _ in range(2):  # the second time, one seed is missing
        launch(train_in_process, words)
        results = _results(tmp_path / "out")
        assert results["processes"] == 2 and len(results["seeds"]["runs"]) == 2
        assert _same_weights(tmp_path / "out", tmp_path / f"out/seed-{results['seeds']['published']}")
        shutil.rmtree(tmp_path / "out/seed-43")


def test_a_run_that_starts_from_a_checkpoint_does_not_delete_it(tmp_path, words, start):
    out = tmp_path / "out"
    train_unsup([*words, "--output_dir", str(out)])
    again = [*words, "--output_dir", str(out), "--overwrite_output_dir", "true"]
    with pytest.raises(ValueError, match="checkpoint-4 is a part of the earlier run .*: choose another --output_dir"):
        train_unsup([*again, "--model_name_or_path", str(out / "checkpoint-4")])
    with pytest.raises(ValueError, match="nothing"):
        train_unsup([*again, "--columns", "nothing"])
    assert (out / "checkpoint-4").exists(), "a run that cannot start deletes nothing"
