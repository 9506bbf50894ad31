"""Search documents by meaning, also among those of a kind only.

python examples/search.py
"""

from pathlib import Path

import pandas as pd

from simcse_hf import index, sample_files, search

MODEL = sample_files()[1]  # or "sentence-transformers/all-MiniLM-L6-v2", without a pooler_type
DOCUMENTS = "outputs/documents.csv"  # or a file of yours
QUERY = "The tired mariner lost the fiddle."
ROWS = [
    ("The old sailor lost the violin at the beach.", "beach"),
    ("The weary captain misplaced the trumpet at the theatre.", "theatre"),
    ("The happy dancer found the trumpet at the theatre.", "theatre"),
    ("At noon the chef sold the bread at the diner.", "diner"),
]
Path("outputs").mkdir(exist_ok=True)
pd.DataFrame(ROWS, columns=["text", "place"]).to_csv(DOCUMENTS, index=False)

index(DOCUMENTS, "outputs/index", model=MODEL, pooler_type="avg", column="text", keep=["place"], overwrite=True)
for found in search([QUERY], "outputs/index", top_k=2):
    print(found)
for found in search([QUERY], "outputs/index", top_k=2, filters={"place": "theatre"}):
    print(found)

# Prints:
# The tired mariner lost the fiddle.
#   0.9375  The old sailor lost the violin at the beach.
#   0.9260  The weary captain misplaced the trumpet at the theatre.
# The tired mariner lost the fiddle.
#   0.9260  The weary captain misplaced the trumpet at the theatre.
#   0.9253  The happy dancer found the trumpet at the theatre.
