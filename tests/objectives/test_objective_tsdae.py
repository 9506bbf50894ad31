"""TSDAE: a decoder, which is the encoder with cross-attention, reconstructs a sentence from one embedding."""

import pytest
import torch
from conftest import VOCABULARY, random_batch, tiny_config
from datasets import Dataset
from model_helpers import unused
from objective_helpers import assert_opens_in_transformers, assert_same, tsdae
from safetensors.torch import load_file
from torch.nn.functional import gelu
from trainer_helpers import make
from transformers import AutoModelForMaskedLM

from simcse_hf import AutoModelForCL

# --- the loss of BERT against a slow reference ---


def linear(module, x):
    return x @ module.weight.T + module.bias


def normalized(module, x):
    centred = x - x.mean()
    return centred / ((centred**2).mean() + module.eps).sqrt() * module.weight + module.bias


def attend_to_the_past(attention, states, heads=2):
    """Self-attention of the last of a list of states, one head and one earlier token at a time."""
    size = len(states[0]) // heads
    query = linear(attention.self.query, states[-1])
    keys = [linear(attention.self.key, state) for state in states]
    values = [linear(attention.self.value, state) for state in states]
    mixed = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = torch.stack([(query[part] * key[part]).sum() / size**0.5 for key in keys])
        weights = scores.softmax(0)
        mixed.append(sum(weight * value[part] for weight, value in zip(weights, values, strict=True)))
    return torch.cat(mixed)


def embedded_token(embeddings, token, position):
    word = embeddings.word_embeddings.weight[token]
    place = embeddings.position_embeddings.weight[position]
    kind = embeddings.token_type_embeddings.weight[0]
    return normalized(embeddings.LayerNorm, word + place + kind)


def decoded_state(layer, cross, states, sentence):
    """What a layer makes of the last of a list of states, with the embedding of the sentence."""
    attended = linear(layer.attention.output.dense, attend_to_the_past(layer.attention, states))
    state = normalized(layer.attention.output.LayerNorm, states[-1] + attended)
    # The sentence is the only key of the cross-attention, so its weight is 1.
    told = linear(cross.output.dense, linear(cross.self.value, sentence))
    state = normalized(cross.output.LayerNorm, state + told)
    wide = gelu(linear(layer.intermediate.dense, state))
    return normalized(layer.output.LayerNorm, state + linear(layer.output.dense, wide))


def token_losses(model, text, sentence):
    """The cross-entropy of each token but the first, given those before it and the embedding of the sentence."""
    bert = model.bert
    decoder = model.objective.decoder
    head = model.objective.lm_head["cls"].predictions
    states = [embedded_token(bert.embeddings, token, place) for place, token in enumerate(text[:-1])]
    for layer, with_cross in zip(bert.encoder.layer, decoder.encoder.layer, strict=True):
        outputs = []
        for number in range(len(states)):
            past = states[: number + 1]
            outputs.append(decoded_state(layer, with_cross.crossattention, past, sentence))
        states = outputs
    losses = []
    for state, target in zip(states, text[1:], strict=True):
        transformed = gelu(linear(head.transform.dense, state))
        hidden = normalized(head.transform.LayerNorm, transformed)
        logits = bert.embeddings.word_embeddings.weight @ hidden + head.bias
        losses.append(-logits.log_softmax(0)[target])
    return losses


def slow_loss(model, batch):
    """The mean cross-entropy for BERT, from its parameters, one sentence, layer and token at a time."""
    losses = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        text_length, damaged_length = mask.sum(1).tolist()
        sentence = model.embed(ids[1:2, :damaged_length])[0]
        losses += token_losses(model, ids[0, :text_length].tolist(), sentence)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("unpadded", [True, False])
@pytest.mark.parametrize("pooler", ["cls_before_pooler", "cls", "avg"])
def test_loss_and_gradient_match_a_slow_reference(pooler, unpadded):
    model = tsdae(pooler_type=pooler)
    model.unpadded = unpadded
    batch = random_batch(3, 2)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert_same(model(**batch).loss, slow_loss(model, batch), trained, rtol=1e-6)


# --- every decoder ---


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta", "electra"])
def test_a_decoder_is_the_encoder_with_cross_attention(model_type):
    model = tsdae(model_type)
    of_encoder = {id(parameter) for parameter in model.base_model.parameters()}
    named = model.objective.decoder.named_parameters()
    new = [name for name, parameter in named if id(parameter) not in of_encoder]
    assert new
    assert all(".crossattention." in name for name in new)
    embeddings = model.base_model.get_input_embeddings().weight
    assert model.objective._head.stock.get_output_embeddings().weight is embeddings
    model(**random_batch(3, 2)).loss.backward()
    assert not unused(model)


# --- checkpoints ---


def test_the_head_starts_from_the_masked_lm_head_of_the_checkpoint(save_checkpoint):
    torch.manual_seed(1)
    masked_lm = AutoModelForMaskedLM.from_config(tiny_config(initializer_range=0.2))
    model = AutoModelForCL.from_pretrained(
        save_checkpoint(masked_lm, "start"),
        objective="tsdae",
        pooler_type="avg",
    )
    model.prepare_objective()
    head = model.objective.lm_head["cls"].predictions
    assert torch.equal(head.transform.dense.weight, masked_lm.cls.predictions.transform.dense.weight)


def test_a_checkpoint_holds_what_the_encoder_does_not_have_and_continues_with_the_same_loss(tmp_path):
    model = tsdae()
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "_objective.safetensors")
    assert all(".crossattention." in name or ".lm_head." in name for name in saved)
    assert not [x for x in saved.values() if x.dim() == 2 and len(x) == len(VOCABULARY)], "word embeddings"
    assert_opens_in_transformers(tmp_path)
    loaded = AutoModelForCL.from_pretrained(tmp_path, dtype=torch.float64).train()
    batch = random_batch(3, 2)
    assert loaded(**batch).loss.item() == pytest.approx(model(**batch).loss.item(), rel=1e-12)


# --- refusals ---


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"matryoshka_dims": [16]}, "matryoshka_dims"),
        ({"dense_layers": [{"in_features": 32, "out_features": 16}]}, "dense_layers"),
        ({"model_type": "distilbert"}, "'distilbert'"),
        ({"model_type": "modernbert"}, "'modernbert'"),
    ],
)
def test_settings_and_encoders_that_do_not_fit_are_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        tsdae(**settings)


# --- the view ---

TEN_WORDS = " ".join(VOCABULARY[5:15])


@pytest.mark.parametrize(
    "arguments, view, rate, words",
    [
        pytest.param({}, "delete_words", 0.6, 4, id="60% deleted by default"),
        pytest.param({"view": "shuffle"}, "shuffle", None, 10, id="another view"),
    ],
)
def test_the_second_text_of_a_row_is_damaged(tmp_path, tokenizer, arguments, view, rate, words):
    rows = Dataset.from_dict({"sent0": [TEN_WORDS] * 8})
    trainer = make(tmp_path, tokenizer, rows, tsdae(), **arguments)
    assert (trainer.args.view, trainer.args.view_rate) == (view, rate)
    sentence, damaged = trainer.train_dataset[0]["input_ids"]
    assert sentence == tokenizer(TEN_WORDS)["input_ids"]
    assert damaged != sentence
    assert len(damaged) == words + 2  # [CLS] and [SEP]
