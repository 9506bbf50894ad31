"""A run is watched: broken weights end it, a collapse of the embeddings and repeated rows are reported."""

import logging
import random
from contextlib import redirect_stderr
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from card_helpers import log_of_package
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


def slow_mean_cosine(vectors):
    cosines = []
    for i, one in enumerate(vectors):
        for j, other in enumerate(vectors):
            if i != j:
                cosines.append(float(one @ other))
    return sum(cosines) / len(cosines)


def slow_effective_rank(vectors):
    """The exponential of the entropy of the singular values."""
    values = torch.linalg.svdvals(vectors)
    shares = values / values.sum()
    return torch.exp(-(shares * shares.log()).sum()).item()


@pytest.fixture
def vectors(rows):
    """Random unit vectors."""
    drawn = torch.randn(rows, 8, dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=1)


MORE_OR_FEWER_ROWS_THAN_DIMENSIONS = pytest.mark.parametrize("rows", [30, 6])


@MORE_OR_FEWER_ROWS_THAN_DIMENSIONS
def test_the_mean_cosine_equals_its_definition(vectors):
    mean_cosine, _ = collapse(vectors)
    assert mean_cosine == pytest.approx(slow_mean_cosine(vectors), rel=1e-9)


@MORE_OR_FEWER_ROWS_THAN_DIMENSIONS
def test_the_effective_rank_equals_its_definition(vectors):
    _, rank = collapse(vectors)
    assert rank == pytest.approx(slow_effective_rank(vectors), rel=1e-9)


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
    with caplog.at_level(logging.WARNING):
        trainer.train()
    messages = [record.message for record in caplog.records]
    [found] = [each for each in messages if each.startswith("the embeddings")]
    assert found.startswith(f"the embeddings {report}")


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory):
    """The folder of a run that a collapse ended, its exit status, and the last line of its errors."""
    folder = tmp_path_factory.mktemp("collapsed")
    options = {"max_steps": 12, "save_steps": 2, "save_total_limit": 1}
    trainer = make_trainer(NAME, folder, (Collapse(4),), stop_on_collapse=True, **options)
    with redirect_stderr(StringIO()) as errors:
        status = exit_status(trainer.train, "train")
    last_line = errors.getvalue().splitlines()[-1]
    return SimpleNamespace(folder=folder, status=status, error=last_line)


def test_stop_on_collapse_ends_the_run_with_status_1(collapsed):
    assert collapsed.status == 1


def test_stop_on_collapse_says_when_the_embeddings_collapsed(collapsed):
    words = "train: error: the embeddings have collapsed at step 6"
    assert collapsed.error.startswith(words)


def test_stop_on_collapse_keeps_the_good_checkpoint(collapsed):
    names = [path.name for path in checkpoints(collapsed.folder)]
    assert names == ["checkpoint-4"]


# --- a healthy run ---

