"""DiffCSE: a discriminator finds replaced tokens with the help of the sentence embedding."""

import pytest
import torch
from conftest import CLS, MASK, PAD, SEP, random_batch, tiny_config
from objective_helpers import assert_same, masked_lm_folder
from objective_helpers import diffcse as model_of
from transformers import AutoModel, AutoModelForMaskedLM

from simcse_hf import AutoModelForCL
from simcse_hf.objectives import EncodedBatch
from simcse_hf.objectives.masked_lm import mask_tokens

SPECIAL = {0, PAD, CLS, SEP, MASK}


@pytest.fixture
def generator(tmp_path, tokenizer):
    return lambda **changes: masked_lm_folder(tmp_path / "generator", tokenizer, **changes)


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
    assert output.loss.item() == pytest.approx(sum(output.parts.values()).item())
    trained = [p for p in model.parameters() if p.requires_grad]
    assert_same(output.parts["replaced_tokens"], 0.5 * expected, trained, rtol=1e-6)
    state = torch.get_rng_state()
    assert model.eval()(**batch).parts is None and torch.equal(torch.get_rng_state(), state)


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


def test_absent_texts_take_no_part_in_the_batch_norm_of_the_projector(generator):
    model, batch = model_of(generator(), projector=True), random_batch(4, 3)
    batch["input_ids"][1:, 2], batch["attention_mask"][1:, 2] = PAD, 0
    present = batch["attention_mask"].any(-1)
    vectors = torch.randn(4, 3, 32, dtype=torch.float64) * present[..., None]
    prepared = model.objective.prepare(EncodedBatch(vectors, batch, model)).embeddings
    torch.testing.assert_close(prepared[present], model.objective.projector(vectors[present]))
    assert (prepared[~present] == 0).all()


def test_the_default_generator_is_the_checkpoint_of_the_model(generator, tmp_path):
    start = generator()
    model = AutoModelForCL.from_pretrained(start, objective="diffcse")
    model.prepare_objective()
    expected = AutoModelForMaskedLM.from_pretrained(start).state_dict()
    found = model.objective._generator[0]
    assert all(torch.equal(found.state_dict()[name], x) for name, x in expected.items())
    assert not found.training and not any(p.requires_grad for p in found.parameters())
    assert not any("generator" in name for name in model.state_dict())
    copied = model.objective.discriminator.state_dict()
    assert all(torch.equal(copied[name], x) for name, x in model.bert.state_dict().items())


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


def test_an_unsuitable_generator_is_refused(generator, tmp_path, tokenizer):
    AutoModel.from_config(tiny_config()).save_pretrained(tmp_path / "headless")
    tokenizer.save_pretrained(tmp_path / "headless")
    for source, model_type, message in (
        (lambda: generator(vocab_size=31), "bert", "31 tokens.* 30"),
        (lambda: str(tmp_path / "nowhere"), "bert", "nowhere cannot be loaded"),
        (lambda: None, "bert", "not loaded from a checkpoint"),
        (lambda: str(tmp_path / "headless"), "bert", "headless has no trained masked-LM head"),
        (generator, "electra", "electra.* size 16"),
    ):
        with pytest.raises(ValueError, match=message):
            model_of(source(), model_type)
