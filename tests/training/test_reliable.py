"""Broken weights never end a run quietly: they are not saved, and no good checkpoint is deleted for them."""

from contextlib import nullcontext

import pytest
import torch
from transformers import TrainerCallback

from benchmarks.tiny import make_trainer
from simcse_hf import AutoModelForCL
from simcse_hf.training.checkpoints import checkpoints

NAME = "dropout as the view"


class BreakGradient(TrainerCallback):
    """Make the gradient of one step NaN, after its loss was computed."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step - 1:
            next(model.parameters()).grad.fill_(float("nan"))


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_nan_gradient_ends_the_run_and_keeps_the_good_checkpoint(tmp_path, step):
    """Step 4 is saved at once, step 3 is noticed by the next loss, and step 6 is the last."""
    trainer = make_trainer(
        NAME, tmp_path, (BreakGradient(step),), max_steps=6, save_steps=2, save_total_limit=1, logging_steps=100
    )
    with pytest.raises(FloatingPointError, match="earlier are untouched"):
        trainer.train()
    last_good = 2 * ((step - 1) // 2)
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{last_good}"]
    saved = AutoModelForCL.from_pretrained(tmp_path / f"checkpoint-{last_good}").state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in saved.values())
    trainer.pop_callback(BreakGradient)
    trainer.model.load_state_dict(saved, strict=False)
    assert trainer.train().global_step == 6, "training can be repeated"


@pytest.mark.parametrize(
    "step, changes", [(3, {"max_steps": 3}), (2, {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2})]
)
def test_broken_weights_are_neither_saved_at_the_end_nor_evaluated(tmp_path, step, changes):
    trainer = make_trainer(NAME, tmp_path, (BreakGradient(step),), save_strategy="no", logging_steps=100, **changes)
    with pytest.raises(FloatingPointError, match=rf"not finite after step {step} \(.*weight\)"):
        trainer.train()


def test_training_avoids_the_attention_of_cudnn(tmp_path, monkeypatch):
    devices = []

    def avoid(device):
        devices.append(device)
        return nullcontext()

    monkeypatch.setattr("simcse_hf.training.trainer.avoid_cudnn_attention", avoid)
    trainer = make_trainer(NAME, tmp_path, max_steps=1, save_strategy="no")
    trainer.train()
    assert devices == [trainer.args.device]
