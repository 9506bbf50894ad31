"""Search for settings with which unsupervised SimCSE lifts STS from a small masked-LM encoder.

The SimCSE paper (appendix A) chose batch size and learning rate by a grid on STS-B dev, and so does this part, with
pooler, temperature and the number of steps besides. A second grid has more dropout and more steps. All runs have one
seed and a constant learning rate, so that the scores at 10 and 25 steps of one run are those of two runs. The best
settings of a pooler are then run with all seeds and measured on the test sets, if they lift STS-B dev at all. The
training text is the Wikipedia sentences of at most 14 words, which are as short as those of STS-B and cost half as
much.

The first step measures what the embeddings of STS-B dev encode before and after training, and after whitening.
"""

import argparse
import itertools
from typing import Any

from simcse_hf.evaluation.report import spread
from simcse_hf.postprocessing import fit_whitening

from ..harness import Report, markdown
from .contents import Contents
from .training import Spec, run_missing, sts_table, train, train_and_test
from .workbench import WHITENING_SENTENCES, Workbench, load_for_inference

START = "wiki-mlm-4x256"
STEPS = 25
POOLERS: dict[str, dict[str, Any]] = {
    "[CLS]": {"pooler_type": "cls", "mlp_only_train": True},
    "mean": {"pooler_type": "avg"},
}
UNTRAINED = {"[CLS]": "cls_before_pooler", "mean": "avg"}
LEARNING_RATES = (1e-6, 1e-5, 3e-5, 1e-4)
BATCHES = (32, 128)
TEMPERATURES = (0.05, 0.2)
LEAST_LIFT = 0.1  # of Spearman x 100 on STS-B dev, for settings that are run with all seeds
#: The second grid: dropout rates and learning rates, for more steps.
DROPOUTS, DROPOUT_RATES, DROPOUT_STEPS, DROPOUT_BATCH = (0.3, 0.5, 0.7), (1e-5, 3e-5, 1e-4), 100, 32


def run(options: argparse.Namespace, bench: Workbench, report: Report) -> None:
    def run_once(spec: Spec, seed: int) -> dict[str, Any]:
        if spec["stage"] == "start":
            model = load_for_inference(bench.encoder(START), UNTRAINED[spec["pooler"]])
            return {"sts": bench.test(model, bench.tokenizer(START))}
        return train_and_test(bench, spec, seed) if spec["stage"] == "best" else train(bench, spec, seed)[1]

    report.save(start=START)
    describe(bench, report, options.seeds)
    run_missing(report, grid(), options.seeds[:1], run_once)
    run_missing(report, dropout_grid(), options.seeds[:1], run_once)
    chosen = best(report.results)
    starts = {f"start, {each['pooler']}": {"stage": "start", "pooler": each["pooler"]} for each in chosen.values()}
    run_missing(report, starts, options.seeds[:1], run_once)
    run_missing(report, chosen, options.seeds, run_once)


def describe(bench: Workbench, report: Report, seeds: list[int]) -> None:
    """Measure what the embeddings encode: at the start, whitened, and after SimCSE without and with more dropout."""
    contents = Contents(bench.dev, bench.wikipedia())
    tokenizer = bench.tokenizer(START)
    found = report.results.setdefault("contents", {"baselines": contents.baselines()})
    for pooler in POOLERS:
        if f"{pooler}, whitened" not in found:
            model = load_for_inference(bench.encoder(START), UNTRAINED[pooler])
            before = bench.encode(model, contents.texts, tokenizer)
            found[f"{pooler}, start"] = {"0": contents.measure(before)}
            whitening = fit_whitening([bench.encode(model, bench.wikipedia()[:WHITENING_SENTENCES], tokenizer)])
            found[f"{pooler}, whitened"] = {"0": contents.measure(whitening.transform(before))}
        for name, settings in {
            f"{pooler}, SimCSE": spec("contents", pooler, 3e-5, 128, 0.05),
            f"{pooler}, SimCSE with dropout 0.5": spec("contents", pooler, 3e-5, 128, 0.05, dropout=0.5),
        }.items():
            trained = found.setdefault(name, {})
            for seed in seeds:
                if str(seed) not in trained:
                    model, _ = train(bench, settings, seed)
                    trained[str(seed)] = contents.measure(bench.encode(model, contents.texts, tokenizer))
                    report.save()


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
    axes = itertools.product(TEMPERATURES, BATCHES, LEARNING_RATES, POOLERS)
    specs = [spec("grid", pooler, rate, batch, temperature) for temperature, batch, rate, pooler in axes]
    return {name_of(each): each for each in specs}


def best_of(results: dict, pooler: str) -> tuple[Spec, int, float]:
    """Find the settings and the number of steps with the largest gain on STS-B dev.

    Returns:
        `tuple[dict[str, Any], int, float]`: The settings, the steps, and the gain over the score before training.
    """
    candidates = [
        (run["settings"], point["step"], point["dev"] - result["curve"][0]["dev"])
        for run in results["runs"].values()
        if run["settings"]["pooler"] == pooler and run["settings"]["stage"] in ("grid", "dropout")
        for result in run["seeds"].values()
        for point in result["curve"][1:]
    ]
    return max(candidates, key=lambda candidate: candidate[2])


def dropout_grid() -> dict[str, Spec]:
    """Return the runs with more dropout, by name."""
    specs = [
        spec("dropout", pooler, rate, DROPOUT_BATCH, TEMPERATURES[0], dropout, DROPOUT_STEPS)
        for dropout, rate, pooler in itertools.product(DROPOUTS, DROPOUT_RATES, POOLERS)
    ]
    return {name_of(each): each for each in specs}


def best(results: dict) -> dict[str, Spec]:
    """Return the best settings of each pooler that lift STS-B dev, with as many steps as were best, for all seeds."""
    specs = {}
    for pooler in POOLERS:
        winner, steps, lift = best_of(results, pooler)
        if lift >= LEAST_LIFT:
            arguments = winner["arguments"] | {"max_steps": steps}
            specs[f"best {pooler}: {name_of(winner)}"] = winner | {"stage": "best", "arguments": arguments}
    return specs


def table(results: dict) -> str:
    rows, tests, shown = [], {}, (0, 10, STEPS, 50, DROPOUT_STEPS)
    for name, run in results["runs"].items():
        if run["settings"]["stage"] in ("start", "best"):
            tests[name] = run
            continue
        curve = next(iter(run["seeds"].values()))["curve"]
        figures = {point["step"]: f"{point['dev']:.2f}" for point in curve}
        last = [f"{curve[-1]['alignment']:.3f}", f"{curve[-1]['uniformity']:.2f}"]
        rows.append([name, *(figures.get(step, "") for step in shown), *last])
    header = ["run (one seed)", "start", *(f"{step} steps" for step in shown[1:]), "alignment", "uniformity"]
    tables = [markdown(header, rows)]
    if tests:
        tables.append(sts_table(tests))
    if "contents" in results:
        baselines = results["contents"]["baselines"]
        order = sorted(results["contents"], key=lambda name: name.startswith("mean"))  # [CLS] first
        kinds = {name: results["contents"][name] for name in order if name != "baselines"}
        keys = list(next(iter(next(iter(kinds.values())).values())))
        rows = [[key, *(spread([run[key] for run in runs.values()]) for runs in kinds.values())] for key in keys]
        tables.append(f"Spearman x 100 with the gold scores: {baselines}\n\n" + markdown(["", *kinds], rows))
    return "\n\n".join(tables)
