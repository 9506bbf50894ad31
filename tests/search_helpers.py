"""What the tests of the index share: sentences, a model without a network, and the backends that are installed."""

from hashlib import blake2b
from importlib.util import find_spec

import numpy as np
import pytest
from inference_helpers import random_texts

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


def make_sentences(count):
    """Different sentences."""
    return list(dict.fromkeys(random_texts(2 * count, words=(2, 9))))[:count]


SENTENCES = make_sentences(80)
