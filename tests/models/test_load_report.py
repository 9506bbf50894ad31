"""transformers' report on loading names only the keys that this package does not explain itself."""

import logging

import pytest
import torch
from conftest import tiny_config
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, BertForSequenceClassification

from simcse_hf import AutoModelForCL, SimCSE


@pytest.fixture
def reports(caplog):
    """`reports()`: what transformers has logged about loading."""
    transformers_logger = logging.getLogger("transformers")
    before, transformers_logger.propagate = transformers_logger.propagate, True
    yield lambda: [x.getMessage() for x in caplog.records if "LOAD REPORT" in x.getMessage()]
    transformers_logger.propagate = before


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra", "modernbert", "albert"])
@pytest.mark.parametrize("stock", [AutoModelForMaskedLM, AutoModelForPreTraining])
def test_a_stock_checkpoint_loads_without_a_report(family, stock, save_checkpoint, reports):
    if family == "modernbert" and stock is AutoModelForPreTraining:
        pytest.skip("transformers has no such class")
    directory = save_checkpoint(stock.from_config(tiny_config(family)))
    model = AutoModelForCL.from_pretrained(directory)
    assert model.head_source == "fresh"
    SimCSE(directory, pooler_type="avg", device="cpu")
    assert not reports()


def test_what_the_package_does_not_explain_is_reported(save_checkpoint, reports):
    directory = save_checkpoint(BertForSequenceClassification(tiny_config()))
    weights = load_file(directory / "model.safetensors")
    save_file(weights | {"extra": torch.zeros(1)}, directory / "model.safetensors", {"format": "pt"})
    AutoModelForCL.from_pretrained(directory, do_mlm=True)
    (report,) = reports()
    for key in ("classifier", "extra", "cls.predictions"):
        assert key in report
