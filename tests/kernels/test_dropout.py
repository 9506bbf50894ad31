"""Fast dropout on a CPU has the statistics, seed and gradient of dropout, and leaves a model's weights alone."""

import pytest
import torch
from conftest import random_batch, tiny_config
from torch import nn

from simcse_hf import AutoModelForCL, BertForCL
from simcse_hf.kernels.cpu import FastDropout, keep_mask

SIZE = 1_000_000

# --- masks ---

RATES = pytest.mark.parametrize("rate", [0.05, 0.1, 0.2, 0.5, 0.9])


@RATES
def test_a_mask_holds_zeros_and_ones_of_16_bits(rate):
    mask, _ = keep_mask((SIZE,), rate)
    assert mask.dtype == torch.int16
    assert mask.unique().tolist() == [0, 1]


@RATES
def test_the_rate_of_a_mask_is_rounded_to_16_bits(rate):
    _, scale = keep_mask((SIZE,), rate)
    assert abs(1 / scale - (1 - rate)) <= 2**-17


@RATES
def test_the_scale_of_a_mask_preserves_the_mean(rate):
    mask, scale = keep_mask((SIZE,), rate)
    four_standard_errors = 4 * (rate * (1 - rate) / SIZE) ** 0.5
    assert mask.double().mean().item() == pytest.approx(1 / scale, abs=four_standard_errors)


@pytest.fixture(scope="module")
def two_masks():
    torch.manual_seed(0)
    first, _ = keep_mask((SIZE,), 0.1)
    second, _ = keep_mask((SIZE,), 0.1)
    return first.double(), second.double()


def correlation(a, b):
    return torch.corrcoef(torch.stack([a, b]))[0, 1].abs().item()


CHANCE = 4.5 / SIZE**0.5
LAGS = pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 32, 384, 1536])


@LAGS
def test_the_elements_of_a_mask_are_independent(two_masks, lag):
    first, _ = two_masks
    assert correlation(first[lag:], first[:-lag]) < CHANCE


@LAGS
def test_the_shifted_elements_of_two_masks_are_independent(two_masks, lag):
    first, second = two_masks
    assert correlation(first[lag:], second[:-lag]) < CHANCE


def test_the_elements_of_two_masks_are_independent(two_masks):
    assert correlation(*two_masks) < CHANCE


# --- dropout ---


def test_dropout_is_the_identity_in_evaluation():
    x = torch.randn(10, 10)
    assert torch.equal(FastDropout(0.5).eval()(x), x)


def test_dropout_is_the_identity_at_rate_0():
    x = torch.randn(10, 10)
    assert torch.equal(FastDropout(0.0)(x), x)


def test_dropout_at_rate_1_leaves_nothing():
    assert not FastDropout(1.0)(torch.randn(10, 10)).any()


def test_the_gradient_is_masked_as_the_output():
    x = torch.randn(50, 60, requires_grad=True, dtype=torch.float64)
    weight = torch.randn_like(x)
    output = FastDropout(0.3)(x)
    (output * weight).sum().backward()
    zero_or_scale = output.detach() / x.detach()
    torch.testing.assert_close(x.grad, weight * zero_or_scale)


def test_dropout_drops_its_rate():
    x = torch.ones(50, 60)
    dropped = (FastDropout(0.3)(x) == 0).double().mean()
    assert 0.25 < dropped < 0.35


# --- models ---


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


@pytest.fixture
def model():
    """A model whose dropout has the rates 0.2, and 0.1 in attention."""
    return AutoModelForCL.from_config(tiny_config("bert", hidden_dropout_prob=0.2))


@pytest.fixture
def with_torchs_dropout(model, save_checkpoint):
    return BertForCL.from_pretrained(save_checkpoint(model), fast_dropout=False)


def test_fast_dropout_is_the_default_and_keeps_the_rates(model):
    assert model.fast_dropout
    assert dropouts(model) == {(FastDropout, 0.2), (FastDropout, 0.1)}


def test_fast_dropout_is_not_saved(model, save_checkpoint):
    assert "fast_dropout" not in (save_checkpoint(model) / "config.json").read_text()


def test_fast_dropout_can_be_switched_off(with_torchs_dropout):
    assert dropouts(with_torchs_dropout) == {(nn.Dropout, 0.2), (nn.Dropout, 0.1)}


def test_a_copy_of_the_encoder_has_the_same_dropout(with_torchs_dropout):
    assert dropouts(with_torchs_dropout.copy_encoder()) == dropouts(with_torchs_dropout)


def test_fast_dropout_does_not_change_the_weights_of_a_model(model, with_torchs_dropout):
    assert with_torchs_dropout.state_dict().keys() == model.state_dict().keys()
