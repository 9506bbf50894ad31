"""A checkpoint is whole or passed over: damage is found, named, and never trained from."""

import logging
import os
import shutil

import pytest
import torch
from transformers import TrainerState, TrainingArguments

from benchmarks.tiny import make_trainer
from simcse_hf.models import checkpoint as checkpoint_module
from simcse_hf.ops import files as files_module
from simcse_hf.ops.files import MANIFEST, folder_problem
from simcse_hf.training.checkpoints import checkpoints, newest_whole_checkpoint, staged
from simcse_hf.training.output_folder import clear_output_dir

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


DAMAGES = {
    "truncated": truncate,
    "changed": flip_a_bit,
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize(
    "file, damage",
    [
        *((file, "changed") for file in FILES),
        *(
            (FILES[0], "truncated"),
            (FILES[2], "missing"),
            (MANIFEST, "missing"),
            (MANIFEST, "truncated"),
        ),
    ],
)
def test_resuming_passes_over_a_damaged_checkpoint_and_names_the_file(
    run, file, damage, caplog
):
    DAMAGES[damage](run / "checkpoint-6" / file)
    with caplog.at_level(logging.WARNING):
        assert newest_whole_checkpoint(run) == str(run / "checkpoint-3")
    assert "checkpoint-6 is passed over because" in caplog.text and file in caplog.text


def test_a_run_without_a_whole_checkpoint_is_refused_with_the_damage(run):
    truncate(run / "checkpoint-6" / "scheduler.pt")
    with pytest.raises(ValueError, match="checkpoint-6: scheduler.pt"):
        make_trainer(NAME, run, max_steps=9).train(
            resume_from_checkpoint=str(run / "checkpoint-6")
        )
    (run / "checkpoint-3" / "model.safetensors").unlink()
    with pytest.raises(
        ValueError, match="checkpoint-6: scheduler.pt.*checkpoint-3: model.saf"
    ):
        make_trainer(NAME, run, max_steps=6).train(resume_from_checkpoint=True)


def test_other_folders_beside_the_checkpoints_are_left_alone(run):
    (run / "checkpoint-old").mkdir()
    (run / "checkpoint-old" / "notes.txt").write_text("keep")
    (run / "checkpoint-3.bak").mkdir()
    longer = {
        "max_steps": 9,
        "save_steps": 3,
        "save_total_limit": 1,
        "allow_changes": True,
    }
    make_trainer(NAME, run, **longer).train(resume_from_checkpoint=True)
    assert {path.name for path in run.glob("checkpoint-*")} == {
        "checkpoint-9",
        "checkpoint-old",
        "checkpoint-3.bak",
    }
    clear_output_dir(make_trainer(NAME, run).args)
    assert {path.name for path in run.glob("checkpoint-*")} == {
        "checkpoint-old",
        "checkpoint-3.bak",
    }


# --- which checkpoints are kept ---


def save(folder, step, best=None, limit=2):
    """Save an empty checkpoint, and return the steps of those that are left."""
    args = TrainingArguments(str(folder), use_cpu=True, save_total_limit=limit)
    with staged(
        folder, TrainerState(global_step=step, best_global_step=best), args
    ) as checkpoint:
        checkpoint.mkdir(parents=True)
    return [int(path.name.removeprefix("checkpoint-")) for path in checkpoints(folder)]


@pytest.mark.parametrize(
    "seconds, left", [((0, 1, 2), [30, 10]), ((5, 5, 5), [30, 20])]
)
def test_the_checkpoints_that_were_written_first_are_deleted_first(
    tmp_path, seconds, left
):
    for second, step in zip(
        seconds, (20, 9, 10), strict=True
    ):  # a second run in the folder began at a lower step
        (tmp_path / f"checkpoint-{step}").mkdir()
        os.utime(tmp_path / f"checkpoint-{step}", (second, second))
    assert save(tmp_path, 30) == left


def test_the_newest_and_the_best_checkpoint_are_never_deleted(tmp_path):
    assert (
        save(tmp_path, 1) == [1]
        and save(tmp_path, 2) == [2, 1]
        and save(tmp_path, 3, best=1) == [3, 1]
    )
    assert save(tmp_path, 4, best=3, limit=1) == [4, 3] and save(
        tmp_path, 5, limit=None
    ) == [5, 4, 3]


# --- a full disk ---


@pytest.mark.parametrize(
    "module, name, failure",
    [
        (torch, "save", OSError(28, "No space left on device")),
        (torch, "save", RuntimeError("inline_container.cc: pos")),
        (
            checkpoint_module,
            "save_own_files",
            RuntimeError("No space left on device (os error 28)"),
        ),
        (
            files_module,
            "write_json",
            OSError(28, "No space left on device"),
        ),  # the manifest
    ],
)
def test_a_full_disk_is_one_line_and_leaves_the_earlier_checkpoints(
    tmp_path, monkeypatch, module, name, failure
):
    options = {
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 3,
        "save_total_limit": 1,
    }
    trainer = make_trainer("dropout as the view", tmp_path, **options)
    save = getattr(module, name)

    def full(*args, **kwargs):
        if any("checkpoint-6" in str(each) for each in args):
            raise failure
        return save(*args, **kwargs)

    monkeypatch.setattr(module, name, full)
    with pytest.raises(
        OSError, match=r"No space left on device.*earlier are untouched.*checkpoint-6'$"
    ):
        trainer.train()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [
        "checkpoint-3"
    ]
    assert folder_problem(tmp_path / "checkpoint-3") is None
