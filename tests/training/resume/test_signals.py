"""SIGTERM and SIGINT finish a checkpoint, and the status of the process says which of them stopped it."""

import os
import shutil
import signal
import time
from dataclasses import dataclass
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
from simcse_hf.runtime.files import folder_problem
from simcse_hf.training.checkpoints import checkpoints

NAME = "dropout as the view"  # an epoch has 6 steps
KEEPS_THE_BEST = "best of the dev set, one checkpoint kept"
TEN_STEPS = {"max_steps": 10, "logging_steps": 1}


class Signal(TrainerCallback):
    """Send a signal to this process during a step."""

    def __init__(self, number, step, rank=0):
        self.number = number
        self.step = step
        self.rank = rank

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1 and args.process_index == self.rank:
            os.kill(os.getpid(), self.number)


@pytest.fixture(autouse=True, scope="module")
def _interruptible():
    """Take SIGINT as in the foreground, because a suite that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def names_of_checkpoints(folder):
    return [path.name for path in checkpoints(folder)]


# --- a signal in the middle of an epoch ---

SIGNALS = pytest.mark.parametrize(
    "number, status",
    fast_first((signal.SIGTERM, 143), (signal.SIGINT, 130)),
    scope="module",
)


def status_of(train):
    """The exit status of a command that trains."""
    try:
        return exit_status(train, "train")
    except SystemExit as ended:
        return ended.code


@dataclass
class Stopped:
    """The folder of a run that a signal stopped in its third step, and the exit status."""

    folder: os.PathLike
    status: int


@pytest.fixture(scope="module")
def stopped(number, status, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    trainer = make_trainer(NAME, folder, (Signal(number, 3),), **TEN_STEPS)
    return Stopped(folder, status_of(trainer.train))


@SIGNALS
def test_the_exit_status_names_the_signal(stopped, status):
    assert stopped.status == status


@SIGNALS
def test_a_signal_saves_the_current_step(stopped):
    assert names_of_checkpoints(stopped.folder) == ["checkpoint-3"]


@SIGNALS
def test_the_checkpoint_of_a_signal_is_whole(stopped):
    assert folder_problem(stopped.folder / "checkpoint-3") is None


@SIGNALS
def test_a_run_that_a_signal_stopped_resumes_with_equal_results(stopped, tmp_path):
    whole = tmp_path / "whole"
    make_trainer(NAME, whole, **TEN_STEPS).train()
    resumed = shutil.copytree(stopped.folder, tmp_path / "resumed")
    make_trainer(NAME, resumed, **TEN_STEPS).train(resume_from_checkpoint=True)
    assert fingerprint(resumed) == fingerprint(whole)


# --- around the end of an epoch ---

AROUND_THE_END = pytest.mark.parametrize("step", fast_first(5, 6), scope="module")
WHAT_IS_KEPT = pytest.mark.parametrize("name", [NAME, KEEPS_THE_BEST], scope="module")


@pytest.fixture(scope="module")
def by_epoch(name):
    """Makes the trainer of a run that saves, and perhaps evaluates, at the end of each epoch."""
    changes = TEN_STEPS | {"save_strategy": "epoch"}
    if name == KEEPS_THE_BEST:
        changes["eval_strategy"] = "epoch"
    return partial(make_trainer, name, **changes)


@pytest.fixture(scope="module")
def stopped_by_epoch(by_epoch, step, tmp_path_factory):
    """The folder of a run that SIGTERM stopped, and its last step."""
    folder = tmp_path_factory.mktemp("by_epoch")
    trainer = by_epoch(folder, (Signal(signal.SIGTERM, step),))
    with pytest.raises(SystemExit):
        trainer.train()
    return folder, trainer.state.global_step


@AROUND_THE_END
@WHAT_IS_KEPT
def test_a_run_is_stopped_after_the_step_of_the_signal(stopped_by_epoch, step):
    _, last = stopped_by_epoch
    assert last == step


@AROUND_THE_END
@WHAT_IS_KEPT
def test_a_run_stopped_around_the_end_of_an_epoch_resumes_with_equal_results(by_epoch, stopped_by_epoch, tmp_path):
    whole = tmp_path / "whole"
    by_epoch(whole).train()
    folder, _ = stopped_by_epoch
    resumed = shutil.copytree(folder, tmp_path / "resumed")
    by_epoch(resumed).train(resume_from_checkpoint=True)
    assert fingerprint(resumed) == fingerprint(whole)


# --- handlers, and runs that save nothing ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_handlers_of_the_caller_are_restored(number, tmp_path):
    before = signal.getsignal(number)
    make_trainer(NAME, tmp_path, max_steps=1).train()
    assert signal.getsignal(number) == before


@pytest.fixture(scope="module")
def without_checkpoints(tmp_path_factory):
    """A trainer that saves nothing, after SIGINT in its second step."""
    folder = tmp_path_factory.mktemp("nothing")
    interrupt = (Signal(signal.SIGINT, 2),)
    trainer = make_trainer(NAME, folder, interrupt, max_steps=4, save_strategy="no")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    return trainer


def test_a_run_that_saves_nothing_is_interrupted_at_once(without_checkpoints):
    assert without_checkpoints.state.global_step == 1


def test_a_run_that_saves_nothing_is_interrupted_without_a_checkpoint(
    without_checkpoints,
):
    assert not checkpoints(without_checkpoints.args.output_dir)


# --- two processes ---


def train_in_process(rank, port, folder, signalled):
    """Train six steps in one of two processes; without a signal, from the last checkpoint, if there is one."""
    os.environ |= variables(rank, 2, port)
    AcceleratorState._reset_state(reset_partial_state=True)  # that of the test process
    torch.set_num_threads(1)
    changes = {
        "max_steps": 6,
        "ddp_backend": "gloo",
        "per_device_train_batch_size": 4,
        "save_steps": 2,
    }
    resume = signalled is None and bool(checkpoints(folder))
    callbacks = (signalled,) if signalled else ()
    trainer = make_trainer(NAME, folder, callbacks, **changes)
    trainer.train(resume_from_checkpoint=resume)


@dataclass
class Ended:
    """How two processes ended: their folder, the status of each, the log of the first, and the seconds between."""

    folder: os.PathLike
    status: list
    log: str
    seconds: float


def run_two_processes(folder, signalled=None):
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
    return Ended(folder, status, log, times[1] - times[0])


def resume(ended, folder):
    """Run the same command again in a copy of the folder."""
    again = run_two_processes(shutil.copytree(ended.folder, folder))
    assert again.status == [0, 0], again.log
    return again


def last_weights(ended):
    return load_file(ended.folder / "checkpoint-6/model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two processes that no signal stops."""
    ended = run_two_processes(tmp_path_factory.mktemp("whole") / "run")
    assert ended.status == [0, 0], ended.log
    return ended


