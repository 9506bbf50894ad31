r"""Supervised SimCSE: entailed hypotheses are positives, contradictions hard negatives (paper, section 4).

    accelerate launch examples/run_sup.py                                      # offline, on the package's sample
    accelerate launch examples/run_sup.py sup-simcse-bert-base-uncased
    accelerate launch --num_processes 4 examples/run_sup.py --model_name_or_path bert-base-uncased \
        --train_file data/nli_for_simcse.csv --dev_file data/sts-dev.csv --per_device_train_batch_size 128

This is the command `simcse-hf train sup`, and `--help` lists its arguments. `train` is the same run with the Trainer,
to be copied and changed.
"""

import sys

from simcse_hf import SimCSETrainer, SimCSETrainingArguments
from simcse_hf.cli.main import main


def train(start="bert-base-uncased", triplets="data/nli_for_simcse.csv", dev="data/sts-dev.csv", **options):
    settings = {
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
    trainer = SimCSETrainer(
        start,
        SimCSETrainingArguments(**{"output_dir": "outputs/my-sup"} | settings | options),
        train_dataset=triplets,  # columns sent0 (anchor), sent1 (positive), hard_neg
        dev_set=dev,  # logs eval_stsb_spearman and chooses the best checkpoint by it
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    sys.exit(main(["train", "sup", *sys.argv[1:]]))
