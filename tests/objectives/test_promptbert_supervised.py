"""Supervised PromptBERT: the template's own embedding is subtracted in training and at inference."""

import json

import pytest
import torch
from conftest import fast_first, tiny_config
from datasets import Dataset
from objective_helpers import (
    TEXTS,
    assert_opens_in_transformers,
    assert_same,
    embeddings_of_card,
    full_and_alone,
    promptbert,
    slow_info_nce,
)
from objective_helpers import batch_of_templates as batch_of
from transformers import AutoModel, AutoModelForMaskedLM, BertForMaskedLM

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments, SimilarityEvalCallback
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.inference.encoding import encode_token_ids, tokenize_texts
from simcse_hf.publishing import write_card

TEMPLATE = ["the {text} , [MASK] ."]
OPTIONS = {"pooler_type": "mask", "templates": TEMPLATE, "objective": "promptbert"}
TRIPLETS = {"sent0": TEXTS, "sent1": TEXTS[::-1], "sent2": ["red tree", *TEXTS[:4], "a bird slept on a small mat ."]}
PAIRS = ScoredPairs("stsb", TEXTS[:4], TEXTS[2:], [0.0, 1.0, 5.0, 3.0])


def model_of(tokenizer, denoising="transform", model_type="bert", dropout=0.0):
    model = promptbert(tokenizer, TEMPLATE, {}, denoising=denoising, model_type=model_type, dropout=dropout)
    with torch.no_grad():  # weights and biases of the layer that differ from 1 and 0
        for parameter in model.template_head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def slow_embedding(model, text):
    """The denoised embedding of one text, from two passes over single rows, without padding or masks."""
    state, without_text = full_and_alone(model, "the {} , [MASK] .", text, [2, 4])
    if model.settings.denoising == "none":
        return state
    dense = model.template_head.layer.dense
    if model.settings.denoising == "tanh":
        return torch.tanh(dense.weight @ (state - without_text) + dense.bias)
    norm, transformed = model.template_head.layer.LayerNorm, []
    for vector in (state, without_text):
        hidden = dense.weight @ vector + dense.bias
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        centred = hidden - hidden.mean()
        transformed.append(centred / (centred.pow(2).mean() + norm.eps).sqrt() * norm.weight + norm.bias)
    return transformed[0] - transformed[1]


@pytest.mark.parametrize("denoising, unpadded", fast_first(("transform", True), ("tanh", True), ("transform", False)))
def test_the_loss_of_triplets_and_its_gradient_match_a_slow_reference(tokenizer, denoising, unpadded):
    model = model_of(tokenizer, denoising).train()
    model.unpadded = unpadded
    loss = model(**batch_of(tokenizer, TRIPLETS, TEMPLATE)).loss
    weights = [p for p in model.parameters() if p.requires_grad]
    assert sum(p in set(model.template_head.parameters()) for p in weights) == (4 if denoising == "transform" else 2)
    vectors = [[slow_embedding(model, text) for text in row] for row in zip(*TRIPLETS.values(), strict=True)]
    assert_same(loss, slow_info_nce(vectors), weights, rtol=1e-6, atol=1e-9)


# --- from a checkpoint with a masked-LM head to a saved model ---


@pytest.fixture
def start(tmp_path, tokenizer):
    """A stock masked-LM checkpoint, as bert-base-uncased is one."""
    torch.manual_seed(5)
    model = BertForMaskedLM(tiny_config(initializer_range=0.2))
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    return tmp_path / "start"


