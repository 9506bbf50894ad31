"""NaN and infinity never pass through silently, and every way to notice them says the same."""

import numpy as np
import pytest
import torch
from trainer_helpers import refuses

from simcse_hf import SentenceIndex, encode
from simcse_hf.encoding.quantization import calibrate_ranges, quantize
from simcse_hf.names import PRECISIONS

TEXTS = ["a cat sat", "bird", "the bird sang"]
MESSAGE = "has an embedding that is not finite"


@pytest.fixture
def broken(model):
    """A model that gives NaN for texts with the word "bird"."""
    token = model.tokenizer.convert_tokens_to_ids("bird")
    with torch.no_grad():
        model.model.base_model.embeddings.word_embeddings.weight[token] = float("nan")
    return model


def test_the_text_is_named(broken):
    assert torch.isfinite(broken.encode(["a cat sat"])).all()
    for call, subject in (
        (lambda: broken.encode(TEXTS), "text 1 ('bird')"),
        (lambda: broken.encode(TEXTS, precision="ubinary"), "text 1 ('bird')"),
        (lambda: broken.similarity("a cat", "bird"), "text 0 ('bird')"),
        (lambda: SentenceIndex.build(broken, TEXTS), "sentence 1 of the index"),
    ):
        with refuses(f"{subject} {MESSAGE}"):
            call()


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_shards_name_the_line_and_are_not_written(precision, broken, tmp_path):
    (tmp_path / "t.txt").write_text("a cat\n\na dog\nbird\n")
    with pytest.raises(ValueError, match=rf"t\.txt: the text of line or row 4 {MESSAGE}"):
        encode(broken, tmp_path / "t.txt", tmp_path / "out", precision=precision)
    assert not list(tmp_path.glob("out/*.npy"))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_no_code_and_no_cosine_stands_for_nan(value, broken):
    vectors = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    ranges = calibrate_ranges(vectors)
    vectors[3, 2] = value
    vectors[4, 1] = value  # the first one is named
    for precision in PRECISIONS:
        with refuses(f"row 3 {MESSAGE}"):
            quantize(vectors, precision, ranges)
    for call in (broken.similarity, broken.similarity_pairwise):
        with refuses(f"item 3 {MESSAGE}"):
            call(np.ones((5, 16), dtype=np.float32), vectors)
