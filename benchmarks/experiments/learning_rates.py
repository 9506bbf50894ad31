"""Which learning rate suits which batch size: supervised SimCSE on the sample of the package.

    python -m benchmarks.experiments.learning_rates

It is why the sample trains with 1e-3 and 3e-3. The encoder sees the same 3,200 triplets in batches of two sizes, with
a linear decay. The score is Spearman x 100 on the dev set of the sample after the last step.
"""

import argparse
from tempfile import TemporaryDirectory

from transformers import set_seed

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments, load_text_dataset, sample_files

from ..harness import markdown

BATCHES = (16, 128)


def dev_score(batch: int, rate: float, rows: int) -> float:
    """Train with a batch size and a learning rate, and return the score of the dev set."""
    corpus, encoder = sample_files()
    set_seed(42)  # of the fresh head
    model = AutoModelForCL.from_pretrained(encoder, pooler_type="cls", head="fresh")
    with TemporaryDirectory() as folder:
        args = SimCSETrainingArguments(
            folder,
            per_device_train_batch_size=batch,
            learning_rate=rate,
            max_steps=rows // batch,
            max_seq_length=32,
            save_strategy="no",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        triplets = load_text_dataset(corpus.train_triplets, max_rows=rows)
        trainer = SimCSETrainer(model, args, triplets, dev_set=corpus.dev)
        trainer.train()
        return trainer.evaluate()["eval_stsb_spearman"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3, 1e-2])
    parser.add_argument("--rows", type=int, default=3200, help="triplets of a run")
    options = parser.parse_args()
    lines = []
    for batch in BATCHES:
        scores = [dev_score(batch, rate, options.rows) for rate in options.rates]
        lines.append([f"{batch}, {options.rows // batch} steps", *(f"{score:.1f}" for score in scores)])
    print(markdown(["batch", *(f"{rate:g}" for rate in options.rates)], lines))


if __name__ == "__main__":
    main()
