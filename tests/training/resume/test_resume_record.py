"""A resumed run has the settings, texts and weights of the run that it continues, or says what was changed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trainer_helpers import End, logged
from transformers import TrainerCallback

from benchmarks.tiny import make_trainer
from simcse_hf.evaluation.tasks.senteval import ScoredPairs
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


# --- something else than before ---


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
    ],
)
def test_resuming_with_other_arguments_is_refused_with_both_values(interrupted, change, message):
    trainer = make_trainer(NAME, interrupted, **RUN | change)
    with pytest.raises(ValueError, match=f"{message}.*--allow_changes"):
        trainer.train(resume_from_checkpoint=True)


def other_texts(trainer):
    """Let the rows come in the opposite order."""
    rows = trainer.rows.known
    trainer.rows.known = rows.select(range(len(rows) - 1, -1, -1))


def other_dropout(trainer):
    trainer.model.config.hidden_dropout_prob = 0.3


@pytest.mark.parametrize(
    "change, message",
    [
        (other_texts, "training texts: "),
        (other_dropout, "hidden_dropout_prob: "),
    ],
)
def test_resuming_with_other_texts_or_another_model_is_refused(interrupted, change, message):
    trainer = make_trainer(NAME, interrupted, **RUN)
    change(trainer)
    with pytest.raises(ValueError, match=f"{message}.*--allow_changes"):
        trainer.train(resume_from_checkpoint=True)


def test_logging_saving_and_evaluation_may_change(interrupted):
    changes = {"logging_steps": 1, "save_steps": 1, "dataloader_num_workers": 0}
    trainer = make_trainer(NAME, interrupted, **RUN | changes)
    assert trainer.train(resume_from_checkpoint=True).global_step == 4


# --- a change that is allowed ---

CHANGED = {"learning_rate": 1e-2, "weight_decay": 0.3, "allow_changes": True}


@pytest.fixture(scope="module")
def changed(finished, tmp_path_factory):
    """The folder and the trainer of a run that was resumed with other settings.

    The name of its checkpoint does not have its step.
    """
    folder = tmp_path_factory.mktemp("changed") / "run"
    shutil.copytree(finished / "checkpoint-2", folder / "half")
    trainer = make_trainer(NAME, folder, **RUN | CHANGED)
    trainer.train(resume_from_checkpoint=folder / "half")
    return folder, trainer


RECORD = [
    {
        "step": 2,
        "settings": {"learning_rate": [1e-3, 1e-2], "weight_decay": [0.0, 0.3]},
    }
]


def test_an_allowed_change_is_recorded(changed):
    folder, trainer = changed
    record = (checkpoints(folder)[0] / "run_settings.json").read_text()
    assert json.loads(record)["changes"] == trainer.changes == RECORD


def test_an_allowed_change_reaches_the_optimizer_and_the_schedule(changed):
    _, trainer = changed
    groups = trainer.optimizer.param_groups
    assert {group["initial_lr"] for group in groups} == {1e-2}
    assert 0.3 in {group["weight_decay"] for group in groups}
    assert logged(trainer, "learning_rate")[-1] == pytest.approx(
        1e-2 / 4
    )  # the last step of a linear schedule of four


# --- the best checkpoint ---


def remove(checkpoint):
    shutil.rmtree(checkpoint)


def empty_weights(checkpoint):
    (checkpoint / "model.safetensors").write_bytes(b"")


@pytest.mark.parametrize("damage", [remove, empty_weights])
def test_a_best_checkpoint_that_was_damaged_is_not_saved_as_the_final_model(tmp_path, damage):
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


TIMES = ("runtime", "_per_second")


def without_times(scores):
    return {name: value for name, value in scores.items() if not name.endswith(TIMES)}


def results_of(trainer):
    """What results.json says, without times and places."""
    results = trainer.results.to_dict()
    del results["train_seconds"]
    del results["model"]
    for when in ("initial", "best", "final", "saved"):
        results[when] = without_times(results[when])
    return results


# --- the results of a resumed run ---

INTERRUPTIONS = pytest.mark.parametrize(
    "best, end",
    [
        pytest.param(True, End(6, RuntimeError), id="by an error"),
        pytest.param(False, End(5, None), id="by a signal"),
    ],
    scope="module",
)


@pytest.fixture(scope="module")
def options(best):
    return EVERY_2 | {"load_best_model_at_end": best}


@pytest.fixture(scope="module")
def interrupted_run(end, options, tmp_path_factory):
    """The folder of a run that was interrupted."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises((RuntimeError, SystemExit)):
        make_trainer(NAME, folder, (end,), **options).train()
    return folder


@INTERRUPTIONS
def test_an_error_leaves_the_checkpoint_before_and_a_signal_one_of_its_step(interrupted_run, end):
    last = 4 if end.error else 5
    assert checkpoints(interrupted_run)[0].name == f"checkpoint-{last}"


