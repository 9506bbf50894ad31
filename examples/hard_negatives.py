"""Mine hard negatives for pairs, train, mine again with the new model, train.

python examples/hard_negatives.py
"""

from pathlib import Path

import pandas as pd

from simcse_hf import mine, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 5e-5
PAIRS = "outputs/pairs.csv"  # or "questions.csv"
COLUMNS = ["sent0", "sent1"]  # or ["question", "answer"]
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score

Path("outputs").mkdir(exist_ok=True)
pd.read_csv(sample.train_triplets, nrows=500).to_csv(PAIRS, index=False)  # leave this out with a file of yours

model = MODEL
for number in (1, 2):
    triplets = f"outputs/round-{number}.csv"
    # The texts nearest to an anchor are skipped, because some of them mean the same.
    mined = mine(model, PAIRS, triplets, columns=COLUMNS, range_min=20, pooler_type="avg", overwrite=True)
    results = train(
        "sup",
        model_name_or_path=model,
        pooler_type="avg",
        train_file=triplets,
        dev_file=DEV,
        learning_rate=1e-3,
        per_device_train_batch_size=64,
        max_steps=20,
        eval_steps=20,
        output_dir=f"outputs/round-{number}",
        overwrite_output_dir=True,
    )
    print(f"round {number}: {mined.rows} triplets, {results.change}")
    model = f"outputs/round-{number}"

# Prints:
# ...
# round 1: 500 triplets, +14.34 [+9.90, +19.17]: significant at 95%
# ...
# round 2: 500 triplets, +4.27 [+2.06, +6.64]: significant at 95%
