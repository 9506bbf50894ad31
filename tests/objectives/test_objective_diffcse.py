"""DiffCSE: a discriminator finds replaced tokens with the help of the sentence embedding."""

import pytest
import torch
from conftest import CLS, MASK, PAD, SEP, random_batch, tiny_config
from transformers import AutoModel, AutoModelForMaskedLM

from simcse_hf import AutoModelForCL
from simcse_hf.objectives import EncodedBatch
from simcse_hf.objectives.masked_lm import mask_tokens

SPECIAL = {0, PAD, CLS, SEP, MASK}


def masked_lm_folder(folder, tokenizer, model_type="bert", **changes):
    """A directory with a masked-LM, clearly decided weights, and the tokenizer."""
    torch.manual_seed(7)
    config = tiny_config(model_type, initializer_range=0.5, **changes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def generator(tmp_path, tokenizer):
    return lambda **changes: masked_lm_folder(tmp_path / "generator", tokenizer, **changes)


def model_of(generator, model_type="bert", weight=0.5, dropout=0.0, projector=False, **settings):
    torch.manual_seed(3)
    options = {"generator": generator, "replaced_weight": weight, "projector": projector}
    config = tiny_config(model_type, dropout=dropout, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, objective="diffcse", objective_options=options, **settings)
    model.prepare_objective()
    return model.double().train()


def masks_of_the_objective(model, ids, seed):
    """Return the masked ids that the next training step uses after `torch.manual_seed(seed)`."""
    torch.manual_seed(seed)
    return mask_tokens(ids, model.objective._masker)[0]


def with_first_position(encoder, ids, vector):
    """Hidden states of one sentence whose first position is `vector` in the output of the embedding layer."""
    hook = encoder.embeddings.register_forward_hook(lambda _, __, out: torch.cat([vector[None, None], out[:, 1:]], 1))
    hidden = encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
    hook.remove()
    return hidden


def slow_parts(model, batch, masked):
    """Compute the mean cross-entropy, one sentence and one token at a time, and count the replaced tokens."""
    objective = model.objective
    ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
    masked_lm = objective._generator[0]
    total, count, replaced = 0.0, 0, 0
    for row in range(len(ids)):
        length = int(mask[row].sum())
        if not length:
            continue
        text = ids[row, :length].tolist()
        words = [t for t in range(length) if text[t] not in SPECIAL]
        best = masked_lm(masked[row : row + 1, :length]).logits[0].argmax(-1)
        edited = [int(best[t]) if t in words else token for t, token in enumerate(text)]
        hidden = with_first_position(objective.discriminator, edited, model.embed(torch.tensor([text]))[0])
        for t in words:
            chance = torch.sigmoid((objective.classifier.weight[0] * hidden[t]).sum() + objective.classifier.bias[0])
            other = edited[t] != text[t]
            total = total - (chance if other else 1 - chance).log()
            count, replaced = count + 1, replaced + other
    return total / count, replaced


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "modernbert", "deberta-v2"])
@pytest.mark.parametrize("rows, sentences, length", [(3, 2, 6), (4, 3, 11)])
def test_loss_and_gradient_match_a_slow_reference(generator, model_type, rows, sentences, length):
    model, batch = model_of(generator(), model_type), random_batch(rows, sentences, length=length)
    masked = masks_of_the_objective(model, batch["input_ids"].flatten(0, 1), seed=5)
    torch.manual_seed(5)
    output = model(**batch)
    expected, replaced = slow_parts(model, batch, masked)
    assert replaced > 0
    assert output.parts["replaced_tokens"].item() == pytest.approx(0.5 * expected.item(), rel=1e-7)
    assert output.loss.item() == pytest.approx(sum(output.parts.values()).item())
    weights = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(output.parts["replaced_tokens"], weights, allow_unused=True)
    exact = torch.autograd.grad(0.5 * expected, weights, allow_unused=True)
    reached = 0
    for one, other in zip(found, exact, strict=True):
        one, other = (torch.zeros(()) if x is None else x for x in (one, other))
        torch.testing.assert_close(one.expand_as(other) if one.dim() == 0 else one, other, rtol=1e-6, atol=1e-10)
        reached += bool(other.abs().sum() > 0)
    assert reached > len(weights) / 2


def test_tokens_are_masked_as_for_masked_lm_training(generator):
    model, ids = model_of(generator()), torch.full((400, 52), 9)
    ids[:, 0], ids[:, -1] = CLS, SEP
    masked = mask_tokens(ids, model.objective._masker)[0]
    assert masked[:, [0, -1]].equal(ids[:, [0, -1]])
    shares = [(masked == MASK).double().mean().item(), ((masked != MASK) & (masked != ids)).double().mean().item()]
    assert shares[0] == pytest.approx(0.3 * 0.8 * 50 / 52, abs=0.01)
    assert shares[1] == pytest.approx(0.3 * 0.1 * 50 / 52 * 29 / 30, abs=0.005)


