"""What the tests of the index share: sentences, a model without a network, and the backends that are installed."""

from hashlib import blake2b
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import WORDS

EVERY_BACKEND = pytest.mark.parametrize("backend", ["exact", *(["hnsw", "ivf"] if find_spec("faiss") else [])])


class CountingModel:
    """Embed a text by a hash of its words: fast, and the same in every process."""

    name_or_path, revision, pooler_type, max_length = "counting", None, "avg", None

    def encode(self, texts, truncate_dim=None, convert_to_numpy=True):
        rows = []
        for text in [texts] if isinstance(texts, str) else texts:
            row = np.zeros(8)
            for word in text.split():
                row += np.random.default_rng(list(blake2b(word.encode(), digest_size=8).digest())).standard_normal(8)
            rows.append(row / (np.linalg.norm(row) or 1))
        vectors = np.array(rows, dtype=np.float32)[:, :truncate_dim]
        return vectors[0] if isinstance(texts, str) else vectors


def make_sentences(count, seed=0):
    words = [word for word in WORDS.split() if word.isalpha()]
    generator = np.random.default_rng(seed)
    results = {}
    while len(results) < count:
        results[" ".join(generator.choice(words, generator.integers(2, 9)))] = None
    return list(results)


SENTENCES = make_sentences(80)
