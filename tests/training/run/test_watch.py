"""A run is watched: broken weights end it, a collapse of the embeddings and repeated rows are reported."""

from itertools import combinations
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from trainer_helpers import EVALUATES, saved_steps
from transformers import TrainerCallback, TrainerControl, TrainerState

from benchmarks.tiny import make_trainer
from simcse_hf import AutoModelForCL
from simcse_hf.cli.main import exit_status
from simcse_hf.data.tokenize import number_texts
from simcse_hf.evaluation.metrics import collapse
from simcse_hf.training import watch as watch_module
from simcse_hf.training.checkpoints import checkpoints
from simcse_hf.training.watch import CollapseError, RunWatch

NAME = "dropout as the view"


@pytest.mark.parametrize("rows", [30, 6], ids=["more rows than dimensions", "fewer"])
def test_the_mean_cosine_and_the_effective_rank_equal_their_definitions(rows):
    vectors = torch.nn.functional.normalize(torch.randn(rows, 8, dtype=torch.float64), dim=1)
    cosines = [float(one @ other) for one, other in combinations(vectors, 2)]
    values = torch.linalg.svdvals(vectors)
    shares = values / values.sum()
    entropy = -(shares * shares.log()).sum()
    assert collapse(vectors) == pytest.approx((fmean(cosines), entropy.exp().item()), rel=1e-9)


# --- a collapse ---


class Collapse(TrainerCallback):
    """Give all texts almost the same embedding from a step on, or embeddings on a line."""

    def __init__(self, step, on_a_line=False):
        self.step = step
        self.on_a_line = on_a_line

    @torch.no_grad()
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            head = model.contrastive_head.dense
            if self.on_a_line:
                head.weight[1:] = 0
                head.bias.zero_()
            else:
                head.bias.fill_(5.0)


@pytest.mark.parametrize(
    "step, on_a_line, report",
    [
        (0, False, "began as a point and have not moved apart at step 8 (batch)"),
        (4, False, "have collapsed at step 6 (batch)"),
        (4, True, "have collapsed at step 6 (batch)"),
    ],
)
def test_a_collapse_is_reported_once(tmp_path, caplog, monkeypatch, step, on_a_line, report):
    monkeypatch.setattr(watch_module, "STUCK_STEPS", 8)
    collapse = (Collapse(step, on_a_line),)
    options = {"max_steps": 12, "learning_rate": 1e-6}
    trainer = make_trainer(NAME, tmp_path, collapse, **options)
    trainer.train()
    messages = [record.message for record in caplog.records]
    [found] = [each for each in messages if each.startswith("the embeddings")]
    assert found.startswith(f"the embeddings {report}")


def test_stop_on_collapse_ends_the_run_with_status_1_and_keeps_the_good_checkpoint(tmp_path, capsys):
    options = {"max_steps": 12, "save_steps": 2, "save_total_limit": 1}
    trainer = make_trainer(NAME, tmp_path, (Collapse(4),), stop_on_collapse=True, **options)
    assert exit_status(trainer.train, "train") == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith("train: error: the embeddings have collapsed at step 6")
    assert saved_steps(tmp_path) == [4]


def test_a_healthy_run_logs_the_geometry_of_its_whole_batches_and_is_not_warned_of(tmp_path, caplog):
    """Two texts have an effective rank of 2 at most, whatever the embeddings of 46 texts have."""
    options = {"per_device_train_batch_size": 46, "max_steps": 4, "logging_steps": 1, "learning_rate": 1e-6}
    trainer = make_trainer(NAME, tmp_path, stop_on_collapse=True, **options, **EVALUATES)
    trainer.train()
    assert "collapsed" not in caplog.text
    history = trainer.state.log_history
    batches = [entry for entry in history if "batch_rows" in entry]
    assert [(entry["step"], entry["batch_rows"]) for entry in batches] == [(1, 46), (3, 46)]
    for entry in batches:
        assert 1 <= entry["batch_effective_rank"] <= 46 and entry["batch_mean_cosine"] < 1
    assert any("eval_stsb_effective_rank" in entry for entry in history)


def test_an_encoder_that_starts_as_a_point_may_spread_out_but_not_become_one_again():
    watch = RunWatch()
    args = SimpleNamespace(stop_on_collapse=True, output_dir="run")

    def log(cosine):
        found = {"batch_mean_cosine": cosine, "batch_effective_rank": 5.0}
        watch.on_log(args, TrainerState(), TrainerControl(), logs=found)

    for cosine in (0.999, 0.995, 0.99, 0.9):
        log(cosine)
    with pytest.raises(CollapseError, match="0.9999"):
        log(0.9999)


# --- repeated rows ---


def test_equal_texts_and_no_others_have_equal_numbers():
    """A text that a row lacks has the number 0."""
    rows = Dataset.from_dict({"input_ids": [[[1, 2], [3]], [[3]], [[2, 1], [1, 2]]]})
    (first, second), (third, absent), (fourth, fifth) = number_texts(rows).tolist()
    assert (first, second, 0) == (fifth, third, absent)
    assert len({first, second, fourth, 0}) == 4


def test_repeated_rows_are_reported(make, caplog):
    make().check_run()
    assert "repeat" not in caplog.text
    make(["a cat", "a cat", "a dog", "a cat"] * 2).check_run()
    assert "6 of 8 training rows (75%) repeat" in caplog.text


# --- broken weights ---


class BreakGradient(TrainerCallback):
    """Make the gradient of one step NaN, after its loss was computed."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step - 1:
            next(model.parameters()).grad.fill_(float("nan"))


@pytest.mark.parametrize("step", [3, 4, 6], ids=["noticed by the next loss", "before a checkpoint", "the last step"])
def test_a_nan_gradient_ends_the_run_and_keeps_the_good_checkpoint_from_which_it_can_be_repeated(step, tmp_path):
    options = {"max_steps": 6, "save_steps": 2, "save_total_limit": 1}
    trainer = make_trainer(NAME, tmp_path, (BreakGradient(step),), logging_steps=100, **options)
    with pytest.raises(FloatingPointError, match="earlier are untouched"):
        trainer.train()
    [checkpoint] = checkpoints(tmp_path)
    assert checkpoint.name == f"checkpoint-{2 * ((step - 1) // 2)}"
    last_good = AutoModelForCL.from_pretrained(checkpoint).state_dict()
    assert all(torch.isfinite(weight).all() for weight in last_good.values())
    trainer.pop_callback(BreakGradient)
    trainer.model.load_state_dict(last_good, strict=False)
    assert trainer.train().global_step == 6


@pytest.mark.parametrize("step, changes", [(3, {"max_steps": 3}), (2, {"max_steps": 4, **EVALUATES})])
def test_broken_weights_are_neither_saved_at_the_end_nor_evaluated(tmp_path, step, changes):
    options = {"save_strategy": "no", "logging_steps": 100, **changes}
    trainer = make_trainer(NAME, tmp_path, (BreakGradient(step),), **options)
    with pytest.raises(FloatingPointError, match=rf"not finite after step {step} \(.*weight\)"):
        trainer.train()
