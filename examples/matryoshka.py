"""Train embeddings that can be cut to fewer dimensions.

python examples/matryoshka.py
"""

import pandas as pd
from scipy.stats import spearmanr

from simcse_hf import SimCSE, sample_files, train

sample, encoder = sample_files()
MODEL = encoder  # or "bert-base-uncased", with a learning rate of 5e-5
PAIRS = sample.train_triplets  # or "triplets.csv"
TEST = sample.test  # or "test.tsv", with the columns sentence1, sentence2 and score
DIMS = [64, 16, 8]  # or [768, 256, 64]


train(
    "sup",
    model_name_or_path=MODEL,
    pooler_type="avg",
    matryoshka_dims=DIMS,
    train_file=PAIRS,
    max_train_samples=2000,
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    max_steps=20,
    output_dir="outputs/matryoshka",
    overwrite_output_dir=True,
)

table = pd.read_csv(TEST, sep="\t")
for name, model in {"before": SimCSE(MODEL, pooler_type="avg"), "after": SimCSE("outputs/matryoshka")}.items():
    for dim in DIMS:
        first = model.encode(table["sentence1"], truncate_dim=dim)
        second = model.encode(table["sentence2"], truncate_dim=dim)
        cosines = model.similarity_pairwise(first, second)
        print(f"{name}, {dim} dimensions: {100 * spearmanr(cosines, table['score']).statistic:.1f}")

# Prints:
# before, 64 dimensions: 27.0
# before, 16 dimensions: 21.4
# before, 8 dimensions: 14.8
# after, 64 dimensions: 40.5
# after, 16 dimensions: 39.3
# after, 8 dimensions: 38.6
