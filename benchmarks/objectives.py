"""Train with each objective, and compare the dev correlation before and after, for several seeds.

    python -m benchmarks objectives --bf16 --output benchmarks/results/objectives.json
    python -m benchmarks objectives --output benchmarks/results/objectives.json --table

All runs use the same encoder, batch size, length and number of steps, on Wikipedia sentences, Wikipedia documents,
NLI triplets or the training part of STS-B. Each objective has the pooler, the head and the views of its paper. The
classifiers and contrastive losses of labelled pairs are not here: `python -m reproduction supcon/2` compares them, and
`python -m reproduction simcse/1` the views of a sentence. Without `--data` and `--model` the runs use the generated
sample corpus and the sample encoder, and only the objectives that need no documents or scores are trained.
Runs that the output file already holds are not repeated.
"""

import argparse
import gzip
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, set_seed

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments, load_text_dataset
from simcse_hf.data.documents import SpanDataset, read_documents
from simcse_hf.data.sample import sample_files
from simcse_hf.evaluation.report import spread
from simcse_hf.evaluation.sts import ScoredPairs, read_scored_pairs
from simcse_hf.models.resolve import paper_settings
from simcse_hf.training.arguments import dropout_settings

from .harness import Report, add_data_option, dev_pairs, markdown

STEPS, BATCH, LENGTH, SENTENCES = 100, 16, 24, 20_000
MOST_WORDS = 14  # Wikipedia sentences as short as those of STS-B, cheap enough for many runs on a CPU
RATE, SUPERVISED_RATE = 3e-5, 5e-5  # SimCSE's for a base model, without and with labels

PROJECTOR = {"projector_dim": 1024}  # the paper's 8,192 would cost more than the encoder
SHUFFLE = {"view": "shuffle", "view_rate": 0.3, "view_both": True}

