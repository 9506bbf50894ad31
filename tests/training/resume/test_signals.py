"""SIGTERM and SIGINT finish a checkpoint, and the status of the process says which of them stopped it."""

import os
import shutil
import signal
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import fast_first
from process_helpers import free_port, variables
from safetensors.torch import load_file
from trainer_helpers import Signal, assert_same_weights, saved_steps

from benchmarks.kills import start_process
from benchmarks.tiny import fingerprint, make_trainer
from simcse_hf.cli.main import exit_status
from simcse_hf.runtime.files import folder_problem

NAME = "dropout as the view"  # an epoch has 6 steps
KEEPS_THE_BEST = "best of the dev set, one checkpoint kept"


@pytest.fixture(autouse=True, scope="module")
def _interruptible():
    """Take SIGINT as in the foreground, because a suite that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# --- a signal in the middle of an epoch, and at its end ---


def status_of(train):
    """The exit status of a command that trains."""
    try:
        return exit_status(train, "train")
    except SystemExit as ended:
        return ended.code


STOPS = [(NAME, 3), (NAME, 5), (KEEPS_THE_BEST, 5)]
STOPS += [pytest.param(name, 6, marks=pytest.mark.slow) for name in (NAME, KEEPS_THE_BEST)]


@pytest.mark.parametrize("number, status", fast_first((signal.SIGTERM, 143), (signal.SIGINT, 130)))
@pytest.mark.parametrize("name, step", STOPS)
def test_a_signal_saves_the_current_step_and_the_run_resumes_with_equal_results(
    name, step, number, status, tmp_path, caplog
):
    """The exit status names the signal, and the log the command that goes on."""
    changes = {"max_steps": 10, "logging_steps": 1, "save_strategy": "epoch"}
    if name == KEEPS_THE_BEST:
        changes["eval_strategy"] = "epoch"
    by_epoch = partial(make_trainer, name, **changes)
    folder = tmp_path / "stopped"
    assert status_of(by_epoch(folder, (Signal(number, step),)).train) == status
    assert f"checkpoint-{step} is complete: continue with --resume_from_checkpoint true" in caplog.text
    assert saved_steps(folder) == [step]
    assert folder_problem(folder / f"checkpoint-{step}") is None
    by_epoch(tmp_path / "whole").train()
    by_epoch(folder).train(resume_from_checkpoint=True)
    assert fingerprint(folder) == fingerprint(tmp_path / "whole")


# --- handlers, and runs that save nothing ---


def test_a_run_that_saves_nothing_is_interrupted_at_once_and_the_handlers_of_the_caller_are_restored(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    make_trainer(NAME, tmp_path / "saves", max_steps=1).train()
    interrupt = (Signal(signal.SIGINT, 2),)
    trainer = make_trainer(NAME, tmp_path / "saves nothing", interrupt, max_steps=4, save_strategy="no")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.state.global_step == 1
    assert not saved_steps(trainer.args.output_dir)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_second_interrupt_ends_the_run_at_once_but_not_one_that_a_launcher_repeats(tmp_path, monkeypatch):
    trainer = make_trainer(NAME, tmp_path)
    with trainer.stop_on_signal.caught(trainer.args):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        later = time.monotonic() + 2
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


# --- two processes ---


def train_in_process(rank, port, folder, signalled):
    """Train six steps in one of two processes; without a signal, from the last checkpoint, if there is one."""
    os.environ |= variables(rank, 2, port)
    AcceleratorState._reset_state(reset_partial_state=True)  # that of the test process
    torch.set_num_threads(1)
    changes = {"max_steps": 6, "ddp_backend": "gloo", "per_device_train_batch_size": 4, "save_steps": 2}
    resume = signalled is None and bool(saved_steps(folder))
    callbacks = (signalled,) if signalled else ()
    trainer = make_trainer(NAME, folder, callbacks, **changes)
    trainer.train(resume_from_checkpoint=resume)


def run_two_processes(folder, signalled=None):
    """Train in two processes, and return their exit statuses and the last lines of the first one's log.

    `seconds` is the time between the end of the second process and that of the first.
    """
    train = partial(train_in_process, port=free_port(), folder=folder, signalled=signalled)
    processes = []
    for rank in (0, 1):
        log = folder.parent / f"{rank}.log"
        processes.append(start_process(partial(train, rank), log))
    status = []
    times = []
    for process in reversed(processes):  # the second one, which gets the signals
        _, ended = os.waitpid(process, 0)
        status.insert(0, os.waitstatus_to_exitcode(ended))
        times.append(time.monotonic())
    log = (folder.parent / "0.log").read_text()[-2000:]
    return SimpleNamespace(folder=folder, status=status, log=log, seconds=times[1] - times[0])


def resume(ended, folder):
    """Run the same command again in a copy of the folder."""
    again = run_two_processes(shutil.copytree(ended.folder, folder))
    assert again.status == [0, 0], again.log
    return again


def last_weights(ended):
    return load_file(ended.folder / "checkpoint-6/model.safetensors")


@pytest.fixture(scope="module")
def whole(module_path):
    """Two processes that no signal stops."""
    ended = run_two_processes(module_path / "run")
    assert ended.status == [0, 0], ended.log
    return ended


def test_a_signal_to_one_process_stops_both_and_they_resume_with_equal_weights(whole, tmp_path):
    """The second one gets it in the second step; they agree on it in the step after."""
    terminated = run_two_processes(tmp_path / "terminated", Signal(signal.SIGTERM, 2, rank=1))
    assert terminated.status == [143, 143], terminated.log
    assert saved_steps(terminated.folder) == [3, 2]
    assert (terminated.folder / "checkpoint-3" / "rng_state_1.pth").exists()
    assert_same_weights(last_weights(whole), last_weights(resume(terminated, tmp_path / "run")))


def test_if_one_process_is_killed_the_other_ends_with_an_error_and_both_resume_with_equal_weights(whole, tmp_path):
    killed = run_two_processes(tmp_path / "killed", Signal(signal.SIGKILL, 4, rank=1))
    assert killed.status[1] == -signal.SIGKILL, killed.log
    assert killed.status[0] > 0, killed.log
    assert killed.seconds < 60
    assert saved_steps(killed.folder) == [2]
    assert folder_problem(killed.folder / "checkpoint-2") is None
    assert_same_weights(last_weights(whole), last_weights(resume(killed, tmp_path / "run")))
