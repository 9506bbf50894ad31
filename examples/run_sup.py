"""Supervised SimCSE: entailed hypotheses as positives, contradictions as hard negatives (paper, section 4).

    accelerate launch examples/run_sup.py                                      # offline, on a generated sample corpus
    accelerate launch examples/run_sup.py examples/recipes/sup-simcse-bert-base-uncased.yaml
    accelerate launch --num_processes 4 examples/run_sup.py --model_name_or_path bert-base-uncased \
        --train_file data/nli_for_simcse.csv --dev_file data/sts-dev.csv --per_device_train_batch_size 128

Training rows hold two texts (anchor, positive) or more (then hard negatives). Arguments: those of the dataclasses in
simcse_hf/arguments.py and transformers' TrainingArguments.
"""

import sys

from simcse_hf import SimCSETrainer
from simcse_hf.cli.errors import exit_status
from simcse_hf.training.run import (
    load_model,
    load_training_texts,
    parse_or_sample,
    prepare_output_dir,
    train_and_report,
    without_dev_set,
)

# BERT-base in Table A.1, where the batch is that of all processes together. Optimizer and schedule are the
# reference's: AdamW without weight decay, linear decay without warm-up, gradients clipped at 1.
DEFAULTS = {
    "output_dir": "outputs/sup",
    "pooler_type": "cls",
    "mlp_only_train": False,
    "learning_rate": 5e-5,
    "per_device_train_batch_size": 512,
    "num_train_epochs": 3,
    "logging_steps": 25,
    "eval_strategy": "steps",
    "eval_steps": 125,
    "save_steps": 125,
    "save_total_limit": 2,
    "load_best_model_at_end": True,
}
# The tiny sample encoder learns faster than BERT.
SAMPLE = {
    "output_dir": "outputs/sample-sup",
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 64,
    "max_steps": 200,
    "eval_steps": 25,
    "save_steps": 25,
}


def main() -> None:
    model_args, data_args, training_args = parse_or_sample(sys.argv[1:], DEFAULTS, SAMPLE, "train_triplets")
    prepare_output_dir(training_args, data_args.overwrite_output_dir)
    texts = load_training_texts(model_args, data_args, training_args, supervised=True)
    model, tokenizer = load_model(model_args, training_args.seed)
    if data_args.dev_file is None:
        without_dev_set(training_args)
    trainer = SimCSETrainer(
        model, training_args, train_dataset=texts, dev_set=data_args.dev_file, processing_class=tokenizer
    )
    train_and_report(trainer, data_args.train_file or data_args.dataset_name)


if __name__ == "__main__":
    sys.exit(exit_status(main, "run_sup.py"))
