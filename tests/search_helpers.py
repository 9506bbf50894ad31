"""What the tests of the index share: sentences, a model without a network, and the backends that are installed."""

import json
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


def write_table(path):
    """Write the sentences with a source, and a year that one row lacks."""
    rows = [{"text": text, "source": f"s{n % 3}", "year": 2000 + n % 2} for n, text in enumerate(SENTENCES)]
    rows[4]["year"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def by_hand(model, query, top_k=5, threshold=-2, rows=range(80)):
    """What a search among `SENTENCES` should find, in float64."""
    scores = np.asarray(model.encode(SENTENCES), dtype=float) @ np.asarray(model.encode(query), dtype=float)
    order = sorted(rows, key=lambda i: -scores[i])
    return [(SENTENCES[i], scores[i]) for i in order if scores[i] >= threshold][:top_k]


def assert_same(results, expected):
    assert [sentence for sentence, _ in results] == [sentence for sentence, _ in expected]
    np.testing.assert_allclose([score for _, score in results], [score for _, score in expected], atol=1e-5)
