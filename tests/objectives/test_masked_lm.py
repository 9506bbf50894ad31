"""The masking of the auxiliary loss: BERT's, on fresh copies."""

import pytest
import torch
from conftest import MASK, VOCABULARY, random_batch
from transformers import DataCollatorForLanguageModeling

from simcse_hf.objectives.masked_lm import IGNORED, mask_tokens

IDS = random_batch(200, 2, length=40)["input_ids"]
IS_WORD = IDS > MASK  # neither a special token nor padding


def share(condition):
    return condition.float().mean().item()


def test_words_are_masked_as_in_bert(tokenizer):
    """15% of the words are chosen, of which 80% become [MASK], 10% a random word, and 10% stay."""
    masked, targets = mask_tokens(IDS, DataCollatorForLanguageModeling(tokenizer))
    chosen = targets != IGNORED
    assert masked.shape == targets.shape == (200, 2, 40)
    assert share(chosen[IS_WORD]) == pytest.approx(0.15, abs=0.015)
    assert share(masked[chosen] == MASK) == pytest.approx(0.8, abs=0.04)
    assert share(masked[chosen] == IDS[chosen]) == pytest.approx(0.1, abs=0.03)
    is_other = (masked != IDS) & (masked != MASK)
    # A random id may be the original one or [MASK], and then it is not counted.
    counted = (len(VOCABULARY) - 2) / len(VOCABULARY)
    assert share(is_other[chosen]) == pytest.approx(0.1 * counted, abs=0.03)
    assert torch.equal(targets[chosen], IDS[chosen])
    assert torch.equal(masked[~chosen], IDS[~chosen])
    assert not chosen[~IS_WORD].any(), "special tokens and padding are never chosen"