@pytest.fixture(scope="module")
def terminated(tmp_path_factory):
    """Two processes, of which the second one gets SIGTERM in the second step."""
    terminate = Signal(signal.SIGTERM, 2, rank=1)
    return run_two_processes(tmp_path_factory.mktemp("terminated") / "run", terminate)


def test_a_signal_to_one_process_stops_both_with_its_status(terminated):
    assert terminated.status == [143, 143], terminated.log


def test_a_signal_to_one_process_stops_both_after_the_same_step(terminated):
    """They agree on it in the step after."""
    names = names_of_checkpoints(terminated.folder)
    assert names == ["checkpoint-3", "checkpoint-2"]


def test_the_checkpoint_of_a_signal_has_the_random_state_of_each_process(terminated):
    assert (terminated.folder / "checkpoint-3" / "rng_state_1.pth").exists()


def test_two_processes_that_a_signal_stopped_resume_with_equal_weights(terminated, whole, tmp_path):
    resumed = resume(terminated, tmp_path / "run")
    assert_same_weights(last_weights(whole), last_weights(resumed))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Two processes, of which the second one is killed in the fourth step."""
    kill = Signal(signal.SIGKILL, 4, rank=1)
    return run_two_processes(tmp_path_factory.mktemp("killed") / "run", kill)


def test_a_killed_process_ends_by_the_signal(killed):
    assert killed.status[1] == -signal.SIGKILL, killed.log


def test_if_one_process_is_killed_the_other_ends_with_an_error(killed):
    assert killed.status[0] > 0, killed.log


def test_if_one_process_is_killed_the_other_ends_within_a_minute(killed):
    assert killed.seconds < 60


def test_if_one_process_is_killed_the_last_checkpoint_stays(killed):
    assert names_of_checkpoints(killed.folder) == ["checkpoint-2"]


def test_if_one_process_is_killed_the_last_checkpoint_is_whole(killed):
    assert folder_problem(killed.folder / "checkpoint-2") is None


def test_two_processes_of_which_one_was_killed_resume_with_equal_weights(killed, whole, tmp_path):
    resumed = resume(killed, tmp_path / "run")
    assert_same_weights(last_weights(whole), last_weights(resumed))
