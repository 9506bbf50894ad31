"""A checkpoint is whole or passed over: damage is found, named, and never trained from."""

import os
import re
import shutil

import pytest
import torch
from trainer_helpers import refuses, saved_steps

from benchmarks.tiny import make_trainer
from simcse_hf.runtime import files as files_module
from simcse_hf.runtime.files import MANIFEST, folder_problem
from simcse_hf.training.checkpoints import (
    checkpoints,
    clear_output_dir,
    delete_old_checkpoints,
    newest_whole_checkpoint,
    resolve_checkpoint,
)

NAME = "momentum encoder and queue"  # its checkpoints have every kind of file


@pytest.fixture(scope="module")
def finished(module_path):
    """The folder of a run of 6 steps with the checkpoints 3 and 6, which no test may change."""
    folder = module_path / "run"
    make_trainer(NAME, folder, max_steps=6, save_steps=3, logging_steps=3).train()
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "file, damage",
    [
        ("model.safetensors", truncate),
        ("optimizer.pt", os.remove),
        ("_objective.safetensors", flip_a_bit),
        ("rng_state.pth", flip_a_bit),
        (MANIFEST, os.remove),
        (MANIFEST, truncate),
    ],
)
def test_resuming_passes_over_a_damaged_checkpoint_and_names_the_file(run, file, damage, caplog):
    damage(run / "checkpoint-6" / file)
    assert newest_whole_checkpoint(run) == str(run / "checkpoint-3")
    assert re.search(f"checkpoint-6 is passed over because.*{file}", caplog.text)


def test_a_run_without_the_whole_checkpoint_that_it_needs_is_refused_with_all_damage(run):
    truncate(run / "checkpoint-6" / "scheduler.pt")
    with refuses("checkpoint-6: scheduler.pt"):
        make_trainer(NAME, run, max_steps=9).train(resume_from_checkpoint=run / "checkpoint-6")
    os.remove(run / "checkpoint-3" / "model.safetensors")
    with refuses("checkpoint-6: scheduler.pt checkpoint-3: model.safetensors"):
        make_trainer(NAME, run, max_steps=6).train(resume_from_checkpoint=True)


def test_a_folder_without_a_checkpoint_is_refused_with_what_to_leave_out(tmp_path):
    with refuses(f"{tmp_path} holds no checkpoint leave out --resume_from_checkpoint"):
        resolve_checkpoint(True, str(tmp_path))


def test_folders_that_somebody_put_beside_the_checkpoints_stay(run):
    own = {"checkpoint-old", "checkpoint-3.bak"}
    for name in own:
        (run / name).mkdir()
    longer = {"max_steps": 9, "save_steps": 3, "save_total_limit": 1, "allow_changes": True}
    make_trainer(NAME, run, **longer).train(resume_from_checkpoint=True)
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-9"} | own
    clear_output_dir(make_trainer(NAME, run).args)
    assert {path.name for path in run.glob("checkpoint-*")} == own


@pytest.mark.parametrize(
    "written, limit, left",
    [
        ({20: 0, 9: 1, 10: 2, 30: 3}, 2, [30, 10]),  # first those of an earlier run in the folder
        ({20: 5, 9: 5, 10: 5, 30: 5}, 2, [30, 20]),  # first the lower steps of one time
        ({3: 0, 4: 1}, -1, [4, 3]),  # no limit
    ],
)
def test_the_newest_checkpoints_are_kept(written, limit, left, tmp_path):
    for step, second in written.items():
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        os.utime(folder, (second, second))
    delete_old_checkpoints(tmp_path, limit, {folder})
    assert saved_steps(tmp_path) == left


@pytest.mark.parametrize(
    "module, name, failure",
    [
        (torch, "save", RuntimeError("inline_container.cc: pos")),  # torch with an error of its own
        (files_module, "write_json", OSError(28, "No space left on device")),  # the manifest
    ],
)
def test_a_full_disk_is_an_error_of_one_line_and_leaves_earlier_checkpoints_whole(
    module, name, failure, tmp_path, monkeypatch
):
    options = {"max_steps": 6, "save_steps": 3, "logging_steps": 3, "save_total_limit": 1}
    trainer = make_trainer("dropout as the view", tmp_path, **options)
    save = getattr(module, name)

    def full(*args, **kwargs):
        if any("checkpoint-6" in str(each) for each in args):
            raise failure
        return save(*args, **kwargs)

    monkeypatch.setattr(module, name, full)
    with pytest.raises(OSError, match="No space left on device, so checkpoint-6 was not.*earlier are untouched"):
        trainer.train()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["checkpoint-3"]
    assert folder_problem(tmp_path / "checkpoint-3") is None


def test_the_rotation_deletes_a_checkpoint_that_was_moved_and_linked(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "checkpoint-2").symlink_to(disk)
    (tmp_path / "checkpoint-4").mkdir()
    delete_old_checkpoints(tmp_path, 1, {tmp_path / "checkpoint-4"})
    assert checkpoints(tmp_path) == [tmp_path / "checkpoint-4"]
