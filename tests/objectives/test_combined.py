"""Objectives made of objectives: sums, several widths of the embeddings, and another one for each data set."""

from types import SimpleNamespace

import pytest
import torch
from conftest import flat, random_batch
from objective_helpers import assert_same, esimcse, slow_info_nce

from simcse_hf import AutoModelForCL
from simcse_hf.objectives import ByDataset, EncodedBatch, Objective, build_objective
from simcse_hf.objectives.base import named_losses
from simcse_hf.objectives.registry import Sum

SIMCSE_AND_BARLOW_TWINS = "simcse+barlow_twins:0.1"


def random_embeddings(rows=6, columns=2, dim=8):
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(rows, columns, dim, generator=generator, dtype=torch.float64)
    return embeddings.requires_grad_()


# --- sums ---


@pytest.fixture
def total():
    """A sum of two objectives, the second with a tenth of the weight."""
    options = {"simcse.temperature": 0.2, "projector_dim": 7}
    return build_objective(SIMCSE_AND_BARLOW_TWINS, 8, options).double()


def test_a_sum_names_the_losses_of_its_parts(total):
    parts = total(EncodedBatch(random_embeddings()))
    assert list(parts) == ["simcse_loss", "barlow_twins_loss"]


def test_a_part_of_a_sum_has_the_loss_and_the_gradient_that_it_has_alone(total):
    batch = EncodedBatch(random_embeddings())
    alone = build_objective("simcse", 8, {"temperature": 0.2})
    assert_same(total(batch)["simcse_loss"], alone(batch), batch.embeddings)


def test_the_weight_of_a_part_multiplies_its_loss_and_its_gradient(total):
    batch = EncodedBatch(random_embeddings())
    alone = total.parts["barlow_twins"]
    assert_same(total(batch)["barlow_twins_loss"], 0.1 * alone(batch), batch.embeddings)


def test_a_sum_needs_text_ids_if_an_option_of_a_part_does():
    options = {"simcse.mask_duplicates": True, "projector_dim": 4}
    assert build_objective(SIMCSE_AND_BARLOW_TWINS, 8, options).needs_text_ids


def test_a_sum_needs_two_encoders_if_a_part_does():
    assert build_objective("contrastive_tension+simcse", 8).encoders == 2


PREFIX_LAST = {"projector_dim": 6, "vicreg.projector_dim": 8, "temperature": 0.3}
PREFIX_FIRST = {"vicreg.projector_dim": 8, "projector_dim": 6, "temperature": 0.3}


@pytest.fixture(params=[PREFIX_LAST, PREFIX_FIRST], ids=["prefix last", "prefix first"])
def parts(request):
    return build_objective("barlow_twins+vicreg+simcse", 4, request.param).parts


def test_an_option_goes_to_every_part_that_has_it(parts):
    assert parts["barlow_twins"].projector[0].out_features == 6
    assert parts["simcse"].info_nce.temperature == 0.3


def test_an_option_with_a_prefix_goes_to_one_part_whatever_its_place(parts):
    assert parts["vicreg"].projector[0].out_features == 8


class OfUser(Objective):
    """An objective whose properties are set by a test."""


def with_property(name, value):
    objective = OfUser(8)
    setattr(objective, name, value)
    return objective


def sum_of(**parts):
    return Sum(8, "+".join(parts), parts, dict.fromkeys(parts, 1.0))


PROPERTIES = pytest.mark.parametrize(
    "name, first, second, of_sum",
    [
        ("encoders", 1, 2, 2),
        ("num_views", 1, 2, 2),
        ("needs_hidden_states", False, True, True),
        ("needs_text_ids", False, True, True),
        ("supports_gradcache", True, False, False),
        ("similarity", "", "dot", "dot"),
        ("similarity", "cosine", "dot", "cosine"),
        ("vectors", ("teacher",), ("guide", "teacher"), ("teacher", "guide")),
        ("papers", ("simcse",), ("cosent", "simcse"), ("simcse", "cosent")),
        ("view", ("identity", None), ("crop", 0.5), ("identity", None)),
    ],
)


@PROPERTIES
def test_a_sum_needs_what_any_part_needs(name, first, second, of_sum):
    total = sum_of(first=with_property(name, first), second=with_property(name, second))
    assert getattr(total, name) == of_sum


@PROPERTIES
def test_a_sum_needs_what_a_part_needs_after_it_is_attached(name, first, second, of_sum):
    parts = {"first": with_property(name, first), "second": with_property(name, second)}
    total = sum_of(**parts)
    setattr(parts["first"], name, second)  # as `attach` may do
    assert getattr(total, name) == getattr(parts["first"], name)


# --- Matryoshka ---


