"""DiffCSE: a discriminator finds replaced tokens with the help of the sentence embedding."""

import pytest
import torch
from conftest import CLS, MASK, PAD, SEP, random_batch, tiny_config
from objective_helpers import assert_same, diffcse, masked_lm_folder
from torch.nn.functional import batch_norm
from transformers import AutoModel, AutoModelForMaskedLM

from simcse_hf import AutoModelForCL
from simcse_hf.objectives import EncodedBatch
from simcse_hf.objectives.masked_lm import mask_tokens

SPECIAL = {0, PAD, CLS, SEP, MASK}


@pytest.fixture
def make_generator(tmp_path, tokenizer):
    """`make_generator(**changes)` writes a masked-LM with these changes to its config, and returns its folder."""
    return lambda **changes: masked_lm_folder(tmp_path / "generator", tokenizer, **changes)


@pytest.fixture
def generator(make_generator):
    return make_generator()


def leave_empty(batch, rows, column):
    """Make a sentence of some rows all padding."""
    batch["input_ids"][rows, column] = PAD
    batch["attention_mask"][rows, column] = 0
    return batch


# --- the loss ---


def masks_of_the_objective(model, ids, seed):
    """Return the masked ids that the next training step uses after `torch.manual_seed(seed)`."""
    torch.manual_seed(seed)
    return mask_tokens(ids, model.objective._masker)[0]


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
    """The binary cross-entropy of each word of a sentence, and whether the word was replaced."""
    objective = model.objective
    edited = edited_by_generator(objective._generator[0], text, masked)
    embedding = model.embed(torch.tensor([text]))[0]
    states = states_with_first_position(objective.discriminator, edited, embedding)
    weight = objective.classifier.weight[0]
    bias = objective.classifier.bias[0]
    losses = []
    is_replaced = []
    for place, token in enumerate(text):
        if token in SPECIAL:
            continue
        replaced = edited[place] != token
        probability = torch.sigmoid((weight * states[place]).sum() + bias)
        losses.append(-(probability if replaced else 1 - probability).log())
        is_replaced.append(replaced)
    return losses, is_replaced


def slow_loss(model, batch, masked):
    """The mean cross-entropy, one sentence and one token at a time; some token must be replaced."""
    ids = batch["input_ids"].flatten(0, 1)
    lengths = batch["attention_mask"].flatten(0, 1).sum(1).tolist()
    losses = []
    is_replaced = []
    for row, length in enumerate(lengths):
        if length:
            found = token_losses(model, ids[row, :length].tolist(), masked[row, :length])
            losses += found[0]
            is_replaced += found[1]
    assert any(is_replaced)
    return sum(losses) / len(losses)


FAMILIES = pytest.mark.parametrize(
    "model_type",
    ["bert", "roberta", "distilbert", "modernbert", "deberta-v2"],
)


@FAMILIES
@pytest.mark.parametrize("rows, sentences, length", [(3, 2, 6), (4, 3, 11)])
def test_loss_and_gradient_match_a_slow_reference(generator, model_type, rows, sentences, length):
    model = diffcse(generator, model_type)
    batch = random_batch(rows, sentences, length=length)
    masked = masks_of_the_objective(model, batch["input_ids"].flatten(0, 1), seed=5)
    expected = 0.5 * slow_loss(model, batch, masked)
    torch.manual_seed(5)
    found = model(**batch).parts["replaced_tokens"]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert_same(found, expected, trained, rtol=1e-6)


def test_the_loss_is_the_sum_of_its_parts(generator):
    output = diffcse(generator)(**random_batch(3, 2))
    assert output.loss.item() == pytest.approx(sum(output.parts.values()).item())


@FAMILIES
def test_evaluation_replaces_no_tokens_and_draws_nothing(generator, model_type):
    model = diffcse(generator, model_type).eval()
    state = torch.get_rng_state()
    assert model(**random_batch(3, 2)).parts is None
    assert torch.equal(torch.get_rng_state(), state)


def test_empty_sentences_of_a_shorter_row_are_left_out(generator):
    """These sentences are all padding, so there are no tokens to classify."""
    model = diffcse(generator)
    batch = leave_empty(random_batch(3, 3), rows=1, column=2)
    present = batch["attention_mask"].any(-1)
    vectors = torch.zeros(3, 3, 32, dtype=torch.float64)
    vectors[present] = model.embed(*(values[present] for values in batch.values()))
    torch.manual_seed(5)
    prepared = model.objective.prepare(EncodedBatch(vectors, batch, model))
    ids = batch["input_ids"].flatten(0, 1)
    masked = ids.clone()
    masked[present.flatten()] = masks_of_the_objective(model, ids[present.flatten()], seed=5)
    expected = 0.5 * slow_loss(model, batch, masked)
    found = prepared.other_losses["replaced_tokens"]
    assert found.item() == pytest.approx(expected.item(), rel=1e-7)


