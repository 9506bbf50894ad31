"""Find near-duplicates in a file, and clusters of its texts.

python examples/duplicates.py
"""

from collections import defaultdict
from pathlib import Path

from sklearn.cluster import KMeans

from simcse_hf import SimCSE, duplicates, sample_files

MODEL = sample_files()[1]  # or "sentence-transformers/all-MiniLM-L6-v2", without a pooler_type
TEXTS = [
    "The old sailor lost the violin at the beach.",
    "The old sailor lost the fiddle at the beach.",
    "The nurse found the pill.",
    "At noon the chef sold the bread.",
    "The chef sold the bread at noon.",
    "The chef sold the cake at midday.",
]
Path("outputs").mkdir(exist_ok=True)
Path("outputs/texts.txt").write_text("\n".join(TEXTS))  # or a file of yours

model = SimCSE(MODEL, pooler_type="avg")
for pair in duplicates("outputs/texts.txt", model, threshold=0.99):
    print(pair)

clusters = defaultdict(list)
for text, label in zip(TEXTS, KMeans(n_clusters=3, random_state=0).fit_predict(model.encode(TEXTS)), strict=True):
    clusters[label].append(text)
for texts in clusters.values():
    print(*texts, sep=" | ")

# Prints:
# 0.9983
#        0  The old sailor lost the violin at the beach.
#        1  The old sailor lost the fiddle at the beach.
# The old sailor lost the violin at the beach. | The old sailor lost the fiddle at the beach.
# The nurse found the pill. | The chef sold the bread at noon. | The chef sold the cake at midday.
# At noon the chef sold the bread.
