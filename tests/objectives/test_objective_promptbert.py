"""PromptBERT: templates around every text, without what the templates alone contribute, in training or always."""

import json

import pytest
import torch
from conftest import CLS, MASK, SEP, fast_first, tiny_config
from datasets import Dataset
from inference_helpers import perturb
from objective_helpers import (
    TEMPLATES,
    TEXTS,
    assert_opens_in_transformers,
    assert_same,
    embeddings_of_card,
    full_and_alone,
    id_of,
    promptbert,
    slow_info_nce,
)
from objective_helpers import batch_of_templates as batch_of
from trainer_helpers import make
from transformers import AutoModel, AutoModelForMaskedLM, BertForMaskedLM

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.data.templates import read_template
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.inference.encoding import tokenize_texts
from simcse_hf.objectives import EncodedBatch, TrainingRows
from simcse_hf.publishing import write_card

TEMPLATE = ["the {text} , [MASK] ."]
OPTIONS = {"pooler_type": "mask", "templates": TEMPLATE, "objective": "promptbert"}
TRIPLETS = {"sent0": TEXTS, "sent1": TEXTS[::-1], "sent2": ["red tree", *TEXTS[:4], "a bird slept on a small mat ."]}


def slow_loss(model, texts, edges, temperature=0.05):
    columns = []
    for template in ("the {} , [MASK] .", "on {} . [MASK] ,"):
        vectors = []
        for text in texts:
            full, alone = full_and_alone(model, template, text, edges)
            vectors.append(full - alone)
            if model.objective.head is not None:
                weight, bias = model.objective.head[0].weight, model.objective.head[0].bias
                vectors[-1] = torch.tanh(weight @ vectors[-1] + bias)
        columns.append(vectors)
    return slow_info_nce(list(zip(*columns, strict=True)), temperature)


