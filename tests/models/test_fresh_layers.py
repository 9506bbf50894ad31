"""Layers that no checkpoint holds are drawn from a seed, whoever has loaded the model."""

import pytest
import torch
from conftest import random_batch, save_encoder, tiny_config
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertForMaskedLM,
    BertModel,
    RobertaForMaskedLM,
    set_seed,
)

from simcse_hf import AutoModelForCL

TEMPLATES = {
    "pooler_type": "mask",
    "templates": ['This sentence : "{text}" means [MASK].'],
}


def stock(model_class, family="bert"):
    """Return a function that saves an encoder of a stock class."""
    return lambda folder: model_class._from_config(tiny_config(family)).save_pretrained(
        folder
    )


def auto(auto_class, family):
    """Return a function that saves an encoder of any family."""
    return lambda folder: auto_class.from_config(tiny_config(family)).save_pretrained(
        folder
    )


STARTS = {
    "a masked-LM without a pooler": (stock(BertForMaskedLM), {}),
    "a masked-LM, with its head": (stock(BertForMaskedLM), {"do_mlm": True}),
    "an encoder without masked-LM head": (
        stock(BertModel),
        {"do_mlm": True, "head": "fresh"},
    ),
    "RoBERTa": (stock(RobertaForMaskedLM, "roberta"), {}),
    "ModernBERT without masked-LM head": (
        auto(AutoModel, "modernbert"),
        {"do_mlm": True},
    ),
    "ModernBERT": (auto(AutoModelForMaskedLM, "modernbert"), {}),
    "DistilBERT, mean pooling": (auto(AutoModel, "distilbert"), {"pooler_type": "avg"}),
    "n-grams": (stock(BertModel), {"pooler_type": "ngrams", "objective": "is_bert"}),
    "a template with tanh": (
        stock(BertModel),
        {**TEMPLATES, "denoising": "tanh", "head": "fresh"},
    ),
    "a template with a transform": (
        stock(BertForMaskedLM),
        {**TEMPLATES, "denoising": "transform"},
    ),
    "bfloat16": (stock(BertForMaskedLM), {"dtype": torch.bfloat16}),
}


@pytest.mark.parametrize("start", STARTS)
def test_layers_drawn_from_a_seed_are_those_of_a_model_that_was_loaded_after_it(
    start, tmp_path
):
    save, settings = STARTS[start]
    save(tmp_path)
    set_seed(7)
    expected = AutoModelForCL.from_pretrained(tmp_path, **settings).state_dict()
    set_seed(1)
    model = AutoModelForCL.from_pretrained(tmp_path, **settings)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    assert any(not torch.equal(x, before[name]) for name, x in expected.items())
    state = torch.get_rng_state()
    for _ in range(2):
        model.draw_fresh_layers(7)
        now = model.state_dict()
        assert now.keys() == expected.keys()
        for name, x in expected.items():
            assert torch.equal(now[name], x), name
    assert torch.equal(torch.get_rng_state(), state)


def test_a_head_that_was_changed_is_not_drawn_anew_but_the_masked_lm_head_is(tmp_path):
    BertModel(tiny_config()).save_pretrained(tmp_path)
    model = AutoModelForCL.from_pretrained(tmp_path, do_mlm=True, head="fresh")
    head = model.contrastive_head.dense.weight
    with torch.no_grad():
        head[3, 5] += 1
    before = {name: x.clone() for name, x in model.state_dict().items()}
    model.draw_fresh_layers(7)
    changed = {
        name
        for name, x in model.state_dict().items()
        if not torch.equal(x, before[name])
    }
    assert changed == {"cls.predictions.transform.dense.weight"}


def test_what_a_checkpoint_holds_is_not_drawn_anew(tmp_path):
    save_encoder(tmp_path / "start", BertForMaskedLM)
    AutoModelForCL.from_pretrained(tmp_path / "start", do_mlm=True).save_pretrained(
        tmp_path / "trained"
    )
    model = AutoModelForCL.from_pretrained(tmp_path / "trained")
    before = {name: x.clone() for name, x in model.state_dict().items()}
    model.draw_fresh_layers(7)
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name]), name


@pytest.mark.parametrize(
    "settings",
    [{"objective": "barlow_twins"}, {"encoders": 2}, {"objective": "esimcse"}],
)
def test_an_objective_that_nobody_has_trained_is_drawn_anew_in_its_place(
    settings, tmp_path
):
    save_encoder(tmp_path, BertForMaskedLM)
    set_seed(7)
    expected = AutoModelForCL.from_pretrained(tmp_path, **settings)
    set_seed(7)
    expected.prepare_objective()
    model = AutoModelForCL.from_pretrained(tmp_path, **settings)
    objective = model.prepare_objective()
    model.draw_fresh_layers(7)
    assert model.objective is objective
    now = model.state_dict()
    for name, x in expected.state_dict().items():
        assert torch.equal(now[name], x), name


def test_an_objective_that_was_trained_is_not_drawn_anew(tmp_path):
    save_encoder(tmp_path, BertForMaskedLM)
    model = AutoModelForCL.from_pretrained(tmp_path, objective="barlow_twins").train()
    loss = model(**random_batch(4, 2)).loss
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    before = {
        name: x.clone()
        for name, x in model.state_dict().items()
        if name.startswith("objective.")
    }
    model.draw_fresh_layers(7)
    for name, x in before.items():
        assert torch.equal(model.state_dict()[name], x), name
