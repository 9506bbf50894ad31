"""DiffCSE: a discriminator finds replaced tokens with the help of the sentence embedding."""

import pytest
import torch
from conftest import CLS, MASK, PAD, SEP, random_batch
from objective_helpers import assert_same, diffcse, masked_lm_folder
from torch.nn.functional import batch_norm
from trainer_helpers import assert_same_weights
from transformers import AutoModelForMaskedLM

from simcse_hf import AutoModelForCL, EncodedBatch
from simcse_hf.objectives.base import ABSENT
from simcse_hf.objectives.masked_lm import mask_tokens

SPECIAL = {0, PAD, CLS, SEP, MASK}


@pytest.fixture
def generator(tmp_path, tokenizer):
    return masked_lm_folder(tmp_path / "generator", tokenizer)


def leave_empty(batch, rows):
    """Make the third sentence of some rows all padding."""
    batch["input_ids"][rows, 2] = PAD
    batch["attention_mask"][rows, 2] = 0
    return batch


# --- the loss ---


def states_with_first_position(encoder, ids, vector):
    """Hidden states of one sentence whose first position is `vector` in the output of the embedding layer."""

    def replace_first(_, __, embedded):
        return torch.cat([vector[None, None], embedded[:, 1:]], dim=1)

    hook = encoder.embeddings.register_forward_hook(replace_first)
    states = encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
    hook.remove()
    return states


def edited_by_generator(generator, text, masked):
    """The tokens of a sentence, in which each word is the one that the generator finds most likely."""
    best = generator(masked[None]).logits[0].argmax(-1).tolist()
    return [token if token in SPECIAL else new for token, new in zip(text, best, strict=True)]


def token_losses(model, text, masked):
    """The binary cross-entropy of each word of a sentence, and whether one of them was replaced."""
    objective = model.objective
    edited = edited_by_generator(objective._generator[0], text, masked)
    embedding = model.embed(torch.tensor([text]))[0]
    states = states_with_first_position(objective.discriminator, edited, embedding)
    weight = objective.classifier.weight[0]
    bias = objective.classifier.bias[0]
    losses = []
    for place, token in enumerate(text):
        if token not in SPECIAL:
            is_replaced = edited[place] != token
            probability = torch.sigmoid((weight * states[place]).sum() + bias)
            losses.append(-(probability if is_replaced else 1 - probability).log())
    return losses, edited != text


def slow_loss(model, batch, masked):
    """The mean cross-entropy, one sentence and one token at a time; some token must be replaced."""
    ids = batch["input_ids"].flatten(0, 1)
    lengths = batch["attention_mask"].flatten(0, 1).sum(1).tolist()
    losses = []
    is_replaced = False
    for row, length in enumerate(lengths):
        if length:
            found, replaced = token_losses(model, ids[row, :length].tolist(), masked[row, :length])
            losses += found
            is_replaced |= replaced
    assert is_replaced
    return sum(losses) / len(losses)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert", "deberta-v2"])
def test_loss_and_gradient_match_a_slow_reference(generator, model_type):
    model = diffcse(generator, model_type)
    batch = leave_empty(random_batch(4, 3, length=11), rows=1)
    batch["relations"] = torch.tensor([[0, 2], [0, ABSENT], [0, 2], [0, 2]])
    ids = batch["input_ids"].flatten(0, 1)
    present = batch["attention_mask"].flatten(0, 1).any(-1)
    masked = ids.clone()
    torch.manual_seed(5)  # as before the step below, which then draws the same masks
    masked[present] = mask_tokens(ids[present], model.objective._masker)[0]
    expected = 0.5 * slow_loss(model, batch, masked)
    torch.manual_seed(5)
    output = model(**batch)
    assert_same(output.parts["replaced_tokens"], expected, model, rtol=1e-6)
    torch.testing.assert_close(output.loss, sum(output.parts.values()))
    state = torch.get_rng_state()
    assert model.eval()(**batch).parts is None, "evaluation replaces no tokens"
    assert torch.equal(torch.get_rng_state(), state)


# --- the projector ---


def test_the_projector_projects_the_texts_that_are_there_in_training(generator):
    model = diffcse(generator, projector=True)
    first, first_norm, _, second, _ = model.objective.projector
    assert first.weight.shape == (64, 32)
    assert second.weight.shape == (32, 64)
    assert first.bias is None and second.bias is None and first_norm.weight is not None
    batch = leave_empty(random_batch(4, 3), rows=slice(1, None))
    present = batch["attention_mask"].any(-1)
    vectors = torch.randn(4, 3, 32, dtype=torch.float64) * present[..., None]
    encoded = EncodedBatch(vectors, batch, model)
    prepared = model.objective.prepare(encoded).embeddings
    hidden = batch_norm(vectors[present] @ first.weight.T, None, None, training=True).relu()
    expected = batch_norm(hidden @ second.weight.T, None, None, training=True)
    torch.testing.assert_close(prepared[present], expected)
    assert not prepared[~present].any()
    assert model.objective.eval().prepare(encoded).embeddings is vectors


# --- the generator and the discriminator ---


def test_the_default_generator_is_the_checkpoint_of_the_model_and_is_neither_trained_nor_saved(generator):
    model = AutoModelForCL.from_pretrained(generator, objective="diffcse")
    model.prepare_objective()
    masked_lm = model.objective._generator[0]
    expected = AutoModelForMaskedLM.from_pretrained(generator).state_dict()
    torch.testing.assert_close(masked_lm.state_dict(), expected, rtol=0, atol=0)
    assert not masked_lm.training
    assert not any(parameter.requires_grad for parameter in masked_lm.parameters())
    assert not [name for name in model.state_dict() if "generator" in name]
    assert_same_weights(model.objective.discriminator.state_dict(), model.bert.state_dict())


def test_generators_and_encoders_that_do_not_fit_are_refused(tmp_path, tokenizer, generator):
    wide = masked_lm_folder(tmp_path / "wide", tokenizer, vocab_size=31)
    for folder, model_type, named in [
        (wide, "bert", "31 tokens.* 30"),
        (str(tmp_path / "nowhere"), "bert", "nowhere"),
        (None, "bert", "not loaded from a checkpoint, .* Set the option generator"),
        (generator, "electra", "electra.* 16"),
    ]:
        with pytest.raises(ValueError, match=named):
            diffcse(folder, model_type)
