"""NaN and infinity never pass through silently, and every way to notice them says the same."""

import numpy as np
import pytest
import torch
from conftest import tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.inference.quantization import PRECISIONS, calibrate_ranges, quantize
from simcse_hf.inference.shards import encode_file
from simcse_hf.ops.errors import NotFiniteError, check_finite
from simcse_hf.search import SentenceIndex

TEXTS = ["a cat sat", "bird", "the bird sang"]
MESSAGE = r"has an embedding that is not finite \(NaN or infinity\): use a model in float32 or bfloat16"


@pytest.fixture
def checkpoint(save_checkpoint):
    return save_checkpoint(AutoModelForCL.from_config(tiny_config("bert"), pooler_type="avg"))


@pytest.fixture
def broken(checkpoint):
    """A model that gives NaN for texts with the word "bird"."""
    simcse = SimCSE(checkpoint, device="cpu")
    token = simcse.tokenizer.convert_tokens_to_ids("bird")
    with torch.no_grad():
        simcse.model.base_model.embeddings.word_embeddings.weight[token] = float("nan")
    return simcse


@pytest.mark.parametrize(
    "options", [{}, {"normalize_embeddings": False}, {"precision": "ubinary"}, {"truncate_dim": 3}]
)
def test_encode_names_the_text(broken, options):
    assert torch.isfinite(broken.encode(["a cat sat"])).all()
    with pytest.raises(ValueError, match=rf"text 1 \('bird'\) {MESSAGE}"):
        broken.encode(TEXTS, **options)


def test_similarity_names_the_text_or_the_item(broken):
    with pytest.raises(ValueError, match=rf"text 0 \('bird'\) {MESSAGE}"):
        broken.similarity("a cat", "bird")
    vectors = np.ones((3, 4), dtype=np.float32)
    vectors[2, 1] = np.inf
    for call in (broken.similarity, broken.similarity_pairwise):
        with pytest.raises(ValueError, match=rf"item 2 {MESSAGE}"):
            call(np.ones((3, 4), dtype=np.float32), vectors)


def test_an_overflow_of_half_precision_is_noticed(checkpoint):
    simcse = SimCSE(checkpoint, device="cpu", dtype=torch.float16)
    with torch.no_grad():
        simcse.model.base_model.embeddings.LayerNorm.weight.fill_(6e4)
    with pytest.raises(ValueError, match=MESSAGE):
        simcse.encode(TEXTS)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_code_stands_for_nan(precision, value):
    vectors = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    ranges = calibrate_ranges(vectors) if precision in ("int8", "uint8") else None
    vectors[3, 2] = value
    with pytest.raises(ValueError, match=f"row 3 {MESSAGE}"):
        quantize(vectors, precision, ranges)
    with pytest.raises(ValueError, match=f"row 3 {MESSAGE}"):
        calibrate_ranges(vectors)


def test_an_index_and_shards_name_the_place_of_the_text(broken, tmp_path):
    with pytest.raises(ValueError, match=f"sentence 1 of the index {MESSAGE}"):
        SentenceIndex.build(broken, TEXTS)
    (tmp_path / "t.txt").write_text("a cat\n\na dog\nbird\n")
    with pytest.raises(ValueError, match=rf"t\.txt: the text of line or row 4 {MESSAGE}"):
        encode_file(broken, tmp_path / "t.txt", tmp_path / "out", shard_size=2)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_the_first_bad_embedding_is_named(kind):
    values = np.ones((6, 2), dtype=np.float32)
    values[[2, 4]] = np.nan
    with pytest.raises(NotFiniteError, match=f"row 12 {MESSAGE}") as caught:
        check_finite(kind(values), "row {}", first=10)
    assert caught.value.position == 2
    check_finite(kind(values[:2]), "row {}")
    check_finite(kind(values[:0]), "row {}")
    check_finite(kind(values[0]), "row {}")