HEALTHY = {
    "max_steps": 6,
    "eval_strategy": "steps",
    "eval_steps": 6,
    "stop_on_collapse": True,
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The history of a healthy run, and its warnings."""
    trainer = make_trainer(NAME, tmp_path_factory.mktemp("healthy"), **HEALTHY)
    with log_of_package() as log:
        trainer.train()
    history = trainer.state.log_history
    return SimpleNamespace(history=history, warnings=log.getvalue())


@pytest.fixture(scope="module")
def healthy_batches(healthy):
    return [entry for entry in healthy.history if "loss" in entry]


def test_a_healthy_run_is_not_warned_of(healthy):
    assert "collapsed" not in healthy.warnings


def test_the_effective_rank_of_a_batch_is_at_most_its_rows(healthy_batches):
    for entry in healthy_batches:
        assert 1 <= entry["batch_effective_rank"] <= 8


def test_the_mean_cosine_of_a_healthy_batch_is_below_1(healthy_batches):
    for entry in healthy_batches:
        assert entry["batch_mean_cosine"] < 1


def test_an_evaluation_logs_the_effective_rank(healthy):
    assert any("eval_stsb_effective_rank" in entry for entry in healthy.history)


def test_a_small_last_batch_is_no_collapse(tmp_path):
    """Two texts have an effective rank of 2 at most, whatever the embeddings of 46 texts have."""
    options = {
        "per_device_train_batch_size": 46,
        "max_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1e-6,
        "stop_on_collapse": True,
        "save_strategy": "no",
    }
    trainer = make_trainer(NAME, tmp_path, **options)
    trainer.train()
    measured = []
    for entry in trainer.state.log_history:
        if "batch_rows" in entry:
            measured.append((entry["step"], entry["batch_rows"]))
    assert measured == [(1, 46), (3, 46)]


@pytest.fixture
def logs():
    """`logs(cosine)` lets a run that stops on a collapse log this mean cosine of a batch."""
    watch = RunWatch()
    args = SimpleNamespace(stop_on_collapse=True, output_dir="run")
    state = TrainerState()

    def log(cosine):
        found = {"batch_mean_cosine": cosine, "batch_effective_rank": 5.0}
        watch.on_log(args, state, TrainerControl(), logs=found)

    return log


def test_an_encoder_that_starts_as_a_point_and_spreads_out_is_not_reported(logs):
    for cosine in (0.999, 0.995, 0.99, 0.9):
        logs(cosine)


def test_an_encoder_that_has_spread_out_and_becomes_a_point_is_reported(logs):
    for cosine in (0.999, 0.995, 0.99, 0.9):
        logs(cosine)
    with pytest.raises(CollapseError, match="0.9999"):
        logs(0.9999)


# --- repeated rows ---


def rows_of_tokens():
    """Rows of two or three short texts of three different tokens, and some whose tokens are divided otherwise."""
    generator = random.Random(0)
    rows = []
    for number in range(300):
        lengths = (1, 2, number % 3)
        rows.append([[generator.randrange(3) for _ in range(length)] for length in lengths])
    return [*rows, [[2, 5], [3]], [[2], [5, 3]], [[2, 5, 3]]]


ROWS = rows_of_tokens()


@pytest.fixture(scope="module")
def numbers():
    """The numbers of the texts of all rows but the first twenty."""
    rows = Dataset.from_dict({"input_ids": ROWS}).select(range(20, 303))
    return number_texts(rows)


@pytest.fixture(scope="module")
def numbers_of_texts(numbers):
    """The numbers of each text; a text that a row lacks is empty."""
    found = {}
    for row, of_row in zip(ROWS[20:], numbers.tolist(), strict=True):
        row = [*row, [], []][: len(of_row)]
        for text, number in zip(row, of_row, strict=True):
            found.setdefault(str(text), set()).add(number)
    return found


def test_each_text_of_a_row_has_a_number(numbers):
    assert numbers.shape == (283, 3)


def test_equal_texts_have_equal_numbers(numbers_of_texts):
    for numbers in numbers_of_texts.values():
        assert len(numbers) == 1


def test_different_texts_have_different_numbers(numbers_of_texts):
    assert len(set().union(*numbers_of_texts.values())) == len(numbers_of_texts)


def test_a_text_that_a_row_lacks_has_the_number_0(numbers_of_texts):
    assert numbers_of_texts["[]"] == {0}


def test_repeated_rows_are_reported(tmp_path, tokenizer, caplog):
    rows = ["a cat", "a cat", "a dog", "a cat"] * 2
    with caplog.at_level(logging.WARNING):
        make(tmp_path, tokenizer, rows).check_run()
    messages = [record.message for record in caplog.records]
    [report] = [message for message in messages if "repeat" in message]
    assert report.startswith("6 of 8 training rows (75%) repeat")


def test_rows_that_do_not_repeat_are_not_reported(tmp_path, tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        make(tmp_path, tokenizer).check_run()
    assert "repeat" not in caplog.text


# --- broken weights ---


class BreakGradient(TrainerCallback):
    """Make the gradient of one step NaN, after its loss was computed."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step - 1:
            next(model.parameters()).grad.fill_(float("nan"))


EVERY_TIME = pytest.mark.parametrize(
    "step",
    [
        pytest.param(3, id="noticed by the next loss"),
        pytest.param(4, id="before a checkpoint"),
        pytest.param(6, id="in the last step"),
    ],
    scope="module",
)


@pytest.fixture(scope="module")
def broken(step, tmp_path_factory):
    """The folder and the trainer of a run that a gradient of NaN has ended."""
    folder = tmp_path_factory.mktemp("broken")
    options = {"max_steps": 6, "save_steps": 2, "save_total_limit": 1}
    trainer = make_trainer(NAME, folder, (BreakGradient(step),), logging_steps=100, **options)
    with pytest.raises(FloatingPointError, match="earlier are untouched"):
        trainer.train()
    return SimpleNamespace(folder=folder, trainer=trainer)


@pytest.fixture(scope="module")
def last_good(broken, step):
    """The weights of the last checkpoint before the gradient."""
    checkpoint = broken.folder / f"checkpoint-{2 * ((step - 1) // 2)}"
    return AutoModelForCL.from_pretrained(checkpoint).state_dict()


@EVERY_TIME
def test_a_nan_gradient_ends_the_run_and_keeps_the_good_checkpoint(broken, step):
    names = [path.name for path in checkpoints(broken.folder)]
    assert names == [f"checkpoint-{2 * ((step - 1) // 2)}"]


@EVERY_TIME
def test_the_checkpoint_before_a_nan_gradient_has_finite_weights(last_good):
    for weight in last_good.values():
        assert torch.isfinite(weight).all()


@EVERY_TIME
def test_training_can_be_repeated_after_a_nan_gradient(broken, last_good):
    trainer = broken.trainer
    trainer.pop_callback(BreakGradient)
    trainer.model.load_state_dict(last_good, strict=False)
    assert trainer.train().global_step == 6


@pytest.mark.parametrize(
    "step, changes",
    [
        (3, {"max_steps": 3}),
        (2, {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2}),
    ],
)
def test_broken_weights_are_neither_saved_at_the_end_nor_evaluated(tmp_path, step, changes):
    trainer = make_trainer(
        NAME,
        tmp_path,
        (BreakGradient(step),),
        save_strategy="no",
        logging_steps=100,
        **changes,
    )
    with pytest.raises(FloatingPointError, match=rf"not finite after step {step} \(.*weight\)"):
        trainer.train()
