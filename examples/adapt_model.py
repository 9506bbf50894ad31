"""Find out whether a finished model can be made better for your texts and your task.

python examples/adapt_model.py
"""

from pathlib import Path

import pandas as pd

from simcse_hf import adapt, sample_files

sample, encoder = sample_files()
MODEL = encoder  # or "sentence-transformers/all-MiniLM-L6-v2", without a pooler_type
CORPUS = sample.train_sentences  # or "corpus.txt", unlabelled texts of your domain
TASK = "pairs=outputs/task.csv"  # or "classification=tickets.csv", what you need the model for

# Pairs that mean the same or not. Leave this out with files of yours.
Path("outputs").mkdir(exist_ok=True)
table = pd.read_csv(sample.test, sep="\t")
table["label"] = (table["score"] > 3.5).astype(int)
table.drop(columns="score").to_csv("outputs/task.csv", index=False)

adaptation = adapt(
    str(CORPUS),
    model=str(MODEL),
    task=[TASK],
    arms=["untrained"],  # leave this out, and give it the time: all arms are tried
    pooler_type="avg",
    seeds=2,
    output="outputs/adapted",
    overwrite=True,
)
print(adaptation)  # outputs/adapted/model is the better model, or the old one if nothing helps

# Prints:
# gain: +13.03 [+8.59, +17.48] on pairs (average_precision) with the arm avg_first_last, whitening
#   also general sts (spearman): +16.43 [+10.37, +22.56] over present
# outputs/adapted/model holds the adapted model; outputs/adapted/arms.png shows the arms.
