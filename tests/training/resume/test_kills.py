"""Runs that are killed or stopped, and resumed, end with the bits of uninterrupted runs."""

import random
import shutil

import pytest
from conftest import fast_first

from benchmarks.kills import kill_configuration
from benchmarks.tiny import CONFIGURATIONS, fingerprint, make_trainer
from simcse_hf.training.checkpoints import checkpoints

FIRST = "momentum encoder and queue"


@pytest.mark.parametrize("name", fast_first(FIRST, *(name for name in CONFIGURATIONS if name != FIRST)))
def test_killed_runs_resume_with_equal_bits(tmp_path, name):
    counts = kill_configuration(name, tmp_path, 2, random.Random(0))
    assert counts["kills"] == 2 and counts["differing"] == 0, counts


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one_and_logs_no_warning(tmp_path, name, caplog):
    whole, half = tmp_path / "whole", tmp_path / "half"
    steps = {"max_steps": 13, "save_steps": 8, "save_total_limit": None}  # an epoch has 6
    make_trainer(name, whole, **steps).train()
    middle = checkpoints(whole)[1].name
    shutil.copytree(whole / middle, half / middle)
    resumed = make_trainer(name, half, **steps)
    caplog.clear()
    resumed.train(resume_from_checkpoint=True)
    expected = ("adds no negatives", "made the model worse")  # by accumulation, and on random scores
    logged = [record.message for record in caplog.records]
    assert [message for message in logged if not any(words in message for words in expected)] == []
    assert fingerprint(half) == fingerprint(whole)
