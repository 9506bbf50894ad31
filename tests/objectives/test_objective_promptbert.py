"""PromptBERT: templates around every text, without what the templates alone contribute, in training or always."""

import copy
import json
from pathlib import Path

import pytest
import torch
from card_helpers import EXAMPLES, check_examples
from conftest import CLS, SEP, fast_first, save_encoder, tiny_config
from datasets import Dataset
from encoding_helpers import perturb
from objective_helpers import (
    TEMPLATES,
    TEXTS,
    assert_opens_in_transformers,
    assert_same,
    batch_of_templates,
    full_and_alone,
    id_of,
    promptbert,
    slow_info_nce,
)
from trainer_helpers import make, refuses
from transformers import AutoModelForMaskedLM

from simcse_hf import AutoModelForCL, EncodedBatch, SimCSE
from simcse_hf.data.token_ids import parse_template
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.encoding.batching import tokenize_texts
from simcse_hf.publishing.card import write_card

TEMPLATE = ["the {text} , [MASK] ."]
#: Tokens of the template before and after the text, with [CLS] and [SEP].
EDGES = [2, 4]
OPTIONS = {"pooler_type": "mask", "templates": TEMPLATE, "objective": "promptbert"}
TRIPLETS = {
    "sent0": TEXTS,
    "sent1": TEXTS[::-1],
    "sent2": ["red tree", *TEXTS[:4], "a bird slept on a small mat ."],
}

# --- two templates, as two views of a sentence ---


def slow_view(model, template, text):
    """What the text adds to the embedding of the template, after the head."""
    full, alone = full_and_alone(model, template, text, EDGES)
    if model.objective.head is None:
        return full - alone
    dense = model.objective.head[0]
    return torch.tanh(dense.weight @ (full - alone) + dense.bias)


def slow_loss(model, texts, temperature):
    rows = []
    for text in texts:
        first = slow_view(model, "the {} , [MASK] .", text)
        second = slow_view(model, "on {} . [MASK] ,", text)
        rows.append((first, second))
    return slow_info_nce(rows, temperature)