@pytest.mark.parametrize(
    "name, options",
    [
        ("barlow_twins", {"projector_dim": 16}),
        ("vicreg", {"projector_dim": 16}),
        ("is_bert", {}),
        (SIMCSE_AND_BARLOW_TWINS, {"projector_dim": 16}),
    ],
)
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


@pytest.fixture
def of_three_widths():
    """ESimCSE with a queue of seven, on embeddings of 32, 16 and 8 dimensions."""
    return esimcse(matryoshka_dims=[8, 16])


def train(model, steps=3):
    """Train on batches of four; yield the queue before each step, the batch and the output after it."""
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=0.1,
    )
    objective = model.objective.objectives[0]
    for step in range(steps):
        batch = random_batch(4, 2, seed=step)
        queue = objective.queue[: objective.filled].clone()
        output = model(**batch)
        yield queue, batch, output
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_queue_is_filled_with_each_batch(of_three_widths):
    sizes = [len(queue) for queue, _, _ in train(of_three_widths)]
    assert sizes == [0, 4, 7]


@pytest.mark.parametrize("width", [32, 16, 8])
def test_each_width_is_compared_with_the_same_width_of_the_queue(of_three_widths, width):
    for queue, batch, output in train(of_three_widths):
        with torch.no_grad():
            vectors = of_three_widths.bert(**flat(batch)).pooler_output.view(4, 2, -1)
        expected = slow_info_nce(vectors[..., :width], extra=queue[:, :width])
        assert output.parts[f"loss_{width}"].item() == pytest.approx(expected.item(), rel=1e-9)


def test_each_width_has_a_loss(of_three_widths):
    for _, _, output in train(of_three_widths, steps=1):
        assert list(output.parts) == ["loss_32", "loss_16", "loss_8"]


def test_all_widths_share_one_momentum_encoder(of_three_widths):
    [objective] = of_three_widths.objective.objectives
    passes = []
    encoder = objective.momentum_encoder.base_model
    encoder.register_forward_hook(lambda *_: passes.append(1))
    steps = len(list(train(of_three_widths)))
    assert len(passes) == steps


def test_the_queue_of_all_widths_is_saved(of_three_widths, tmp_path):
    list(train(of_three_widths))
    of_three_widths.save_pretrained(tmp_path)
    loaded = AutoModelForCL.from_pretrained(tmp_path, dtype=torch.float64).prepare_objective()
    assert loaded.objectives[0].filled == 7
    saved = of_three_widths.objective.objectives[0].queue
    assert torch.equal(loaded.objectives[0].queue, saved.float())


# --- another objective for each data set ---


@pytest.fixture(
    params=[("train", "shared", "b.c"), ("b.c", "train", "shared")],
    ids=["the shared one second", "the shared one last"],
)
def names(request):
    """Names of data sets, in an order."""
    return request.param


@pytest.fixture
def by_dataset(names):
    """VICReg for the data set `train`, SupCon for `b.c`, and SimCSE for all others."""
    shared = build_objective("simcse", 8)
    objectives = {
        "train": build_objective("vicreg", 8, {"projector_dim": 4}),
        "b.c": build_objective("supcon", 8),
        "shared": shared,
    }
    return ByDataset(8, {name: objectives[name] for name in names}, shared).double().train()


def batch_of_dataset(number):
    inputs = {
        "text_ids": torch.arange(12).view(6, 2),
        "relations": torch.tensor([[0], [2], [1], [0], [0], [2]]),
        "dataset": torch.tensor([number] * 6),
    }
    return EncodedBatch(random_embeddings(), inputs)


@pytest.mark.parametrize("number", range(3))
def test_a_batch_has_the_loss_that_its_data_set_has_alone(by_dataset, number):
    batch = batch_of_dataset(number)
    found = sum(by_dataset(batch).values())
    alone = named_losses(by_dataset.of_dataset(number)(batch))
    assert_same(found, sum(alone.values()), batch.embeddings)


@pytest.mark.parametrize("number", range(3))
def test_a_loss_is_named_after_its_data_set(by_dataset, names, number):
    batch = batch_of_dataset(number)
    parts = named_losses(by_dataset.of_dataset(number)(batch))
    assert list(by_dataset(batch)) == [f"{names[number]}_{part}" for part in parts]


@pytest.mark.parametrize("number", range(3))
def test_a_batch_of_any_data_set_reaches_the_parameters_of_all(by_dataset, number):
    """DistributedDataParallel waits for the gradient of every parameter."""
    sum(by_dataset(batch_of_dataset(number)).values()).backward()
    assert all(parameter.grad is not None for parameter in by_dataset.parameters())


def test_a_batch_that_does_not_say_its_data_set_is_refused(by_dataset, names):
    with pytest.raises(ValueError, match=", ".join(names)):
        by_dataset(EncodedBatch(random_embeddings()))
