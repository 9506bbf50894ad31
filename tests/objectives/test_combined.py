"""Objectives made of objectives: sums, several widths of the embeddings, and another one for each data set."""

from types import SimpleNamespace

import pytest
import torch
from conftest import flat, random_batch
from objective_helpers import assert_same, esimcse, slow_info_nce

from simcse_hf.objectives import ByDataset, EncodedBatch, Objective, build_objective
from simcse_hf.objectives.base import named_losses
from simcse_hf.objectives.registry import Sum


def random_embeddings():
    return torch.randn(6, 2, 8, dtype=torch.float64, requires_grad=True)


# --- sums ---


@pytest.mark.parametrize("order", [1, -1])
def test_an_option_goes_to_every_part_that_has_it_and_with_a_prefix_to_one_part(order):
    sizes = [("projector_dim", 6), ("vicreg.projector_dim", 8), ("temperature", 0.3)]
    parts = build_objective("barlow_twins+vicreg+simcse", 4, dict(sizes[::order])).parts
    assert parts["barlow_twins"].projector[0].out_features == 6
    assert parts["vicreg"].projector[0].out_features == 8
    assert parts["simcse"].info_nce.temperature == 0.3


class OfUser(Objective):
    """An objective whose properties are set by a test."""


def with_property(name, value):
    objective = OfUser(8)
    setattr(objective, name, value)
    return objective


@pytest.mark.parametrize(
    "name, first, second, of_sum",
    [
        ("encoders", 1, 2, 2),
        ("supports_gradcache", True, False, False),
        ("similarity", "", "dot", "dot"),
        ("vectors", ("teacher",), ("guide", "teacher"), ("teacher", "guide")),
        ("view", ("identity", None), ("crop", 0.5), ("identity", None)),
    ],
)
def test_a_sum_needs_what_its_parts_need(name, first, second, of_sum):
    parts = {"first": with_property(name, first), "second": with_property(name, second)}
    total = Sum(8, "first+second", parts, dict.fromkeys(parts, 1.0))
    assert getattr(total, name) == of_sum
    setattr(parts["first"], name, second)  # as `attach` may do
    assert getattr(total, name) == second


# --- Matryoshka ---


@pytest.mark.parametrize("name, options", [("is_bert", {}), ("simcse+barlow_twins:0.1", {"projector_dim": 16})])
def test_any_objective_gets_each_width_and_its_own_parameters(name, options):
    objective = build_objective(name, 8, {"matryoshka_dims": [3, 7]} | options)
    objective.attach(SimpleNamespace(settings=SimpleNamespace(pooler_type="avg")))
    objective.double()
    vectors = torch.randn(6, 2, 8).double()
    states = torch.randn(6, 2, 5, 8).double()
    inputs = {"attention_mask": torch.ones(6, 2, 5, dtype=torch.long)}
    found = objective(EncodedBatch(vectors, inputs, None, states))
    expected = {}
    for width, of_width in zip((8, 7, 3), objective.objectives, strict=True):
        cut = EncodedBatch(vectors[..., :width], inputs, None, states[..., :width])
        for part, loss in named_losses(of_width(cut)).items():
            expected[f"{part}_{width}"] = loss
    torch.testing.assert_close(found, expected)


def test_all_widths_share_the_queue_of_one_momentum_encoder():
    model = esimcse(matryoshka_dims=[8, 16])
    [objective] = model.objective.objectives
    passes = []
    objective.momentum_encoder.base_model.register_forward_hook(lambda *_: passes.append(1))
    for step, filled in enumerate([0, 4, 7]):
        batch = random_batch(4, 2, seed=step)
        queue = objective.queue[: objective.filled].clone()
        assert len(queue) == filled
        output = model(**batch)
        with torch.no_grad():
            vectors = model.bert(**flat(batch)).pooler_output.view(4, 2, -1)
        assert list(output.parts) == ["loss_32", "loss_16", "loss_8"]
        for width in (32, 16, 8):
            expected = slow_info_nce(vectors[..., :width], extra=queue[:, :width])
            torch.testing.assert_close(output.parts[f"loss_{width}"], expected, rtol=1e-9, atol=0)
    assert len(passes) == 3


# --- another objective for each data set ---


def batch_of_dataset(number):
    inputs = {
        "text_ids": torch.arange(12).view(6, 2),
        "relations": torch.tensor([[0], [2], [1], [0], [0], [2]]),
        "dataset": torch.tensor([number] * 6),
    }
    return EncodedBatch(random_embeddings(), inputs)


@pytest.mark.parametrize("names", [("train", "shared", "b.c"), ("b.c", "train", "shared")])
def test_a_batch_has_the_loss_that_its_data_set_has_alone(names):
    """VICReg for the data set `train`, SupCon for `b.c`, and SimCSE for all others."""
    shared = build_objective("simcse", 8)
    objectives = {
        "train": build_objective("vicreg", 8, {"projector_dim": 4}),
        "b.c": build_objective("supcon", 8),
        "shared": shared,
    }
    by_dataset = ByDataset(8, {name: objectives[name] for name in names}, shared).double().train()
    for number, name in enumerate(names):
        batch = batch_of_dataset(number)
        found = by_dataset(batch)
        alone = named_losses(by_dataset.of_dataset(number)(batch))
        assert list(found) == [f"{name}_{part}" for part in alone]
        assert_same(sum(found.values()), sum(alone.values()), batch.embeddings)
        by_dataset.zero_grad()
        sum(found.values()).backward()
        # DistributedDataParallel waits for the gradient of every parameter.
        assert all(parameter.grad is not None for parameter in by_dataset.parameters())
    with pytest.raises(ValueError, match=", ".join(names)):
        by_dataset(EncodedBatch(random_embeddings()))
    with pytest.raises(ValueError, match="encoders"):
        ByDataset(8, {"one": shared, "two": build_objective("contrastive_tension", 8)})
