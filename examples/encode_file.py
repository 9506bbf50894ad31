"""Encode a file of any size into embeddings beside their texts.

python examples/encode_file.py
"""

import pandas as pd

from simcse_hf import encode, sample_files

sample, encoder = sample_files()
MODEL = encoder  # or "sentence-transformers/all-MiniLM-L6-v2", without a pooler_type
TEXTS = sample.dev  # or "texts.csv"
COLUMN = "sentence1"  # or "text"

# An interrupted call is continued with resume=True in place of overwrite=True.
encoded = encode(MODEL, TEXTS, "outputs/vectors", column=COLUMN, format="parquet", pooler_type="avg", overwrite=True)
print(encoded)
table = pd.read_parquet("outputs/vectors")
print(table.columns.tolist(), len(table), table["vector"][0].shape)

# Prints:
# 1000 texts in 1 file under outputs/vectors
# ['row', 'text', 'vector'] 1000 (64,)
