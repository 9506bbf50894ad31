"""The masking of the auxiliary loss: BERT's, on fresh copies."""

import pytest
import torch
from conftest import MASK, random_batch
from transformers import DataCollatorForLanguageModeling

from simcse_hf.objectives.masked_lm import IGNORED, mask_tokens

IDS = random_batch(200, 2, length=40)["input_ids"]
IS_WORD = IDS > MASK  # neither a special token nor padding


def test_some_words_are_masked_and_neither_special_tokens_nor_padding(tokenizer):
    masked, targets = mask_tokens(IDS, DataCollatorForLanguageModeling(tokenizer))
    chosen = targets != IGNORED
    assert masked.shape == targets.shape == (200, 2, 40)
    assert chosen[IS_WORD].float().mean().item() == pytest.approx(0.15, abs=0.015)
    assert (masked[chosen] == MASK).any()
    assert torch.equal(targets[chosen], IDS[chosen])
    assert torch.equal(masked[~chosen], IDS[~chosen])
    assert not chosen[~IS_WORD].any()
