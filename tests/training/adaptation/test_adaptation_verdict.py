"""The arms of an adaptation, the choice among them, and the verdict on the chosen one."""

from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import write

from simcse_hf.evaluation.user_tasks import TaskResult, read_task
from simcse_hf.training.adaptation.arms import (
    ARM_NAMES,
    CONTROL,
    START,
    UNTRAINED,
    make_arms,
)
from simcse_hf.training.adaptation.verdict import TIE_MARGIN, choose, compare


def test_every_arm_that_trains_takes_the_same_number_of_steps():
    labels = {Path("nli.jsonl"): "simcse", Path("sts.jsonl"): "cosent"}
    arms = make_arms(
        "present", "avg", None, "pretrained", Path("text.jsonl"), labels, 401
    )
    trained = {arm.name: arm for arm in arms if arm.stages}
    assert set(trained) | {UNTRAINED} == set(ARM_NAMES) and arms[0].name == START
    assert {sum(stage.steps for stage in arm.stages) for arm in trained.values()} == {
        401
    }
    for method in ("mlm", "tsdae", "simcse"):
        arm = trained[f"{method}-labels"]
        assert [(stage.method, stage.file.name) for stage in arm.stages] == [
            (method, "text.jsonl"),
            ("labels", "nli.jsonl"),
            ("labels", "sts.jsonl"),
        ]
        assert (arm.model, arm.control) == ("pretrained", CONTROL)
    assert (trained["labels"].model, trained["labels"].control) == ("present", "")


def test_the_simplest_arm_within_the_margin_of_the_best_is_chosen():
    assert (
        choose({START: 80.0, "labels": 80.0 + TIE_MARGIN, "mlm-labels": 80.0}) == START
    )
    assert (
        choose(
            {START: 80.0, "avg, whitening": 80.3, "labels": 80.5, "mlm-labels": 80.6}
        )
        == "labels"
    )
    assert choose({START: 80.0, "labels": 79.0}) == START


@pytest.fixture
def task(tmp_path):
    rows = [f"text {number},{number % 2}" for number in range(1000)]
    return read_task(
        "classification", write(tmp_path / "task.csv", ["text,label", *rows])
    )


def result(task, accuracy, seed):
    correct = (
        np.random.default_rng(seed).permutation(len(task)) < accuracy * len(task) / 100
    )
    scores = {
        "gold": np.zeros(len(task)),
        "unit": np.arange(len(task)),
        "group": np.arange(len(task)),
        "correct": correct,
    }
    return TaskResult({"accuracy": 100 * float(correct.mean())}, scores)


def test_runs_that_differ_widen_the_interval_of_the_verdict(task):
    before = [result(task, 70, 0)]
    alike = compare(
        task,
        "classification",
        START,
        before,
        [result(task, 80, seed) for seed in (1, 2, 3)],
    )
    apart = compare(
        task,
        "classification",
        START,
        before,
        [result(task, a, a) for a in (74, 80, 86)],
    )
    assert (alike.difference, alike.verdict) == (pytest.approx(10), "gain")
    assert (apart.difference, apart.verdict) == (pytest.approx(10), "no gain")
    assert apart.interval[0] < 0 < alike.interval[0]
    assert (alike.before, alike.after, alike.units, alike.against) == (
        70,
        80,
        1000,
        START,
    )
