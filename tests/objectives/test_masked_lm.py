"""The masking of the auxiliary loss: BERT's, on fresh copies."""

import pytest
import torch
from conftest import MASK, VOCABULARY, random_batch
from transformers import DataCollatorForLanguageModeling

from simcse_hf.objectives.masked_lm import IGNORED, mask_tokens

IDS = random_batch(200, 2, length=40)["input_ids"]
IS_WORD = IDS > MASK  # neither a special token nor padding


@pytest.fixture
def masked_and_targets(tokenizer):
    return mask_tokens(IDS, DataCollatorForLanguageModeling(tokenizer))


@pytest.fixture
def masked(masked_and_targets):
    """The ids after masking."""
    return masked_and_targets[0]


@pytest.fixture
def targets(masked_and_targets):
    """The ids to predict, and `IGNORED` elsewhere."""
    return masked_and_targets[1]


@pytest.fixture
def chosen(targets):
    """Where a token is to be predicted."""
    return targets != IGNORED


def share(condition):
    return condition.float().mean().item()


def test_masking_keeps_the_shape(masked, targets):
    assert masked.shape == targets.shape == (200, 2, 40)


def test_15_percent_of_the_words_are_chosen(chosen):
    assert share(chosen[IS_WORD]) == pytest.approx(0.15, abs=0.015)


def test_80_percent_of_the_chosen_words_become_mask(masked, chosen):
    assert share(masked[chosen] == MASK) == pytest.approx(0.8, abs=0.04)


def test_10_percent_of_the_chosen_words_become_random(masked, chosen):
    is_other = (masked != IDS) & (masked != MASK)
    # A random id may be the original one or [MASK], and then it is not counted.
    counted = (len(VOCABULARY) - 2) / len(VOCABULARY)
    assert share(is_other[chosen]) == pytest.approx(0.1 * counted, abs=0.03)


def test_10_percent_of_the_chosen_words_stay(masked, chosen):
    assert share(masked[chosen] == IDS[chosen]) == pytest.approx(0.1, abs=0.03)


def test_the_targets_are_the_original_words(targets, chosen):
    assert torch.equal(targets[chosen], IDS[chosen])


def test_what_is_not_chosen_stays(masked, chosen):
    assert torch.equal(masked[~chosen], IDS[~chosen])


def test_special_tokens_and_padding_are_never_chosen(chosen):
    assert not chosen[~IS_WORD].any()
