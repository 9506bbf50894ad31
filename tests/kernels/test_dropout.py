"""Fast dropout on a CPU has the statistics, seed and gradient of dropout, and leaves a model's weights alone."""

import pytest
import torch
from conftest import random_batch, tiny_config
from torch import nn

from simcse_hf import AutoModelForCL, BertForCL
from simcse_hf.kernels.cpu import FastDropout, keep_mask

SIZE = 1_000_000


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.9])
def test_a_mask_of_16_bits_has_its_rate_and_its_scale_preserves_the_mean(rate):
    mask, scale = keep_mask((SIZE,), rate)
    assert mask.dtype == torch.int16 and mask.unique().tolist() == [0, 1]
    assert abs(1 / scale - (1 - rate)) <= 2**-17
    four_standard_errors = 4 * (rate * (1 - rate) / SIZE) ** 0.5
    assert mask.double().mean().item() == pytest.approx(1 / scale, abs=four_standard_errors)


def test_the_elements_of_masks_are_independent():
    torch.manual_seed(0)
    first, second = (keep_mask((SIZE,), 0.1)[0].double() for _ in range(2))
    pairs = [(first, second)]
    for lag in (1, 2, 3, 4, 8, 32, 384, 1536):
        pairs += [(first[lag:], first[:-lag]), (first[lag:], second[:-lag])]
    for pair in pairs:
        correlation = torch.corrcoef(torch.stack(pair))[0, 1].abs()
        assert correlation < 4.5 / SIZE**0.5


def test_dropout_is_the_identity_in_evaluation_and_at_rate_0_and_leaves_nothing_at_rate_1():
    x = torch.randn(10, 10)
    assert torch.equal(FastDropout(0.5).eval()(x), x)
    assert torch.equal(FastDropout(0.0)(x), x)
    assert not FastDropout(1.0)(x).any()


def test_the_gradient_is_masked_as_the_output():
    x = torch.randn(50, 60, requires_grad=True, dtype=torch.float64)
    weight = torch.randn_like(x)
    output = FastDropout(0.3)(x)
    assert 0.25 < (output == 0).double().mean() < 0.35
    (output * weight).sum().backward()
    zero_or_scale = output.detach() / x.detach()
    torch.testing.assert_close(x.grad, weight * zero_or_scale)


@pytest.mark.parametrize("rate", [1e-6, 1.0])
def test_attention_takes_a_dropout_rate_that_rounds_to_0_or_1(rate):
    config = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=rate)
    rounded = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=round(rate))
    model = BertForCL(config).train()
    padded = BertForCL(rounded, unpadded=False).train()
    padded.load_state_dict(model.state_dict())
    batch = random_batch(4)
    found = model(**batch).sentence_embeddings
    expected = padded(**batch).sentence_embeddings
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    found.sum().backward()


def dropouts(model):
    """The class and the rate of every dropout of the encoder."""
    modules = model.base_model.modules()
    return {(type(module), module.p) for module in modules if isinstance(module, nn.Dropout)}


def test_fast_dropout_is_the_default_keeps_rates_and_names_and_can_be_switched_off(save_checkpoint):
    model = AutoModelForCL.from_config(tiny_config("bert", hidden_dropout_prob=0.2))
    assert dropouts(model) == {(FastDropout, 0.2), (FastDropout, 0.1)}
    folder = save_checkpoint(model)
    assert "fast_dropout" not in (folder / "config.json").read_text()
    without = BertForCL.from_pretrained(folder, fast_dropout=False)
    assert dropouts(without) == {(nn.Dropout, 0.2), (nn.Dropout, 0.1)}
    assert dropouts(without.copy_encoder()) == dropouts(without)
    assert without.state_dict().keys() == model.state_dict().keys()
