"""Poolers: they match section 6.3 and Table 5 of the paper and do not depend on padding."""

import pytest
import torch
from conftest import tiny_config

from simcse_hf import BertForCL, SimCSE
from simcse_hf.models.pooling import POOLERS, Maximum, masked_mean
from simcse_hf.names import POOLER_TYPES

TEXTS = 3
TOKENS = 5
DIM = 4
MASKS = (torch.arange(TOKENS) < torch.tensor([5, 3, 1])[:, None]).long()


@pytest.fixture
def layers():
    """Embedding output and three layers of the texts. Padding holds large numbers."""
    layers = []
    for _ in range(4):
        states = torch.randn(TEXTS, TOKENS, DIM, dtype=torch.float64)
        states[MASKS == 0] = 1e6
        layers.append(states)
    return layers


#: The layers that the paper names, where they are not the last one alone.
LAYERS_OF = {"avg_top2": [-2, -1], "avg_first_last": [1, -1], "avg_embeddings_last": [0, -1]}


def tokens_of(pooler_type, text):
    """The places of the tokens that a pooler reads."""
    tokens = [token for token in range(TOKENS) if MASKS[text, token]]
    if pooler_type == "avg_no_cls":
        return tokens[1:]
    if pooler_type.startswith("cls"):
        return tokens[:1]
    if pooler_type == "lasttoken":
        return tokens[-1:]
    return tokens


def slow_pool(pooler_type, layers):
    """The tokens of each text and the layers, one number at a time."""
    pooled = torch.zeros(TEXTS, DIM, dtype=torch.float64)
    for text in range(TEXTS):
        for dimension in range(DIM):
            values = []
            for layer in LAYERS_OF.get(pooler_type, [-1]):
                for token in tokens_of(pooler_type, text):
                    values.append(layers[layer][text, token, dimension].item())
            if pooler_type == "max":
                values = [max(values)]
            pooled[text, dimension] = sum(values) / max(1, len(values))
    return pooled


@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
def test_a_pooler_equals_a_loop_over_the_tokens(pooler_type, layers):
    pooled = POOLERS[pooler_type].pool(layers[-1], MASKS, layers)
    expected = slow_pool(pooler_type, layers)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_mean_of_many_tokens_does_not_overflow_and_has_the_precision_of_the_states(dtype):
    mean = masked_mean(torch.full((1, 8192, 2), 9.0, dtype=dtype), torch.ones(1, 8192))
    assert (mean == 9).all() and mean.dtype == dtype


@pytest.fixture
def largest():
    class Largest(Maximum):
        name = "largest"

    yield Largest.name
    del POOLERS["largest"]


def test_a_pooler_of_the_user_is_taken_by_its_name(largest, save_checkpoint):
    checkpoint = save_checkpoint(BertForCL(tiny_config(), pooler_type="max"))
    found, expected = (SimCSE(checkpoint, pooler_type=name, device="cpu").encode("a cat") for name in (largest, "max"))
    assert torch.equal(found, expected)
