"""The learning curves of the unsupervised and the supervised recipe, several seeds, on real text.

    python -m benchmarks recipes --output benchmarks/results/real_text.json

Runs `simcse-hf train unsup` and `train sup` as a user would, with the recipe of a plain training loop whose figures
are in the README of the encoder (`../shared/models/README.md`), and keeps every evaluation of every seed. Without
`--data` both run on the generated sample corpus, which shows only that they learn.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
from pathlib import Path

from simcse_hf.evaluation.report import spread

from .harness import Report, add_data_option, markdown

#: What the plain loop reached: dev Spearman x 100 by step (seed 42), from the README of the encoder.
PLAIN_LOOP = {
    "unsupervised": {0: 54.85, 30: 50.91, 60: 49.95, 120: 50.11, 180: 49.95},
    "supervised": {0: 54.85, 66: 57.44, 132: 59.56, 198: 61.86, 264: 63.32, 330: 64.50},
}
COMMON = {"per_device_train_batch_size": 64, "load_best_model_at_end": False, "save_strategy": "no"}
RECIPES = {
    "unsupervised": {"learning_rate": 3e-5, "max_steps": 180, "eval_steps": 10, "logging_steps": 10},
    "supervised": {"learning_rate": 3e-4, "max_steps": 400, "eval_steps": 66, "logging_steps": 22},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--model", type=Path, help="encoder; default: wiki-mlm-4x256 beside the data, or the sample's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--runs", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/recipes"))


def run(options: argparse.Namespace, report: Report) -> None:
    options.work_dir.mkdir(parents=True, exist_ok=True)
    for name in options.runs:
        texts = real_texts(name, options) if options.data else {}
        for seed in options.seeds:
            folder = options.work_dir / f"{name}-{seed}"
            arguments = COMMON | RECIPES[name] | texts | {"seed": seed, "output_dir": folder}
            command = [sys.executable, "-m", "simcse_hf", "train", name[: name.index("sup") + 3]]
            for option, value in (arguments | {"overwrite_output_dir": True}).items():
                command += [f"--{option}", str(value)]
            subprocess.run(command, check=True)
            history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
            plain_loop = PLAIN_LOOP[name] if options.data else {}
            report.results.setdefault(name, {"plain_loop": plain_loop, "seeds": {}})["seeds"][str(seed)] = [
                {key: value for key, value in entry.items() if not key.endswith(("runtime", "per_second"))}
                for entry in history
            ]
            report.save()


def real_texts(name: str, options: argparse.Namespace) -> dict[str, Path]:
    train_file = options.data / "nli/nli_triplets.csv.gz"
    if name == "unsupervised":
        train_file = every_tenth_line(options.data / "wiki/wiki_sentences.txt.gz", options.work_dir / "wiki.txt")
    return {
        "model_name_or_path": options.model or options.data.parent / "models/wiki-mlm-4x256",
        "train_file": train_file,
        "dev_file": options.data / "senteval/downstream/STS/STSBenchmark/sts-dev.csv",
    }


def every_tenth_line(source: Path, target: Path) -> Path:
    """Write every tenth sentence of the corpus, which is what the plain loop used."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        target.write_text("".join(line for number, line in enumerate(lines) if number % 10 == 0), encoding="utf-8")
    return target


def table(results: dict) -> str:
    tables = []
    for name, runs in results.items():
        by_step: dict[int, list[float]] = {}
        for history in runs["seeds"].values():
            for entry in history:
                if "eval_stsb_spearman" in entry:
                    by_step.setdefault(entry["step"], []).append(entry["eval_stsb_spearman"])
        plain_loop = {int(step): value for step, value in runs["plain_loop"].items()}
        rows = [[step, spread(values), plain_loop.get(step, "")] for step, values in by_step.items()]
        header = ["step", f"dev Spearman x 100 ({len(runs['seeds'])} seeds)", "plain loop (seed 42)"]
        last = statistics.mean(by_step[max(by_step)])
        tables.append(f"{name} (last step: {last:.2f})\n\n" + markdown(header, rows))
    return "\n\n".join(tables)
