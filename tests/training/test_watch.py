"""A run is watched: broken weights end it, a collapse of the embeddings and repeated rows are reported."""

import logging
import random
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from trainer_helpers import make
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


@pytest.mark.parametrize("rows, dim", [(30, 8), (6, 8)])
def test_mean_cosine_and_effective_rank_equal_their_definitions(rows, dim):
    x = torch.nn.functional.normalize(
        torch.randn(rows, dim, dtype=torch.float64), dim=1
    )
    cosines = [float(x[i] @ x[j]) for i in range(rows) for j in range(rows) if i != j]
    p = torch.linalg.svdvals(x) / torch.linalg.svdvals(x).sum()
    rank = torch.exp(-(p * p.log()).sum()).item()
    assert collapse(x) == pytest.approx((sum(cosines) / len(cosines), rank), rel=1e-9)


class Collapse(TrainerCallback):
    """Give all texts almost the same embedding from a step on, or embeddings on a line."""

    def __init__(self, step, on_a_line=False):
        self.step, self.on_a_line = step, on_a_line

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
def test_a_collapse_is_reported_once(
    tmp_path, caplog, monkeypatch, step, on_a_line, report
):
    monkeypatch.setattr(watch_module, "STUCK_STEPS", 8)
    trainer = make_trainer(
        NAME, tmp_path, (Collapse(step, on_a_line),), max_steps=12, learning_rate=1e-6
    )
    with caplog.at_level(logging.WARNING):
        trainer.train()
    reports = [
        record.message
        for record in caplog.records
        if record.message.startswith("the embeddings")
    ]
    assert len(reports) == 1 and reports[0].startswith(f"the embeddings {report}")


def test_stop_on_collapse_ends_the_run_with_status_1_and_keeps_the_good_checkpoint(
    tmp_path, capsys
):
    trainer = make_trainer(
        NAME,
        tmp_path,
        (Collapse(4),),
        max_steps=12,
        save_steps=2,
        save_total_limit=1,
        stop_on_collapse=True,
    )
    assert exit_status(trainer.train, "train") == 1
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("train: error: the embeddings have collapsed at step 6")
    )
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-4"]


def test_a_healthy_run_logs_the_geometry_and_warns_of_nothing(tmp_path, caplog):
    trainer = make_trainer(
        NAME,
        tmp_path,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=6,
        stop_on_collapse=True,
    )
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert "collapsed" not in caplog.text
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert all(
        1 <= entry["batch_effective_rank"] <= 8 and entry["batch_mean_cosine"] < 1
        for entry in logged
    )
    assert any(
        "eval_stsb_effective_rank" in entry for entry in trainer.state.log_history
    )


def test_a_small_last_batch_is_no_collapse(tmp_path):
    """Two texts have an effective rank of 2 at most, whatever the embeddings of 46 texts have."""
    options = {
        "per_device_train_batch_size": 46,
        "max_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1e-6,
    }
    trainer = make_trainer(
        NAME, tmp_path, stop_on_collapse=True, save_strategy="no", **options
    )
    trainer.train()
    ranks = [
        (entry["step"], entry["batch_rows"])
        for entry in trainer.state.log_history
        if "batch_rows" in entry
    ]
    assert ranks == [(1, 46), (3, 46)]


def test_an_encoder_that_starts_as_a_point_and_spreads_out_is_not_reported():
    watch = RunWatch()
    args, state, control = (
        SimpleNamespace(stop_on_collapse=True, output_dir="run"),
        TrainerState(),
        TrainerControl(),
    )
    for cosine in (0.999, 0.995, 0.99, 0.9):
        watch.on_log(
            args,
            state,
            control,
            logs={"batch_mean_cosine": cosine, "batch_effective_rank": 5.0},
        )
    with pytest.raises(CollapseError, match="0.9999"):
        watch.on_log(
            args,
            state,
            control,
            logs={"batch_mean_cosine": 0.9999, "batch_effective_rank": 5.0},
        )


def test_equal_texts_have_equal_numbers():
    generator = random.Random(0)
    rows = [
        [[generator.randrange(3) for _ in range(length)] for length in (1, 2, i % 3)]
        for i in range(300)
    ]
    rows += [[[2, 5], [3]], [[2], [5, 3]], [[2, 5, 3]]]
    numbers = number_texts(
        Dataset.from_dict({"input_ids": rows}).select(range(20, 303))
    )
    assert numbers.shape == (283, 3)
    numbers_of_texts = {}
    for row, found in zip(rows[20:], numbers.tolist(), strict=True):
        for text, number in zip([*row, [], []], found, strict=False):
            assert numbers_of_texts.setdefault(str(text), number) == number
    assert numbers_of_texts["[]"] == 0 and len(set(numbers_of_texts.values())) == len(
        numbers_of_texts
    )
    assert number_texts(Dataset.from_dict({"input_ids": []})).shape == (0, 0)


def test_repeated_rows_are_reported(tmp_path, tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        make(tmp_path, tokenizer, ["a cat", "a cat", "a dog", "a cat"] * 2)._check_run()
        make(tmp_path, tokenizer)._check_run()
    reports = [
        record.message for record in caplog.records if "repeat" in record.message
    ]
    assert len(reports) == 1 and reports[0].startswith(
        "6 of 8 training rows (75%) repeat"
    )


# --- broken weights ---


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
        NAME,
        tmp_path,
        (BreakGradient(step),),
        max_steps=6,
        save_steps=2,
        save_total_limit=1,
        logging_steps=100,
    )
    with pytest.raises(FloatingPointError, match="earlier are untouched"):
        trainer.train()
    last_good = 2 * ((step - 1) // 2)
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{last_good}"]
    saved = AutoModelForCL.from_pretrained(
        tmp_path / f"checkpoint-{last_good}"
    ).state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in saved.values())
    trainer.pop_callback(BreakGradient)
    trainer.model.load_state_dict(saved, strict=False)
    assert trainer.train().global_step == 6, "training can be repeated"


@pytest.mark.parametrize(
    "step, changes",
    [
        (3, {"max_steps": 3}),
        (2, {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2}),
    ],
)
def test_broken_weights_are_neither_saved_at_the_end_nor_evaluated(
    tmp_path, step, changes
):
    trainer = make_trainer(
        NAME,
        tmp_path,
        (BreakGradient(step),),
        save_strategy="no",
        logging_steps=100,
        **changes,
    )
    with pytest.raises(
        FloatingPointError, match=rf"not finite after step {step} \(.*weight\)"
    ):
        trainer.train()
