"""Answer searches over HTTP.

python examples/serve_index.py (needs fastapi and uvicorn)
Then open http://127.0.0.1:8000/search?query=The+tired+mariner+lost+the+fiddle.
There is no login: put a server that has one before it.
"""

import uvicorn
from fastapi import FastAPI

from simcse_hf import SimCSE, sample_files

sample, encoder = sample_files()
MODEL = encoder  # or "sentence-transformers/all-MiniLM-L6-v2", without a pooler_type
SENTENCES = sample.train_sentences  # or "corpus.txt"; an index that is saved is opened by model.load_index("my-index")

model = SimCSE(MODEL, pooler_type="avg")
model.build_index(SENTENCES)
app = FastAPI()


@app.get("/search")
def search(query: str, top_k: int = 3) -> list[dict]:
    found = []
    for match in model.search(query, top_k=top_k):
        found.append({"row": match.row, "score": match.score, "text": match.sentence})
    return found


if __name__ == "__main__":
    uvicorn.run(app)
