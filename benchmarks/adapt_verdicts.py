"""How often `simcse-hf adapt` says "gain" where the arms differ only by chance, with its own choice and its own test.

Every run of an arm answers the rows of a task as well as the present model does, up to the chance of that run: its
accuracy lies off by a normal number with a standard deviation of 0, 1 or 2 points. So each "gain" is false. One run of
each arm is scored on the dev part, `choose` takes an arm, and `judge` looks at new runs of it on the held-out part,
against the present model and against new runs of its control.
"""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from scipy.special import ndtri
from tqdm import trange

from simcse_hf.apps.adapt.arms import START, make_arms
from simcse_hf.apps.adapt.inputs import DEV_SHARE
from simcse_hf.apps.adapt.verdict import GAIN, choose, judge
from simcse_hf.evaluation.user_tasks import TaskResult, UserTask

from .harness import Report, markdown

ACCURACY, ALIKE = 0.85, 0.9  # of the present model; correlation of how hard a row is for two runs
DEVIATIONS = (0.0, 1.0, 2.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verdicts", type=int, default=500, help="simulated verdicts of each setting")
    parser.add_argument("--rows", type=int, default=3000, help="rows of the task, dev and held out")
    parser.add_argument("--seeds", type=int, default=3, help="new runs of the verdict")


def run(options: argparse.Namespace, report: Report) -> None:
    report.save(rows=options.rows, seeds=options.seeds, verdicts=options.verdicts)
    settings = report.results.setdefault("settings", {})
    for deviation in DEVIATIONS:
        found = [simulate(options, deviation, number) for number in trange(options.verdicts, desc=f"sd {deviation:g}")]
        chosen, model, text = zip(*found, strict=True)
        settings[f"{deviation:g}"] = {
            "gain over the present model": round(100 * float(np.mean(model)), 2),
            "gain of the text over its control": round(100 * float(np.mean(text)), 2),
            "chosen": {name: chosen.count(name) for name in sorted(set(chosen))},
        }
        report.save()


def simulate(options: argparse.Namespace, deviation: float, number: int) -> tuple[str, bool, bool]:
    """Return the arm that is chosen, and whether it is a gain over the present model and over its control."""
    random = np.random.default_rng([number, int(10 * deviation)])
    arms = make_arms("present", "avg", None, "pretrained", Path("text"), None, {Path("labels"): "simcse"}, 400)
    by_name = {arm.name: arm for arm in arms}
    dev = round(DEV_SHARE * options.rows)
    parts = [random.standard_normal(rows) for rows in (dev, options.rows - dev)]

    def answers(name: str, part: int) -> TaskResult:
        own = random.standard_normal(len(parts[part])) * (name != START)
        shift = deviation / 100 * random.standard_normal() if by_name[name].stages else 0.0
        hard = ALIKE**0.5 * parts[part] + (1 - ALIKE) ** 0.5 * own
        scale = 1.0 if name != START else ALIKE**0.5  # the present model has the same accuracy
        correct = hard < scale * ndtri(min(ACCURACY + shift, 0.999))
        rows = np.arange(len(own))
        return TaskResult(
            {"accuracy": 100 * float(correct.mean())},
            {"gold": 0 * rows, "unit": rows, "group": rows, "correct": correct},
        )

    task = _task(len(parts[1]))
    name = choose({arm.name: answers(arm.name, 0).metrics["accuracy"] for arm in arms})
    runs = options.seeds if by_name[name].stages else 1
    after = [answers(name, 1) for _ in range(runs)]
    model = judge(task, "", START, [answers(START, 1)], after).verdict == GAIN
    control = by_name[name].control
    if control in ("", START):
        return name, model, model and control == START
    return name, model, judge(task, "", control, [answers(control, 1) for _ in range(runs)], after).verdict == GAIN


def _task(rows: int) -> UserTask:
    """Return what a comparison reads of a task."""
    kind = type("Simulated", (SimpleNamespace,), {"__len__": lambda task: rows})
    return cast(Any, kind(kind="classification", metric="accuracy", unit="row", source="simulated"))


def table(results: dict) -> str:
    """Format the shares of false gains."""
    names = ["gain over the present model", "gain of the text over its control"]
    rows = [[sd, *(f"{each[name]:.1f}%" for name in names)] for sd, each in results.get("settings", {}).items()]
    return markdown(["sd between runs, points", *names], rows)