@pytest.mark.parametrize("unpadded, head", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("texts, temperature", [(TEXTS, 0.05), (TEXTS[:2], 0.5)], ids=["six texts", "two texts"])
def test_loss_and_gradient_match_a_slow_reference(tokenizer, texts, temperature, unpadded, head):
    model = promptbert(tokenizer, temperature=temperature, options={"head": head})
    model.unpadded = unpadded
    loss = model(**batch_of_templates(tokenizer, texts)).loss
    assert_same(loss, slow_loss(model, texts, temperature), model)


# --- the embeddings of templates alone ---

#: Texts of the same lengths, with different words.
SOME_WORDS = ["cat sat on", "a dog", "tree"]
OTHER_WORDS = ["mat red big", "old small", "house"]


def template_embeddings(model, tokenizer, texts):
    """What is subtracted from the embeddings, of shape `(texts, templates, dim)`."""
    batch = batch_of_templates(tokenizer, texts)
    vectors = model(**batch, return_loss=False).sentence_embeddings
    prepared = model.objective.prepare(EncodedBatch(vectors, batch, model))
    return vectors - prepared.embeddings


@pytest.mark.parametrize("model_type", ["roberta", "mpnet", "distilbert", "deberta-v2", "modernbert", "electra"])
def test_template_embeddings_depend_on_the_template_and_the_length_and_not_on_the_words(model_type, tokenizer):
    model = promptbert(tokenizer, model_type=model_type)
    found = template_embeddings(model, tokenizer, SOME_WORDS)
    torch.testing.assert_close(found, template_embeddings(model, tokenizer, OTHER_WORDS), rtol=0, atol=1e-10)
    first, second = found.unbind(1)
    assert (first - second).abs().max() > 1e-3
    of_three_words, of_two_words, _ = found
    if model_type != "mpnet":
        assert (of_three_words - of_two_words).abs().max() > 1e-6


# --- templates ---


@pytest.mark.parametrize(
    "text, max_length, found",
    [("cat cat cat cat", 2, "the cat cat , [MASK] ."), ("cat [MASK] dog", None, "the cat [UNK] dog , [MASK] .")],
    ids=["the text is cut, and not the template", "its own mask token is unknown"],
)
def test_a_text_is_put_into_its_template(tokenizer, text, max_length, found):
    assert tokenize_texts(tokenizer, [text], max_length, TEMPLATES) == [[CLS, *id_of(found), SEP]]


@pytest.mark.parametrize("template", ["no text [MASK]", "{text} only"])
def test_an_invalid_template_is_refused(template, tokenizer):
    with refuses(f"a template must contain {{text}} once and [MASK] once, got {template!r}"):
        parse_template(template, tokenizer)


def test_anchors_use_the_first_template_and_other_columns_the_last(tokenizer):
    rows = Dataset.from_dict({"sent0": ["cat"], "sent1": ["man"], "sent2": ["red"]})
    expected = ["the cat , [MASK] .", "on man . [MASK] ,", "on red . [MASK] ,"]
    [row] = tokenize_dataset(rows, tokenizer, 20, templates=TEMPLATES)["input_ids"]
    assert row == [[CLS, *id_of(text), SEP] for text in expected]


# --- refusals before training ---


@pytest.mark.parametrize(
    "model_type, settings, named",
    [
        ("bert", {"pooler_type": "mask"}, "templates"),
        ("bert", {"pooler_type": "avg", "objective": "promptbert"}, "templates"),
        ("bert", OPTIONS | {"templates": TEMPLATES, "denoising": "tanh"}, "template"),
        ("bert", OPTIONS | {"denoising": "relu"}, "denoising"),
        ("roberta", OPTIONS | {"denoising": "transform"}, "denoising"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(model_type, settings, named):
    with refuses(named):
        AutoModelForCL.from_config(tiny_config(model_type), **settings).prepare_objective()


# --- a template that belongs to the embedding ---


def slow_embedding(model, text):
    """The denoised embedding of one text, from two passes over single rows, without padding or masks."""
    state, without_text = full_and_alone(model, "the {} , [MASK] .", text, EDGES)
    if model.settings.denoising == "none":
        return state
    layer = model.template_head.layer
    if model.settings.denoising == "tanh":
        return torch.tanh(layer.dense.weight @ (state - without_text) + layer.dense.bias)
    return layer(state) - layer(without_text)


@pytest.mark.parametrize(
    "denoising, unpadded",
    fast_first(("transform", True), ("tanh", True), ("transform", False)),
)
def test_the_loss_of_triplets_and_its_gradient_match_a_slow_reference(tokenizer, denoising, unpadded):
    model = promptbert(tokenizer, TEMPLATE, {}, denoising=denoising)
    perturb(model.template_head, 0.3)
    model.unpadded = unpadded
    loss = model(**batch_of_templates(tokenizer, TRIPLETS, TEMPLATE)).loss
    rows = []
    for texts in zip(*TRIPLETS.values(), strict=True):
        rows.append([slow_embedding(model, text) for text in texts])
    assert_same(loss, slow_info_nce(rows), model, rtol=1e-6, atol=1e-9)


# --- from a checkpoint with a masked-LM head to a saved model ---


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A stock masked-LM checkpoint, as bert-base-uncased is one."""
    folder = tmp_path_factory.mktemp("start")
    save_encoder(folder)
    return folder


@pytest.mark.parametrize("denoising", ["none", "transform"])
def test_a_trained_model_is_saved_with_its_template(denoising, start, tokenizer, tmp_path):
    model = AutoModelForCL.from_pretrained(start, denoising=denoising, **OPTIONS)
    rows = Dataset.from_dict(TRIPLETS)
    trainer = make(tmp_path / "run", tokenizer, rows, model, per_device_train_batch_size=3, max_steps=2)
    trainer.train()
    trainer.save_model()
    run = Path(trainer.args.output_dir)
    section = json.loads((run / "config.json").read_text())["simcse"]["pooling"]
    assert (section["templates"], section["template_edges"], section["denoising"]) == (TEMPLATE, [EDGES], denoising)

    trained = copy.deepcopy(trainer.model).double().eval()
    with torch.no_grad():
        expected = torch.stack([slow_embedding(trained, text) for text in TEXTS]).float()
    loaded = SimCSE(run)
    found = loaded.encode(TEXTS, normalize_embeddings=False)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    loaded.save_pretrained(tmp_path / "copy")
    assert torch.equal(SimCSE(tmp_path / "copy").encode(TEXTS, normalize_embeddings=False), found)
    assert SimCSE(run, pooler_type="avg").model.template_head is None

    assert_opens_in_transformers(run)
    assert "simcse_hf" in (run / "modules.json").read_text(), "sentence-transformers does not open it without us"
    card = write_card(run, repo_id=str(run)).read_text()
    assert ("the embedding of the template without the text is subtracted" in card) is (denoising != "none")
    check_examples(card, loaded.encode(EXAMPLES), ["simcse_hf", "transformers"])
    if denoising != "none":
        (run / "template_head/model.safetensors").unlink()
        with refuses("template_head/model.safetensors"):
            SimCSE(run)


@pytest.mark.parametrize("do_mlm", [False, True])
def test_training_starts_from_the_transform_of_the_checkpoints_masked_lm_head(start, do_mlm):
    stock = AutoModelForMaskedLM.from_pretrained(start).cls.predictions.transform.state_dict()
    model = AutoModelForCL.from_pretrained(start, denoising="transform", do_mlm=do_mlm, **OPTIONS)
    torch.testing.assert_close(model.template_head.layer.state_dict(), stock, rtol=0, atol=0)
