"""TSDAE: a decoder, which is the encoder with cross-attention, reconstructs a sentence from one embedding."""

import copy

import pytest
import torch
from conftest import VOCABULARY, random_batch, tiny_config
from datasets import Dataset
from model_helpers import unused
from objective_helpers import assert_same, tsdae
from safetensors.torch import load_file
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from trainer_helpers import make, refuses
from transformers import AutoModelForMaskedLM, BertLMHeadModel

from simcse_hf import AutoModelForCL

# --- the loss of BERT against a slow reference ---


def slow_loss(model, batch):
    """The mean cross-entropy of the decoder of transformers on these weights, one sentence at a time, unpadded."""
    config = copy.deepcopy(model.config)
    config.update({"is_decoder": True, "add_cross_attention": True})
    stock = BertLMHeadModel(config)
    parts = {"bert": model.objective.decoder, "cls": model.objective.lm_head["cls"]}
    weights = {f"{part}.{name}": x for part, module in parts.items() for name, x in module.named_parameters()}
    losses = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        text_length, damaged_length = mask.sum(1).tolist()
        text = ids[:1, :text_length]
        sentence = model.embed(ids[1:2, :damaged_length])
        inputs = {"input_ids": text[:, :-1], "encoder_hidden_states": sentence[None]}
        logits = functional_call(stock, weights, (), inputs).logits
        losses.append(cross_entropy(logits[0], text[0, 1:], reduction="none"))
    return torch.cat(losses).mean()


@pytest.mark.parametrize("unpadded", [True, False])
@pytest.mark.parametrize("pooler", ["cls_before_pooler", "cls", "avg"])
def test_loss_and_gradient_match_a_slow_reference(pooler, unpadded):
    model = tsdae(pooler_type=pooler)
    model.unpadded = unpadded
    batch = random_batch(3, 2)
    assert_same(model(**batch).loss, slow_loss(model, batch), model, rtol=1e-6)


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
    masked_lm = AutoModelForMaskedLM.from_config(tiny_config(initializer_range=0.2))
    model = AutoModelForCL.from_pretrained(save_checkpoint(masked_lm, "start"), objective="tsdae", pooler_type="avg")
    model.prepare_objective()
    head = model.objective.lm_head["cls"].predictions
    assert torch.equal(head.transform.dense.weight, masked_lm.cls.predictions.transform.dense.weight)


def test_a_checkpoint_holds_what_the_encoder_does_not_have(tmp_path):
    tsdae().save_pretrained(tmp_path)
    saved = load_file(tmp_path / "_objective.safetensors")
    assert all(".crossattention." in name or ".lm_head." in name for name in saved)
    assert not [x for x in saved.values() if x.dim() == 2 and len(x) == len(VOCABULARY)], "word embeddings"


# --- refusals ---


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"matryoshka_dims": [16]}, "hidden size 32, size 16: train without matryoshka_dims and dense_layers"),
        ({"dense_layers": [{"in_features": 32, "out_features": 16}]}, "dense_layers"),
        ({"model_type": "distilbert"}, "'distilbert'"),
    ],
)
def test_settings_and_encoders_that_do_not_fit_are_refused(settings, named):
    with refuses(named):
        tsdae(**settings)


# --- the view ---

TEN_WORDS = " ".join(VOCABULARY[5:15])


@pytest.mark.parametrize(
    "arguments, view, rate, words",
    [({}, "delete_words", 0.6, 4), ({"view": "shuffle"}, "shuffle", None, 10)],
    ids=["60% deleted by default", "another view"],
)
def test_the_second_text_of_a_row_is_damaged(tmp_path, tokenizer, arguments, view, rate, words):
    rows = Dataset.from_dict({"sent0": [TEN_WORDS] * 8})
    trainer = make(tmp_path, tokenizer, rows, tsdae(), **arguments)
    assert trainer.args.view == view and trainer.args.view_rate == rate
    sentence, damaged = trainer.train_dataset[0]["input_ids"]
    assert sentence == tokenizer(TEN_WORDS)["input_ids"]
    assert damaged != sentence
    assert len(damaged) == words + 2  # [CLS] and [SEP]
