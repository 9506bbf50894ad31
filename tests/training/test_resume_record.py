"""A resumed run has the settings, texts and weights of the run that it continues, or says what was changed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trainer_helpers import End
from transformers import TrainerCallback

from benchmarks.tiny import make_trainer
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.ops.kernels import CHOICES
from simcse_hf.training.checkpoints import checkpoints
from simcse_hf.training.dev_sets import SimilarityEvalCallback

NAME = "dropout as the view"
RUN = {"max_steps": 4, "save_steps": 2, "logging_steps": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of 4 steps with the checkpoints 2 and 4, which no test may change."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    make_trainer(NAME, folder, **RUN).train()
    return folder


@pytest.fixture
def interrupted(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "checkpoint-4")
    return folder


def other_texts(trainer):
    trainer.rows.known = trainer.rows.known.select(
        range(len(trainer.rows.known) - 1, -1, -1)
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": 7}, "seed: 42 there, 7 here"),
        ({"learning_rate": 1e-2}, "learning_rate: 0.001 there, 0.01 here"),
        ({"weight_decay": 0.3}, "weight_decay: 0.0 there, 0.3 here"),
        (
            {"gradient_accumulation_steps": 2},
            "gradient_accumulation_steps: 1 there, 2 here",
        ),
        (
            {"per_device_train_batch_size": 4},
            "per_device_train_batch_size: 8 there, 4 here",
        ),
        ({"max_seq_length": 12}, "max_seq_length: 16 there, 12 here"),
        (
            {"lr_scheduler_type": "constant"},
            "lr_scheduler_type: linear there, constant here",
        ),
        ({"max_steps": 8}, "max_steps: 4 there, 8 here"),
        ({"view": "delete_words"}, "view: identity there, delete_words here"),
        (other_texts, "training texts: "),
        (
            lambda trainer: setattr(trainer, "start_digest", "0"),
            "starting weights: .* there, 0 here",
        ),
        (
            lambda trainer: setattr(trainer.model.config, "hidden_dropout_prob", 0.3),
            "hidden_dropout_prob: ",
        ),
    ],
)
def test_resuming_with_something_else_is_refused_with_both_values(
    interrupted, change, message
):
    trainer = make_trainer(
        NAME, interrupted, **(RUN | (change if isinstance(change, dict) else {}))
    )
    if not isinstance(change, dict):
        change(trainer)
    with pytest.raises(ValueError, match=message) as error:
        trainer.train(resume_from_checkpoint=True)
    assert "--allow_changes" in str(error.value)


def test_logging_saving_and_evaluation_may_change(interrupted):
    changes = {"logging_steps": 1, "save_steps": 1, "dataloader_num_workers": 0}
    assert (
        make_trainer(NAME, interrupted, **RUN | changes)
        .train(resume_from_checkpoint=True)
        .global_step
        == 4
    )


def test_an_allowed_change_is_applied_and_recorded(interrupted):
    values = {"learning_rate": 1e-2, "weight_decay": 0.3, "allow_changes": True}
    trainer = make_trainer(NAME, interrupted, **RUN | values)
    renamed = (interrupted / "checkpoint-2").rename(
        interrupted / "half"
    )  # its step is not in its name
    trainer.train(resume_from_checkpoint=renamed)
    record = json.loads((checkpoints(interrupted)[0] / "run_settings.json").read_text())
    settings = {"learning_rate": [1e-3, 1e-2], "weight_decay": [0.0, 0.3]}
    assert record["changes"] == [{"step": 2, "settings": settings}] == trainer.changes
    assert {group["initial_lr"] for group in trainer.optimizer.param_groups} == {1e-2}
    assert 0.3 in {group["weight_decay"] for group in trainer.optimizer.param_groups}
    rates = [
        x["learning_rate"] for x in trainer.state.log_history if "learning_rate" in x
    ]
    assert rates[-1] == pytest.approx(1e-2 / 4)  # the last step of a linear schedule


@pytest.mark.parametrize(
    "damage",
    [shutil.rmtree, lambda path: (path / "model.safetensors").write_bytes(b"")],
)
def test_a_best_checkpoint_that_was_damaged_is_not_saved_as_the_final_model(
    tmp_path, damage
):
    options = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
    }

    class Damage(TrainerCallback):
        def on_save(self, args, state, control, **_):
            if state.global_step == 4:
                damage(Path(state.best_model_checkpoint))

    trainer = make_trainer(NAME, tmp_path / "run", (Damage(),), **RUN | options)
    with pytest.raises(ValueError, match="the best checkpoint .* cannot be loaded"):
        trainer.train()


EVALUATED = {
    "max_steps": 8,
    "save_steps": 2,
    "logging_steps": 3,
    "eval_strategy": "steps",
    "eval_on_start": True,
}
EVERY_2 = EVALUATED | {"eval_steps": 2, "learning_rate": 1e-2}


def _results(trainer):
    """What results.json says, without times and places."""
    results = {
        k: v
        for k, v in trainer.results.to_dict().items()
        if k not in ("train_seconds", "model")
    }
    for when in ("initial", "best", "final", "saved"):
        results[when] = {
            k: v
            for k, v in results[when].items()
            if not k.endswith(("runtime", "_per_second"))
        }
    return results


@pytest.mark.parametrize(
    "best, end, first", [(True, End(6, RuntimeError), 4), (False, End(5, None), 5)]
)
def test_the_results_of_a_resumed_run_are_those_of_the_uninterrupted_one(
    tmp_path, best, end, first
):
    options = EVERY_2 | {"load_best_model_at_end": best}
    whole = make_trainer(NAME, tmp_path / "whole", **options)
    whole.train()
    expected = _results(whole)
    with pytest.raises((RuntimeError, SystemExit)):
        make_trainer(NAME, tmp_path / "run", (end,), **options).train()
    assert checkpoints(tmp_path / "run")[0].name == f"checkpoint-{first}"
    for _ in range(2):  # the second time, nothing is left to do
        resumed = make_trainer(NAME, tmp_path / "run", **options)
        resumed.train(resume_from_checkpoint=True)
        assert _results(resumed) == expected


def test_the_seconds_and_the_loss_of_a_run_are_those_of_all_its_parts(
    tmp_path, monkeypatch
):
    trainer = make_trainer(NAME, tmp_path / "run", **EVERY_2)
    losses, step = [], type(trainer).__mro__[1].training_step
    monkeypatch.setattr(
        type(trainer).__mro__[1],
        "training_step",
        lambda *args: losses.append(step(*args)) or losses[-1],
    )
    trainer.train()
    results = trainer.results.to_dict()
    assert results["train_loss"] == pytest.approx(
        torch.stack(losses).mean().item(), rel=1e-6
    )
    state = checkpoints(tmp_path / "run")[0] / "trainer_state.json"
    before = json.loads(state.read_text())["stateful_callbacks"]["run_so_far"][
        "seconds"
    ]
    again = make_trainer(NAME, tmp_path / "run", **EVERY_2)
    again.train(resume_from_checkpoint=True)
    assert again.results.train_seconds > before > 0


@pytest.mark.parametrize(
    "scores, saved, best", [((10, 90, 20, 30, 40), 8, 8), ((10, 20, 50, 90, 40), 4, 4)]
)
def test_weights_that_were_never_saved_are_neither_best_nor_saved(
    tmp_path, monkeypatch, scores, saved, best
):
    given, evaluate = iter(scores), SimilarityEvalCallback.evaluate
    monkeypatch.setattr(
        SimilarityEvalCallback,
        "evaluate",
        lambda *args: evaluate(*args) | {"stsb_spearman": next(given)},
    )
    options = {
        "eval_steps": 2,
        "save_steps": 4,
        "load_best_model_at_end": True,
        "save_total_limit": None,
    }
    trainer = make_trainer(NAME, tmp_path / "run", **EVALUATED | options)
    trainer.train()
    results = trainer.results.to_dict()
    assert (results["saved"]["step"], results["best"]["step"]) == (saved, best)
    weights = load_file(tmp_path / "run" / f"checkpoint-{saved}" / "model.safetensors")
    assert all(
        torch.equal(weights[name], x)
        for name, x in trainer.model.state_dict().items()
        if name in weights
    )
    assert results["change"]["difference"] == scores[saved // 2] - scores[0]


def test_another_dev_set_taken_on_purpose_is_compared_with_itself(tmp_path):
    with pytest.raises(RuntimeError):
        make_trainer(NAME, tmp_path / "run", (End(6, RuntimeError),), **EVERY_2).train()
    trainer = make_trainer(NAME, tmp_path / "run", **EVERY_2 | {"allow_changes": True})
    pairs = trainer.dev_sets[0].pairs
    trainer.remove_callback(trainer.dev_sets[0])
    other = ScoredPairs(
        "stsb", pairs.sentences1[:6], pairs.sentences2[:6], [float(i) for i in range(6)]
    )
    trainer.add_callback(SimilarityEvalCallback(other))
    trainer.train(resume_from_checkpoint=True)
    results = trainer.results.to_dict()
    assert results["initial"]["step"] == 4 and results["changes"][0]["step"] == 4


def test_a_resumed_run_keeps_the_attention_kernels_of_its_checkpoint(
    tmp_path, monkeypatch
):
    """Each kernel draws other dropout masks, and another measurement might choose another one."""
    monkeypatch.setitem(CHOICES, "the candidates", "flash")
    with pytest.raises(RuntimeError):
        make_trainer(NAME, tmp_path / "run", (End(3, RuntimeError),), **RUN).train()
    CHOICES["the candidates"] = "padded"  # as another process would choose
    make_trainer(NAME, tmp_path / "run", **RUN).train(resume_from_checkpoint=True)
    assert CHOICES["the candidates"] == "flash"
