"""A resumed run has the settings, texts and weights of the run that it continues, or says what was changed."""

import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import NEEDS_PEFT, read_json
from trainer_helpers import KEEPS_BEST, End, Rates, refuses, saved_steps, without_times
from transformers import Trainer, TrainerCallback

from benchmarks.tiny import make_trainer
from simcse_hf.evaluation.tasks.senteval import ScoredPairs
from simcse_hf.training.checkpoints import checkpoints
from simcse_hf.training.dev_sets import SimilarityEvalCallback

NAME = "dropout as the view"
RUN = {"max_steps": 4, "save_steps": 2, "logging_steps": 2}
EVALUATED = {"max_steps": 8, "save_steps": 2, "logging_steps": 3, "eval_strategy": "steps", "eval_on_start": True}
EVERY_2 = EVALUATED | {"eval_steps": 2, "learning_rate": 1e-2, "load_best_model_at_end": True}


@pytest.fixture(scope="module")
def finished(module_path):
    """The folder of a run of 4 steps with the checkpoints 2 and 4, which no test may change."""
    folder = module_path / "run"
    make_trainer(NAME, folder, **RUN).train()
    return folder


@pytest.fixture
def interrupted(finished, tmp_path):
    shutil.copytree(finished / "checkpoint-2", tmp_path / "run" / "checkpoint-2")
    return tmp_path / "run"


# --- something else than before ---


def other_texts(trainer):
    """Let the rows come in the opposite order."""
    rows = trainer.rows.known
    trainer.rows.known = rows.select(range(len(rows) - 1, -1, -1))


def other_dropout(trainer):
    trainer.model.config.hidden_dropout_prob = 0.3


@pytest.mark.parametrize(
    "options, change, message",
    [
        ({"seed": 7}, None, "seed: 42 there, 7 here"),
        pytest.param({"lora_r": 8}, None, "lora_r: None there, 8 here", marks=NEEDS_PEFT),
        ({}, other_texts, "training texts: "),
        ({}, other_dropout, "hidden_dropout_prob: "),
    ],
)
def test_resuming_another_run_is_refused_with_both_values(interrupted, options, change, message):
    trainer = make_trainer(NAME, interrupted, **RUN | options)
    if change:
        change(trainer)
    with refuses(f"{message} --allow_changes"):
        trainer.train(resume_from_checkpoint=True)


def test_logging_saving_and_evaluation_may_change(interrupted):
    changes = {"logging_steps": 1, "save_steps": 1, "dataloader_num_workers": 0}
    trainer = make_trainer(NAME, interrupted, **RUN | changes)
    assert trainer.train(resume_from_checkpoint=True).global_step == 4


def test_an_allowed_change_is_recorded_and_reaches_the_optimizer_and_the_schedule(finished, tmp_path):
    """The name of the checkpoint does not have its step."""
    shutil.copytree(finished / "checkpoint-2", tmp_path / "half")
    changed = {"learning_rate": 1e-2, "weight_decay": 0.3, "max_steps": 8, "allow_changes": True}
    rates = Rates()
    trainer = make_trainer(NAME, tmp_path, (rates,), **RUN | changed)
    trainer.train(resume_from_checkpoint=tmp_path / "half")
    record = read_json(checkpoints(tmp_path)[0] / "run_settings.json")
    settings = {"learning_rate": [1e-3, 1e-2], "weight_decay": [0.0, 0.3], "max_steps": [4, 8]}
    assert record["changes"] == trainer.changes == [{"step": 2, "settings": settings}]
    groups = trainer.optimizer.param_groups
    assert {group["initial_lr"] for group in groups} == {1e-2}
    assert 0.3 in {group["weight_decay"] for group in groups}
    used = [rate for rate, *_ in rates.used]
    assert used == pytest.approx([1e-2 * (8 - step) / 8 for step in range(2, 8)])  # those of a fresh run


# --- the best checkpoint ---


def test_a_best_checkpoint_that_was_damaged_is_not_saved_as_the_final_model(tmp_path):
    class Damage(TrainerCallback):
        def on_save(self, args, state, control, **_):
            if state.global_step == 4:
                Path(state.best_model_checkpoint, "model.safetensors").write_bytes(b"")

    options = RUN | KEEPS_BEST
    trainer = make_trainer(NAME, tmp_path / "run", (Damage(),), **options)
    with refuses("best checkpoint cannot be loaded"):
        trainer.train()


