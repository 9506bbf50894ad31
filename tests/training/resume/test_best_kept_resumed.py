"""The best checkpoint that was saved is kept, loaded at the end, and known again when a run is resumed."""

import math
import random
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from trainer_helpers import End, Signal, saved_steps
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from simcse_hf import WholeCheckpointTrainer

STEPS, EPOCH, PATIENCE, KILLED = 10, 3, 3, 8


class Steps(torch.nn.Module):
    """A model whose weight is the number of steps that it was trained."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, number):
        return {"loss": -self.weight.sum()}


class ScoredTrainer(WholeCheckpointTrainer):
    """A trainer whose evaluation looks a score up, and notes its step."""

    def evaluate(self, *args, **kwargs):
        self.evaluated.append(self.state.global_step)
        metrics = {"eval_score": self.scores[self.state.global_step]}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save(self, output_dir=None, state_dict=None):
        Path(output_dir).mkdir(parents=True)
        save_file(self.model.state_dict(), Path(output_dir, "model.safetensors"))


class Tally(TrainerCallback, ExportableState):
    """Count steps, in units of its own."""

    def __init__(self, unit):
        self.unit = unit
        self.count = 0

    def on_step_end(self, *args, **kwargs):
        self.count += self.unit

    def state(self):
        return {"args": {"unit": self.unit}, "attributes": {"count": self.count}}


class Added(Tally):
    """A callback that the run did not have before it was resumed."""

    def __init__(self):
        super().__init__(1)


def make_run(folder, scores=(0,) * (STEPS + 1), callbacks=(), **options):
    values = {"max_steps": STEPS, "learning_rate": 1.0, "optim": "sgd", "lr_scheduler_type": "constant"}
    values |= {"max_grad_norm": 0.0, "per_device_train_batch_size": 1, "use_cpu": True, "logging_strategy": "no"}
    values |= {"disable_tqdm": True, "report_to": "none", "dataloader_pin_memory": False, "save_steps": 2}
    rows = [{"number": torch.tensor(0)}] * EPOCH
    args = TrainingArguments(str(folder), **values | options)
    trainer = ScoredTrainer(Steps(), args, train_dataset=rows, eval_dataset=rows, callbacks=[*callbacks])
    trainer.scores = scores
    trainer.evaluated = []
    return trainer


def every(steps):
    """The steps of an interval, a share of all steps or an epoch, and the last one."""
    number = EPOCH if steps == "epoch" else steps
    number = math.ceil(STEPS * number) if number < 1 else number
    return {*range(number, STEPS, number), STEPS}


def expected(scores, evaluated, saved, limit, loads, stops):
    """The step of the final weights, the checkpoints, and the last step."""
    top, misses, made, kept, best = -1, 0, [], [], None
    for step in range(1, STEPS + 1):
        is_new = step in evaluated and scores[step] > top
        misses = 0 if is_new else misses + (step in evaluated)
        top = scores[step] if is_new else top
        if is_new if saved == "best" else step in saved:
            made.append(step)
            best = max([s for s in made if s in evaluated], key=scores.__getitem__, default=None)
            others = [s for s in kept if s != best]
            surplus = len(kept) + 1 - (limit or STEPS)
            kept = sorted({*kept, step} - {*others[: max(0, surplus)]})
        if stops and misses == PATIENCE:
            break
    kept = [best] if limit == 1 and best else kept  # transformers then deletes the last one
    return best if loads and best else step, kept, step


SCHEDULES = [(1, 2), (2, 4), (3, 3), (0.1, 0.3), (0.25, 0.5), ("epoch", "epoch"), (2, "best"), ("epoch", "best")]


@pytest.mark.parametrize("evaluation, saving", SCHEDULES)
@pytest.mark.parametrize("limit, stops", [(1, True), (1, False), (2, False), (None, True)])
@pytest.mark.parametrize("loads", [True, False])
def test_the_best_saved_checkpoint_is_kept_and_loaded_also_after_a_resume(
    evaluation, saving, limit, stops, loads, tmp_path
):
    options = {"metric_for_best_model": "score", "greater_is_better": True, "load_best_model_at_end": loads}
    options |= {"eval_strategy": "steps", "save_strategy": "steps", "save_total_limit": limit}
    for name, given in {"eval": evaluation, "save": saving}.items():
        options[f"{name}_strategy" if isinstance(given, str) else f"{name}_steps"] = given
    scores = random.Random(f"{evaluation} {saving} {limit} {loads}").sample(range(100), STEPS + 1)
    saved = saving if saving == "best" else every(saving)
    if loads and (evaluation, saving) == (0.25, 0.5):
        saved = {6, STEPS}  # rounded, they are 3 and 5, and step 5 is not evaluated

    def run(folder, *callbacks):
        stop = [EarlyStoppingCallback(PATIENCE)] * stops
        return make_run(tmp_path / folder, scores, [*callbacks, *stop], **options)

    def outcome(trainer):
        return trainer.model.weight.item(), sorted(saved_steps(trainer.args.output_dir)), trainer.state.global_step

    (tmp_path / "whole" / "checkpoint-2.bak").mkdir(parents=True)
    whole = run("whole")
    whole.train()
    weight, kept, last = expected(scores, whole.evaluated, saved, limit, loads, stops)
    again = run("whole")
    again.train(resume_from_checkpoint=True)  # when nothing is left to do
    for trainer in (whole, again):
        assert outcome(trainer) == (weight, kept, last), scores
        assert (tmp_path / "whole" / "checkpoint-2.bak").is_dir()
    if last < KILLED:
        return
    with pytest.raises(KeyboardInterrupt):
        run("killed", Tally(1), Tally(10), End(KILLED)).train()
    added = Added()
    resumed = run("killed", Tally(1), Tally(10), added)
    resumed.train(resume_from_checkpoint=True)
    assert outcome(resumed) == (weight, kept, last), scores
    tallies = [each.count for each in resumed.callback_handler.callbacks if type(each) is Tally]
    assert tallies == [last, 10 * last] and 0 < added.count < last


def test_the_arguments_may_name_the_checkpoint_and_have_other_steps(tmp_path):
    make_run(tmp_path, max_steps=5).train()
    resumed = {"resume_from_checkpoint": str(tmp_path / "checkpoint-4"), "logging_strategy": "steps"}
    trainer = make_run(tmp_path, **resumed, save_steps=3, logging_steps=0.3)
    trainer.train()
    assert trainer.model.weight.item() == STEPS
    assert saved_steps(tmp_path) == [10, 9, 6, 5, 4, 2]
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [6, 9]
    trainer.train(resume_from_checkpoint=False)
    assert trainer.model.weight.item() == 2 * STEPS


@pytest.mark.parametrize("better, best", [(True, 2), (False, 6)])
def test_the_best_checkpoint_is_known_in_a_folder_that_was_moved_and_by_other_settings(
    better, best, tmp_path, monkeypatch
):
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_total_limit": 1}
    scores = (0, 0, 90, 0, 80, 0, 10, 0, 20, 0, 30)
    with pytest.raises(KeyboardInterrupt):
        make_run(tmp_path / "one", scores, [End(6)], **options, metric_for_best_model="score").train()
    (tmp_path / "one").rename(tmp_path / "two")
    monkeypatch.chdir(tmp_path)
    options |= {"metric_for_best_model": "score", "load_best_model_at_end": True, "greater_is_better": better}
    trainer = make_run("two", scores, **options)
    trainer.train(resume_from_checkpoint=tmp_path / "two" / "checkpoint-4")
    assert trainer.model.weight.item() == best


def test_sigterm_in_a_run_with_jit_checkpoints_saves_one_and_ends_the_process_afterwards(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    trainer = make_run(tmp_path, (), [Signal(signal.SIGTERM, 3)], enable_jit_checkpoint=True, save_strategy="no")
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(SystemExit):
        trainer.train()
    assert saved_steps(tmp_path) == [3]
    assert signal.getsignal(signal.SIGTERM) == before
