"""Tests of the auxiliary loss: BERT's masking on fresh copies, and the stock head, pretrained."""

import pytest
import torch
from conftest import FAMILIES, MASK, VOCABULARY, random_batch, tiny_config
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, GPT2Config

from simcse_hf import AutoModelForCL
from simcse_hf.objectives.masked_lm import IGNORED, StockMaskedLMHead, mask_tokens


def test_masks_15_percent_of_the_words_80_10_10(tokenizer):
    ids = random_batch(200, 2, length=40)["input_ids"]
    masked, targets = mask_tokens(ids, DataCollatorForLanguageModeling(tokenizer))
    words, chosen = ids > MASK, targets != IGNORED
    assert masked.shape == targets.shape == ids.shape == (200, 2, 40)
    assert chosen[words].float().mean().item() == pytest.approx(0.15, abs=0.015)
    became_mask = (masked == MASK)[chosen].float().mean().item()
    changed = ((masked != ids) & (masked != MASK))[chosen].float().mean().item()
    assert became_mask == pytest.approx(0.8, abs=0.04)
    # A random id is the original one, or [MASK], once in a vocabulary of 30.
    assert changed == pytest.approx(0.1 * 28 / 30, abs=0.03)
    assert (masked == ids)[chosen].float().mean().item() == pytest.approx(0.1, abs=0.03)
    assert torch.equal(targets[chosen], ids[chosen]) and torch.equal(masked[~chosen], ids[~chosen])
    assert not chosen[~words].any()  # special tokens and padding


@pytest.mark.parametrize("family", FAMILIES)
def test_head_is_the_stock_one(family):
    """Its logits on hidden states equal those of the stock class bit for bit, and no parameter occurs twice."""
    config = tiny_config(family)
    stock = AutoModelForMaskedLM.from_config(config).eval()
    head = StockMaskedLMHead(config, stock.base_model)
    for name, module in head.modules.items():
        module.load_state_dict(stock.get_submodule(name).state_dict())
        module.eval()
    batch = random_batch(4)
    hidden = stock.base_model(**batch).last_hidden_state
    assert torch.equal(head.logits(hidden[0]), stock(**batch).logits[0])
    assert head.logits(hidden[0, :0]).shape == (0, len(VOCABULARY)), "a process may draw no masked token at all"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_has_the_encoder_only_once(family):
    """do_mlm adds only the parameters of the stock head, and the decoder shares the embedding table."""
    config = tiny_config(family)
    plain, with_mlm = (AutoModelForCL.from_config(tiny_config(family), do_mlm=do_mlm) for do_mlm in (False, True))
    stock = AutoModelForMaskedLM.from_config(config)
    of_stock_head = stock.num_parameters() - stock.base_model.num_parameters()
    added = with_mlm.num_parameters() - plain.num_parameters()
    assert 0 < added == of_stock_head
    assert with_mlm.get_output_embeddings().weight is with_mlm.get_input_embeddings().weight
    assert plain.get_output_embeddings() is None


def test_an_encoder_without_masked_lm_class_is_refused():
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=30)
    with pytest.raises(ValueError, match="do_mlm needs a masked-LM head, and transformers has none for .*'gpt2'"):
        StockMaskedLMHead(config, None)
