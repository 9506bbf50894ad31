"""PromptBERT: templates around every text, without what the templates alone contribute, in training or always."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import CLS, MASK, SEP, fast_first, tiny_config
from datasets import Dataset
from encoding_helpers import perturb
from objective_helpers import (
    TEMPLATES,
    TEXTS,
    assert_opens_in_transformers,
    assert_same,
    batch_of_templates,
    embeddings_of_card,
    full_and_alone,
    id_of,
    promptbert,
    slow_info_nce,
)
from trainer_helpers import make
from transformers import AutoModel, AutoModelForMaskedLM, BertForMaskedLM

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.data.token_ids import parse_template
from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.encoding.batching import tokenize_texts
from simcse_hf.objectives import EncodedBatch
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
@pytest.mark.parametrize(
    "texts, temperature",
    [(TEXTS, 0.05), (TEXTS[:2], 0.5), (TEXTS[1:5], 0.2)],
    ids=["six texts", "two texts", "four texts"],
)
def test_loss_and_gradient_match_a_slow_reference(tokenizer, texts, temperature, unpadded, head):
    model = promptbert(tokenizer, temperature=temperature, options={"head": head})
    model.unpadded = unpadded
    loss = model(**batch_of_templates(tokenizer, texts)).loss
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert_same(loss, slow_loss(model, texts, temperature), trained)


# --- the embeddings of templates alone ---

FAMILIES = pytest.mark.parametrize(
    "model_type",
    ["roberta", "mpnet", "distilbert", "deberta-v2", "modernbert", "electra"],
)
#: Texts of the same lengths, with different words.
SOME_WORDS = ["cat sat on", "a dog", "tree"]
OTHER_WORDS = ["mat red big", "old small", "house"]


@pytest.fixture
def template_embeddings(tokenizer, model_type):
    """`template_embeddings(texts)` are what is subtracted from the embeddings, of shape `(texts, templates, dim)`."""
    model = promptbert(tokenizer, model_type=model_type)

    def embed(texts):
        batch = batch_of_templates(tokenizer, texts)
        vectors = model(**batch, return_loss=False).sentence_embeddings
        prepared = model.objective.prepare(EncodedBatch(vectors, batch, model))
        return vectors - prepared.embeddings

    return embed


@FAMILIES
def test_the_text_has_no_influence_on_template_embeddings_in_any_encoder(
    template_embeddings,
):
    found = template_embeddings(SOME_WORDS)
    torch.testing.assert_close(found, template_embeddings(OTHER_WORDS), rtol=0, atol=1e-10)


@FAMILIES
def test_two_templates_have_different_embeddings(template_embeddings):
    first, second = template_embeddings(SOME_WORDS).unbind(1)
    assert (first - second).abs().max() > 1e-3


@pytest.mark.parametrize(
    "model_type",
    ["roberta", "distilbert", "deberta-v2", "modernbert", "electra"],
)
def test_the_length_of_the_text_has_an_influence_on_template_embeddings(
    template_embeddings,
):
    """It is not asked of MPNet."""
    of_three_words, of_two_words, _ = template_embeddings(SOME_WORDS)
    assert (of_three_words - of_two_words).abs().max() > 1e-6


# --- templates ---


def test_max_seq_length_counts_the_text_and_not_the_template(tokenizer):
    expected = [CLS, *id_of("the cat cat , [MASK] ."), SEP]
    assert tokenize_texts(tokenizer, ["cat cat cat cat"], 2, TEMPLATES) == [expected]


def test_without_max_seq_length_the_whole_text_stands_in_the_template(tokenizer):
    expected = [CLS, *id_of("the cat cat , [MASK] ."), SEP]
    assert tokenize_texts(tokenizer, ["cat cat"], None, TEMPLATES) == [expected]


def test_no_texts_have_no_tokens(tokenizer):
    assert tokenize_texts(tokenizer, [], 2, TEMPLATES) == []


def test_max_seq_length_of_training_counts_the_text_and_not_the_template(tokenizer):
    data = Dataset.from_dict({"sent0": ["cat " * 9]})
    [views] = tokenize_dataset(data, tokenizer, 3, templates=TEMPLATES)["input_ids"]
    assert [len(ids) for ids in views] == [3 + sum(EDGES), 3 + sum(EDGES)]


def test_a_mask_token_in_a_text_becomes_the_unknown_token(tokenizer):
    [ids] = tokenize_texts(tokenizer, ["cat [MASK] dog"], None, TEMPLATES)
    assert ids == [CLS, *id_of("the cat [UNK] dog , [MASK] ."), SEP]
    assert ids.count(MASK) == 1


@pytest.mark.parametrize(
    "template",
    ["no text [MASK]", "{text} only", "{text} {text} [MASK]", "[MASK] {text} [MASK]"],
)
def test_an_invalid_template_is_refused(template, tokenizer):
    with pytest.raises(ValueError, match="once and .* once, got"):
        parse_template(template, tokenizer)


def tokenized(tokenizer, columns, templates=TEMPLATES):
    data = Dataset.from_dict(columns)
    return tokenize_dataset(data, tokenizer, 20, templates=templates)["input_ids"][:]


def test_anchors_use_the_first_template_and_other_columns_the_last(tokenizer):
    columns = {"sent0": ["cat"], "sent1": ["man"], "sent2": ["red"]}
    expected = ["the cat , [MASK] .", "on man . [MASK] ,", "on red . [MASK] ,"]
    [row] = tokenized(tokenizer, columns)
    assert row == [[CLS, *id_of(text), SEP] for text in expected]


@pytest.mark.parametrize("templates", [TEMPLATES, TEMPLATES[:1]], ids=["two", "one"])
def test_a_single_sentence_has_a_view_for_each_template(tokenizer, templates):
    [views] = tokenized(tokenizer, {"sent0": ["cat"]}, templates)
    assert len(views) == len(templates)


def test_rows_with_relations_take_no_templates(tokenizer):
    with pytest.raises(ValueError, match="relations.*drop templates"):
        tokenized(tokenizer, {"texts": [["cat", "dog"]], "relations": [[0]]})


# --- refusals before training ---


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"pooler_type": "mask"}, "templates"),
        ({"pooler_type": "avg", "templates": TEMPLATES}, "templates"),
        ({"pooler_type": "avg", "objective": "promptbert"}, "templates"),
        ({"pooler_type": "avg", "denoising": "tanh"}, "exactly one template"),
        (
            OPTIONS | {"templates": TEMPLATES, "denoising": "tanh"},
            "exactly one template",
        ),
        (
            OPTIONS | {"denoising": "relu"},
            "denoising must be one of none, transform, tanh",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AutoModelForCL.from_config(tiny_config(), **settings).prepare_objective()


def test_the_transform_of_berts_head_is_refused_for_other_encoders():
    with pytest.raises(ValueError, match="'roberta': use denoising 'tanh'"):
        AutoModelForCL.from_config(tiny_config("roberta"), **OPTIONS, denoising="transform")


# --- a template that belongs to the embedding ---


def slow_transform(layer, vector):
    """The transform of BERT's masked-LM head: a dense layer, GELU and a layer norm."""
    hidden = layer.dense.weight @ vector + layer.dense.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    centred = hidden - hidden.mean()
    deviation = (centred.pow(2).mean() + layer.LayerNorm.eps).sqrt()
    return centred / deviation * layer.LayerNorm.weight + layer.LayerNorm.bias


