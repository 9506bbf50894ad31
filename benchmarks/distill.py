"""Distil all-MiniLM-L6-v2 into wiki-mlm-4x256 without labels, beside SimCSE from the same start, and time its steps.

    python -m benchmarks distill --output benchmarks/results/distill.json
    python -m benchmarks distill --output benchmarks/results/distill.json --sts
    python -m benchmarks distill --output benchmarks/results/distill.json --step

Runs that the output file already holds are not repeated. `--sts` evaluates the trained models on the STS sets.
`--step` times training steps of NLI triplets with supervised SimCSE, and with the loss of a teacher from shards added.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments, load_text_dataset
from simcse_hf.encoding.files import write_vectors
from simcse_hf.evaluation import evaluate
from simcse_hf.evaluation.report import spread
from simcse_hf.training.recipe import Recipe

from .contestants import Contestant, common
from .harness import SHARED, STS_TASKS, Report, machine, markdown, model_or_default, take_turns

START = SHARED / "models/wiki-mlm-4x256"
COMMON = {
    "pooler_type": "avg",
    "max_steps": 300,
    "eval_steps": 300,
    "save_steps": 300,
    "disable_tqdm": True,
    "report_to": "none",
}
TRIPLETS = {
    "train_file": "nli/nli_triplets.csv.gz",
    "max_train_samples": 19200,
    "per_device_train_batch_size": 64,
}
WIKIPEDIA = {
    "train_file": "wiki/wiki_sentences.txt.gz",
    "max_train_samples": 50000,
    "per_device_train_batch_size": 64,
}
LISTNET = {"loss": "listnet", "student_temperature": 0.05, "teacher_temperature": 0.05}
#: The command and the arguments of each run; runs with `objective="distill"` get the teacher.
RUNS = {
    "distill, NLI triplets": ("sup", TRIPLETS | {"learning_rate": 8e-4, "objective": "distill"}),
    "simcse, NLI triplets": ("sup", TRIPLETS | {"learning_rate": 5e-5}),
    "distill, Wikipedia": (
        "unsup",
        WIKIPEDIA
        | {"learning_rate": 3e-4, "objective": "distill", "objective_options": LISTNET, "batch_neighbors": 15},
    ),
    "simcse, Wikipedia": ("unsup", WIKIPEDIA | {"learning_rate": 3e-5}),
}
TEACHER_DIM = 384


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--sts", action="store_true", help="evaluate the trained models instead of training")
    parser.add_argument("--step", action="store_true", help="time training steps instead of training")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contestant with --step")
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/distill"))


def trained(folder: Path, name: str, seed: int | str) -> Path:
    """Return where a run is saved."""
    return folder / name.replace(", ", "-").replace(" ", "-") / str(seed)


def run(options: argparse.Namespace, report: Report) -> None:
    if options.step:
        return report.save(step=time_steps(options.rounds) | {"machine": machine()})
    data, teacher = SHARED / "data", str(model_or_default(None))
    senteval = data / "senteval/downstream"
    for name, seed in ((name, seed) for name in options.only for seed in options.seeds):
        command, own = RUNS[name]
        found = report.results.setdefault(name, {"arguments": own | COMMON}).setdefault(str(seed), {})
        folder = trained(options.work_dir, name, seed)
        if options.sts and "sts" not in found:
            evaluation = evaluate(folder, tasks=STS_TASKS, data_dir=senteval, show_progress_bar=False)
            found["sts"] = evaluation.results["average"]
        elif not options.sts and not found:
            recipe = Recipe.read(command, own | COMMON).but(
                model_name_or_path=str(START),
                train_file=str(data / own["train_file"]),
                dev_file=str(senteval / "STS/STSBenchmark/sts-dev.csv"),
                teacher=[teacher] if own.get("objective") == "distill" else None,
                seed=seed,
                output_dir=str(folder),
                overwrite_output_dir=True,
            )
            dev = recipe.train().dev
            found |= {"initial": dev.value(dev.initial), "final": dev.value(dev.final)}
        report.save()
    return None


def time_steps(rounds: int) -> dict[str, float]:
    """Time steps, batches included, with and without the loss of a teacher whose (random) vectors are in shards."""
    rows = load_text_dataset(str(SHARED / "data/nli/nli_triplets.csv.gz"), max_rows=6300)
    contestants = {"without a teacher": Contestant(), "with a teacher": Contestant()}
    with TemporaryDirectory() as folder:
        teacher = Path(folder, "teacher")
        write_vectors(teacher, rows, np.random.default_rng(0).normal(size=(*rows.shape, TEACHER_DIM)), "random")
        for contestant, objective, source in zip(
            contestants.values(), ("simcse", "simcse+distill"), (None, [str(teacher)]), strict=True
        ):
            model = AutoModelForCL.from_pretrained(START, pooler_type="avg", objective=objective)
            args = SimCSETrainingArguments(folder, per_device_train_batch_size=64, teacher=source, **common())
            contestant.trainer = SimCSETrainer(model, args, rows)
        turns = {name: partial(contestant.time_steps, 8) for name, contestant in contestants.items()}
        seconds = take_turns(turns, rounds)
    return seconds | {"ratio": seconds["with a teacher"] / seconds["without a teacher"]}


def table(results: dict) -> str:
    rows = []
    for name, result in results.items():
        if name in RUNS:
            runs = [run for seed, run in result.items() if seed.isdecimal()]
            averages = [run["sts"]["value"] for run in runs if "sts" in run] or [float("nan")]
            start = statistics.mean(run["initial"] for run in runs)
            after = spread(run["final"] for run in runs)
            rows.append([name, f"{start:.2f}", after, spread(averages), len(runs)])
    step = (
        f"\n\nstep with a teacher: {results['step']['ratio']:.3f} times the step without" if "step" in results else ""
    )
    return markdown(["run", "STS-B dev before", "after", "six STS sets", "seeds"], rows) + step
