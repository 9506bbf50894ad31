"""Runs that are killed at random moments and resumed end with the bits of uninterrupted runs."""

import os
import random
import select
import sys
import time

import pytest

from benchmarks.kills import kill_configuration, start_process
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_forked_process_ends_with_its_parent(tmp_path):
    reader, writer = os.pipe()
    started = tmp_path / "started"

    def start_another_and_end():
        start_process(lambda: (started.touch(), time.sleep(120)), tmp_path / "child.log")
        while not started.exists():
            time.sleep(0.01)

    os.waitpid(start_process(start_another_and_end, tmp_path / "parent.log"), 0)
    os.close(writer)
    ended = bool(select.select([reader], [], [], 30)[0])  # the pipe has an end when no process can write to it
    os.close(reader)
    assert ended
