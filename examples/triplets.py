"""Train on triplets: a text, one that means the same and one that does not.

python examples/triplets.py
"""

from simcse_hf import sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 5e-5
TRIPLETS = sample.train_triplets  # or "triplets.csv", with the columns sent0, sent1 and hard_neg
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score

results = train(
    "sup",
    model_name_or_path=MODEL,
    pooler_type="avg",
    train_file=TRIPLETS,
    max_train_samples=2000,
    dev_file=DEV,
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    max_steps=20,
    eval_steps=20,
    output_dir="outputs/triplets",
    overwrite_output_dir=True,
)
print(results.change)

# Prints:
# ...
# +14.33 [+9.51, +19.72]: significant at 95%
