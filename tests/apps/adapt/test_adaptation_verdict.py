"""The arms of an adaptation, the choice among them, and the verdict on the chosen one."""

from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import write

from simcse_hf.apps.adapt.arms import ARM_NAMES, CONTROL, START, UNTRAINED, make_arms
from simcse_hf.apps.adapt.verdict import TIE_MARGIN, choose, judge
from simcse_hf.evaluation.tasks import TaskResult, read_task

# --- the arms ---


@pytest.fixture
def trained():
    """The arms that train, by name, of an adaptation with a pre-trained encoder and two files of labels."""
    labels = {Path("nli.jsonl"): "simcse", Path("sts.jsonl"): "cosent"}
    text, spans = Path("text.jsonl"), Path("spans.jsonl")
    arms = make_arms("present", "avg", None, "pretrained", text, spans, text, labels, 401, {})
    assert arms[0].name == START
    return {arm.name: arm for arm in arms if arm.stages}


def test_there_is_an_arm_of_every_name_and_all_that_train_take_the_same_number_of_steps(trained):
    assert {UNTRAINED, *trained} == set(ARM_NAMES)
    assert {sum(stage.steps for stage in arm.stages) for arm in trained.values()} == {401}


@pytest.mark.parametrize("method", ["mlm", "tsdae", "simcse", "spans"])
def test_text_first_starts_from_the_pretrained_encoder_and_ends_with_each_file_of_labels(trained, method):
    arm = trained[f"{method}-labels"]
    file = "spans.jsonl" if method == "spans" else "text.jsonl"
    stages = [(stage.method, stage.file.name) for stage in arm.stages]
    assert stages == [(method, file), ("labels", "nli.jsonl"), ("labels", "sts.jsonl")]
    assert arm.model == "pretrained" and arm.control == CONTROL


# --- the choice ---


@pytest.mark.parametrize(
    "scores, chosen",
    [
        ({START: 80.0, "labels": 80.0 + TIE_MARGIN, "mlm-labels": 80.0}, START),
        ({START: 80.0, "avg, whitening": 80.3, "labels": 80.5, "mlm-labels": 80.6}, "labels"),
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
    return TaskResult({"accuracy": 100 * float(correct.mean())}, {"classification": scores})


def compared(task, *after):
    """The judgement on the present model, with an accuracy of 70, and three runs."""
    return judge(task, "classification", START, [result(70, seed=0)], [*after])


def test_runs_that_are_alike_are_a_gain_and_runs_that_differ_with_the_same_mean_are_none(task):
    alike = compared(task, result(80, seed=1), result(80, seed=2), result(80, seed=3))
    apart = compared(task, result(74, seed=74), result(80, seed=80), result(86, seed=86))
    assert alike.verdict == "gain" and apart.verdict == "no gain"
    assert alike.difference == pytest.approx(10) == apart.difference
    assert apart.interval[0] < 0 < alike.interval[0]
    assert alike.before == 70 and alike.after == 80 and alike.units == 1000 and alike.against == START
