"""Tests of the poolers: they match section 6.3 and Table 5 of the paper and do not depend on padding."""

import pytest
import torch
from conftest import tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.models.pooling import POOLERS, Maximum, masked_mean
from simcse_hf.names import POOLER_TYPES

MASKS = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])


@pytest.fixture
def layers():
    """Embedding output and three layers of 3 texts, 5 tokens and 4 dimensions. Padding holds large numbers."""
    hidden = [torch.randn(3, 5, 4, dtype=torch.float64) for _ in range(4)]
    for layer in hidden:
        layer[MASKS == 0] = 1e6
    return hidden


def slow_pool(pooler_type, hidden):
    """Slow reference: the tokens of each text and the layers that the paper names, in loops."""
    layers = {
        "avg_top2": [-2, -1],
        "avg_first_last": [1, -1],
        "avg_embeddings_last": [0, -1],
    }.get(pooler_type, [-1])
    vectors = torch.zeros(3, 4, dtype=torch.float64)
    for text, dimension in torch.cartesian_prod(
        torch.arange(3), torch.arange(4)
    ).tolist():
        tokens = [token for token in range(5) if MASKS[text, token]]
        if pooler_type == "avg_no_cls":
            tokens = tokens[1:]
        values = [
            float(hidden[layer][text, token, dimension])
            for layer in layers
            for token in tokens
        ]
        if pooler_type.startswith("cls"):
            values = values[:1]
        elif pooler_type == "lasttoken":
            values = values[-1:]
        elif pooler_type == "max":
            values = [max(values)]
        vectors[text, dimension] = sum(values) / max(1, len(values))
    return vectors


def test_a_pooler_of_the_user_is_taken_by_its_name(save_checkpoint):
    class Largest(Maximum):
        name = "largest"

    checkpoint = save_checkpoint(
        AutoModelForCL.from_config(tiny_config(), pooler_type="max")
    )
    try:
        model = SimCSE(checkpoint, pooler_type="largest", device="cpu")
        assert torch.equal(
            model.encode("a cat"), SimCSE(checkpoint, device="cpu").encode("a cat")
        )
    finally:
        del POOLERS["largest"]


@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
def test_equals_a_loop_over_the_tokens(pooler_type, layers):
    pooled = POOLERS[pooler_type].pool(layers[-1], MASKS, layers)
    torch.testing.assert_close(
        pooled, slow_pool(pooler_type, layers), rtol=0, atol=1e-12
    )


def test_the_mean_of_many_tokens_in_half_precision_does_not_overflow():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        hidden = torch.full((1, 8192, 2), 9.0, dtype=dtype)
        mean = masked_mean(hidden, torch.ones(1, 8192))
        assert mean.dtype == dtype and (mean == 9).all()
