"""Every objective and view on real text: STS-B dev before and after, several seeds.

    python benchmarks/objectives.py --shared ../shared --output benchmarks/results/objectives.json
    python benchmarks/objectives.py --shared ../shared --output benchmarks/results/objectives.json --table

Trains the small real encoder (`shared/models/wiki-mlm-4x256`) with each objective through `SimCSETrainer`, all with
the same batch, length and steps, on Wikipedia sentences, Wikipedia documents, or NLI. Runs that the output file
already holds are not repeated: it can be filled in several goes and by several processes (`--only`, one file each).
"""

import argparse
import gzip
import json
import statistics
import time
from pathlib import Path

import torch
from common import write_results
from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, set_seed

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments, load_text_dataset
from simcse_hf.data.documents import next_sentence_pairs, read_documents
from simcse_hf.data.nli_groups import build_nli_groups
from simcse_hf.data.spans import SpanDataset
from simcse_hf.evaluation.pairs import read_scored_pairs
from simcse_hf.training.script_arguments import dropout_settings

STEPS, BATCH, LENGTH, SENTENCES = 500, 16, 24, 20_000
MOST_WORDS = 14  # of a Wikipedia sentence: as short as those of STS-B, and cheap enough for many runs on a CPU
UNSUP = {"pooler_type": "cls", "mlp_only_train": True}
TEMPLATES = ['This sentence : "{text}" means [MASK].', 'This sentence of "{text}" means [MASK].']
MEAN = {"pooler_type": "avg_no_cls"}

