"""The methods that the Trainer calls in every step do what torch's and transformers' do."""

import pytest
import torch
from conftest import random_batch, tiny_config

from simcse_hf import AutoModelForCL


@pytest.fixture
def model():
    model = AutoModelForCL.from_config(tiny_config())
    model.prepare_objective()
    return model


def test_train_and_eval_reach_every_module(model):
    assert model.train() is model and all(module.training for module in model.modules())
    assert model.eval() is model and not any(module.training for module in model.modules())


@pytest.mark.parametrize("mode", [True, False])
def test_a_module_that_was_switched_alone_is_switched_back(model, mode):
    model.train(mode)
    model.base_model.encoder.layer[1].attention.train(not mode)
    model.train(mode)
    assert all(module.training is mode for module in model.modules())


def test_train_writes_nothing_in_a_model_that_is_in_training_mode(model, monkeypatch):
    model.train()
    monkeypatch.setattr(torch.nn.Module, "train", lambda *_: pytest.fail("torch's train was called"))
    assert model.train() is model


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_reaches_every_parameter(model, set_to_none):
    model(**random_batch(4, 2)).loss.backward()
    assert any(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad(set_to_none)
    for parameter in model.parameters():
        assert parameter.grad is None if set_to_none else parameter.grad is None or not parameter.grad.any()
