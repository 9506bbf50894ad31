"""Train with each objective and view, and compare the dev correlation before and after, for several seeds.

    python -m benchmarks objectives --bf16 --output benchmarks/results/objectives.json
    python -m benchmarks objectives --output benchmarks/results/objectives.json --table

All runs use the same encoder, batch size, length and number of steps, on Wikipedia sentences, Wikipedia documents,
NLI or the training part of STS-B. Without `--data` and `--model` they use the generated sample corpus and the sample
encoder, and only the runs that need no documents, NLI labels or scores. Runs that the output file already holds are
not repeated.
"""

import argparse
import gzip
import statistics
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, set_seed

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments, load_text_dataset
from simcse_hf.data.documents import next_sentence_pairs, read_documents
from simcse_hf.data.nli_groups import build_nli_groups
from simcse_hf.data.spans import SpanDataset
from simcse_hf.evaluation.pairs import ScoredPairs, read_scored_pairs
from simcse_hf.evaluation.report import spread
from simcse_hf.training.sample_encoder import build_sample_encoder
from simcse_hf.training.script_arguments import dropout_settings

from .harness import Report, add_data_option, dev_pairs, markdown, sample_corpus

STEPS, BATCH, LENGTH, SENTENCES = 500, 16, 24, 20_000
MOST_WORDS = 14  # Wikipedia sentences as short as those of STS-B, cheap enough for many runs on a CPU
UNSUP = {"pooler_type": "cls", "mlp_only_train": True}
TEMPLATES = ['This sentence : "{text}" means [MASK].', 'This sentence of "{text}" means [MASK].']
MEAN = {"pooler_type": "avg_no_cls"}

# name: (training text, settings of the model, other training arguments). The rates of the views are those of Table 1.
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
    "tsdae": ("wiki", {"pooler_type": "cls_before_pooler", "objective": "tsdae"}, {}),
    "supervised simcse": ("nli", {"pooler_type": "cls"}, {"learning_rate": 3e-4}),
    "softmax (SBERT), pairs": ("nli pairs", MEAN | {"objective": "softmax"}, {"learning_rate": 3e-4}),
    "softmax (SBERT), 3p3n-Augment": (
        "nli premises",
        MEAN
        | {"objective": "softmax", "objective_options": {"augment": True, "max_positives": 3, "max_negatives": 3}},
        {"learning_rate": 3e-4},
    ),
    "supcon, allpalln": ("nli premises", MEAN | {"objective": "supcon"}, {"learning_rate": 3e-4}),
    "cosent": ("scored pairs", {"pooler_type": "cls_before_pooler", "objective": "cosent"}, {}),
    "angle": (
        "scored pairs",
        {"pooler_type": "cls_before_pooler", "objective": "angle", "objective_options": {"positive_score": 4.0}},
        {},
    ),
    "softmax+supcon 0.3, allpalln": ("nli premises", MEAN | {"objective": "softmax+supcon"}, {"learning_rate": 3e-4}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--model", type=Path, help="encoder; default: wiki-mlm-4x256, or the sample encoder")
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
    """Return the small real encoder beside the data, or make the sample encoder."""
    if options.data is not None:
        return options.data.parent / "models/wiki-mlm-4x256"
    return build_sample_encoder(options.work_dir / "encoder", sample_corpus())


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
        corpus = sample_corpus()
        return load_text_dataset(str(corpus.train_sentences if name == "wiki" else corpus.train_triplets))

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
        if name == "scored pairs":
            pairs = read_scored_pairs(self.data / "senteval/downstream/STS/STSBenchmark/sts-train.csv")
            columns = {"sentence1": pairs.sentences1, "sentence2": pairs.sentences2, "score": pairs.scores}
            return Dataset.from_dict(columns)
        return build_nli_groups(self.data / "nli/nli_pairs.csv.gz", sampling=name.split()[1])


def train(name: str, seed: int, texts: Texts, pairs: ScoredPairs, options: argparse.Namespace) -> dict:
    """Train once and return the dev figures before and after."""
    source, settings, changes = RUNS[name]
    start = options.model
    settings = dict(settings)
    dropout = dropout_settings(AutoConfig.from_pretrained(start), settings.pop("dropout", None))
    set_seed(seed)
    model = AutoModelForCL.from_pretrained(start, **settings, **dropout)
    args = SimCSETrainingArguments(
        output_dir=str(options.work_dir / name.replace(" ", "-")),
        seed=seed,
        max_steps=options.steps,
        per_device_train_batch_size=BATCH,
        max_seq_length=LENGTH,
        **{"learning_rate": 3e-5} | changes,
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
    trainer = SimCSETrainer(model, args, texts[source], dev_set=pairs, processing_class=texts.tokenizer)
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
    source, settings, changes = RUNS[name]
    return {
        "text": source,
        "settings": settings,
        "arguments": {"learning_rate": 3e-5} | changes | {"batch": BATCH, "length": LENGTH, "bf16": options.bf16},
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
