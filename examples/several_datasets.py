"""Train on several data sets, each with its own objective.

python examples/several_datasets.py
"""

from simcse_hf import sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 5e-5
DATASETS = {
    "triplets": {"train_file": str(sample.train_triplets), "max_train_samples": 2000, "share": 2},
    "scored": {"train_file": str(sample.dev), "objective": "cosent", "share": 1},  # one batch for two of triplets
}
TEST = sample.test  # or "dev.tsv", with the columns sentence1, sentence2 and score

results = train(
    "sup",
    model_name_or_path=MODEL,
    pooler_type="avg",
    datasets=DATASETS,
    dev_file=TEST,
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    max_steps=20,
    eval_steps=20,
    output_dir="outputs/several_datasets",
    overwrite_output_dir=True,
)
print(results.change)

# Prints:
# ...
# +11.83 [+7.16, +16.20]: significant at 95%
