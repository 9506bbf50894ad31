"""Broken weights never end a run quietly: they are not saved, and no good checkpoint is deleted for them."""

from contextlib import nullcontext

import pytest
import torch
from transformers import TrainerCallback

from benchmarks.tiny import make_trainer
from simcse_hf import AutoModelForCL
from simcse_hf.training.checkpoints import checkpoints
from simcse_hf.training.pretraining import parse_pretraining_arguments, pretrain

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
    saved = AutoModelForCL.from_pretrained(tmp_path / f"checkpoint-{last_good}")
    assert all(torch.isfinite(tensor).all() for tensor in saved.state_dict().values())


def test_a_last_step_that_breaks_the_weights_is_an_error_without_any_saving(tmp_path):
    trainer = make_trainer(NAME, tmp_path, (BreakGradient(3),), max_steps=3, save_strategy="no", logging_steps=100)
    with pytest.raises(FloatingPointError, match=r"not finite after step 3 \(.*weight\)"):
        trainer.train()


def test_broken_weights_are_not_evaluated(tmp_path):
    trainer = make_trainer(
        NAME, tmp_path, (BreakGradient(2),), max_steps=4, eval_strategy="steps", eval_steps=2, save_strategy="no"
    )
    with pytest.raises(FloatingPointError, match="the weights are not finite after step 2"):
        trainer.train()


def test_resuming_a_finished_masked_lm_run_takes_no_further_step_and_keeps_its_vocabulary(tmp_path):
    """A WordPiece tokenizer that is trained again has another vocabulary."""
    (tmp_path / "texts.txt").write_text("".join(f"the cat {i} sat on the mat\n" for i in range(40)))
    words = f"--train_file {tmp_path / 'texts.txt'} --output_dir {tmp_path / 'run'} --max_steps 2 --save_steps 2"
    sizes = "--train_tokenizer true --vocab_size 60 --hidden_size 16 --num_hidden_layers 1 --num_attention_heads 2"
    words = f"{words} {sizes} --use_cpu true --disable_tqdm true --report_to none --per_device_train_batch_size 4"
    tokenizer = tmp_path / "run" / "tokenizer.json"
    first = pretrain(*parse_pretraining_arguments(words.split()))
    vocabulary = tokenizer.read_text()
    again = pretrain(*parse_pretraining_arguments([*words.split(), "--resume_from_checkpoint", "true"]))
    assert first["steps"] == again["steps"] == 2
    assert first["masked_lm_loss"]["after"] == again["masked_lm_loss"]["after"]
    assert tokenizer.read_text() == vocabulary


def test_training_avoids_the_attention_of_cudnn(tmp_path, monkeypatch):
    devices = []

    def avoid(device):
        devices.append(device)
        return nullcontext()

    monkeypatch.setattr("simcse_hf.training.trainer.avoid_cudnn_attention", avoid)
    trainer = make_trainer(NAME, tmp_path, max_steps=1, save_strategy="no")
    trainer.train()
    assert devices == [trainer.args.device]
