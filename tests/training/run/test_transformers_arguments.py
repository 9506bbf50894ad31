"""transformers' Trainer is honoured whole: what it takes is used, or refused before the first step."""

import pytest
import torch
from conftest import NEEDS_PEFT
from trainer_helpers import (
    KEEPS_BEST,
    SAVES,
    make,
    model_of,
    refuses,
    sentences,
    weights,
)
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_callback import ExportableState

from simcse_hf import AutoModelForCL, SimCSETrainer


def test_a_loss_in_the_place_of_ours_is_called_in_every_step_or_refused(tmp_path, tokenizer):
    calls = []

    class Own(SimCSETrainer):
        def compute_loss(self, *args, **kwargs):
            calls.append(1)
            return super().compute_loss(*args, **kwargs)

    make(tmp_path, tokenizer, trainer_class=Own).train()
    assert len(calls) == 4
    with refuses("compute_loss gradcache_chunk_size"):
        make(tmp_path, tokenizer, trainer_class=Own, gradcache_chunk_size=4).train()
    with refuses("compute_loss_func gradcache_chunk_size"):
        make(
            tmp_path,
            tokenizer,
            compute_loss_func=lambda *_, **__: 0,
            gradcache_chunk_size=4,
        ).train()


@pytest.mark.parametrize(
    ("settings", "options"),
    [pytest.param({}, {"lora_r": 4}, marks=NEEDS_PEFT), ({"objective": "vicreg"}, {})],
    ids=str,
)
def test_an_optimizer_that_misses_what_is_trained_is_refused(settings, options, tmp_path, tokenizer):
    model = model_of(pooler_type="avg", **settings)
    optimizers = (torch.optim.AdamW(model.parameters(), lr=1e-3), None)
    with refuses("optimizer_cls_and_kwargs"):
        make(tmp_path, tokenizer, model=model, optimizers=optimizers, **options).train()


def test_an_optimizer_by_its_class_trains_everything(tmp_path, tokenizer):
    model = model_of(pooler_type="avg", objective="vicreg", objective_options={"projector_dim": 8})
    trainer = make(
        tmp_path,
        tokenizer,
        model=model,
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.5}),
    )
    before = weights(trainer.model)
    trainer.train()
    after = trainer.model.state_dict()
    still = [name for name in before if name.startswith("objective.") and torch.equal(before[name], after[name])]
    assert still == []


class Counting(TrainerCallback, ExportableState):
    """Counts the steps of a run."""

    def __init__(self):
        self.steps = 0

    def on_step_end(self, args, state, control, **_):
        self.steps += 1

    def state(self):
        return {"args": {}, "attributes": {"steps": self.steps}}


def test_the_state_of_a_callers_callbacks_is_part_of_a_resume(tmp_path, tokenizer):
    def run(**options):
        own = {
            "callbacks": [Counting(), EarlyStoppingCallback(3)],
            "eval_dataset": sentences(8),
        }
        return make(tmp_path, tokenizer, **own, **KEEPS_BEST, **options)

    run(max_steps=2).train()
    again = run(max_steps=4, allow_changes=True)
    again.train(resume_from_checkpoint=True)
    counting = next(x for x in again.callback_handler.callbacks if isinstance(x, Counting))
    assert counting.steps == 4


def test_a_notebook_may_resume_with_a_model_made_anew(tmp_path, tokenizer, save_checkpoint):
    """A head that no embedding goes through is drawn anew with the model, and is no change of the start."""
    start = save_checkpoint(model_of(pooler_type="avg"))

    def run():
        torch.manual_seed(torch.seed())
        model = AutoModelForCL.from_pretrained(start, head="fresh", pooler_type="avg")
        return make(tmp_path, tokenizer, model=model, **SAVES)

    run().train()
    run().train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))


def test_the_first_step_after_changed_settings_has_the_rate_of_a_fresh_run(tmp_path, tokenizer):
    def rates(folder, resume=None, **options):
        used = []

        class Noting(TrainerCallback):
            def on_step_begin(self, args, state, control, optimizer, **_):
                used.append(optimizer.param_groups[0]["lr"])

        trainer = make(folder, tokenizer, callbacks=[Noting()], **SAVES, **options)
        trainer.train(resume_from_checkpoint=resume)
        return used

    rates(tmp_path, max_steps=6, learning_rate=1e-3)
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    changed = {"max_steps": 8, "learning_rate": 1e-4}
    resumed = rates(tmp_path, checkpoint, allow_changes=True, **changed)
    fresh = rates(tmp_path / "fresh", **changed)
    assert resumed == pytest.approx(fresh[2:])
