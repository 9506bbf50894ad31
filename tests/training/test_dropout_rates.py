"""The realised dropout rate is measured before unsupervised training, and a wrong rate is refused."""

import re

import pytest
import torch
import torch.nn.functional as F
from conftest import FAMILIES, random_batch, tiny_config
from trainer_helpers import registered_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.ops import dropout as fast_dropout
from simcse_hf.training.checks import check_dropout
from simcse_hf.training.dropout_rates import ATTENTION, DropoutRate, measure_dropout


def measured(model, batch):
    with torch.no_grad(), measure_dropout(model, batch["attention_mask"].flatten(0, 1)) as rates:
        model.train()(**batch, return_loss=False)
    return rates


def model_of(family, **changes):
    return AutoModelForCL.from_config(tiny_config(family, max_position_embeddings=80, **changes))


@pytest.mark.parametrize("unpadded", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_realised_rates_of_every_encoder_are_the_requested_ones(family, unpadded):
    model = model_of(family, dropout=0.25)
    model.unpadded = unpadded
    rates = measured(model, random_batch(64, 2, length=20))
    assert rates and all(rate.requested == 0.25 and rate.is_as_requested for rate in rates)
    assert all(rate.count > 20_000 and abs(rate.realised - 0.25) < 0.02 for rate in rates)
    places = {rate.place.split()[0] for rate in rates}
    assert places == ({"module"} if family in ("mpnet", "deberta-v2") else {"module", "attention"})


def test_measuring_leaves_the_model_as_it_was():
    model = model_of("bert")
    name = model.config._attn_implementation
    function = ALL_ATTENTION_FUNCTIONS[name]
    with pytest.raises(KeyError), measure_dropout(model, torch.ones(2, 5)):
        raise KeyError
    assert ALL_ATTENTION_FUNCTIONS[name] is function and name not in ALL_ATTENTION_FUNCTIONS._local_mapping
    assert not any(module._forward_hooks for module in model.modules())


def test_local_attention_counts_what_a_token_can_see():
    model = model_of("modernbert", dropout=0.2, local_attention=8, num_hidden_layers=3)
    for model.unpadded in (True, False):
        rates = measured(model, random_batch(64, 2, length=30))
        assert all(abs(rate.realised - 0.2) < 0.02 for rate in rates)


@pytest.mark.parametrize(
    ("dropped", "count", "as_requested"), [(102, 1000, True), (6250, 100_000, False), (0, 40, True)]
)
def test_a_difference_counts_beyond_the_error_of_the_measurement(dropped, count, as_requested):
    assert DropoutRate("module", 0.1, dropped, count).is_as_requested is as_requested


def _rounding(module, query, key, value, attention_mask, **kwargs):
    """Round the rate to a multiple of 1/16, as kernels of cuDNN do."""
    rate = int(kwargs["dropout"] * 16) / 16
    return sdpa_attention_forward(module, query, key, value, attention_mask, **(kwargs | {"dropout": rate}))


@pytest.fixture
def rounds_the_rate():
    with registered_attention("rounds_the_rate", _rounding) as name:
        yield name


def trainer_of(model, tmp_path, tokenizer):
    args = SimCSETrainingArguments(str(tmp_path / "run"), use_cpu=True, report_to="none", max_seq_length=32)
    texts = [{"sent0": "the cat sat on the mat in a small old house , the dog ran and the bird sang ."}] * 16
    return SimCSETrainer(model, args, texts, processing_class=tokenizer)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_an_attention_kernel_that_rounds_the_rate_is_refused(tmp_path, tokenizer, rounds_the_rate, family):
    model = model_of(family, num_attention_heads=4)
    model.set_attn_implementation(rounds_the_rate)
    with pytest.raises(ValueError, match="asks for a rate of 0.1") as error:
        check_dropout(trainer_of(model, tmp_path, tokenizer))
    message = str(error.value)
    assert f"{ATTENTION} rounds_the_rate drops" in message and "sdpa_kernel" in message
    assert float(re.search(r"drops (0\.\d+) of", message)[1]) == pytest.approx(1 / 16, abs=0.02)


def test_dropout_modules_with_another_rate_are_refused(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(fast_dropout, "dropout", lambda x, p, training: F.dropout(x, p / 2, training))
    with pytest.raises(ValueError, match="module FastDropout drops 0.0.*asks for a rate of 0.1.*fast_dropout=False"):
        check_dropout(trainer_of(model_of("bert"), tmp_path, tokenizer))