# name: (training text, settings of the model, training arguments that differ). Rates of the views are Table 1's.
RUNS: dict[str, tuple[str, dict, dict]] = {
    "simcse": ("wiki", UNSUP, {}),
    "no dropout": ("wiki", UNSUP | {"dropout": 0.0}, {"view": "fixed_mask"}),
    "fixed mask": ("wiki", UNSUP, {"view": "fixed_mask"}),
    "dropout 0.05": ("wiki", UNSUP | {"dropout": 0.05}, {}),
    "dropout 0.2": ("wiki", UNSUP | {"dropout": 0.2}, {}),
    "crop 10%": ("wiki", UNSUP, {"view": "crop", "view_rate": 0.1}),
    "delete words 10%": ("wiki", UNSUP, {"view": "delete_words", "view_rate": 0.1}),
    "delete one word": ("wiki", UNSUP, {"view": "delete_one_word"}),
    "synonyms": ("wiki", UNSUP, {"view": "synonyms"}),
    "mlm 15%": ("wiki", UNSUP, {"view": "mlm", "view_rate": 0.15}),
    "crop 10% + mlm 15%": ("wiki", UNSUP, {"view": "crop+mlm"}),
    "shuffle 30%": ("wiki", UNSUP, {"view": "shuffle", "view_rate": 0.3}),
    "eda 10%": ("wiki", UNSUP, {"view": "eda", "view_rate": 0.1}),
    "repeat words": ("wiki", UNSUP, {"view": "repeat_words"}),
    "next sentence": ("next_sentence", UNSUP, {}),
    "next 3 sentences": ("next_three_sentences", UNSUP, {}),
    "two encoders": ("wiki", UNSUP | {"encoders": 2}, {}),
    "two encoders, next sentence": ("next_sentence", UNSUP | {"encoders": 2}, {}),
    "simcse + mlm": ("wiki", UNSUP | {"do_mlm": True}, {}),
    "matryoshka 128, 64": ("wiki", UNSUP | {"matryoshka_dims": [256, 128, 64]}, {}),
    "barlow twins": (
        "wiki",
        UNSUP | {"objective": "barlow_twins", "objective_options": {"projector_dim": 1024}},
        {"view": "shuffle", "view_rate": 0.3, "view_both": True},
    ),
    "vicreg": (
        "wiki",
        UNSUP | {"objective": "vicreg", "objective_options": {"projector_dim": 1024}},
        {"view": "shuffle", "view_rate": 0.3, "view_both": True},
    ),
    "contrastive tension": (
        "wiki",
        {"pooler_type": "avg", "objective": "contrastive_tension"},
        {"learning_rate": 1e-5},
    ),
    "is-bert": ("wiki", {"pooler_type": "avg", "objective": "is_bert"}, {}),
    "declutr": ("documents", {"pooler_type": "avg", "objective": "declutr", "do_mlm": True, "mlm_weight": 1.0}, {}),
    "esimcse": ("wiki", UNSUP | {"objective": "esimcse"}, {}),
    "promptbert": ("wiki", {"pooler_type": "mask", "objective": "promptbert", "templates": TEMPLATES}, {}),
    "diffcse": ("wiki", UNSUP | {"objective": "diffcse"}, {}),
    "supervised simcse": ("nli", {"pooler_type": "cls"}, {"learning_rate": 3e-4}),
    "softmax (SBERT), pairs": ("nli pairs", MEAN | {"objective": "softmax"}, {"learning_rate": 3e-4}),
    "softmax (SBERT), 3p3n-Augment": (
        "nli premises",
        MEAN
        | {"objective": "softmax", "objective_options": {"augment": True, "max_positives": 3, "max_negatives": 3}},
        {"learning_rate": 3e-4},
    ),
    "supcon, allpalln": ("nli premises", MEAN | {"objective": "supcon"}, {"learning_rate": 3e-4}),
    "softmax+supcon 0.3, allpalln": ("nli premises", MEAN | {"objective": "softmax+supcon"}, {"learning_rate": 3e-4}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder with data/ and models/")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--work_dir", type=Path, default=Path("outputs/objectives"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print the table of the output file and train nothing")
    arguments = parser.parse_args()
    report = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    if not arguments.table:
        start = arguments.shared / "models/wiki-mlm-4x256"
        texts = Texts(arguments.shared / "data", AutoTokenizer.from_pretrained(start))
        pairs = read_scored_pairs(texts.data / "senteval/downstream/STS/STSBenchmark/sts-dev.csv", "stsb")
        for seed in arguments.seeds:
            for name in arguments.only:
                if str(seed) in report.get(name, {}).get("seeds", {}):
                    continue
                found = run(name, seed, texts, pairs, arguments)
                entry = report.setdefault(name, describe(name, arguments))
                entry["seeds"][str(seed)] = found
                print(name, seed, found, flush=True)
                write_results(arguments.output, report)
    print(table(report))


class Texts:
    """The training texts by name, each read once."""

    def __init__(self, data: Path, tokenizer: PreTrainedTokenizerBase):
        self.data, self.tokenizer = data, tokenizer
        self._made: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Dataset:
        documents = self.data / "wiki/wiki_documents.txt.gz"
        if name == "wiki":
            with gzip.open(self.data / "wiki/wiki_sentences.txt.gz", "rt", encoding="utf-8") as lines:
                short = [line.rstrip("\n") for line in lines if line.count(" ") < MOST_WORDS]
            return Dataset.from_dict({"sent0": short[:: len(short) // SENTENCES][:SENTENCES]})
        if name == "documents":
            return SpanDataset(read_documents(documents), self.tokenizer, LENGTH)
        if name.startswith("next"):
            pairs = next_sentence_pairs(documents, 3 if "three" in name else 1)
            short = pairs.filter(
                lambda firsts, seconds: [
                    max(a.count(" "), b.count(" ")) < MOST_WORDS for a, b in zip(firsts, seconds, strict=True)
                ],
                input_columns=["sent0", "sent1"],
                batched=True,
            )
            return short.shuffle(seed=0).select(range(min(SENTENCES, len(short))))
        if name == "nli":
            return load_text_dataset(str(self.data / "nli/nli_triplets.csv.gz"))
        return build_nli_groups(self.data / "nli/nli_pairs.csv.gz", sampling=name.split()[1])


def run(name: str, seed: int, texts: Texts, pairs, arguments: argparse.Namespace) -> dict:
    """One training run: the dev figures before and after, and what it cost."""
    source, settings, changes = RUNS[name]
    start = arguments.shared / "models/wiki-mlm-4x256"
    settings = dict(settings)
    dropout = dropout_settings(AutoConfig.from_pretrained(start), settings.pop("dropout", None))
    set_seed(seed)
    model = AutoModelForCL.from_pretrained(start, **settings, **dropout)
    args = SimCSETrainingArguments(
        output_dir=str(arguments.work_dir / name.replace(" ", "-")),
        seed=seed,
        max_steps=arguments.steps,
        per_device_train_batch_size=BATCH,
        max_seq_length=LENGTH,
        **{"learning_rate": 3e-5} | changes,
        bf16=arguments.bf16,
        weight_decay=0.0,
        eval_strategy="steps",
        eval_steps=arguments.steps,
        eval_on_start=True,
        save_strategy="no",
        logging_steps=arguments.steps,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SimCSETrainer(model, args, texts[source], dev_set=pairs, processing_class=texts.tokenizer)
    begun = time.perf_counter()
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
        "seconds": round(time.perf_counter() - begun, 1),
    }


def describe(name: str, arguments: argparse.Namespace) -> dict:
    source, settings, changes = RUNS[name]
    return {
        "text": source,
        "settings": settings,
        "arguments": {"learning_rate": 3e-5} | changes | {"batch": BATCH, "length": LENGTH, "bf16": arguments.bf16},
        "torch": torch.__version__,
        "seeds": {},
    }


def table(report: dict) -> str:
    """Markdown: mean and standard deviation over the seeds."""
    rows = ["| run | text | before | after | change | seeds |", "|---|---|---|---|---|---|"]
    for name in (name for name in RUNS if name in report):
        found = list(report[name]["seeds"].values())
        before, after = ([seed[when] for seed in found] for when in ("before", "after"))
        changes = [b - a for a, b in zip(before, after, strict=True)]
        rows.append(
            f"| {name} | {report[name]['text']} | {spread(before)} | {spread(after)} | "
            f"{statistics.mean(changes):+.2f} | {len(found)} |"
        )
    return "\n".join(rows)


def spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main()
