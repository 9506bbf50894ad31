"""TSDAE: a decoder, which is the encoder with cross-attention, reconstructs a sentence from one embedding."""

import pytest
import torch
from conftest import PAD, VOCABULARY, random_batch, tiny_config
from datasets import Dataset
from model_helpers import unused
from objective_helpers import assert_opens_in_transformers, assert_same
from objective_helpers import tsdae as model_of
from safetensors.torch import load_file
from trainer_helpers import make
from transformers import AutoModelForMaskedLM

from simcse_hf import AutoModelForCL

DECODERS = ["bert", "roberta", "xlm-roberta", "electra"]
OTHERS = ["distilbert", "albert", "modernbert", "mpnet", "deberta-v2"]
TEXTS = [" ".join(VOCABULARY[5:15])] * 8


def linear(module, x):
    return x @ module.weight.T + module.bias


def normalized(module, x):
    centred = x - x.mean()
    return centred / ((centred**2).mean() + module.eps).sqrt() * module.weight + module.bias


def attend_to_the_past(attention, states, heads=2):
    """Self-attention of the last of a list of states, one head and one earlier token at a time."""
    size = len(states[0]) // heads
    query = linear(attention.self.query, states[-1])
    keys, values = ([linear(module, x) for x in states] for module in (attention.self.key, attention.self.value))
    mixed = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        weights = torch.stack([(query[part] * key[part]).sum() / size**0.5 for key in keys]).softmax(0)
        mixed.append(sum(weight * value[part] for weight, value in zip(weights, values, strict=True)))
    return torch.cat(mixed)


def slow_loss(model, batch):
    """The mean cross-entropy for BERT, from its parameters, one sentence, layer and token at a time."""
    bert, decoder, head = model.bert, model.objective.decoder, model.objective.lm_head["cls"].predictions
    total, count = 0.0, 0
    for row in range(len(batch["input_ids"])):
        ids, mask = batch["input_ids"][row], batch["attention_mask"][row]
        sentence = model.embed(ids[1:2, : mask[1].sum()])[0]
        text = ids[0, : mask[0].sum()].tolist()
        inputs = []
        for position, token in enumerate(text[:-1]):
            tables = bert.embeddings
            x = tables.word_embeddings.weight[token] + tables.position_embeddings.weight[position]
            inputs.append(normalized(tables.LayerNorm, x + tables.token_type_embeddings.weight[0]))
        for number, layer in enumerate(bert.encoder.layer):
            cross = decoder.encoder.layer[number].crossattention
            outputs = []
            for t, x in enumerate(inputs):
                mixed = attend_to_the_past(layer.attention, inputs[: t + 1])
                x = normalized(layer.attention.output.LayerNorm, x + linear(layer.attention.output.dense, mixed))
                told = linear(cross.output.dense, linear(cross.self.value, sentence))  # one key: its weight is 1
                x = normalized(cross.output.LayerNorm, x + told)
                wide = torch.nn.functional.gelu(linear(layer.intermediate.dense, x))
                outputs.append(normalized(layer.output.LayerNorm, x + linear(layer.output.dense, wide)))
            inputs = outputs
        for x, target in zip(inputs, text[1:], strict=True):
            x = normalized(head.transform.LayerNorm, torch.nn.functional.gelu(linear(head.transform.dense, x)))
            logits = bert.embeddings.word_embeddings.weight @ x + head.bias
            total = total - logits.log_softmax(0)[target]
            count += 1
    return total / count


@pytest.mark.parametrize("pooler", ["cls_before_pooler", "cls", "avg"])
def test_loss_and_gradient_match_a_slow_reference(pooler):
    model, batch = model_of(pooler_type=pooler), random_batch(3, 2)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert_same(model(**batch).loss, slow_loss(model, batch), trained, rtol=1e-6)


@pytest.mark.parametrize("model_type", DECODERS)
def test_every_weight_of_the_decoder_but_the_cross_attention_is_the_encoders(model_type):
    model = model_of(model_type)
    encoder = {id(p) for p in model.base_model.parameters()}
    new = [name for name, p in model.objective.decoder.named_parameters() if id(p) not in encoder]
    assert new and all(".crossattention." in name for name in new)
    embeddings = model.base_model.get_input_embeddings().weight
    assert model.objective._head.stock.get_output_embeddings().weight is embeddings
    model(**random_batch(3, 2)).loss.backward()
    assert not unused(model)


@pytest.mark.parametrize("model_type", DECODERS)
def test_padding_changes_nothing(model_type):
    model, batch = model_of(model_type), random_batch(4, 2)
    pad = torch.nn.functional.pad
    wider = {name: pad(x, (0, 5), value=PAD if name == "input_ids" else 0) for name, x in batch.items()}
    alone = model(**batch).loss.item()
    for model.unpadded in (True, False):
        assert model(**wider).loss.item() == pytest.approx(alone, rel=1e-9)


def test_the_head_starts_from_the_masked_lm_head_of_the_checkpoint(save_checkpoint):
    torch.manual_seed(1)
    start = save_checkpoint(AutoModelForMaskedLM.from_config(tiny_config(initializer_range=0.2)), "start")
    model = AutoModelForCL.from_pretrained(start, objective="tsdae", pooler_type="avg")
    model.prepare_objective()
    trained = AutoModelForMaskedLM.from_pretrained(start).cls.predictions.transform.dense.weight
    assert torch.equal(model.objective.lm_head["cls"].predictions.transform.dense.weight, trained)


def test_a_checkpoint_holds_each_weight_once_and_continues(tmp_path, tokenizer):
    model, batch = model_of(), random_batch(3, 2)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "_objective.safetensors")
    assert all(".crossattention." in name or ".lm_head." in name for name in saved)
    assert not any(x.shape[0] == len(VOCABULARY) and x.dim() == 2 for x in saved.values())
    assert_opens_in_transformers(tmp_path)
    again = AutoModelForCL.from_pretrained(tmp_path, dtype=torch.float64).train()
    assert again(**batch).loss.item() == pytest.approx(model(**batch).loss.item(), rel=1e-12)


# --- refusals ---


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"matryoshka_dims": [16]}, "matryoshka_dims"),
        ({"dense_layers": [{"in_features": 32, "out_features": 16}]}, "dense_layers"),
        *[({"model_type": other}, f"cross-attention for model_type '{other}'") for other in OTHERS],
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        model_of(**settings)


# --- the view ---


def test_sixty_percent_of_the_words_are_deleted_unless_the_run_says_otherwise(tmp_path, tokenizer):
    for arguments, view, rate, words in (({}, "delete_words", 0.6, 4), ({"view_rate": 0.3}, "delete_words", 0.3, 7),
                                         ({"view": "shuffle"}, "shuffle", None, 10)):  # fmt: skip
        trainer = make(tmp_path, tokenizer, Dataset.from_dict({"sent0": TEXTS}), model_of(), **arguments)
        assert (trainer.args.view, trainer.args.view_rate) == (view, rate)
        sentence, damaged = trainer.train_dataset[0]["input_ids"]
        assert sentence == tokenizer(TEXTS[0])["input_ids"] != damaged and len(damaged) == words + 2
