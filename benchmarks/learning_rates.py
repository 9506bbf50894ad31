"""Which learning rate suits which batch size: supervised SimCSE on the sample of the package.

    python -m benchmarks learning_rates --output benchmarks/results/learning_rates.json

The encoder sees the same 3,200 triplets in batches of two sizes, with a linear decay. The score is Spearman x 100 on
the dev set of the sample after the last step.
"""

import argparse
from tempfile import TemporaryDirectory

from transformers import set_seed

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments, load_text_dataset
from simcse_hf.data.sample import sample_files

from .harness import Report, machine, markdown

ROWS, BATCHES, RATES = 3200, (16, 128), (3e-4, 1e-3, 3e-3, 1e-2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def run(options: argparse.Namespace, report: Report) -> None:
    corpus, encoder = sample_files()
    rows = load_text_dataset(str(corpus.train_triplets), max_rows=ROWS)
    report.save(machine=machine())
    for batch, rate in [(batch, rate) for batch in BATCHES for rate in RATES]:
        set_seed(42)  # of the fresh head
        model = AutoModelForCL.from_pretrained(encoder, pooler_type="cls", head="fresh")
        with TemporaryDirectory() as folder:
            steps = {"max_steps": ROWS // batch, "save_strategy": "no", "use_cpu": True, "report_to": "none"}
            args = SimCSETrainingArguments(
                folder, per_device_train_batch_size=batch, learning_rate=rate, max_seq_length=32, **steps
            )
            trainer = SimCSETrainer(model, args, rows, dev_set=corpus.dev)
            trainer.train()
            report.save(**{f"{batch} {rate:g}": trainer.evaluate()["eval_stsb_spearman"]})


def table(results: dict) -> str:
    rows = [[str(batch), *(f"{results[f'{batch} {rate:g}']:.1f}" for rate in RATES)] for batch in BATCHES]
    return markdown(["batch", *map(str, RATES)], rows)
