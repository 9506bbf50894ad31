"""A checkpoint is whole or passed over: damage is found, named, and never trained from."""

import logging
import os
import re
import shutil

import pytest
import torch

from benchmarks.tiny import make_trainer
from simcse_hf.models import checkpoint as checkpoint_module
from simcse_hf.runtime import files as files_module
from simcse_hf.runtime.files import MANIFEST, folder_problem
from simcse_hf.training.checkpoints import (
    checkpoints,
    clear_output_dir,
    delete_old_checkpoints,
    newest_whole_checkpoint,
)

NAME = "momentum encoder and queue"  # its checkpoints have every kind of file
FILES = (
    "model.safetensors",
    "_objective.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "config.json",
    "trainer_state.json",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of 6 steps with the checkpoints 3 and 6, which no test may change."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    make_trainer(NAME, folder, max_steps=6, save_steps=3, logging_steps=3).train()
    return folder


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove(path):
    path.unlink()


DAMAGES = {"truncated": truncate, "changed": flip_a_bit, "missing": remove}


EVERY_DAMAGE = pytest.mark.parametrize(
    "file, damage",
    [
        *[(file, "changed") for file in FILES],
        ("model.safetensors", "truncated"),
        ("optimizer.pt", "missing"),
        (MANIFEST, "missing"),
        (MANIFEST, "truncated"),
    ],
)


@pytest.fixture
def damaged(run, file, damage):
    """The folder of the run, whose last checkpoint has a damaged file."""
    DAMAGES[damage](run / "checkpoint-6" / file)
    return run


@EVERY_DAMAGE
def test_resuming_passes_over_a_damaged_checkpoint_and_names_the_file(damaged, file, caplog):
    with caplog.at_level(logging.WARNING):
        assert newest_whole_checkpoint(damaged) == str(damaged / "checkpoint-3")
    assert "checkpoint-6 is passed over because" in caplog.text
    assert file in caplog.text


def test_a_damaged_checkpoint_that_is_named_is_refused_with_the_damage(run):
    truncate(run / "checkpoint-6" / "scheduler.pt")
    named = str(run / "checkpoint-6")
    with pytest.raises(ValueError, match="checkpoint-6: scheduler.pt"):
        make_trainer(NAME, run, max_steps=9).train(resume_from_checkpoint=named)


def test_a_run_without_a_whole_checkpoint_is_refused_with_all_damage(run):
    truncate(run / "checkpoint-6" / "scheduler.pt")
    remove(run / "checkpoint-3" / "model.safetensors")
    words = "checkpoint-6: scheduler.pt.*checkpoint-3: model.saf"
    with pytest.raises(ValueError, match=words):
        make_trainer(NAME, run, max_steps=6).train(resume_from_checkpoint=True)


# --- other folders beside the checkpoints ---


@pytest.fixture
def crowded(run):
    """The folder of the run, with two folders that somebody put beside the checkpoints."""
    (run / "checkpoint-old").mkdir()
    (run / "checkpoint-old" / "notes.txt").write_text("keep")
    (run / "checkpoint-3.bak").mkdir()
    return run


def names_of(folder):
    return {path.name for path in folder.glob("checkpoint-*")}


def test_deleting_old_checkpoints_leaves_other_folders_alone(crowded):
    longer = {"max_steps": 9, "save_steps": 3, "save_total_limit": 1}
    trainer = make_trainer(NAME, crowded, **longer, allow_changes=True)
    trainer.train(resume_from_checkpoint=True)
    assert names_of(crowded) == {"checkpoint-9", "checkpoint-old", "checkpoint-3.bak"}


def test_clearing_the_folder_of_a_run_leaves_other_folders_alone(crowded):
    clear_output_dir(make_trainer(NAME, crowded).args)
    assert names_of(crowded) == {"checkpoint-old", "checkpoint-3.bak"}


# --- which checkpoints are kept ---


@pytest.mark.parametrize(
    ("written", "limit", "best", "left"),
    [
        pytest.param({20: 0, 9: 1, 10: 2, 30: 3}, 2, None, [30, 10], id="first written, of two runs in a folder"),
        pytest.param({20: 5, 9: 5, 10: 5, 30: 5}, 2, None, [30, 20], id="lower step, at the same time"),
        pytest.param({1: 0, 2: 1}, 2, None, [2, 1], id="as many as the limit allows"),
        pytest.param({1: 0, 2: 1, 3: 2}, 2, 1, [3, 1], id="never the best"),
        pytest.param({3: 0, 4: 1}, 1, 3, [4, 3], id="never the best, beyond a limit of one"),
        pytest.param({3: 0, 4: 1, 5: 2}, None, None, [5, 4, 3], id="none without a limit"),
        pytest.param({3: 0, 4: 1, 5: 2}, 4, None, [5, 4, 3], id="none below the limit"),
    ],
)
def test_the_newest_checkpoints_and_the_best_one_are_kept(written, limit, best, left, tmp_path):
    for step, second in written.items():
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        os.utime(folder, (second, second))
    delete_old_checkpoints(tmp_path, limit, {folder, tmp_path / f"checkpoint-{best}"})
    assert [int(path.name.removeprefix("checkpoint-")) for path in checkpoints(tmp_path)] == left


# --- a full disk ---


NO_SPACE = OSError(28, "No space left on device")
WHAT_FAILS = pytest.mark.parametrize(
    "module, name, failure",
    [
        pytest.param(torch, "save", NO_SPACE, id="torch"),
        pytest.param(
            torch,
            "save",
            RuntimeError("inline_container.cc: pos"),
            id="torch with an error of its own",
        ),
        pytest.param(
            checkpoint_module,
            "save_own_files",
            RuntimeError("No space left on device (os error 28)"),
            id="the files of the model",
        ),
        pytest.param(files_module, "write_json", NO_SPACE, id="the manifest"),
    ],
    scope="module",
)


@pytest.fixture(scope="module")
def on_a_full_disk(module, name, failure, tmp_path_factory):
    """The folder of a run whose second checkpoint could not be written, and the error."""
    folder = tmp_path_factory.mktemp("full")
    options = {"max_steps": 6, "save_steps": 3, "logging_steps": 3}
    trainer = make_trainer("dropout as the view", folder, save_total_limit=1, **options)
    save = getattr(module, name)

    def full(*args, **kwargs):
        if any("checkpoint-6" in str(each) for each in args):
            raise failure
        return save(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, full)
        with pytest.raises(OSError) as raised:
            trainer.train()
    return folder, str(raised.value)


@WHAT_FAILS
def test_a_full_disk_is_an_error_of_one_line_and_leaves_earlier_checkpoints_whole(on_a_full_disk):
    folder, error = on_a_full_disk
    assert re.search(r"No space left on device, so checkpoint-6 was not.*earlier are untouched", error)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["checkpoint-3"]
    assert folder_problem(folder / "checkpoint-3") is None
