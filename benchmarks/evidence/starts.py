"""Unsupervised SimCSE with the paper's settings from a masked-LM start that knows about meaning, and its controls.

The start is `minilm-remasked-6x384`: all-MiniLM-L6-v2 after 2,000 steps of masked-LM, which undid a part of its
training as a sentence encoder. The controls are the same steps of masked-LM, a whitening of the start, no dropout, a
fixed dropout mask, and all-MiniLM-L6-v2 itself. Supervised SimCSE is run beside them. Starts after fewer and more
steps of masked-LM show how the gain depends on the start.
"""

import argparse
import shutil
from typing import Any

from simcse_hf.evaluation.report import spread
from simcse_hf.postprocessing import fit_whitening

from ..harness import Report, markdown
from .training import Spec, continue_masked_lm, run_missing, sts_table, train_and_test
from .workbench import MINILM, WHITENING_SENTENCES, Workbench, load_for_inference

START = "minilm-remasked-6x384"
RAW_CLS, MEAN = "cls_before_pooler", "avg"
PAPER = {"learning_rate": 3e-5, "per_device_train_batch_size": 64, "lr_scheduler_type": "linear"}
CLS_HEAD_IN_TRAINING = {"pooler_type": "cls", "mlp_only_train": True, "temperature": 0.05}
SHORT, FULL = 60, 500
MOST_SUPERVISED = 400  # there are triplets for 413 batches


def contrastive(steps: int, start: str = START, **changes: Any) -> Spec:
    """Return the paper's settings of unsupervised SimCSE with some changes."""
    arguments = PAPER | {"max_steps": steps} | changes.pop("arguments", {})
    common = {"method": "simcse", "start": start, "text": "wiki", "settings": CLS_HEAD_IN_TRAINING}
    return common | changes | {"arguments": arguments}


def untrained(start: str, pooler: str, method: str = "none") -> Spec:
    return {"method": method, "start": start, "pooler": pooler, "number_of_seeds": 1}


def controls(steps: int) -> dict[str, Spec]:
    """Return what is run in place of SimCSE with the same number of steps."""
    return {
        f"fixed mask, {steps} steps": contrastive(steps, arguments={"view": "fixed_mask"}),
        f"no dropout, {steps} steps": contrastive(steps, dropout=0.0, arguments={"view": "fixed_mask"}),
        f"masked-LM instead, {steps} steps": {
            "method": "masked-LM",
            "start": START,
            "pooler": RAW_CLS,
            "arguments": PAPER | {"max_steps": steps, "warmup_steps": 0, "weight_decay": 0.0},
        },
    }


def supervised(steps: int) -> dict[str, Spec]:
    """Return supervised SimCSE on NLI triplets, with the learning rate of the paper; the head is kept."""
    settings = {"pooler_type": "cls", "temperature": 0.05}
    spec = contrastive(steps, text="nli triplets", settings=settings, arguments={"learning_rate": 5e-5})
    return {f"supervised SimCSE, {steps} steps": spec}


#: The masked-LM runs that make further starts: the encoder each begins with, its steps, and its batch size. The start
#: itself had 2,000 steps with batches of 128. Smaller batches make 8,000 steps affordable.
MASKED_LM_STARTS = {"masked-lm-500": (MINILM, 500, 128), "masked-lm-8000": (START, 6000, 32)}
UNTRAINED = {
    "start, [CLS]": untrained(START, RAW_CLS),
    "start, mean": untrained(START, MEAN),
    "whitening of the start, [CLS]": untrained(START, RAW_CLS, "whitening"),
    "all-MiniLM-L6-v2, mean": untrained(MINILM, MEAN),
}
MAIN = {f"SimCSE, {SHORT} steps": contrastive(SHORT)}
CONTROLS = controls(SHORT)
SUPERVISED = supervised(SHORT)
LONGER = {f"SimCSE, {FULL} steps": contrastive(FULL)} | controls(FULL) | supervised(MOST_SUPERVISED)
OTHER_STARTS = {
    name: spec
    for start in (MINILM, *MASKED_LM_STARTS)
    for name, spec in {
        f"{start}, [CLS]": untrained(start, RAW_CLS),
        f"{start}: SimCSE, {SHORT} steps": contrastive(SHORT, start),
    }.items()
}


def run(options: argparse.Namespace, bench: Workbench, report: Report) -> None:
    def run_once(spec: Spec, seed: int) -> dict[str, Any]:
        make_start(bench, spec["start"])
        return METHODS[spec["method"]](bench, spec, seed)

    chosen = [
        {name: spec for name, spec in group.items() if not options.only or any(word in name for word in options.only)}
        for group in (MAIN, UNTRAINED, CONTROLS, SUPERVISED, OTHER_STARTS, LONGER)
    ]
    for group in chosen:
        run_missing(report, group, options.seeds, run_once)


def make_start(bench: Workbench, start: str) -> None:
    """Run the steps of masked-LM that make a start, if it is one of those and does not exist yet."""
    if start in MASKED_LM_STARTS and not (bench.work_dir / start / "config.json").exists():
        encoder, steps, batch = MASKED_LM_STARTS[start]
        settings = {"learning_rate": 3e-4, "warmup_steps": 100, "per_device_train_batch_size": batch}
        continue_masked_lm(bench, encoder, start, max_steps=steps, **settings)


def train_masked_lm(bench: Workbench, spec: Spec, seed: int) -> dict[str, Any]:
    name = f"masked-lm-control-{seed}"
    losses = continue_masked_lm(bench, spec["start"], name, seed=seed, **spec["arguments"])
    result = measure(bench, spec | {"start": name}, seed) | {"masked_lm_loss": losses["masked_lm_loss"]}
    shutil.rmtree(bench.work_dir / name)
    return result


def measure(bench: Workbench, spec: Spec, seed: int) -> dict[str, Any]:
    """Measure an encoder without contrastive training; the seed changes nothing."""
    model = load_for_inference(bench.encoder(spec["start"]), spec["pooler"])
    tokenizer = bench.tokenizer(spec["start"])
    whitening = None
    if spec["method"] == "whitening":
        whitening = fit_whitening([bench.encode(model, bench.wikipedia()[:WHITENING_SENTENCES], tokenizer)])
    return {"sts": bench.test(model, tokenizer, transform=whitening)}


METHODS = {"simcse": train_and_test, "masked-LM": train_masked_lm, "none": measure, "whitening": measure}


def table(results: dict) -> str:
    runs = results["runs"]
    tables = [sts_table(runs)]
    for name, run in runs.items():
        curves = [{point["step"]: point for point in r["curve"]} for r in run["seeds"].values() if "curve" in r]
        if curves:
            keys = ("dev", "alignment", "uniformity")
            cells = [[step, *(spread([c[step][key] for c in curves]) for key in keys)] for step in curves[0]]
            tables.append(f"{name}\n\n" + markdown(["step", "STS-B dev", "alignment", "uniformity"], cells))
    return "\n\n".join(tables)
