"""Train on rows in memory with the Trainer, until the dev score no longer rises.

python examples/early_stopping.py
"""

import pandas as pd
from transformers import EarlyStoppingCallback

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments, sample_files

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 5e-5
ROWS = pd.read_csv(sample.train_triplets, nrows=100)  # or a list, a dict of columns, a Dataset, a generator
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score

arguments = SimCSETrainingArguments(
    "outputs/early_stopping",
    learning_rate=1e-2,
    per_device_train_batch_size=64,
    max_steps=100,
    eval_strategy="steps",
    eval_steps=5,
    save_steps=5,
    save_total_limit=2,
    load_best_model_at_end=True,
)
trainer = SimCSETrainer(
    AutoModelForCL.from_pretrained(MODEL, pooler_type="avg"),
    arguments,
    train_dataset=ROWS,
    dev_set=DEV,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=1)],
)
trainer.train()
trainer.save_model()
print(f"stopped after {trainer.state.global_step} steps, best after {trainer.results.best['step']}")

# Prints:
# ...
# stopped after 10 steps, best after 5
