"""A run of several processes is one group of them, or is refused with what works."""

import json
import os

import pytest
from accelerate import PartialState
from conftest import read_json
from process_helpers import launch
from trainer_helpers import refuses

from simcse_hf import SimCSETrainingArguments
from simcse_hf.cli.main import main
from simcse_hf.runtime.messages import join_processes
from simcse_hf.training import arguments as training_args

#: What `accelerate launch --cpu --num_processes 2` leaves in the one process that it starts.
OF_ACCELERATE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_MIXED_PRECISION": "no"}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Accelerate keeps the state that it has half made, and sets variables such as RANK."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    if "num_processes" not in PartialState._shared_state:
        PartialState._reset_state()


def test_one_process_where_accelerate_launch_was_asked_for_several_is_refused(monkeypatch, tmp_path):
    for name, value in OF_ACCELERATE.items():
        monkeypatch.setenv(name, value)
    with refuses("accelerate launch torchrun --nproc_per_node"):
        SimCSETrainingArguments(str(tmp_path))


def test_processes_that_transformers_does_not_join_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")  # and no LOCAL_RANK, as on a cluster that starts the program itself
    monkeypatch.setattr(training_args, "has_only_cpu", lambda: False)
    with pytest.raises(ValueError, match="2 processes|MASTER_ADDR"):  # accelerate 1.12 refuses them first
        SimCSETrainingArguments(str(tmp_path))


@pytest.mark.parametrize("command", ["index", "mine", "adapt"])
def test_a_command_whose_processes_would_all_do_the_same_is_refused(monkeypatch, capsys, command):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([command]) == 2
    assert f"{command} runs in one process" in capsys.readouterr().err


def note_group(folder):
    numbers = [join_processes().num_processes, SimCSETrainingArguments(str(folder)).world_size]
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(numbers))


def test_two_processes_of_torchrun_are_one_group_on_a_machine_without_gpus(tmp_path):
    launch(note_group, tmp_path)
    assert [read_json(tmp_path / f"{rank}.json") for rank in (0, 1)] == [[2, 2], [2, 2]]
