"""Search for settings with which unsupervised SimCSE lifts STS from a small masked-LM encoder.

The SimCSE paper (appendix A) chose batch size and learning rate by a grid on STS-B dev, and so does this part, with
pooler, temperature, dropout and the number of steps besides. All runs of the grid have one seed and a constant
learning rate, so that the figures at 10, 25 and 50 steps of one run are those of shorter runs. The best settings of
each pooler are then run with all seeds and measured on the test sets. The training text is the Wikipedia sentences of
at most 14 words, which are as short as those of STS-B and half as expensive.
"""

import argparse
import itertools
from typing import Any

from ..harness import Report, markdown, spread
from .training import Spec, run_missing, train
from .workbench import Workbench

START = "wiki-mlm-4x256"
STEPS = 50
POOLERS: dict[str, dict[str, Any]] = {
    "[CLS]": {"pooler_type": "cls", "mlp_only_train": True},
    "mean": {"pooler_type": "avg"},
}
LEARNING_RATES = (1e-6, 1e-5, 3e-5, 1e-4)
BATCHES = (32, 128)
TEMPERATURES = (0.05, 0.2)
DROPOUTS = (0.02, 0.3)


def run(options: argparse.Namespace, bench: Workbench, report: Report) -> None:
    def train_once(spec: Spec, seed: int) -> dict[str, Any]:
        return train(bench, spec, seed, test=spec["stage"] == "best")

    report.save(start=START)
    run_missing(report, grid(), options.seeds[:1], train_once)
    run_missing(report, dropouts(report.results), options.seeds[:1], train_once)
    run_missing(report, best(report.results), options.seeds, train_once)


def spec(
    stage: str, pooler: str, rate: float, batch: int, temperature: float, dropout: float = 0.1, steps: int = STEPS
) -> Spec:
    return {
        "stage": stage,
        "start": START,
        "text": "short wiki",
        "pooler": pooler,
        "dropout": dropout,
        "settings": POOLERS[pooler] | {"temperature": temperature},
        "arguments": {
            "learning_rate": rate,
            "per_device_train_batch_size": batch,
            "max_steps": steps,
            "lr_scheduler_type": "constant",
        },
    }


def name_of(spec: Spec) -> str:
    """Name a run by its settings."""
    arguments = spec["arguments"]
    return (
        f"{spec['pooler']}, learning rate {arguments['learning_rate']:g}, batch "
        f"{arguments['per_device_train_batch_size']}, temperature {spec['settings']['temperature']:g}, dropout "
        f"{spec['dropout']:g}"
    )


def grid() -> dict[str, Spec]:
    """Return the runs of the grid, by name."""
    axes = itertools.product(BATCHES, TEMPERATURES, LEARNING_RATES, POOLERS)
    specs = [spec("grid", pooler, rate, batch, temperature) for batch, temperature, rate, pooler in axes]
    return {name_of(each): each for each in specs}


def best_of(results: dict, pooler: str) -> tuple[Spec, dict[str, float]]:
    """Return the run of one seed with the highest dev figure at any step after the first, and that point of it."""
    candidates = [
        (run["settings"], point)
        for run in results["runs"].values()
        if run["settings"]["pooler"] == pooler and run["settings"]["stage"] != "best"
        for result in run["seeds"].values()
        for point in result["curve"][1:]
    ]
    return max(candidates, key=lambda candidate: candidate[1]["dev"])


def dropouts(results: dict) -> dict[str, Spec]:
    """Return the runs that change the dropout of each pooler's best settings in the grid."""
    specs = []
    for pooler in POOLERS:
        winner, _ = best_of({"runs": {n: r for n, r in results["runs"].items() if n in grid()}}, pooler)
        specs += [winner | {"stage": "dropout", "dropout": dropout} for dropout in DROPOUTS]
    return {name_of(each): each for each in specs}


def best(results: dict) -> dict[str, Spec]:
    """Return the best settings of each pooler, with as many steps as were best, for all seeds and the test sets."""
    specs = {}
    for pooler in POOLERS:
        winner, point = best_of(results, pooler)
        arguments = winner["arguments"] | {"max_steps": point["step"]}
        specs[f"best {pooler}: {name_of(winner)}"] = winner | {"stage": "best", "arguments": arguments}
    return specs


def table(results: dict) -> str:
    rows, tests = [], []
    for name, run in results["runs"].items():
        curves = [result["curve"] for result in run["seeds"].values()]
        if run["settings"]["stage"] == "best":
            tests.append((name, run))
        else:
            figures = {point["step"]: point for point in curves[0]}
            last = curves[0][-1]
            cells = [f"{figures[step]['dev']:.2f}" if step in figures else "" for step in (0, 10, 25, STEPS)]
            rows.append([name, *cells, f"{last['alignment']:.3f}", f"{last['uniformity']:.2f}"])
    header = ["run (one seed)", "start", "10 steps", "25 steps", "50 steps", "alignment", "uniformity"]
    tables = [markdown(header, rows)]
    if tests:
        tasks = list(next(iter(tests[0][1]["seeds"].values()))["sts"])
        cells = [
            [name, len(run["seeds"]), *(spread([r["sts"][task] for r in run["seeds"].values()]) for task in tasks)]
            for name, run in tests
        ]
        tables.append(markdown(["run", "seeds", *tasks], cells))
    return "\n\n".join(tables)
