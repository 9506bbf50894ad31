"""Train on the scores that a reranker gave to the candidates of each query.

python examples/reranker.py
"""

from pathlib import Path

import pandas as pd

from simcse_hf import sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 2e-5
SCORED = "outputs/scored.jsonl"  # or yours: {"query": ..., "pos": [...], "neg": [...], "pos_scores": [...], ...}
DEV = sample.dev  # or "dev.tsv", with the columns sentence1, sentence2 and score


def score(query: str, text: str) -> float:
    """Stand for a reranker by the share of words that two texts have in common. Leave it out with a file of yours."""
    words, others = set(query.lower().split()), set(text.lower().split())
    return 10 * len(words & others) / len(words | others)


texts = pd.read_csv(sample.train_triplets, nrows=500)
rows = []
for query, positive in zip(texts["sent0"], texts["sent1"], strict=True):
    negatives = texts["sent1"].sample(6, random_state=len(rows)).tolist()
    row = {"query": query, "pos": [positive], "pos_scores": [score(query, positive)]}
    row |= {"neg": negatives, "neg_scores": [score(query, text) for text in negatives]}
    rows.append(row)
Path("outputs").mkdir(exist_ok=True)
pd.DataFrame(rows).to_json(SCORED, orient="records", lines=True)

results = train(
    "sup",
    objective="distill",
    objective_options={"loss": "kl"},
    model_name_or_path=MODEL,
    pooler_type="avg",
    train_file=SCORED,
    dev_file=DEV,
    learning_rate=1e-3,
    per_device_train_batch_size=32,
    max_steps=20,
    eval_steps=20,
    output_dir="outputs/reranker",
    overwrite_output_dir=True,
)
print(results.change)

# Prints:
# ...
# +11.48 [+7.39, +16.10]: significant at 95%
