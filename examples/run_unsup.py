r"""Unsupervised SimCSE: a sentence predicts itself under another dropout mask (paper, section 3).

    accelerate launch examples/run_unsup.py                                    # offline, on the package's sample
    accelerate launch examples/run_unsup.py unsup-simcse-bert-base-uncased
    accelerate launch examples/run_unsup.py --model_name_or_path bert-base-uncased \
        --train_file data/wiki1m_for_simcse.txt --dev_file data/sts-dev.csv --output_dir outputs/my-model

This is the command `simcse-hf train unsup`, and `--help` lists its arguments. `train` is the same run with the
Trainer, to be copied and changed.
"""

import sys

from transformers import set_seed

from simcse_hf import BertForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.cli.main import main


def train(start="bert-base-uncased", sentences="data/wiki1m_for_simcse.txt", dev="data/sts-dev.csv", **options):
    settings = {
        "learning_rate": 3e-5,
        "per_device_train_batch_size": 64,
        "num_train_epochs": 1,
        "logging_steps": 25,
        "eval_strategy": "steps",
        "eval_steps": 125,
        "save_steps": 125,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
    }
    set_seed(options.get("seed", 42))  # a new head is drawn when the model is loaded
    trainer = SimCSETrainer(
        BertForCL.from_pretrained(start, mlp_only_train=True),
        SimCSETrainingArguments(**{"output_dir": "outputs/my-unsup"} | settings | options),
        train_dataset=sentences,  # one sentence on each line
        dev_set=dev,  # logs eval_stsb_spearman and chooses the best checkpoint by it
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    sys.exit(main(["train", "unsup", *sys.argv[1:]]))
