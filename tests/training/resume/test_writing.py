"""One process at a time writes into an output folder, and what it saves there is one whole model or none."""

import shutil
from unittest.mock import Mock

import pytest
import torch
from process_helpers import held_elsewhere
from trainer_helpers import files_of, model_of, refuses, train_command
from transformers import PreTrainedTokenizerBase

from benchmarks.tiny import make_trainer
from simcse_hf import SimCSE
from simcse_hf.runtime import files
from simcse_hf.runtime.files import STAGING, lock

NAME = "dropout as the view"


# --- one process in a folder ---


def test_a_second_training_is_refused_with_the_process_that_holds_the_folder_and_leaves_its_files(tmp_path):
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    words = f"--output_dir {tmp_path} --overwrite_output_dir --use_cpu --max_steps 1"
    for train in (
        make_trainer(NAME, tmp_path, max_steps=1, save_strategy="no").train,
        lambda: train_command("unsup", words),
        lambda: train_command("unsup", f"{words} --seeds 2"),
    ):
        with held_elsewhere(tmp_path) as child, refuses(f"{tmp_path}: process {child} writing Wait another folder"):
            train()
    assert checkpoint.is_dir()


def test_the_workers_of_a_killed_process_do_not_hold_its_folder(tmp_path):
    """They are forked while it holds the folder, and may outlive it by seconds."""
    with held_elsewhere(tmp_path, with_worker=True):
        pass
    with lock(tmp_path):
        pass


# --- a whole model or none ---


@pytest.fixture
def earlier(save_checkpoint):
    """A folder with a model in several files of weights."""
    model = model_of(pooler_type="cls")
    folder = save_checkpoint(model, "run")
    model.save_pretrained(folder, max_shard_size="10KB")
    return folder


FULL = OSError(28, "No space left on device")
SERIALIZING = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    "owner, method, failure",
    [(PreTrainedTokenizerBase, "save_pretrained", FULL), (torch.nn.Module, "state_dict", SERIALIZING)],
)
def test_a_full_disk_leaves_the_earlier_model_as_it_was(earlier, monkeypatch, owner, method, failure):
    before = files_of(earlier)
    trainer = make_trainer(NAME, earlier, max_steps=1, save_strategy="no")
    monkeypatch.setattr(owner, method, Mock(side_effect=failure))
    with pytest.raises(OSError, match=rf"No space left on device.*{earlier.name}"):
        trainer.save_model()
    assert files_of(earlier) == before


def test_a_save_that_is_killed_midway_leaves_nothing_that_loads(earlier, monkeypatch):
    """After each file that takes its place, in turn."""
    trainer = make_trainer(NAME, earlier.with_name("new"), max_steps=1, save_strategy="no")
    put, most = files.put_in_place, 0

    def put_some(temporary, path):
        nonlocal left
        left -= path.parent == folder
        if left < 0:
            raise KeyboardInterrupt
        put(temporary, path)

    monkeypatch.setattr(files, "put_in_place", put_some)
    while True:
        folder, left = earlier.with_name(f"copy{most}"), most
        shutil.copytree(earlier, folder)
        try:
            trainer.save_model(str(folder))
            break
        except KeyboardInterrupt:
            with pytest.raises((ValueError, OSError)):
                SimCSE(folder, device="cpu")
            most += 1
    assert most >= 5
    assert not (folder / STAGING).exists()
    saved = SimCSE(folder, device="cpu").model.state_dict()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in trainer.model.state_dict().items())
    assert not list(folder.glob("model-*")), "no weights of the earlier model"