@pytest.mark.parametrize("unpadded, head", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("texts, temperature", [(TEXTS, 0.05), (TEXTS[:2], 0.5), (TEXTS[1:5], 0.2)])
def test_loss_and_gradient_match_a_slow_reference(tokenizer, texts, temperature, unpadded, head):
    model = promptbert(tokenizer, temperature=temperature, options={"head": head})
    model.unpadded = unpadded
    loss, expected = model(**batch_of(tokenizer, texts)).loss, slow_loss(model, texts, [2, 4], temperature)
    assert_same(loss, expected, [p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("model_type", ["roberta", "mpnet", "distilbert", "deberta-v2", "modernbert", "electra"])
def test_the_text_has_no_influence_on_template_embeddings_in_any_encoder(tokenizer, model_type):
    """Two batches with the same lengths but different words have the same template embeddings."""
    model = promptbert(tokenizer, model_type=model_type)
    alone = []
    for texts in (["cat sat on", "a dog", "tree"], ["mat red big", "old small", "house"]):
        batch = batch_of(tokenizer, texts)
        vectors = model(**batch, return_loss=False).sentence_embeddings
        alone.append(vectors - model.objective.prepare(EncodedBatch(vectors, batch, model)).embeddings)
    torch.testing.assert_close(alone[0], alone[1], rtol=0, atol=1e-10)
    assert (alone[0][:, 0] - alone[0][:, 1]).abs().max() > 1e-3  # of two templates
    assert (alone[0][0] - alone[0][1]).abs().max() > 1e-6 or model_type == "mpnet"  # of two lengths


# --- templates ---


def test_max_seq_length_counts_the_text_and_not_the_template(tokenizer):
    expected = [CLS, *id_of("the cat cat , [MASK] ."), SEP]
    assert tokenize_texts(tokenizer, ["cat cat cat cat"], 2, TEMPLATES) == [expected]
    assert tokenize_texts(tokenizer, ["cat cat"], None, TEMPLATES) == [expected]
    assert tokenize_texts(tokenizer, [], 2, TEMPLATES) == []
    rows = tokenize_dataset(Dataset.from_dict({"sent0": ["cat " * 9]}), tokenizer, 3, templates=TEMPLATES)
    assert [len(ids) for ids in rows["input_ids"][0]] == [3 + 6, 3 + 6]


def test_a_mask_token_in_a_text_becomes_the_unknown_token(tokenizer):
    (ids,) = tokenize_texts(tokenizer, ["cat [MASK] dog"], None, TEMPLATES)
    assert ids.count(MASK) == 1 and ids == [CLS, *id_of("the cat [UNK] dog , [MASK] ."), SEP]


@pytest.mark.parametrize("template", ["no text [MASK]", "{text} only", "{text} {text} [MASK]", "[MASK] {text} [MASK]"])
def test_an_invalid_template_is_refused(template, tokenizer):
    with pytest.raises(ValueError, match="once and .* once, got"):
        read_template(template, tokenizer)


def test_anchors_use_the_first_template_and_other_columns_the_last(tokenizer):
    words = {"sent0": ["cat", "dog"], "sent1": ["man", "mat"], "sent2": ["red", "big"]}
    rows = tokenize_dataset(Dataset.from_dict(words), tokenizer, 20, templates=TEMPLATES)["input_ids"][:]
    texts = ["the cat , [MASK] .", "on man . [MASK] ,", "on red . [MASK] ,"]
    assert rows[0] == [[CLS, *id_of(text), SEP] for text in texts]
    single = Dataset.from_dict({"sent0": ["cat"]})
    assert len(tokenize_dataset(single, tokenizer, 20, templates=TEMPLATES)["input_ids"][0]) == 2
    assert len(tokenize_dataset(single, tokenizer, 20, templates=TEMPLATES[:1])["input_ids"][0]) == 1
    grouped = Dataset.from_dict({"texts": [["cat", "dog"]], "relations": [[0]]})
    with pytest.raises(ValueError, match="relations.*drop templates"):
        tokenize_dataset(grouped, tokenizer, 20, templates=TEMPLATES)


# --- training and use ---


def test_settings_that_contradict_each_other_are_refused_before_training(tokenizer):
    for family, settings, message in (
        ("bert", {"pooler_type": "mask"}, "templates"),
        ("bert", {"pooler_type": "avg", "templates": TEMPLATES}, "templates"),
        ("bert", {"pooler_type": "avg", "objective": "promptbert"}, "templates"),
        ("bert", {"pooler_type": "avg", "denoising": "tanh"}, "exactly one template"),
        ("bert", OPTIONS | {"templates": TEMPLATES, "denoising": "tanh"}, "exactly one template"),
        ("bert", OPTIONS | {"denoising": "relu"}, "denoising must be one of none, transform, tanh"),
        ("roberta", OPTIONS | {"denoising": "transform"}, "'roberta': use denoising 'tanh'"),
    ):
        with pytest.raises(ValueError, match=message):
            AutoModelForCL.from_config(tiny_config(family), **settings).prepare_objective()
    bare = Dataset.from_dict({"input_ids": [[[CLS, 7, SEP]]]})
    objective = promptbert(tokenizer).objective
    with pytest.raises(ValueError, match="row 1 .* fewer tokens than the template"):
        objective.check(TrainingRows(1, 4, [], bare))
    longest = max(sum(edges) for edges in objective.template_edges)
    empty_text = Dataset.from_dict({"input_ids": [[[CLS] * longest]]})  # only the tokens of the template
    objective.check(TrainingRows(1, 4, [], empty_text))


# --- templates that belong to the embedding ---


def denoised(tokenizer, denoising="transform", model_type="bert", dropout=0.0):
    model = promptbert(tokenizer, TEMPLATE, {}, denoising=denoising, model_type=model_type, dropout=dropout)
    perturb(model.template_head, 0.3)
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
    model = denoised(tokenizer, denoising).train()
    model.unpadded = unpadded
    loss = model(**batch_of(tokenizer, TRIPLETS, TEMPLATE)).loss
    weights = [p for p in model.parameters() if p.requires_grad]
    assert sum(p in set(model.template_head.parameters()) for p in weights) == (4 if denoising == "transform" else 2)
    vectors = [[slow_embedding(model, text) for text in row] for row in zip(*TRIPLETS.values(), strict=True)]
    assert_same(loss, slow_info_nce(vectors), weights, rtol=1e-6, atol=1e-9)


# --- from a checkpoint with a masked-LM head to a saved model ---


@pytest.fixture
def start(save_checkpoint):
    """A stock masked-LM checkpoint, as bert-base-uncased is one."""
    return save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)), "start")


@pytest.mark.parametrize("denoising", ["none", "transform"])
def test_a_saved_model_gives_the_embeddings_of_training_everywhere(start, tokenizer, tmp_path, denoising):
    model = AutoModelForCL.from_pretrained(start, denoising=denoising, **OPTIONS)
    rows = Dataset.from_dict(TRIPLETS)
    trainer = make(tmp_path, tokenizer, rows, model, per_device_train_batch_size=3, max_steps=2)
    trainer.train()
    trainer.save_model()
    section = json.loads((tmp_path / "run" / "config.json").read_text())["simcse"]["pooling"]
    assert (section["templates"], section["template_edges"], section["denoising"]) == (TEMPLATE, [[2, 4]], denoising)
    simcse = SimCSE(tmp_path / "run")
    embeddings = simcse.encode(TEXTS, normalize_embeddings=False)
    with torch.no_grad():
        trained = trainer.model.double().eval()
        expected = torch.stack([slow_embedding(trained, text) for text in TEXTS]).float()
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)
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