#: name: (training text, settings of the model, other training arguments). What is not given here is the paper's.
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "simcse": ("wiki", {"mlp_only_train": True}, {}),
    "simcse, matryoshka 128, 64": ("wiki", {"mlp_only_train": True, "matryoshka_dims": [256, 128, 64]}, {}),
    "esimcse": ("wiki", {"objective": "esimcse"}, {}),
    "promptbert": ("wiki", {"objective": "promptbert"}, {}),
    "diffcse": ("wiki", {"objective": "diffcse"}, {}),
    "barlow_twins": ("wiki", {"objective": "barlow_twins", "objective_options": PROJECTOR}, SHUFFLE),
    "vicreg": ("wiki", {"objective": "vicreg", "objective_options": PROJECTOR}, SHUFFLE),
    "contrastive_tension": ("wiki", {"objective": "contrastive_tension"}, {"learning_rate": 1e-5}),
    "is_bert": ("wiki", {"objective": "is_bert"}, {}),
    "tsdae": ("wiki", {"objective": "tsdae"}, {}),
    "declutr": ("documents", {"objective": "declutr"}, {}),
    "supervised simcse": ("nli", {}, {"learning_rate": SUPERVISED_RATE}),
    "supervised promptbert": ("nli", {"objective": "promptbert"}, {"learning_rate": SUPERVISED_RATE}),
    "cosent": ("scored pairs", {"objective": "cosent"}, {"learning_rate": SUPERVISED_RATE}),
    "angle": (
        "scored pairs",
        {"objective": "angle", "objective_options": {"positive_score": 4.0}},
        {"learning_rate": SUPERVISED_RATE},
    ),
}
#: The settings of the paper, from `Objective.defaults`, that a run uses. Batch size, length and learning rate are not
#: among them: all runs have the same batch size and length, and the learning rate is RATE unless RUNS says otherwise.
MODEL_SETTINGS = ("pooler_type", "mlp_only_train", "templates", "denoising", "do_mlm", "mlm_weight", "dropout")
ARGUMENTS = ("view", "optim", "lr_scheduler_type", "lr_scheduler_kwargs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--model", type=Path, help="encoder; default: minilm-remasked-6x384, or the sample encoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--only", nargs="+", choices=RUNS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/objectives"))


def run(options: argparse.Namespace, report: Report) -> None:
    options.model = options.model or default_encoder(options)
    texts = Texts(options.data, AutoTokenizer.from_pretrained(options.model))
    pairs = dev_pairs(options.data)
    names = options.only or [name for name in RUNS if options.data or RUNS[name][0] in ("wiki", "nli")]
    for seed in options.seeds:
        for name in names:
            if str(seed) not in report.results.get(name, {}).get("seeds", {}):
                entry = report.results.setdefault(name, describe(name, options))
                entry["seeds"][str(seed)] = train(name, seed, texts, pairs, options)
                print(name, seed, entry["seeds"][str(seed)], flush=True)
                report.save()


def default_encoder(options: argparse.Namespace) -> Path:
    """Return the small real encoder beside the data, or the sample encoder."""
    if options.data is not None:
        return options.data.parent / "models/minilm-remasked-6x384"
    return sample_files()[1]


class Texts:
    """The training texts by name, each read once."""

    def __init__(self, data: Path | None, tokenizer: PreTrainedTokenizerBase):
        self.data, self.tokenizer = data, tokenizer
        self._made: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._made:
            self._made[name] = self._make(name) if self.data else self._generate(name)
        return self._made[name]

    def _generate(self, name: str) -> Dataset:
        corpus, _ = sample_files()
        return load_text_dataset(str(corpus.train_sentences if name == "wiki" else corpus.train_triplets))

    def _make(self, name: str) -> Dataset:
        documents = self.data / "wiki/wiki_documents.txt.gz"
        if name == "wiki":
            with gzip.open(self.data / "wiki/wiki_sentences.txt.gz", "rt", encoding="utf-8") as lines:
                short = [line.rstrip("\n") for line in lines if line.count(" ") < MOST_WORDS]
            return Dataset.from_dict({"sent0": short[:: len(short) // SENTENCES][:SENTENCES]})
        if name == "documents":
            return SpanDataset(read_documents(documents), self.tokenizer, LENGTH)
        if name == "nli":
            return load_text_dataset(str(self.data / "nli/nli_triplets.csv.gz"))
        pairs = read_scored_pairs(self.data / "senteval/downstream/STS/STSBenchmark/sts-train.csv")
        columns = {"sentence1": pairs.sentences1, "sentence2": pairs.sentences2, "score": pairs.scores}
        return Dataset.from_dict(columns)


def settings_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a run's model and its training arguments: the paper's, changed as RUNS says."""
    source, settings, arguments = RUNS[name]
    papers = paper_settings(settings.get("objective", "simcse"))
    return (
        {"pooler_type": "cls"} | {key: papers[key] for key in MODEL_SETTINGS if key in papers} | settings,
        {"learning_rate": RATE} | {key: papers[key] for key in ARGUMENTS if key in papers} | arguments,
    )


def train(name: str, seed: int, texts: Texts, pairs: ScoredPairs, options: argparse.Namespace) -> dict:
    """Train once and return the dev scores before and after."""
    settings, arguments = settings_of(name)
    dropout = dropout_settings(AutoConfig.from_pretrained(options.model), settings.pop("dropout", None))
    set_seed(seed)
    model = AutoModelForCL.from_pretrained(options.model, **settings, **dropout)
    args = SimCSETrainingArguments(
        output_dir=str(options.work_dir / name.replace(" ", "-")),
        seed=seed,
        max_steps=options.steps,
        per_device_train_batch_size=BATCH,
        max_seq_length=LENGTH,
        **arguments,
        bf16=options.bf16,
        weight_decay=0.0,
        eval_strategy="steps",
        eval_steps=options.steps,
        eval_on_start=True,
        save_strategy="no",
        logging_steps=options.steps,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SimCSETrainer(model, args, texts[RUNS[name][0]], dev_set=pairs, processing_class=texts.tokenizer)
    start_time = time.perf_counter()
    outcome = trainer.train()
    history = trainer.state.log_history
    evaluations = [entry for entry in history if "eval_stsb_spearman" in entry]
    return {
        "before": round(evaluations[0]["eval_stsb_spearman"], 2),
        "after": round(evaluations[-1]["eval_stsb_spearman"], 2),
        "alignment": round(evaluations[-1]["eval_stsb_alignment"], 4),
        "uniformity": round(evaluations[-1]["eval_stsb_uniformity"], 4),
        "steps": trainer.state.global_step,
        "train_loss": round(outcome.training_loss, 4),
        "seconds": round(time.perf_counter() - start_time, 1),
    }


def describe(name: str, options: argparse.Namespace) -> dict:
    settings, arguments = settings_of(name)
    return {
        "model": options.model.name,
        "text": RUNS[name][0],
        "settings": settings,
        "arguments": arguments | {"batch": BATCH, "length": LENGTH, "bf16": options.bf16},
        "torch": torch.__version__,
        "seeds": {},
    }


def table(results: dict) -> str:
    rows = []
    for name in (name for name in RUNS if name in results):
        runs = list(results[name]["seeds"].values())
        before, after = ([run[when] for run in runs] for when in ("before", "after"))
        change = statistics.mean(after) - statistics.mean(before)
        rows.append([name, results[name]["text"], spread(before), spread(after), f"{change:+.2f}", len(runs)])
    return markdown(["run", "text", "before", "after", "change", "seeds"], rows)
