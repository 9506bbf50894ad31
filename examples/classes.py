"""Train on texts with a class, and ask whether it helped.

python examples/classes.py
"""

# %% The texts, in which the class is what somebody does
from pathlib import Path

import pandas as pd

from simcse_hf import compare, evaluate, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 3e-5
TRAIN = "outputs/train.csv"  # or a file of yours, with the columns text and label
TEST = "outputs/test.csv"  # other texts with the same classes

SAME = {"purchased": "bought", "vended": "sold", "mended": "fixed", "smashed": "broke", "located": "found"}
VERBS = "bought sold fixed broke found lost lifted cleaned soiled praised hid showed".split()
table = pd.read_csv(sample.train_sentences, sep="\t", names=["text"])
table["label"] = table["text"].str.extract(rf"\b({'|'.join([*SAME, *VERBS])})\b")
table = table.dropna().replace({"label": SAME})
Path("outputs").mkdir(exist_ok=True)
table[:150].to_csv(TRAIN, index=False)
table[1000:1500].to_csv(TEST, index=False)
print(table[:3])

# %% Train: the column `label` chooses the objective
results = train(
    "sup",
    model_name_or_path=MODEL,
    train_file=TRAIN,
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    max_steps=40,
    output_dir="outputs/classes",
    overwrite_output_dir=True,
)

# %% Did it help with texts that were not trained on?
evaluate(MODEL, pooler_type="avg", task=[f"classification={TEST}"], output="outputs/before.json", overwrite=True)
evaluate("outputs/classes", task=[f"classification={TEST}"], output="outputs/after.json", overwrite=True)
print(compare(["outputs/before.json", "outputs/after.json"]))