@pytest.mark.parametrize("resumes", [False, True])
def test_a_callback_may_change_the_working_directory(resumes, tmp_path, monkeypatch):
    class Moves(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            (tmp_path / "elsewhere").mkdir(exist_ok=True)
            os.chdir(tmp_path / "elsewhere")

    monkeypatch.chdir(tmp_path)
    options = RUN | KEEPS_BEST
    checkpoint = None
    if resumes:
        make_trainer(NAME, Path("run"), (), **options).train()
        checkpoint = "run/checkpoint-2"
    trainer = make_trainer(NAME, Path("run"), (Moves(),), **options)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_weights_that_were_never_saved_are_neither_best_nor_saved(tmp_path, monkeypatch):
    """Every second step is scored, and every fourth one saved."""
    scores = (10, 20, 50, 90, 40)
    given = iter(scores)
    evaluate = SimilarityEvalCallback.evaluate
    monkeypatch.setattr(
        SimilarityEvalCallback, "evaluate", lambda *args: evaluate(*args) | {"stsb_spearman": next(given)}
    )
    options = {"eval_steps": 2, "save_steps": 4, "load_best_model_at_end": True, "save_total_limit": None}
    trainer = make_trainer(NAME, tmp_path, **EVALUATED | options)
    trainer.train()
    results = trainer.results
    assert results.saved["step"] == results.best["step"] == 4
    assert results.change.difference == 50 - 10


# --- the results of a resumed run ---


def results_of(trainer):
    """What results.json says, without times and places."""
    results = without_times(trainer.results.to_dict())
    del results["model"]
    return results


def test_the_results_of_a_resumed_run_are_those_of_the_uninterrupted_one(tmp_path, monkeypatch):
    """The loss is the mean over all steps, the seconds are those of all parts. In the end nothing is left to do."""
    losses = []
    step = Trainer.training_step

    def remember(*args):
        losses.append(step(*args))
        return losses[-1]

    monkeypatch.setattr(Trainer, "training_step", remember)
    whole = make_trainer(NAME, tmp_path / "whole", **EVERY_2)
    whole.train()
    assert whole.results.run["train_loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-6)
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError):
        make_trainer(NAME, folder, (End(6, RuntimeError),), **EVERY_2).train()
    assert saved_steps(folder)[0] == 4
    for _ in range(2):
        before = read_json(checkpoints(folder)[0] / "trainer_state.json")
        resumed = make_trainer(NAME, folder, **EVERY_2)
        output = resumed.train(resume_from_checkpoint=True)
        assert results_of(resumed) == results_of(whole)
        assert output.training_loss == output.metrics["train_loss"] == whole.results.run["train_loss"]
        assert resumed.results.train_seconds > before["stateful_callbacks"]["run_so_far"]["seconds"] > 0


def test_transformers_restores_callbacks_without_a_warning_about_those_of_this_package(
    interrupted, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    trainer = make_trainer(NAME, interrupted, **RUN | {"restore_callback_states_from_checkpoint": True})
    trainer.train(resume_from_checkpoint=True)
    assert "Checkpoint included callbacks" not in caplog.text
    saved = read_json(interrupted / "checkpoint-2/trainer_state.json")["stateful_callbacks"]
    assert trainer.results.train_seconds > saved["run_so_far"]["seconds"] > 0


def test_another_dev_set_taken_on_purpose_is_compared_with_itself_and_recorded(tmp_path):
    with pytest.raises(RuntimeError):
        make_trainer(NAME, tmp_path, (End(6, RuntimeError),), **EVERY_2).train()
    trainer = make_trainer(NAME, tmp_path, **EVERY_2 | {"allow_changes": True, "load_best_model_at_end": False})
    [dev_set] = trainer.dev_sets
    first, second = dev_set.pairs.sentences1[:6], dev_set.pairs.sentences2[:6]
    trainer.remove_callback(dev_set)
    trainer.add_callback(SimilarityEvalCallback(ScoredPairs("stsb", first, second, [float(i) for i in range(6)])))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.results.initial["step"] == 4
    assert trainer.changes[0]["step"] == 4
