"""The weights of all linear layers are copied at once; values and gradients are those of autocast's own casts."""

import pytest
import torch
from conftest import tiny_config

from simcse_hf import AutoModelForCL
from simcse_hf.models.packed import PackedStep
from simcse_hf.ops.gathered_weights import gather_weights, split_projections

SHAPES = [(3, 4), (2, 4), (5, 4), (3,), (6, 2)]
SIZES = [3, 1, 1]


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in SHAPES]


def test_copies_and_gradients_are_bit_for_bit_those_of_a_cast_of_each_weight(weights):
    copies = gather_weights(weights, SIZES, torch.bfloat16)
    casts = [weight.to(torch.bfloat16) for weight in weights]
    expected = [torch.cat(casts[:3]), casts[3], casts[4]]
    assert all(torch.equal(copy, other) for copy, other in zip(copies, expected, strict=True))
    factors = [torch.randn_like(copy) for copy in copies]
    found, wanted = (
        torch.autograd.grad(sum((x * f).sum() for x, f in zip(outputs, factors, strict=True)), weights)
        for outputs in (copies, expected)
    )
    for gradient, other in zip(found, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, other)


def test_the_operator_follows_the_rules_of_the_compiler(weights):
    rules = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(gather_weights, (weights, SIZES, torch.bfloat16), test_utils=rules)


def test_a_copy_that_nobody_reads_has_no_gradient_to_give(weights):
    copies = gather_weights(weights, SIZES, torch.bfloat16)
    copies[1].sum().backward()
    assert torch.equal(weights[3].grad, torch.ones(3))
    assert all(weight.grad is None or not weight.grad.any() for weight in weights[:3] + weights[4:])


def test_projections_are_taken_apart():
    query, key, value = (torch.randn(5, 2, 4) for _ in range(3))
    for joined in (
        (torch.cat([query, key, value], 1), torch.empty(5, 2, 4), torch.empty(5, 2, 4)),
        (query, torch.cat([key, value], 1), torch.empty(5, 2, 4)),
        (query, key, value),
    ):
        for part, expected in zip(split_projections(*joined), (query, key, value), strict=True):
            assert torch.equal(part, expected)


def model_of(**settings):
    return AutoModelForCL.from_config(tiny_config(), temperature=0.05, **settings).train()


def test_one_product_projects_queries_keys_and_values_except_in_the_last_layer():
    model = model_of(pooler_type="cls")
    groups = PackedStep(model, disable=True).weights.groups
    first, last = (f"encoder.encoder.layer.{i}.attention.self" for i in (0, model.config.num_hidden_layers - 1))
    assert len(groups[f"{first}.query.weight"]) == len(groups[f"{first}.query.bias"]) == 3
    assert f"{first}.key.weight" not in groups
    assert len(groups[f"{last}.query.weight"]) == 1 and len(groups[f"{last}.key.weight"]) == 2
    gathered = [id(weight) for group in groups.values() for weight in group]
    linear = [m for m in model.modules() if type(m) is torch.nn.Linear]
    assert sorted(gathered) == sorted(id(parameter) for layer in linear for parameter in layer.parameters())


def test_frozen_layers_stay_as_they_are():
    model = model_of(pooler_type="cls")
    model.base_model.encoder.layer[0].requires_grad_(False)
    model.base_model.encoder.layer[1].attention.self.key.requires_grad_(False)
    groups = PackedStep(model, disable=True).weights.groups
    assert not [name for name in groups if name.startswith("encoder.encoder.layer.0.")]
    assert len(groups["encoder.encoder.layer.1.attention.self.query.weight"]) == 1
    assert "encoder.encoder.layer.1.attention.self.key.weight" not in groups
