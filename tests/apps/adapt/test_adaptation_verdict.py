"""The arms of an adaptation, the choice among them, and the verdict on the chosen one."""

from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import write

from simcse_hf.apps.adapt.arms import (
    ARM_NAMES,
    CONTROL,
    START,
    UNTRAINED,
    make_arms,
)
from simcse_hf.apps.adapt.verdict import TIE_MARGIN, choose, judge
from simcse_hf.evaluation.user_tasks import TaskResult, read_task

# --- the arms ---


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


TEXT_FIRST = pytest.mark.parametrize("method", ["mlm", "tsdae", "simcse", "spans"])


@TEXT_FIRST
def test_text_first_starts_from_the_pretrained_encoder(trained, method):
    assert trained[f"{method}-labels"].model == "pretrained"


@TEXT_FIRST
def test_text_first_has_a_control(trained, method):
    assert trained[f"{method}-labels"].control == CONTROL


def test_labels_alone_start_from_the_present_model(trained):
    assert trained["labels"].model == "present"


def test_labels_alone_have_no_control(trained):
    assert trained["labels"].control == ""


# --- the choice ---


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        pytest.param(
            {START: 80.0, "labels": 80.0 + TIE_MARGIN, "mlm-labels": 80.0},
            START,
            id="the best arm is better by the margin",
        ),
        pytest.param(
            {START: 80.0, "avg, whitening": 80.3, "labels": 80.5, "mlm-labels": 80.6},
            "labels",
            id="the second best one is within the margin",
        ),
        pytest.param({START: 80.0, "labels": 79.0}, START, id="the present model is the best"),
    ],
)
def test_the_simplest_arm_within_the_margin_of_the_best_is_chosen(scores, chosen):
    assert choose(scores) == chosen


# --- the verdict ---


@pytest.fixture
def task(tmp_path):
    """A task of a thousand texts."""
    rows = [f"text {number},{number % 2}" for number in range(1000)]
    path = write(tmp_path / "task.csv", ["text,label", *rows])
    return read_task("classification", path)


def result(accuracy, seed):
    """A result on a thousand rows, of which random ones are right."""
    order = np.random.default_rng(seed).permutation(1000)
    correct = order < 10 * accuracy
    rows = np.arange(1000)
    scores = {"gold": np.zeros(1000), "unit": rows, "group": rows, "correct": correct}
    return TaskResult({"accuracy": 100 * float(correct.mean())}, scores)


def compared(task, *after):
    """The comparison of the present model, with an accuracy of 70, and three runs."""
    return judge(task, "classification", START, [result(70, seed=0)], [*after])


@pytest.fixture
def alike(task):
    """Three runs of the same accuracy."""
    return compared(task, result(80, seed=1), result(80, seed=2), result(80, seed=3))


@pytest.fixture
def apart(task):
    """Three runs that differ, with the same mean."""
    return compared(task, result(74, seed=74), result(80, seed=80), result(86, seed=86))


def test_runs_that_are_alike_are_a_gain(alike):
    assert alike.verdict == "gain"


def test_runs_that_differ_are_no_gain(apart):
    assert apart.verdict == "no gain"


def test_the_difference_is_that_of_the_means_however_the_runs_differ(alike, apart):
    assert alike.difference == pytest.approx(10)
    assert apart.difference == pytest.approx(10)


def test_runs_that_differ_widen_the_interval_of_the_verdict(alike, apart):
    assert apart.interval[0] < 0 < alike.interval[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("before", 70), ("after", 80), ("units", 1000), ("against", START)],
)
def test_a_comparison_says_what_was_compared(name, value, alike):
    assert getattr(alike, name) == value
