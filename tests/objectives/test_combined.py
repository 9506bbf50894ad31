"""Objectives made of objectives: sums, several widths of the embeddings, and another one for each data set."""

from types import SimpleNamespace

import pytest
import torch
from conftest import flat, random_batch
from objective_helpers import assert_same, esimcse, slow_info_nce

from simcse_hf import AutoModelForCL
from simcse_hf.objectives import ByDataset, EncodedBatch, Objective, build_objective
from simcse_hf.objectives.base import named_losses
from simcse_hf.objectives.combined import Sum

NAME = "simcse+barlow_twins:0.1"


def batch_of(rows=6, dim=8, columns=2):
    embeddings = torch.randn(rows, columns, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return EncodedBatch(embeddings.requires_grad_())


# --- sums ---


def test_a_sum_is_the_weighted_losses_of_its_parts_and_so_is_its_gradient():
    data = batch_of()
    total = build_objective(NAME, 8, {"simcse.temperature": 0.2, "projector_dim": 7}).double()
    parts = total(data)
    simcse = build_objective("simcse", 8, {"temperature": 0.2})
    assert list(parts) == ["simcse_loss", "barlow_twins_loss"]
    assert build_objective(NAME, 8, {"simcse.mask_duplicates": True}).needs_text_ids
    assert build_objective("contrastive_tension+simcse", 8).encoders == 2
    assert_same(parts["simcse_loss"], simcse(data), data.embeddings)
    assert_same(parts["barlow_twins_loss"], 0.1 * total.parts["barlow_twins"](data), data.embeddings)


def test_an_option_goes_to_every_part_that_has_it_and_a_prefix_chooses_one():
    name = "barlow_twins+vicreg+simcse"
    for options in ({"projector_dim": 6, "vicreg.projector_dim": 8}, {"vicreg.projector_dim": 8, "projector_dim": 6}):
        parts = build_objective(name, 4, options | {"temperature": 0.3}).parts
        widths = [parts[part].projector[0].out_features for part in ("barlow_twins", "vicreg")]
        assert widths == [6, 8] and parts["simcse"].info_nce.temperature == 0.3


class OfUser(Objective):
    """An objective whose properties are set by a test."""


def with_properties(**properties):
    part = OfUser(8)
    for name, value in properties.items():
        setattr(part, name, value)
    return part


@pytest.mark.parametrize(
    "name, values, expected",
    [
        ("encoders", [1, 2], 2),
        ("num_views", [1, 2], 2),
        ("needs_hidden_states", [False, True], True),
        ("needs_text_ids", [False, True], True),
        ("supports_gradcache", [True, False], False),
        ("similarity", ["", "dot"], "dot"),
        ("similarity", ["cosine", "dot"], "cosine"),
        ("vectors", [("teacher",), ("guide", "teacher")], ("teacher", "guide")),
        ("papers", [("simcse",), ("cosent", "simcse")], ("simcse", "cosent")),
        ("view", [("identity", None), ("crop", 0.5)], ("identity", None)),
    ],
)
def test_a_sum_needs_what_any_part_needs_also_after_it_is_attached(name, values, expected):
    parts = {str(number): with_properties(**{name: value}) for number, value in enumerate(values)}
    total = Sum(8, "0+1", parts, dict.fromkeys(parts, 1.0))
    assert getattr(total, name) == expected
    setattr(parts["0"], name, values[1])  # as `attach` may do
    assert getattr(total, name) == getattr(parts["0"], name)


# --- Matryoshka ---


@pytest.mark.parametrize("name", ["barlow_twins", "vicreg", "is_bert", NAME])
def test_any_objective_gets_each_width_and_its_own_parameters(name):
    options = {} if name == "is_bert" else {"projector_dim": 16}
    objective = build_objective(name, 8, {"matryoshka_dims": [3, 7]} | options)
    objective.attach(SimpleNamespace(settings=SimpleNamespace(pooler_type="avg")))
    objective.double()
    vectors, states = torch.randn(6, 2, 8).double(), torch.randn(6, 2, 5, 8).double()
    inputs = {"attention_mask": torch.ones(6, 2, 5, dtype=torch.long)}
    parts = objective(EncodedBatch(vectors, inputs, None, states))
    for width, inner in zip((8, 7, 3), objective.objectives, strict=True):
        alone = inner(EncodedBatch(vectors[..., :width], inputs, None, states[..., :width]))
        for part, value in named_losses(alone).items():
            torch.testing.assert_close(parts.pop(f"{part}_{width}"), value)
    assert not parts


def test_all_widths_share_one_momentum_encoder_which_is_saved(tmp_path):
    model, calls = esimcse(matryoshka_dims=[8, 16]), []
    inner = model.objective.objectives[0]
    inner.momentum_encoder.base_model.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(3):
        batch = random_batch(4, 2, seed=step)
        queue = inner.queue[: inner.filled].clone()
        output = model(**batch)
        with torch.no_grad():
            vectors = model.bert(**flat(batch)).pooler_output.view(4, 2, -1)
        assert len(queue) == min(4 * step, 7) and list(output.parts) == ["loss_32", "loss_16", "loss_8"]
        for width in (32, 16, 8):
            expected = slow_info_nce(vectors[..., :width], extra=queue[:, :width])
            assert output.parts[f"loss_{width}"].item() == pytest.approx(expected.item(), rel=1e-9)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(model.objective.objectives) == 1 and len(calls) == 3
    model.save_pretrained(tmp_path)
    again = AutoModelForCL.from_pretrained(tmp_path, dtype=torch.float64).prepare_objective().objectives[0]
    assert torch.equal(again.queue, inner.queue.float()) and int(again.filled) == 7


# --- another objective for each data set ---


def by_dataset(*names, train=True):
    made = {"train": build_objective("vicreg", 8, {"projector_dim": 4}), "b.c": build_objective("supcon", 8)}
    made |= {"other": build_objective("barlow_twins", 8, {"projector_dim": 4}), "shared": build_objective("simcse", 8)}
    return ByDataset(8, {name: made[name] for name in names}, made["shared"]).double().train(train)


@pytest.mark.parametrize("names", [("train", "shared", "b.c"), ("b.c", "train", "shared")])
def test_a_batch_has_the_loss_that_its_data_set_has_alone_whatever_their_order(names):
    objective, data = by_dataset(*names), batch_of()
    data.inputs = {"text_ids": torch.arange(12).view(6, 2), "relations": torch.tensor([[0], [2], [1], [0], [0], [2]])}
    for number, name in enumerate(names):
        data.inputs["dataset"] = torch.tensor([number] * 6)
        parts = objective(data)
        alone = named_losses(objective.of_dataset(number)(data))
        assert list(parts) == [f"{name}_{part}" for part in alone]
        assert_same(sum(parts.values()), sum(alone.values()), data.embeddings)
        sum(parts.values()).backward(retain_graph=True)
    assert all(p.grad is not None for p in objective.parameters())
    with pytest.raises(ValueError, match=", ".join(names)):
        objective(batch_of())
