"""Unsupervised and supervised SimCSE on real text from a small real encoder, several seeds, against a plain loop.

    python benchmarks/real_text.py --shared ../shared --seeds 42 43 44 --output benchmarks/results/real_text.json

Runs examples/run_unsup.py and examples/run_sup.py as a user would, with the recipe of the plain loop whose figures
stand in the README of the encoder (`shared/models/README.md`), and writes every evaluation of every seed.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
from pathlib import Path

from common import write_results

EXAMPLES = Path(__file__).parents[1] / "examples"

# What the plain loop reached: dev Spearman x 100 by step (seed 42), from the README of the encoder.
PLAIN_LOOP = {
    "unsupervised": {0: 54.85, 30: 50.91, 60: 49.95, 120: 50.11, 180: 49.95},
    "supervised": {0: 54.85, 66: 57.44, 132: 59.56, 198: 61.86, 264: 63.32, 330: 64.50},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder with data/ and models/")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--runs", nargs="+", choices=PLAIN_LOOP, default=list(PLAIN_LOOP))
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/real_text"))
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.work_dir.mkdir(parents=True, exist_ok=True)
    data = arguments.shared / "data"
    common = {
        "model_name_or_path": arguments.shared / "models/wiki-mlm-4x256",
        "dev_file": data / "senteval/downstream/STS/STSBenchmark/sts-dev.csv",
        "per_device_train_batch_size": 64,
        "load_best_model_at_end": False,
        "save_strategy": "no",
    }
    kinds = {
        "unsupervised": (
            "run_unsup.py",
            {
                "train_file": every_tenth_line(data / "wiki/wiki_sentences.txt.gz", arguments.work_dir / "wiki.txt"),
                "learning_rate": 3e-5,
                "max_steps": 180,
                "eval_steps": 10,
                "logging_steps": 10,
            },
        ),
        "supervised": (
            "run_sup.py",
            {
                "train_file": data / "nli/nli_triplets.csv.gz",
                "learning_rate": 3e-4,
                "max_steps": 400,
                "eval_steps": 66,
                "logging_steps": 22,
            },
        ),
    }
    report = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    for kind in arguments.runs:
        script, recipe = kinds[kind]
        for seed in arguments.seeds:
            run = arguments.work_dir / f"{kind}-{seed}"
            options = common | recipe | {"seed": seed, "output_dir": run, "overwrite_output_dir": True}
            command = [sys.executable, str(EXAMPLES / script)]
            for name, value in options.items():
                command += [f"--{name}", str(value)]
            subprocess.run(command, check=True)
            history = json.loads((run / "trainer_state.json").read_text())["log_history"]
            report.setdefault(kind, {"plain_loop": PLAIN_LOOP[kind], "seeds": {}})["seeds"][str(seed)] = [
                {key: value for key, value in entry.items() if not key.endswith(("runtime", "per_second"))}
                for entry in history
            ]
            write_results(arguments.output, report)
    for kind in report:
        print_table(kind, report[kind])


def every_tenth_line(source: Path, target: Path) -> Path:
    """Writes every tenth sentence of the corpus, as the plain loop used them."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        target.write_text("".join(line for number, line in enumerate(lines) if number % 10 == 0), encoding="utf-8")
    return target


def print_table(kind: str, runs: dict) -> None:
    print(f"\n{kind}: STS-B dev Spearman x 100\nstep   mean    sd   plain loop   seeds {' '.join(runs['seeds'])}")
    by_step: dict[int, list[float]] = {}
    for history in runs["seeds"].values():
        for entry in history:
            if "eval_stsb_spearman" in entry:
                by_step.setdefault(entry["step"], []).append(entry["eval_stsb_spearman"])
    for step, values in by_step.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        plain = runs["plain_loop"].get(step, runs["plain_loop"].get(str(step)))
        print(
            f"{step:4d}  {statistics.mean(values):5.2f}  {spread:4.2f}   "
            f"{'' if plain is None else format(plain, '10.2f'):>10}   {' '.join(f'{v:.2f}' for v in values)}"
        )


if __name__ == "__main__":
    main()
