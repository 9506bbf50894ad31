"""Models of other libraries that this project measures and does not train: rows of SimCSE's Tables 5 and E.1.

A row names a function as `module:function`. It takes no arguments and returns an object with `encode(texts)`, an array
of shape `(texts, dim)`. Skip-thought works in the same way, with the `encode` of its authors' `skipthoughts.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


class Encoder:
    """Call another library's function in batches."""

    def __init__(self, function: Callable[[list[str]], Any], batch_size: int = 256):
        self.function, self.batch_size = function, batch_size

    def encode(self, texts: list[str]) -> np.ndarray:
        """Embed texts as an array of shape `(texts, dim)`."""
        starts = range(0, len(texts), self.batch_size)
        return np.concatenate([np.asarray(self.function(texts[i : i + self.batch_size])) for i in starts])


def universal_sentence_encoder() -> Encoder:
    """Load the Universal Sentence Encoder: `pip install tensorflow tensorflow_hub`."""
    import tensorflow_hub

    return Encoder(tensorflow_hub.load("https://tfhub.dev/google/universal-sentence-encoder/4"))


def infersent() -> Encoder:
    """Load InferSent from models.py, encoder/infersent1.pkl and GloVe of facebookresearch/InferSent."""
    import torch
    from models import InferSent

    options = dict(bsize=64, word_emb_dim=300, enc_lstm_dim=2048, pool_type="max", dpout_model=0.0, version=1)
    model = InferSent(options)
    model.load_state_dict(torch.load("encoder/infersent1.pkl", weights_only=True))
    model.set_w2v_path("GloVe/glove.840B.300d.txt")
    model.build_vocab_k_words(K=100_000)
    return Encoder(lambda texts: model.encode(texts, bsize=64, tokenize=True))
