"""Learn the scores that all-MiniLM-L6-v2 gives the candidates of NLI triplets, beside SimCSE on the same rows.

    python -m benchmarks candidate_scores --output benchmarks/results/candidate_scores.json

Each run starts from wiki-mlm-4x256 and takes 40 steps of 32 rows. The score is Spearman x 100 on STS-B dev.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments, load_text_dataset
from simcse_hf.evaluation.report import spread

from .harness import SHARED, Report, markdown, model_or_default

ROWS = 1280
COMMON = {
    "per_device_train_batch_size": 32,
    "max_steps": 40,
    "learning_rate": 3e-4,
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": True,
    "disable_tqdm": True,
    "report_to": "none",
    "eval_strategy": "steps",
    "eval_steps": 40,
}
ARMS = {
    "simcse": {},
    "kl": {"objective": "distill", "objective_options": {"loss": "kl", "teacher_temperature": 0.05}},
    "margin_mse": {"objective": "distill", "objective_options": {"loss": "margin_mse"}},
    # The weight takes back the square of the temperature in `kl`, which FlagEmbedding leaves out.
    "simcse + 400 kl": {
        "objective": "simcse+distill:400",
        "objective_options": {"distill.loss": "kl", "distill.teacher_temperature": 0.05},
    },
    "simcse + margin_mse": {"objective": "simcse+distill", "objective_options": {"distill.loss": "margin_mse"}},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])


def run(options: argparse.Namespace, report: Report) -> None:
    triplets = load_text_dataset(str(SHARED / "data/nli/nli_triplets.csv.gz"), max_rows=ROWS)
    teacher = SimCSE(model_or_default(None))
    query, positive, negative = (
        teacher.encode(triplets[f"sent{column}"][:], convert_to_numpy=True) for column in range(3)
    )
    scores = np.stack([(query * positive).sum(1), (query * negative).sum(1)], axis=1).tolist()
    rows = []
    for row, (of_positive, of_negative) in zip(triplets, scores, strict=True):
        texts = {"query": row["sent0"], "pos": [row["sent1"]], "neg": [row["sent2"]]}
        rows.append(texts | {"pos_scores": [of_positive], "neg_scores": [of_negative]})
    dev = SHARED / "data/senteval/downstream/STS/STSBenchmark/sts-dev.csv"
    for seed, (name, settings) in ((seed, arm) for seed in options.seeds for arm in ARMS.items()):
        found = report.results.setdefault(name, {"arguments": COMMON, "settings": settings})
        if str(seed) in found:
            continue
        model = AutoModelForCL.from_pretrained(SHARED / "models/wiki-mlm-4x256", pooler_type="avg", **settings)
        with TemporaryDirectory() as folder:
            arguments = SimCSETrainingArguments(str(Path(folder, "run")), seed=seed, **COMMON)
            trainer = SimCSETrainer(model, arguments, triplets if name == "simcse" else rows, dev_set=str(dev))
            trainer.train()
        logged = [entry["eval_stsb_spearman"] for entry in trainer.state.log_history if "eval_stsb_spearman" in entry]
        found[str(seed)] = {"before": logged[0], "after": logged[-1]}
        report.save()


def table(results: dict) -> str:
    rows = []
    for name, result in results.items():
        runs = [run for seed, run in result.items() if seed.isdecimal()]
        rows.append([name, f"{runs[0]['before']:.2f}", spread([run["after"] for run in runs]), len(runs)])
    return markdown(["loss", "STS-B dev before", "after", "seeds"], rows)
