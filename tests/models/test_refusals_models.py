"""What models and their files refuse, with the word that the message must name."""

import math

import pytest
import torch
from conftest import VOCABULARY, random_batch, tiny_config, with_masked_inputs
from model_helpers import freeze_like_peft
from trainer_helpers import make
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    FunnelConfig,
    GPT2Config,
    TrainingArguments,
)

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


def loaded(is_ours, family="bert", **arguments):
    """Save a random model of this package (`is_ours`) or of transformers, and load it."""

    def load(folder):
        start = model(family) if is_ours else AutoModel.from_config(tiny_config(family))
        start.save_pretrained(folder)
        AutoModelForCL.from_pretrained(folder, **arguments)

    return load


def frozen_head(folder):
    """Train what peft leaves without `modules_to_save`: an adapter file would not hold the random head."""
    BertForMaskedLM(tiny_config()).save_pretrained(folder)
    start = AutoModelForCL.from_pretrained(folder)
    freeze_like_peft(start)(**random_batch(4, 2))


def own_variant(folder):
    model().save_pretrained(folder, variant="fp16")
    AutoModelForCL.from_pretrained(folder)


def variant_of_an_adapter(folder):
    start = model()
    start.save_adapter = True
    start.save_pretrained(folder, variant="fp16")


def with_variant(folder):
    BertModel(tiny_config()).save_pretrained(folder, variant="fp16")
    AutoModelForCL.from_pretrained(folder)


def damaged_layer(folder):
    model("distilbert").save_pretrained(folder)
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"{}")
    AutoModelForCL.from_pretrained(folder)


def cached_run(changes=(), **settings):
    def run(folder):
        tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)})
        arguments = {"gradcache_chunk_size": 2} | dict(changes)
        make(folder, tokenizer, model=model(**settings), **arguments).train()

    return run


def masks(ids):
    return lambda _: at_mask(torch.zeros(3, 3, 4), torch.tensor([[2, 4, 3], ids, [2, 5, 3]]), 4)


VIEWS = {name: x.repeat_interleave(2, dim=1) for name, x in random_batch(4, 1).items()}
TARGETS = random_batch(2, 2) | {"mlm_targets": torch.full((2, 2, 9), -100)}
COMMAND = {"in_features": 32, "out_features": 8, "activation_function": "os.system"}
EMPTY = {"input_ids": torch.full((3, 2), 7), "attention_mask": torch.tensor([[1, 1], [0, 0], [0, 0]])}
REFUSED = {
    # classes and configs
    "no encoder": (lambda _: contrastive_class(NoConfig), "NoConfig"),
    "several encoders": (lambda _: contrastive_class(FunnelConfig), "FunnelConfig"),
    "two stacks": (lambda _: AutoModelForCL.from_config(CONFIG_MAPPING["t5"](), pooler_type="avg"), "not a text"),
    "no positions": (lambda _: AutoModelForCL.from_config(CONFIG_MAPPING["mamba"](), pooler_type="avg"), "not a text"),
    "first token of a decoder": (
        lambda _: AutoModelForCL.from_config(CONFIG_MAPPING["llama"](num_hidden_layers=1), pooler_type="cls"),
        "pooler_type 'cls' .*in a decoder .llama",
    ),
    "activation": (lambda _: model(pooler_type="avg", dense_layers=[COMMAND]), "activation_function .* 'os.system'"),
    # inputs
    "four axes": (step({"input_ids": torch.full((2, 2, 2, 9), 7)}), "input_ids must be"),
    "no masked-LM head": (step(with_masked_inputs(random_batch(3, 2))), "do_mlm=True"),
    "no masked-LM class": (lambda _: StockMaskedLMHead(GPT2Config(), None), "'gpt2'"),
    "no states for targets": (step(TARGETS, do_mlm=True), "'simcse' keeps no hidden states for mlm_targets"),
    "output_attentions": (step(random_batch(3) | {"output_attentions": True}), "output_attentions"),
    "fixed mask": (step(random_batch(4, 2), fixed_mask=True), "fixed_mask is for views"),
    "fixed mask, encoders": (step(VIEWS, fixed_mask=True, encoders=2), "fixed_mask .*a second encoder"),
    "fixed mask, states": (
        step(VIEWS, fixed_mask=True, objective="is_bert", pooler_type="avg"),
        "fixed_mask .*hidden states",
    ),
    "two mask tokens": (masks([4, 5, 4]), "id 4.*text 1 of the batch holds 2"),
    "no token": (step(EMPTY), "sentence 1 of the batch has no token"),
    # checkpoints
    "unknown head": (lambda folder: BertForCL.from_pretrained(folder, head="yes"), "head must be one of .*'yes'"),
    "no dense head": (loaded(is_ours=False, head="dense"), "head='dense', .* 2_Dense"),
    "no pooler": (loaded(is_ours=True, family="distilbert", head="pooler"), "head='pooler'"),
    "variant": (with_variant, r"model\.safetensors.* variant"),
    "variant of ours": (own_variant, r"no file of weights .*variant=\"fp16\".* without a variant"),
    "variant of an adapter": (variant_of_an_adapter, "an adapter has no variant: leave variant out"),
    "dropout": (lambda _: AutoModelForCL.from_config(tiny_config(dropout=math.nan)), "dropout.* got nan"),
    "damaged layer": (damaged_layer, r"2_Dense/model\.safetensors: damaged"),
    "frozen head": (frozen_head, r"random and is frozen.*modules_to_save=\['pooler'\]"),
    # GradCache
    "states": (cached_run(objective="is_bert"), "gradcache_chunk_size: objective 'is_bert' reads the hidden states"),
    "part of a sum": (cached_run(objective="simcse+esimcse"), "objective 'simcse.esimcse' makes passes of its own"),
    "compiled": (cached_run({"torch_compile": True}), "torch_compile"),
    "weights that change in a backward pass": (
        lambda folder: check_gradcache(
            model().prepare_objective(), TrainingArguments(folder, optim="galore_adamw_layerwise")
        ),
        "gradcache_chunk_size: this optim",
    ),
    "chunk of 0": (cached_run({"gradcache_chunk_size": 0}), "gradcache_chunk_size must be an integer above 0, got 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_by_its_name(case, tmp_path):
    call, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        call(tmp_path)
