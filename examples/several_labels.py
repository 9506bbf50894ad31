"""Train on texts with any number of labels, and ask whether it helped.

python examples/several_labels.py
"""

from pathlib import Path

import pandas as pd

from simcse_hf import compare, evaluate, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 3e-5
TRAIN = "outputs/train.csv"  # or a file of yours, with the columns text and label, in which a label is "lost;beach"
TEST = "outputs/test.csv"  # other texts with the same labels

# Sentences with what is done as a label, and where. Leave this out with files of yours.
table = pd.read_csv(sample.train_sentences, sep="\t", names=["text"])
action = table["text"].str.extract(r"\b(bought|sold|fixed|broke|found|lost|praised)\b", expand=False)
place = table["text"].str.extract(r"\b(beach|port|theatre|library|clinic|kitchen|stable)\b", expand=False)
table["label"] = action.fillna("") + ";" + place.fillna("")
table = table[table["label"] != ";"]
Path("outputs").mkdir(exist_ok=True)
table[:300].to_csv(TRAIN, index=False)
table[1000:1500].to_csv(TEST, index=False)

train(
    "sup",
    model_name_or_path=MODEL,
    train_file=TRAIN,
    label_separator=";",
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    max_steps=40,
    output_dir="outputs/several_labels",
    overwrite_output_dir=True,
)
options = {"task": [f"classification={TEST}"], "label_separator": ";", "overwrite": True}
evaluate(MODEL, pooler_type="avg", output="outputs/before.json", **options)
evaluate("outputs/several_labels", output="outputs/after.json", **options)
print(compare(["outputs/before.json", "outputs/after.json"]))

# Prints:
# ...
# outputs/before.json                    54.96
# outputs/after.json                     69.22
# ...
# classification macro_f1                   +14.26  [+11.85, +16.89]