@pytest.mark.parametrize("denoising", ["none", "transform"])
def test_a_saved_model_gives_the_embeddings_of_training_everywhere(start, tokenizer, tmp_path, denoising):
    args = SimCSETrainingArguments(
        str(tmp_path / "run"), per_device_train_batch_size=3, max_steps=2, save_strategy="no", use_cpu=True
    )
    model = AutoModelForCL.from_pretrained(start, denoising=denoising, **OPTIONS)
    rows = Dataset.from_dict(TRIPLETS)
    trainer = SimCSETrainer(model, args, rows, processing_class=tokenizer, dev_set=PAIRS)
    trainer.train()
    evaluated = trainer.evaluate()["eval_stsb_spearman"]
    trainer.save_model()
    section = json.loads((tmp_path / "run" / "config.json").read_text())["simcse"]["pooling"]
    assert (section["templates"], section["template_edges"], section["denoising"]) == (TEMPLATE, [[2, 4]], denoising)
    simcse = SimCSE(tmp_path / "run")
    embeddings = simcse.encode(TEXTS, normalize_embeddings=False)
    with torch.no_grad():
        trained = trainer.model.double().eval()
        expected = torch.stack([slow_embedding(trained, text) for text in TEXTS]).float()
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)
    loaded = AutoModelForCL.from_pretrained(tmp_path / "run").eval()
    ids = tokenize_texts(tokenizer, TEXTS, 20, TEMPLATE)
    torch.testing.assert_close(encode_token_ids(loaded, ids, tokenizer.pad_token_id), embeddings, rtol=0, atol=1e-5)
    again = SimilarityEvalCallback(PAIRS).evaluate(simcse.model, tokenizer)["stsb_spearman"]
    assert again == pytest.approx(evaluated, abs=1e-4)
    simcse.save_pretrained(tmp_path / "copy")
    copied = SimCSE(tmp_path / "copy").encode(TEXTS, normalize_embeddings=False)
    torch.testing.assert_close(copied, embeddings, rtol=0, atol=0)
    assert_opens_in_transformers(tmp_path / "run")
    assert "simcse_hf" in (tmp_path / "run" / "modules.json").read_text(), "SentenceTransformer refuses the folder"
    assert SimCSE(tmp_path / "run", pooler_type="avg").model.template_head is None
    card = write_card(tmp_path / "run", repo_id=str(tmp_path / "run")).read_text()
    of_card, texts = embeddings_of_card(card)
    torch.testing.assert_close(of_card, simcse.encode(texts), rtol=0, atol=1e-5)
    if denoising == "transform":
        assert "the embedding of the template without the text is subtracted" in card
        (tmp_path / "run" / "template_head" / "model.safetensors").unlink()
        with pytest.raises(ValueError, match="template_head/model.safetensors"):
            SimCSE(tmp_path / "run")


def test_training_starts_from_the_transform_of_the_checkpoints_masked_lm_head(start, tokenizer, tmp_path):
    stock = AutoModelForMaskedLM.from_pretrained(start).cls.predictions.transform.state_dict()
    for more in ({}, {"do_mlm": True}):
        model = AutoModelForCL.from_pretrained(start, denoising="transform", **OPTIONS, **more)
        layer = model.template_head.layer.state_dict()
        assert layer.keys() == stock.keys() and all(torch.equal(layer[name], stock[name]) for name in stock)
    AutoModel.from_pretrained(start).save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="bare has no trained masked-LM head"):
        AutoModelForCL.from_pretrained(tmp_path / "bare", denoising="transform", **OPTIONS)


# --- refusals ---


def test_denoising_needs_exactly_one_template():
    two = ["the {text} [MASK]", "a {text} [MASK]"]
    for family, settings, message in (
        ("bert", {"pooler_type": "avg", "templates": [], "denoising": "tanh"}, "exactly one template"),
        ("bert", OPTIONS | {"templates": two, "denoising": "tanh"}, "exactly one template"),
        ("bert", OPTIONS | {"denoising": "relu"}, "denoising must be one of none, transform, tanh"),
        ("roberta", OPTIONS | {"denoising": "transform"}, "'roberta': use denoising 'tanh'"),
    ):
        with pytest.raises(ValueError, match=message):
            AutoModelForCL.from_config(tiny_config(family), **settings)
