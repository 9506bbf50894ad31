"""Runs that are killed at random moments and resumed end with the bits of uninterrupted runs."""

import random

import pytest

from benchmarks.kills import kill_configuration
from benchmarks.tiny import CONFIGURATIONS


@pytest.mark.parametrize("name", ["momentum encoder and queue"])
def test_a_killed_run_resumes_with_equal_bits(tmp_path, name):
    counts = kill_configuration(name, tmp_path, 2, random.Random(0))
    assert counts["kills"] == 2 and counts["differing"] == 0, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_killed_runs_of_every_configuration_resume_with_equal_bits(tmp_path, name):
    counts = kill_configuration(name, tmp_path, 6, random.Random(1))
    assert counts["kills"] == 6 and counts["differing"] == 0, counts


@pytest.mark.slow
def test_the_kill_benchmark_notices_a_run_that_differs(tmp_path, monkeypatch):
    """Not even the seed of the data may change unnoticed."""
    from benchmarks import kills

    train, make = kills.train, kills.make_trainer
    monkeypatch.setattr(
        kills,
        "train",
        lambda name, folder: (
            train(name, folder)
            if folder.name == "whole"
            else make(name, folder, data_seed=1).train(resume_from_checkpoint=bool(kills.checkpoints(folder)))
        ),
    )
    counts = kills.kill_configuration("dropout as the view", tmp_path, 1, random.Random(0))
    assert counts["differing"] == counts["runs"] and "model.safetensors" in counts["differences"]