def test_the_projector_is_the_authors_and_used_in_training_only(generator):
    model, batch = model_of(generator(), projector=True, pooler_type="cls_before_pooler"), random_batch(4, 2)
    first, first_norm, _, second, _ = model.objective.projector
    assert (first.weight.shape, second.weight.shape) == ((64, 32), (32, 64))
    assert first.bias is None and second.bias is None and first_norm.weight is not None
    vectors = model(**batch, return_loss=False).sentence_embeddings
    hidden = torch.nn.functional.batch_norm(vectors.flatten(0, 1) @ first.weight.T, None, None, training=True)
    expected = torch.nn.functional.batch_norm(hidden.relu() @ second.weight.T, None, None, training=True)
    prepared = model.objective.prepare(EncodedBatch(vectors, batch, model))
    torch.testing.assert_close(prepared.embeddings.flatten(0, 1), expected)
    assert model.objective.eval().prepare(EncodedBatch(vectors, batch, model)).embeddings is vectors


def test_every_trained_parameter_is_used_and_the_generator_is_left_alone(generator):
    """DistributedDataParallel fails if a trained parameter gets no gradient."""
    model = model_of(generator())
    model(**random_batch(4, 2)).loss.backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    assert any(name.startswith("objective.discriminator") for name, p in model.named_parameters() if p.requires_grad)
    assert all(p.grad is None and not p.requires_grad for p in model.objective._generator[0].parameters())
    assert not model.objective._generator[0].training
    assert not any("generator" in name for name in model.state_dict())


def test_the_default_generator_is_the_checkpoint_of_the_model(generator, tmp_path):
    start = generator()
    model = AutoModelForCL.from_pretrained(start, objective="diffcse")
    model.prepare_objective()
    expected = AutoModelForMaskedLM.from_pretrained(start).state_dict()
    found = model.objective._generator[0].state_dict()
    assert all(torch.equal(found[name], x) for name, x in expected.items())
    copied = model.objective.discriminator.state_dict()
    assert all(torch.equal(copied[name], x) for name, x in model.bert.state_dict().items())


def test_evaluation_is_simcse_and_draws_no_random_numbers(generator):
    model, batch = model_of(generator()).eval(), random_batch(4, 2)
    state = torch.get_rng_state()
    output = model(**batch)
    assert output.parts is None and torch.equal(torch.get_rng_state(), state)


def test_empty_sentences_of_a_shorter_row_are_left_out(generator):
    """These sentences are all padding, so there are no tokens to classify."""
    model, batch = model_of(generator()), random_batch(3, 3)
    batch["input_ids"][1, 2], batch["attention_mask"][1, 2] = PAD, 0
    present = batch["attention_mask"].any(-1)
    vectors = torch.zeros(3, 3, 32, dtype=torch.float64)
    vectors[present] = model.embed(*(x[present] for x in batch.values()))
    torch.manual_seed(5)
    inputs = model.objective.prepare(EncodedBatch(vectors, batch, model))
    ids = batch["input_ids"].flatten(0, 1)
    masked = masks_of_the_objective(model, torch.cat([ids[:5], ids[6:]]), seed=5)
    expected, _ = slow_parts(model, batch, torch.cat([masked[:5], ids[5:6], masked[5:]]))
    assert inputs.other_losses["replaced_tokens"].item() == pytest.approx(0.5 * expected.item(), rel=1e-7)


def masking_every_word(model):
    masker = model.objective._masker
    masker.torch_mask_tokens = lambda ids, special_tokens_mask: (torch.where(ids > MASK, MASK, ids), ids)
    return model


def test_an_unsuitable_generator_is_refused(generator, tmp_path, tokenizer):
    with pytest.raises(ValueError, match="vocabulary of 31 tokens, but the model has one of 30"):
        model_of(generator(vocab_size=31))
    with pytest.raises(ValueError, match="generator.*cannot be loaded"):
        model_of(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="not loaded from a checkpoint"):
        model_of(None)
    AutoModel.from_config(tiny_config()).save_pretrained(tmp_path / "headless")
    tokenizer.save_pretrained(tmp_path / "headless")
    with pytest.raises(ValueError, match="headless has no trained masked-LM head"):
        model_of(str(tmp_path / "headless"))


def test_an_encoder_with_smaller_token_embeddings_is_refused(generator):
    with pytest.raises(ValueError, match="electra.*size 16, and the sentence embedding has size 32"):
        model_of(generator(), "electra")
