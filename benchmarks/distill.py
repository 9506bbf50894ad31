"""Distil all-MiniLM-L6-v2 into wiki-mlm-4x256 without labels, beside unsupervised SimCSE from the same start.

    python -m benchmarks distill --output benchmarks/results/distill.json
    python -m benchmarks distill --output benchmarks/results/distill.json --sts

Runs that the output file already holds are not repeated. `--sts` evaluates the trained models on the STS sets.
"""

import argparse
import json
import statistics
from pathlib import Path

from simcse_hf.cli.evaluate import evaluate_main
from simcse_hf.evaluation.report import spread
from simcse_hf.training.run import train_sup, train_unsup

from .harness import SHARED, STS_TASKS, Report, markdown, model_or_default

COMMON = "--pooler_type avg --max_steps 300 --eval_steps 300 --save_steps 300 --disable_tqdm true --report_to none"
TRIPLETS = "nli/nli_triplets.csv.gz --max_train_samples 6300 --per_device_train_batch_size 21 --learning_rate 8e-4"
WIKIPEDIA = "wiki/wiki_sentences.txt.gz --max_train_samples 50000 --per_device_train_batch_size 64"
#: The words of each run after `simcse-hf train METHOD --train_file`, `{}` being the teacher.
RUNS = {
    "distill, NLI triplets": (train_sup, f"{TRIPLETS} --objective distill --teacher {{}}"),
    "distill, Wikipedia": (
        train_unsup,
        f"{WIKIPEDIA} --objective distill --teacher {{}} --batch_neighbors 7 --learning_rate 8e-4",
    ),
    "simcse, Wikipedia": (train_unsup, f"{WIKIPEDIA} --learning_rate 3e-5"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--sts", action="store_true", help="evaluate the trained models instead of training")
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/distill"))


def run(options: argparse.Namespace, report: Report) -> None:
    data, teacher = SHARED / "data", str(model_or_default(None))
    start = ["--model", str(SHARED / "models/wiki-mlm-4x256"), "--overwrite_output_dir"]
    start += ["--dev_file", str(data / "senteval/downstream/STS/STSBenchmark/sts-dev.csv"), *COMMON.split()]
    for name, seed in ((name, str(seed)) for name in options.only for seed in options.seeds):
        train, words = RUNS[name]
        found = report.results.setdefault(name, {"words": f"{words} {COMMON}"}).setdefault(seed, {})
        folder = options.work_dir / name.replace(", ", "-").replace(" ", "-") / seed
        if options.sts and "sts" not in found:
            tasks = ["--tasks", ",".join(STS_TASKS), "--data_dir", str(data / "senteval/downstream"), "--quiet"]
            evaluate_main(["--model", str(folder), "--output", str(folder / "sts.json"), "--overwrite", *tasks])
            results = json.loads((folder / "sts.json").read_text())["results"]
            found["sts"] = results["average"] | {task: results[task] for task in STS_TASKS}
        elif not options.sts and not found:
            file, *rest = words.format(teacher).split()
            train(["--train_file", str(data / file), *rest, *start, "--seed", seed, "--output_dir", str(folder)])
            results = json.loads((folder / "results.json").read_text())
            found |= {key: results[results["dev_metric"]][key] for key in ("initial", "final")}
        report.save()


def table(results: dict) -> str:
    rows = []
    for name, result in results.items():
        runs = [run for run in result.values() if isinstance(run, dict)]
        averages = [run["sts"]["value"] for run in runs if "sts" in run] or [float("nan")]
        start = statistics.mean(run["initial"] for run in runs)
        after = spread(run["final"] for run in runs)
        rows.append([name, f"{start:.2f}", after, spread(averages), len(runs)])
    return markdown(["run", "STS-B dev before", "after", "six STS sets", "seeds"], rows)
