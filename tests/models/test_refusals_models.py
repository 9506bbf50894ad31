"""What models and their files refuse, with the word that the message must name."""

import math

import pytest
import torch
from conftest import random_batch, tiny_config, tiny_tokenizer, with_masked_inputs
from model_helpers import freeze_like_peft
from trainer_helpers import make, refuses
from transformers import CONFIG_MAPPING, AutoModel, BertForMaskedLM, FunnelConfig, GPT2Config, TrainingArguments

from simcse_hf import AutoModelForCL, BertForCL
from simcse_hf.models.gradcache import check_gradcache
from simcse_hf.models.modeling import contrastive_class
from simcse_hf.models.pooling import at_mask
from simcse_hf.objectives.masked_lm import StockMaskedLMHead


class NoConfig(type(tiny_config())):
    model_type = "none"


def model(family="bert", **settings):
    return AutoModelForCL.from_config(tiny_config(family), **settings)


def step(batch, **settings):
    return lambda _: model(**settings)(**batch)


def loaded(is_ours, family="bert", variant=None, **arguments):
    """Save a random model of this package (`is_ours`) or of transformers, and load it."""

    def load(folder):
        start = model(family) if is_ours else AutoModel.from_config(tiny_config(family))
        start.save_pretrained(folder, variant=variant)
        AutoModelForCL.from_pretrained(folder, **arguments)

    return load


def frozen_head(folder):
    """Train what peft leaves without `modules_to_save`: an adapter file would not hold the random head."""
    BertForMaskedLM(tiny_config()).save_pretrained(folder)
    start = AutoModelForCL.from_pretrained(folder)
    freeze_like_peft(start)(**random_batch(4, 2))


def variant_of_an_adapter(folder):
    start = model()
    start.save_adapter = True
    start.save_pretrained(folder, variant="fp16")


def damaged_layer(folder):
    model("distilbert").save_pretrained(folder)
    (folder / "2_Dense/model.safetensors").write_bytes(b"{}")
    AutoModelForCL.from_pretrained(folder)


def cached_run(changes=(), **settings):
    def run(folder):
        arguments = {"gradcache_chunk_size": 2} | dict(changes)
        make(folder, tiny_tokenizer(), model=model(**settings), **arguments).train()

    return run


def masks(ids):
    return lambda _: at_mask(torch.zeros(3, 3, 4), torch.tensor([[2, 4, 3], ids, [2, 5, 3]]), 4)


VIEWS = {name: x.repeat_interleave(2, dim=1) for name, x in random_batch(4, 1).items()}
TARGETS = random_batch(2, 2) | {"mlm_targets": torch.full((2, 2, 9), -100)}
EMPTY = {"input_ids": torch.full((3, 2), 7), "attention_mask": torch.tensor([[1, 1], [0, 0], [0, 0]])}
REFUSED = [
    # classes and configs
    (lambda _: contrastive_class(NoConfig), "NoConfig"),
    (lambda _: contrastive_class(FunnelConfig), "FunnelConfig"),
    (lambda _: AutoModelForCL.from_config(CONFIG_MAPPING["t5"](), pooler_type="avg"), "not a text"),
    (lambda _: AutoModelForCL.from_config(CONFIG_MAPPING["mamba"](), pooler_type="avg"), "not a text"),
    (
        lambda _: AutoModelForCL.from_config(CONFIG_MAPPING["llama"](num_hidden_layers=1), pooler_type="cls"),
        "pooler_type 'cls' in a decoder llama",
    ),
    # inputs
    (step({"input_ids": torch.full((2, 2, 2, 9), 7)}), "input_ids must be"),
    (step(with_masked_inputs(random_batch(3, 2))), "do_mlm=True"),
    (lambda _: StockMaskedLMHead(GPT2Config(), None), "'gpt2'"),
    (step(TARGETS, do_mlm=True), "'simcse' keeps no hidden states for mlm_targets"),
    (step(random_batch(3) | {"output_attentions": True}), "output_attentions"),
    (step(random_batch(4, 2), fixed_mask=True), "fixed_mask is for views"),
    (step(VIEWS, fixed_mask=True, encoders=2), "fixed_mask a second encoder"),
    (
        step(VIEWS, fixed_mask=True, objective="is_bert", pooler_type="avg"),
        "fixed_mask hidden states",
    ),
    (masks([4, 5, 4]), "id 4 text 1 of the batch holds 2"),
    (step(EMPTY), "sentence 1 of the batch has no token"),
    # checkpoints
    (lambda folder: BertForCL.from_pretrained(folder, head="yes"), "head must be one of 'yes'"),
    (loaded(is_ours=False, head="dense"), "head='dense', 2_Dense"),
    (loaded(is_ours=True, family="distilbert", head="pooler"), "head='pooler'"),
    (loaded(is_ours=False, variant="fp16"), "model.safetensors variant"),
    (loaded(is_ours=True, variant="fp16"), 'no file of weights variant="fp16" without a variant'),
    (variant_of_an_adapter, "an adapter has no variant: leave variant out"),
    (lambda _: AutoModelForCL.from_config(tiny_config(dropout=math.nan)), "dropout got nan"),
    (damaged_layer, "2_Dense/model.safetensors: damaged"),
    (frozen_head, "random and is frozen modules_to_save=['pooler']"),
    # GradCache
    (cached_run(objective="is_bert"), "gradcache_chunk_size: objective 'is_bert' reads the hidden states"),
    (cached_run(objective="simcse+esimcse"), "objective 'simcse+esimcse' makes passes of its own"),
    (cached_run({"torch_compile": True}), "torch_compile"),
    (
        lambda folder: check_gradcache(
            model().prepare_objective(), TrainingArguments(folder, optim="galore_adamw_layerwise")
        ),
        "gradcache_chunk_size: this optim",
    ),
    (cached_run({"gradcache_chunk_size": 0}), "gradcache_chunk_size must be an integer above 0, got 0"),
]


@pytest.mark.parametrize("call, words", REFUSED)
def test_what_cannot_work_is_refused_by_its_name(call, words, tmp_path):
    with refuses(words):
        call(tmp_path)
