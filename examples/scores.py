"""Train on pairs with a similarity score.

python examples/scores.py
"""

from simcse_hf import compare, evaluate, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 2e-5
SCORED = sample.dev  # or "scored.csv", with the columns sentence1, sentence2 and score (or label: 1 same, 0 not)
TEST = sample.test  # pairs of the same kind that are not trained on

train(
    "sup",
    objective="cosent",
    model_name_or_path=MODEL,
    pooler_type="avg",
    train_file=SCORED,
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    max_steps=30,
    output_dir="outputs/scores",
    overwrite_output_dir=True,
)
evaluate(MODEL, pooler_type="avg", pairs=[TEST], output="outputs/before.json", overwrite=True)
evaluate("outputs/scores", pairs=[TEST], output="outputs/after.json", overwrite=True)
print(compare(["outputs/before.json", "outputs/after.json"]))

# Prints:
# ...
# outputs/before.json  27.00  27.00
# outputs/after.json   41.02  41.02
# ...
# test                                      +14.02  [+9.67, +18.21]
# ...
