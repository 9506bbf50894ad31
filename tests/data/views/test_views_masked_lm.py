"""The view mlm samples tokens from a masked language model, row by row from the seed of the row."""

import random

import pytest
import torch
from conftest import MASK, VOCABULARY, random_batch, tiny_config
from transformers import AutoModelForMaskedLM, BertForMaskedLM, BertModel

from simcse_hf.data.views import MaskedLMView

ROWS = 70  # more than one pass; the reference reads each row alone


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = BertForMaskedLM(tiny_config())
    with torch.no_grad():  # a distribution that is far from flat
        model.cls.predictions.bias.copy_(torch.randn(len(VOCABULARY)) * 2)
    return model


def reference(model, ids, mask, seed, rate, special):
    """Slow reference: sample one row, one token at a time, in float64."""
    rng = random.Random(seed)
    places = [i for i in range(len(ids)) if mask[i] and ids[i] not in special]
    exact = rate * len(places)
    selected = sorted(rng.sample(places, int(exact) + (rng.random() < exact % 1)))
    masked = [MASK if i in selected else token for i, token in enumerate(ids)]
    with torch.no_grad():
        logits = model.double().eval()(torch.tensor([masked]), torch.tensor([mask])).logits[0]
    model.float()
    replaced = list(ids)
    for i in selected:
        weights = logits[i].exp()
        weights[[*special, ids[i]]] = 0
        cumulative = weights.cumsum(0)
        replaced[i] = int((cumulative <= rng.random() * cumulative[-1]).sum())
    return replaced


@pytest.mark.parametrize("rate", [0.0, 0.15, 0.9])
def test_samples_equal_those_of_a_slow_reference(rate, model, tokenizer):
    batch, seeds = random_batch(ROWS, length=12), torch.arange(ROWS) * 10**17
    replaced = MaskedLMView(model, tokenizer, rate)(**batch, view_seed=seeds)
    special = set(tokenizer.all_special_ids)
    for ids, mask, seed, row in zip(*(x.tolist() for x in (*batch.values(), seeds, replaced)), strict=True):
        assert row == reference(model, ids, mask, seed, rate, special)


def test_loads_a_directory_and_stays_in_evaluation_mode(model, tokenizer, save_checkpoint):
    view = MaskedLMView(save_checkpoint(model), tokenizer)
    assert view.rate == 0.15 and not view.model.training
    assert not any(p.requires_grad for p in view.parameters())
    batch, seeds = random_batch(4), torch.arange(4)
    assert torch.equal(
        view(**batch, view_seed=seeds),
        MaskedLMView(model, tokenizer)(**batch, view_seed=seeds),
    )


class Maskless:
    mask_token_id, name_or_path = None, "maskless"


@pytest.mark.parametrize(
    "start, change, rate, message",
    [
        ("nowhere", None, 15, "view_rate"),
        ("nowhere", None, 0.1, "view mlm .*nowhere"),
        ("nowhere", Maskless(), 0.1, "view mlm .*maskless"),
        (AutoModelForMaskedLM.from_config(tiny_config(vocab_size=20)), None, 0.1, f"20 .* {len(VOCABULARY)}"),
        (BertModel(tiny_config()), None, 0.1, "view mlm .*headless"),
    ],
)
def test_a_model_or_a_tokenizer_that_cannot_replace_words_is_refused(
    start, change, rate, message, tokenizer, save_checkpoint
):
    if isinstance(start, BertModel):
        start = save_checkpoint(start, "headless")
    with pytest.raises(ValueError, match=message):
        MaskedLMView(start, change or tokenizer, rate)