def slow_embedding(model, text):
    """The denoised embedding of one text, from two passes over single rows, without padding or masks."""
    state, without_text = full_and_alone(model, "the {} , [MASK] .", text, EDGES)
    if model.settings.denoising == "none":
        return state
    layer = model.template_head.layer
    if model.settings.denoising == "tanh":
        return torch.tanh(layer.dense.weight @ (state - without_text) + layer.dense.bias)
    return slow_transform(layer, state) - slow_transform(layer, without_text)


def denoised(tokenizer, denoising):
    model = promptbert(tokenizer, TEMPLATE, {}, denoising=denoising)
    perturb(model.template_head, 0.3)
    return model.train()


@pytest.mark.parametrize(
    "denoising, unpadded",
    fast_first(("transform", True), ("tanh", True), ("transform", False)),
)
def test_the_loss_of_triplets_and_its_gradient_match_a_slow_reference(
    tokenizer,
    denoising,
    unpadded,
):
    model = denoised(tokenizer, denoising)
    model.unpadded = unpadded
    loss = model(**batch_of_templates(tokenizer, TRIPLETS, TEMPLATE)).loss
    rows = []
    for texts in zip(*TRIPLETS.values(), strict=True):
        rows.append([slow_embedding(model, text) for text in texts])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert_same(loss, slow_info_nce(rows), trained, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("denoising, number", [("transform", 4), ("tanh", 2)])
def test_all_weights_of_the_head_of_a_template_are_trained(tokenizer, denoising, number):
    parameters = list(denoised(tokenizer, denoising).template_head.parameters())
    assert len(parameters) == number
    assert all(parameter.requires_grad for parameter in parameters)


# --- from a checkpoint with a masked-LM head to a saved model ---


@pytest.fixture(scope="module")
def start(tmp_path_factory, tokenizer):
    """A stock masked-LM checkpoint, as bert-base-uncased is one."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("start")
    BertForMaskedLM(tiny_config(initializer_range=0.2)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["none", "transform"])
def trainer(request, start, tokenizer, tmp_path_factory):
    """A trainer after two steps, whose model is saved in the folder `run`."""
    torch.manual_seed(0)
    model = AutoModelForCL.from_pretrained(start, denoising=request.param, **OPTIONS)
    trainer = make(
        tmp_path_factory.mktemp(request.param),
        tokenizer,
        Dataset.from_dict(TRIPLETS),
        model,
        per_device_train_batch_size=3,
        max_steps=2,
    )
    trainer.train()
    trainer.save_model()
    return trainer


@pytest.fixture
def denoising(trainer):
    return trainer.model.settings.denoising


@pytest.fixture
def run(trainer):
    """The folder of the saved model."""
    return Path(trainer.args.output_dir)


def embeddings_of(folder):
    return SimCSE(folder).encode(TEXTS, normalize_embeddings=False)


def test_the_config_of_a_saved_model_describes_its_template(run, denoising):
    section = json.loads((run / "config.json").read_text())["simcse"]["pooling"]
    assert section["templates"] == TEMPLATE
    assert section["template_edges"] == [EDGES]
    assert section["denoising"] == denoising


def test_a_saved_model_gives_the_embeddings_of_training(trainer, run):
    trained = copy.deepcopy(trainer.model).double().eval()
    with torch.no_grad():
        expected = torch.stack([slow_embedding(trained, text) for text in TEXTS]).float()
    torch.testing.assert_close(embeddings_of(run), expected, rtol=0, atol=1e-5)


def test_a_copy_of_a_saved_model_gives_the_same_embeddings(run, tmp_path):
    SimCSE(run).save_pretrained(tmp_path / "copy")
    assert torch.equal(embeddings_of(tmp_path / "copy"), embeddings_of(run))


def test_a_saved_model_opens_in_transformers(run):
    assert_opens_in_transformers(run)


def test_a_saved_model_is_refused_by_sentence_transformers_without_this_package(run):
    assert "simcse_hf" in (run / "modules.json").read_text()


def test_a_saved_model_may_be_used_with_another_pooler(run):
    assert SimCSE(run, pooler_type="avg").model.template_head is None


def test_the_program_of_the_card_gives_the_embeddings_of_the_model(run):
    card = write_card(run, repo_id=str(run)).read_text()
    of_card, texts = embeddings_of_card(card)
    torch.testing.assert_close(of_card, SimCSE(run).encode(texts), rtol=0, atol=1e-5)


@pytest.mark.parametrize("trainer", ["transform"], indirect=True)
def test_the_card_says_that_the_template_alone_is_subtracted(run):
    card = write_card(run, repo_id=str(run)).read_text()
    assert "the embedding of the template without the text is subtracted" in card


@pytest.mark.parametrize("trainer", ["transform"], indirect=True)
def test_a_saved_model_without_its_head_of_templates_is_refused(run, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "template_head" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="template_head/model.safetensors"):
        SimCSE(damaged)


@pytest.mark.parametrize("more", [{}, {"do_mlm": True}], ids=["alone", "with masked-LM"])
def test_training_starts_from_the_transform_of_the_checkpoints_masked_lm_head(start, more):
    stock = AutoModelForMaskedLM.from_pretrained(start).cls.predictions.transform.state_dict()
    model = AutoModelForCL.from_pretrained(start, denoising="transform", **OPTIONS, **more)
    layer = model.template_head.layer.state_dict()
    assert layer.keys() == stock.keys()
    for name, tensor in stock.items():
        assert torch.equal(layer[name], tensor)


def test_a_checkpoint_without_a_masked_lm_head_has_no_transform(start, tmp_path):
    AutoModel.from_pretrained(start).save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="bare has no trained masked-LM head"):
        AutoModelForCL.from_pretrained(tmp_path / "bare", denoising="transform", **OPTIONS)