@INTERRUPTIONS
def test_the_results_of_a_resumed_run_are_those_of_the_uninterrupted_one(interrupted_run, options, tmp_path):
    """The second time, nothing is left to do."""
    whole = make_trainer(NAME, tmp_path / "whole", **options)
    whole.train()
    folder = shutil.copytree(interrupted_run, tmp_path / "run")
    for _ in range(2):
        resumed = make_trainer(NAME, folder, **options)
        resumed.train(resume_from_checkpoint=True)
        assert results_of(resumed) == results_of(whole)


@pytest.fixture(scope="module")
def every_loss(tmp_path_factory):
    """The folder and the results of a run, and the loss of each of its steps."""
    folder = tmp_path_factory.mktemp("losses") / "run"
    trainer = make_trainer(NAME, folder, **EVERY_2)
    stock = type(trainer).__mro__[1]
    step = stock.training_step
    losses = []

    def remember(*args):
        losses.append(step(*args))
        return losses[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stock, "training_step", remember)
        trainer.train()
    return folder, trainer.results.to_dict(), losses


def test_the_loss_of_a_run_is_the_mean_over_all_steps(every_loss):
    _, results, losses = every_loss
    mean = torch.stack(losses).mean().item()
    assert results["train_loss"] == pytest.approx(mean, rel=1e-6)


def test_the_seconds_of_a_run_are_those_of_all_its_parts(every_loss):
    folder, *_ = every_loss
    state = json.loads((checkpoints(folder)[0] / "trainer_state.json").read_text())
    before = state["stateful_callbacks"]["run_so_far"]["seconds"]
    again = make_trainer(NAME, folder, **EVERY_2)
    again.train(resume_from_checkpoint=True)
    assert again.results.train_seconds > before > 0


# --- weights that were never saved ---


NEVER_SAVED = pytest.mark.parametrize(
    "scores, saved",
    [
        pytest.param((10, 90, 20, 30, 40), 8, id="the best of all"),
        pytest.param((10, 20, 50, 90, 40), 4, id="the best after a good one"),
    ],
    scope="module",
)


@pytest.fixture(scope="module")
def of_scores(scores, tmp_path_factory):
    """The folder and the trainer of a run with these scores every second step, of which every fourth is saved."""
    folder = tmp_path_factory.mktemp("scores") / "run"
    given = iter(scores)
    evaluate = SimilarityEvalCallback.evaluate

    def score(*args):
        return evaluate(*args) | {"stsb_spearman": next(given)}

    options = {
        "eval_steps": 2,
        "save_steps": 4,
        "load_best_model_at_end": True,
        "save_total_limit": None,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimilarityEvalCallback, "evaluate", score)
        trainer = make_trainer(NAME, folder, **EVALUATED | options)
        trainer.train()
    return folder, trainer


@NEVER_SAVED
@pytest.mark.parametrize("when", ["saved", "best"])
def test_weights_that_were_never_saved_are_neither_best_nor_saved(of_scores, when, saved):
    _, trainer = of_scores
    assert trainer.results.to_dict()[when]["step"] == saved


@NEVER_SAVED
def test_the_best_weights_that_were_saved_are_loaded(of_scores, saved):
    folder, trainer = of_scores
    weights = load_file(folder / f"checkpoint-{saved}" / "model.safetensors")
    for name, weight in trainer.model.state_dict().items():
        if name in weights:
            assert torch.equal(weights[name], weight)


@NEVER_SAVED
def test_the_change_is_that_to_the_best_weights_that_were_saved(of_scores, scores, saved):
    _, trainer = of_scores
    change = trainer.results.to_dict()["change"]
    assert change["difference"] == scores[saved // 2] - scores[0]


# --- another dev set ---


@pytest.fixture(scope="module")
def with_another_dev_set(tmp_path_factory):
    """The results of a run that was resumed after its fourth step with a smaller dev set."""
    folder = tmp_path_factory.mktemp("dev_set") / "run"
    with pytest.raises(RuntimeError):
        make_trainer(NAME, folder, (End(6, RuntimeError),), **EVERY_2).train()
    trainer = make_trainer(NAME, folder, **EVERY_2 | {"allow_changes": True})
    before = trainer.dev_sets[0].pairs
    first, second = before.sentences1[:6], before.sentences2[:6]
    smaller = ScoredPairs("stsb", first, second, [float(i) for i in range(6)])
    trainer.remove_callback(trainer.dev_sets[0])
    trainer.add_callback(SimilarityEvalCallback(smaller))
    trainer.train(resume_from_checkpoint=True)
    return trainer.results.to_dict()


def test_another_dev_set_taken_on_purpose_is_compared_with_itself_and_recorded(with_another_dev_set):
    assert with_another_dev_set["initial"]["step"] == 4
    assert with_another_dev_set["changes"][0]["step"] == 4
