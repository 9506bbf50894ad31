"""Score a model of any library on your own pairs, and compare it with another.

python examples/evaluate_any.py
"""

from sklearn.feature_extraction.text import HashingVectorizer

from simcse_hf import compare, evaluate, sample_files

sample, encoder = sample_files()
PAIRS = sample.test  # or "test.tsv", with the columns sentence1, sentence2 and score


class CountedWords:
    """Anything with `encode` is a model: a list of texts goes in, an array of shape (texts, dim) comes out."""

    def encode(self, texts):
        return HashingVectorizer(n_features=1024).transform(texts).toarray()


evaluate(CountedWords(), pairs=[PAIRS], output="outputs/words.json", overwrite=True)

# A folder or a name, also of sentence-transformers: evaluate("sentence-transformers/all-MiniLM-L6-v2", ...)
# A model in memory: evaluate(SentenceTransformer("intfloat/e5-small-v2"), ...)
evaluate(encoder, pooler_type="avg", pairs=[PAIRS], output="outputs/encoder.json", overwrite=True)

print(compare(["outputs/words.json", "outputs/encoder.json"]))

# Prints:
# ...
# outputs/words.json    62.70  62.70
# outputs/encoder.json  27.00  27.00
# ...
# test                                       -35.70  [-42.01, -29.73]
# ...
