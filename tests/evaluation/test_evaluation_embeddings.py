"""Each distinct text is encoded once; broken vectors are refused."""

import numpy as np
import pytest
import torch
from evaluation_helpers import BagOfWords, Fixed

from simcse_hf.evaluation.embeddings import SentenceEmbeddings

TEXTS = ["a cat", "the dog sleeps", "a cat", "red", "the dog sleeps"]


def test_distinct_texts_are_encoded_in_one_call_with_the_longest_first():
    model = BagOfWords()
    vectors = SentenceEmbeddings(model, TEXTS)
    assert model.calls == [["the dog sleeps", "a cat", "red"]]
    assert np.array_equal(vectors(TEXTS), BagOfWords().encode(TEXTS))
    assert len(model.calls) == 1


@pytest.mark.parametrize(
    "convert, dtype",
    [
        (lambda x: x.tolist(), np.float64),
        (lambda x: torch.tensor(x, requires_grad=True), np.float32),
        (lambda x: torch.tensor(x).bfloat16(), np.float32),
        (lambda x: x.astype(np.float64), np.float64),
    ],
)
def test_encoders_may_return_arrays_tensors_or_lists(convert, dtype):
    x = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    got = SentenceEmbeddings(Fixed(convert(x)), ["bb", "a"])(["a", "bb"])
    assert got.dtype == dtype and np.array_equal(got, x[::-1])


def test_encode_is_called_without_normalization_if_it_takes_the_argument():
    class Model:
        def encode(self, texts, *, normalize_embeddings=True, show_progress_bar=False):
            assert normalize_embeddings is None and show_progress_bar
            return np.eye(len(texts), dtype=np.float32)

    SentenceEmbeddings(Model(), TEXTS)
