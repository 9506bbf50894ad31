"""Train on documents: sentences that follow each other belong together.

python examples/documents.py
"""

from pathlib import Path

import pandas as pd

from simcse_hf import sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 3e-5
DOCUMENTS = "outputs/documents.txt"  # or yours, with one sentence on each line and an empty line after each document
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score

# Documents of two sentences. Leave this out with a file of yours.
Path("outputs").mkdir(exist_ok=True)
table = pd.read_csv(sample.train_triplets, nrows=2000)
Path(DOCUMENTS).write_text("\n\n".join(table["sent0"] + "\n" + table["sent1"]))

results = train(
    "unsup",
    view="next_sentence",
    model_name_or_path=MODEL,
    pooler_type="avg",
    train_file=DOCUMENTS,
    dev_file=DEV,
    learning_rate=1e-3,
    max_steps=20,
    eval_steps=20,
    output_dir="outputs/documents",
    overwrite_output_dir=True,
)
print(results.change)

# Prints:
# ...
# +15.86 [+11.21, +20.86]: significant at 95%