# --- the projector ---


@pytest.fixture
def model_with_projector(generator):
    return diffcse(generator, projector=True, pooler_type="cls_before_pooler")


def encoded(model, batch):
    vectors = model(**batch, return_loss=False).sentence_embeddings
    return EncodedBatch(vectors, batch, model)


def test_the_projector_has_the_authors_layers(model_with_projector):
    first, first_norm, _, second, _ = model_with_projector.objective.projector
    assert first.weight.shape == (64, 32)
    assert second.weight.shape == (32, 64)
    assert first.bias is None
    assert second.bias is None
    assert first_norm.weight is not None


def test_the_projector_projects_in_training(model_with_projector):
    batch = encoded(model_with_projector, random_batch(4, 2))
    first, _, _, second, _ = model_with_projector.objective.projector
    vectors = batch.embeddings.flatten(0, 1)
    hidden = batch_norm(vectors @ first.weight.T, None, None, training=True).relu()
    expected = batch_norm(hidden @ second.weight.T, None, None, training=True)
    prepared = model_with_projector.objective.prepare(batch)
    torch.testing.assert_close(prepared.embeddings.flatten(0, 1), expected)


def test_the_projector_is_not_used_in_evaluation(model_with_projector):
    batch = encoded(model_with_projector, random_batch(4, 2))
    prepared = model_with_projector.objective.eval().prepare(batch)
    assert prepared.embeddings is batch.embeddings


def test_absent_texts_take_no_part_in_the_batch_norm_of_the_projector(generator):
    model = diffcse(generator, projector=True)
    batch = leave_empty(random_batch(4, 3), rows=slice(1, None), column=2)
    present = batch["attention_mask"].any(-1)
    vectors = torch.randn(4, 3, 32, dtype=torch.float64) * present[..., None]
    prepared = model.objective.prepare(EncodedBatch(vectors, batch, model)).embeddings
    torch.testing.assert_close(prepared[present], model.objective.projector(vectors[present]))
    assert not prepared[~present].any()


# --- the generator and the discriminator ---


@pytest.fixture
def model_with_default_generator(generator):
    model = AutoModelForCL.from_pretrained(generator, objective="diffcse")
    model.prepare_objective()
    return model


def assert_same_tensors(found, expected):
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)


def test_the_default_generator_is_the_checkpoint_of_the_model(
    model_with_default_generator,
    generator,
):
    expected = AutoModelForMaskedLM.from_pretrained(generator).state_dict()
    found = model_with_default_generator.objective._generator[0].state_dict()
    assert_same_tensors(found, expected)


def test_the_generator_is_not_trained(model_with_default_generator):
    generator = model_with_default_generator.objective._generator[0]
    assert not generator.training
    assert not any(parameter.requires_grad for parameter in generator.parameters())


def test_the_generator_is_not_saved(model_with_default_generator):
    names = model_with_default_generator.state_dict()
    assert not [name for name in names if "generator" in name]


def test_the_discriminator_begins_as_the_encoder(model_with_default_generator):
    found = model_with_default_generator.objective.discriminator.state_dict()
    assert_same_tensors(found, model_with_default_generator.bert.state_dict())


def test_a_generator_with_another_vocabulary_is_refused(make_generator):
    with pytest.raises(ValueError, match="31 tokens.* 30"):
        diffcse(make_generator(vocab_size=31))


def test_a_generator_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere cannot be loaded"):
        diffcse(str(tmp_path / "nowhere"))


def test_a_model_that_was_not_loaded_needs_a_generator():
    with pytest.raises(ValueError, match="not loaded from a checkpoint"):
        diffcse(None)


def test_a_generator_without_a_masked_lm_head_is_refused(tmp_path, tokenizer):
    folder = tmp_path / "headless"
    AutoModel.from_config(tiny_config()).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="headless has no trained masked-LM head"):
        diffcse(str(folder))


def test_an_encoder_with_narrow_embeddings_is_refused(generator):
    with pytest.raises(ValueError, match="electra.* size 16"):
        diffcse(generator, "electra")
