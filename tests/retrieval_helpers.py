"""What the tests of the index share: sentences, a model without a network, and the backends that are installed."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from encoding_helpers import random_texts
from evaluation_helpers import word_vector, write

INSTALLED_BACKENDS = ["exact", "hnsw", "ivf"] if find_spec("faiss") else ["exact"]
EVERY_BACKEND = pytest.mark.parametrize("backend", INSTALLED_BACKENDS)


def text_vector(text):
    """The normalized sum of the vectors of the words."""
    vector = sum((word_vector(word, 8) for word in text.split()), np.zeros(8))
    return vector / (np.linalg.norm(vector) or 1)


class CountingModel:
    """Embed a text by a hash of its words: fast, and the same in every process."""

    name_or_path = "counting"
    revision = None
    pooler_type = "avg"
    max_length = None

    def encode(self, texts, truncate_dim=None, convert_to_numpy=True):
        if isinstance(texts, str):
            return self.encode([texts], truncate_dim)[0]
        vectors = np.array([text_vector(text) for text in texts], dtype=np.float32)
        return vectors[:, :truncate_dim]


def make_sentences(count):
    """Different sentences."""
    texts = random_texts(2 * count, words=(2, 9))
    return list(dict.fromkeys(texts))[:count]


SENTENCES = make_sentences(80)


def write_table(path):
    """Write the sentences with a source, and a year that one row lacks."""
    rows = []
    for n, text in enumerate(SENTENCES):
        rows.append({"text": text, "source": f"s{n % 3}", "year": 2000 + n % 2})
    rows[4]["year"] = None
    return write(path, [json.dumps(row) for row in rows])


def by_hand(model, query, top_k=5, threshold=-2, rows=range(80)):
    """What a search among `SENTENCES` should find, in float64."""
    embeddings = np.asarray(model.encode(SENTENCES), dtype=float)
    scores = embeddings @ np.asarray(model.encode(query), dtype=float)
    ranked = sorted(rows, key=lambda row: -scores[row])
    found = [(SENTENCES[row], scores[row]) for row in ranked if scores[row] >= threshold]
    return found[:top_k]


def assert_same(results, expected):
    """That the sentences are the same in the same order, and that the scores are equal."""
    sentences, scores = zip(*results, strict=True)
    expected_sentences, expected_scores = zip(*expected, strict=True)
    assert sentences == expected_sentences
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
