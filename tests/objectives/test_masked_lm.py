"""Tests of the auxiliary loss: BERT's masking on fresh copies."""

import pytest
import torch
from conftest import MASK, random_batch
from transformers import DataCollatorForLanguageModeling

from simcse_hf.objectives.masked_lm import IGNORED, mask_tokens


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
