"""Fast dropout on a CPU has the statistics, seed and gradient of dropout, and leaves a model's weights alone."""

import pytest
import torch
from conftest import random_batch, tiny_config
from torch import nn

from simcse_hf import AutoModelForCL, BertForCL
from simcse_hf.ops.cpu import FastDropout, keep_mask

SIZE = 1_000_000


@pytest.mark.parametrize("p", [0.05, 0.1, 0.2, 0.5, 0.9])
def test_a_mask_has_the_rate_and_its_scale_preserves_the_mean(p):
    mask, scale = keep_mask((SIZE,), p)
    assert mask.dtype == torch.int16 and set(mask.unique().tolist()) == {0, 1}
    assert abs(1 / scale - (1 - p)) <= 2**-17  # the rate itself, rounded to 16 bits, and the scale that belongs to it
    # Four standard errors of a proportion.
    assert abs(mask.double().mean().item() - 1 / scale) < 4 * (p * (1 - p) / SIZE) ** 0.5


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 32, 384, 1536])
def test_mask_elements_are_independent_within_and_across_calls(lag):
    first, second = (keep_mask((SIZE,), 0.1)[0].double() for _ in range(2))

    def correlation(a, b):
        return torch.corrcoef(torch.stack([a, b]))[0, 1].abs().item()

    bound = 4.5 / SIZE**0.5
    assert correlation(first[lag:], first[:-lag]) < bound
    assert correlation(first[lag:], second[:-lag]) < bound
    assert correlation(first, second) < bound


def test_dropout_is_the_identity_in_evaluation_and_at_rate_0():
    x = torch.randn(10, 10)
    assert torch.equal(FastDropout(0.5).eval()(x), x) and torch.equal(FastDropout(0.0)(x), x)
    assert not FastDropout(1.0)(x).any()


def test_the_gradient_is_masked_as_the_output():
    x = torch.randn(50, 60, requires_grad=True, dtype=torch.float64)
    weight = torch.randn_like(x)
    y = FastDropout(0.3)(x)
    (y * weight).sum().backward()
    kept = y.detach() / x.detach()  # 0 or the scale
    torch.testing.assert_close(x.grad, weight * kept)
    assert 0.25 < (kept == 0).double().mean() < 0.35


@pytest.mark.parametrize("rate", [1e-6, 1.0])
def test_attention_takes_a_dropout_rate_that_rounds_to_0_or_1(rate):
    model = BertForCL(tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=rate))
    slow = BertForCL(tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=round(rate)), unpadded=False)
    slow.load_state_dict(model.state_dict())
    batch = random_batch(4)
    found, expected = (x.train()(**batch).sentence_embeddings for x in (model, slow))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    found.sum().backward()


def dropouts(model):
    return {(type(module), module.p) for module in model.base_model.modules() if isinstance(module, nn.Dropout)}


def test_fast_dropout_keeps_the_rates_and_can_be_switched_off(save_checkpoint):
    model = AutoModelForCL.from_config(tiny_config("bert", hidden_dropout_prob=0.2))
    rates = {0.2, model.config.attention_probs_dropout_prob}
    assert model.fast_dropout and dropouts(model) == {(FastDropout, rate) for rate in rates}
    path = save_checkpoint(model)
    assert "fast_dropout" not in (path / "config.json").read_text()
    slow = BertForCL.from_pretrained(path, fast_dropout=False)
    assert dropouts(slow) == dropouts(slow.copy_encoder()) == {(nn.Dropout, rate) for rate in rates}
    assert slow.state_dict().keys() == model.state_dict().keys()
