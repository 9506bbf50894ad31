"""SIGTERM and SIGINT finish a checkpoint, and the status of the process says which of them stopped it."""

import os
import signal
import time
from functools import partial

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import fast_first
from process_helpers import free_port, variables
from safetensors.torch import load_file
from trainer_helpers import assert_same_weights
from transformers import TrainerCallback

from benchmarks.kills import start_process
from benchmarks.tiny import fingerprint, make_trainer
from simcse_hf.cli.main import exit_status
from simcse_hf.ops.files import folder_problem
from simcse_hf.training.checkpoints import checkpoints

NAME = "dropout as the view"  # an epoch has 6 steps


class Signal(TrainerCallback):
    """Send a signal to this process during a step."""

    def __init__(self, number, step, rank=0):
        self.number, self.step, self.rank = number, step, rank

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1 and args.process_index == self.rank:
            os.kill(os.getpid(), self.number)


@pytest.fixture(autouse=True)
def _interruptible():
    """Take SIGINT as in the foreground, because a suite that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The fingerprint of a run of 10 steps, logged in every step."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    make_trainer(NAME, folder, max_steps=10, logging_steps=1).train()
    return fingerprint(folder)


@pytest.mark.parametrize(
    "number, status", fast_first((signal.SIGTERM, 143), (signal.SIGINT, 130))
)
def test_a_signal_saves_the_current_step_and_the_exit_status_names_it(
    tmp_path, number, status, uninterrupted
):
    trainer = make_trainer(
        NAME, tmp_path, (Signal(number, 3),), max_steps=10, logging_steps=1
    )
    if number == signal.SIGTERM:
        with pytest.raises(SystemExit) as ended:
            exit_status(trainer.train, "train")
        assert ended.value.code == status
    else:
        assert exit_status(trainer.train, "train") == status
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-3"]
    assert folder_problem(tmp_path / "checkpoint-3") is None
    make_trainer(NAME, tmp_path, max_steps=10, logging_steps=1).train(
        resume_from_checkpoint=True
    )
    assert fingerprint(tmp_path) == uninterrupted


@pytest.mark.parametrize("step", fast_first(5, 6))
@pytest.mark.parametrize("name", [NAME, "best of the dev set, one checkpoint kept"])
def test_a_run_stopped_around_the_end_of_an_epoch_resumes_with_equal_results(
    tmp_path, step, name
):
    changes = {"max_steps": 10, "logging_steps": 1, "save_strategy": "epoch"}
    if "best" in name:
        changes["eval_strategy"] = "epoch"
    make_trainer(name, tmp_path / "whole", **changes).train()
    trainer = make_trainer(
        name, tmp_path / "stopped", (Signal(signal.SIGTERM, step),), **changes
    )
    with pytest.raises(SystemExit):
        trainer.train()
    assert trainer.state.global_step == step
    make_trainer(name, tmp_path / "stopped", **changes).train(
        resume_from_checkpoint=True
    )
    whole, stopped = fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "stopped")
    assert whole == stopped


def test_the_handlers_of_the_caller_are_restored(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    make_trainer(NAME, tmp_path, max_steps=1).train()
    assert [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
    ] == before


def test_a_run_that_saves_nothing_is_interrupted_at_once(tmp_path):
    trainer = make_trainer(
        NAME, tmp_path, (Signal(signal.SIGINT, 2),), max_steps=4, save_strategy="no"
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.state.global_step == 1 and not checkpoints(tmp_path)


def train_in_process(rank, port, folder, signalled, save_steps):
    os.environ |= variables(rank, 2, port)
    AcceleratorState._reset_state(reset_partial_state=True)  # that of the test process
    torch.set_num_threads(1)
    changes = {
        "max_steps": 6,
        "ddp_backend": "gloo",
        "per_device_train_batch_size": 4,
        "save_steps": save_steps,
    }
    resume = signalled is None and bool(checkpoints(folder))
    callbacks = (signalled,) if signalled else ()
    make_trainer(NAME, folder, callbacks, **changes).train(
        resume_from_checkpoint=resume
    )


def _run_two_processes(folder, signalled=None, save_steps=100):
    """Train in two processes; return the status of each, the end of the first one's log, and the seconds between."""
    options = {
        "port": free_port(),
        "folder": folder,
        "signalled": signalled,
        "save_steps": save_steps,
    }
    train = partial(train_in_process, **options)
    logs = [folder.parent / f"{rank}.log" for rank in (0, 1)]
    processes = [
        start_process(partial(train, rank), log) for rank, log in enumerate(logs)
    ]
    ended, times = [], []
    for process in reversed(
        processes
    ):  # the second one, which gets the signals, ends first
        ended.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        times.append(time.monotonic())
    return ended[::-1], logs[0].read_text()[-2000:], times[1] - times[0]


def saved(folder):
    return load_file(folder / "checkpoint-6/model.safetensors")


def test_a_signal_to_one_process_stops_both_after_the_same_step(tmp_path):
    assert _run_two_processes(tmp_path / "whole")[0] == [0, 0]
    ended, log, _ = _run_two_processes(
        tmp_path / "stopped", Signal(signal.SIGTERM, 2, rank=1)
    )
    assert ended == [143, 143], log
    assert [path.name for path in checkpoints(tmp_path / "stopped")] == ["checkpoint-3"]
    assert (tmp_path / "stopped" / "checkpoint-3" / "rng_state_1.pth").exists()
    ended, log, _ = _run_two_processes(tmp_path / "stopped")
    assert ended == [0, 0], log
    assert_same_weights(saved(tmp_path / "whole"), saved(tmp_path / "stopped"))


def test_if_one_process_is_killed_the_other_ends_within_a_minute_and_the_run_resumes_with_equal_weights(
    tmp_path,
):
    assert _run_two_processes(tmp_path / "whole", save_steps=2)[0] == [0, 0]
    ended, log, seconds = _run_two_processes(
        tmp_path / "killed", Signal(signal.SIGKILL, 4, rank=1), save_steps=2
    )
    assert ended[1] == -signal.SIGKILL and ended[0] > 0, log
    assert seconds < 60
    assert [path.name for path in checkpoints(tmp_path / "killed")] == ["checkpoint-2"]
    assert folder_problem(tmp_path / "killed/checkpoint-2") is None
    ended, log, _ = _run_two_processes(tmp_path / "killed", save_steps=2)
    assert ended == [0, 0], log
    assert_same_weights(saved(tmp_path / "whole"), saved(tmp_path / "killed"))
