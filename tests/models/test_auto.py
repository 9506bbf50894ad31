"""AutoModelForCL picks the class that fits the checkpoint's model_type, for every encoder."""

import pytest
from conftest import FAMILIES, random_batch, tiny_config
from transformers import AutoModel

from simcse_hf import AutoModelForCL, BertForCL, RobertaForCL
from simcse_hf.models.modeling import contrastive_class


def test_bert_and_roberta_get_their_named_classes(save_checkpoint):
    for family, cls in {"bert": BertForCL, "roberta": RobertaForCL}.items():
        config = tiny_config(family)
        assert contrastive_class(type(config)) is cls
        assert type(AutoModelForCL.from_config(config)) is cls
        assert type(AutoModelForCL.from_pretrained(save_checkpoint(cls(config), family))) is cls


@pytest.mark.parametrize("family", FAMILIES)
def test_every_encoder_gets_its_own_class(family):
    config = tiny_config(family)
    stock = AutoModel.from_config(config)
    cls = contrastive_class(type(config))
    assert cls is contrastive_class(type(config)), "one class an encoder"
    assert cls.__name__ == type(stock).__name__.removesuffix("Model") + "ForCL"
    model = AutoModelForCL.from_config(config)
    assert type(model.base_model) is type(stock) and model.base_model_prefix == cls.base_model_prefix
    assert model(**random_batch(3, 2)).sentence_embeddings.shape == (3, 2, 32)


def test_passes_on_settings_config_values_and_head(save_checkpoint):
    directory = save_checkpoint(BertForCL(tiny_config()))
    model = AutoModelForCL.from_pretrained(directory, head="fresh", temperature=0.5, hidden_dropout_prob=0.3)
    assert (model.config.hidden_dropout_prob, model.head_source) == (0.3, "fresh")
    assert model.settings.objective_options["temperature"] == 0.5
    assert model.bert.embeddings.dropout.p == 0.3


def test_config_may_be_the_name_of_another_checkpoint(save_checkpoint):
    weights = save_checkpoint(BertForCL(tiny_config()), "weights")
    other = save_checkpoint(BertForCL(tiny_config(dropout=0.4)), "other")
    assert AutoModelForCL.from_pretrained(weights, config=other).bert.embeddings.dropout.p == 0.4
