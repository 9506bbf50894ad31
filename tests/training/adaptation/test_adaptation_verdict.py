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


@pytest.fixture
def trained():
    """The arms that train, by name, of an adaptation with a pre-trained encoder and two files of labels."""
    labels = {Path("nli.jsonl"): "simcse", Path("sts.jsonl"): "cosent"}
    text, spans = Path("text.jsonl"), Path("spans.jsonl")
    arms = make_arms("present", "avg", None, "pretrained", text, spans, labels, 401)
    assert arms[0].name == START
    return {arm.name: arm for arm in arms if arm.stages}


def test_there_is_an_arm_of_every_name(trained):
    assert {UNTRAINED, *trained} == set(ARM_NAMES)


def test_every_arm_that_trains_takes_the_same_number_of_steps(trained):
    steps = {sum(stage.steps for stage in arm.stages) for arm in trained.values()}
    assert steps == {401}


@pytest.mark.parametrize(
    ("method", "file"),
    [
        ("mlm", "text.jsonl"),
        ("tsdae", "text.jsonl"),
        ("simcse", "text.jsonl"),
        ("spans", "spans.jsonl"),
    ],
)
def test_an_arm_reads_text_first_and_each_file_of_labels_then(trained, method, file):
    stages = trained[f"{method}-labels"].stages
    assert [(stage.method, stage.file.name) for stage in stages] == [
        (method, file),
        ("labels", "nli.jsonl"),
        ("labels", "sts.jsonl"),
    ]


@pytest.mark.parametrize("method", ["mlm", "tsdae", "simcse", "spans"])
def test_text_first_starts_from_the_pretrained_encoder_and_has_a_control(
    trained, method
):
    arm = trained[f"{method}-labels"]
    assert (arm.model, arm.control) == ("pretrained", CONTROL)


def test_labels_alone_start_from_the_present_model(trained):
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
