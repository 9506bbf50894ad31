"""The projector: the paper's layers, statistics of the global batch, and a memory check before it is built."""

import inspect
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from process_helpers import Encoded, assert_same, in_processes, train_share
from torch import nn

from simcse_hf.objectives import Objective, TrainingRows, projector
from simcse_hf.objectives.dimension_contrastive import (
    DimensionContrastive,
    GlobalBatchNorm,
    Projector,
    squared_products,
    standardise,
)

SIZES = [(2, 3), (5, 4), (8, 8), (3, 17)]  # rows, dimensions


class Product(Objective):
    """A loss that weights every projected row differently."""

    def __init__(self, dim):
        super().__init__(dim)
        self.projector = Projector(dim, 5)

    def forward(self, batch):
        weights = batch.embeddings[:, 1, :5].detach()
        return (self.projector(batch.embeddings[:, 0]) * weights).square().sum(1).mean()


def parts():
    torch.manual_seed(0)
    return Encoded(Product(8)), (torch.randn(6, 2, 6, dtype=torch.float64),)


def one_process(rank, processes):
    return train_share(*parts(), rank, processes)


@pytest.mark.parametrize("rows, dim", SIZES)
def test_every_dimension_is_standardised_over_the_rows(rows, dim):
    x = 3 * torch.randn(rows, dim, dtype=torch.float64) + 1
    standardised = standardise(x)
    for j in range(dim):
        column = x[:, j].tolist()
        mean = sum(column) / rows
        variance = sum((value - mean) ** 2 for value in column) / rows
        expected = [(value - mean) / (variance + 1e-5) ** 0.5 for value in column]
        assert standardised[:, j].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rows, dim", SIZES)
def test_squared_products_equal_the_sum_over_all_entries(rows, dim):
    a, b = torch.randn(2, rows, dim, dtype=torch.float64)
    expected = sum(sum((a[n, i] * b[n, j]).item() for n in range(rows)) ** 2 for i in range(dim) for j in range(dim))
    assert squared_products(a, b).item() == pytest.approx(expected, rel=1e-12)


def test_a_constant_dimension_becomes_zero_with_a_finite_gradient():
    x = torch.randn(4, 3)
    x[:, 1] = 7.0
    x.requires_grad_()
    standardised = standardise(x)
    standardised.square().sum().backward()
    assert standardised[:, 1].abs().max() == 0 and x.grad.isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_equals_torch_with_batch_statistics_in_both_modes(training):
    ours, stock = GlobalBatchNorm(7).double().train(training), nn.BatchNorm1d(7).double().train()
    with torch.no_grad():
        for mine, theirs in ((ours.weight, stock.weight), (ours.bias, stock.bias)):
            mine.copy_(theirs.copy_(torch.randn(7)))
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    gradients = []
    for norm in (ours, stock):
        y = norm(x)
        gradients.append((y, *torch.autograd.grad(y.pow(3).sum(), [x, norm.weight, norm.bias])))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_statistics_are_computed_in_float32_under_autocast():
    x = torch.randn(64, 4) * 0.01 + 100
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(GlobalBatchNorm(4)(x), standardise(x.double()).float(), rtol=1e-3, atol=1e-2)
        assert Projector(4, 6)(x.bfloat16()).isfinite().all()


def test_the_layers_are_those_of_the_paper():
    projector = Projector(4, 6).double()
    shapes = [tuple(p.shape) for p in projector.parameters()]
    assert shapes == [(6, 4), (6,), (6,), (6, 6), (6,), (6,), (6, 6)]
    x = torch.randn(5, 4, dtype=torch.float64)
    first, second, third = (layer.weight for layer in projector if isinstance(layer, nn.Linear))
    norm = nn.BatchNorm1d(6, affine=False).double()
    expected = norm(norm(x @ first.T).relu() @ second.T).relu() @ third.T
    torch.testing.assert_close(projector(x), expected, rtol=1e-10, atol=1e-10)
    assert inspect.signature(Projector).parameters["width"].default == 8192


def test_two_processes_equal_one(tmp_path):
    assert_same(in_processes(one_process, tmp_path), *parts())


def test_a_projector_that_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    needed = 16 * (8 * 100 + 2 * 100 * 100 + 4 * 100)
    assert needed == 16 * sum(p.numel() for p in Projector(8, 100).parameters())
    monkeypatch.setattr(projector, "available_memory", lambda device: needed)
    Projector(8, 100)
    monkeypatch.setattr(projector, "available_memory", lambda device: 2**30)
    monkeypatch.setattr(nn.Linear, "__init__", lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(ValueError, match=r"projector_dim=8192 needs 2\.09 GiB .* 1\.00 GiB are available on cpu"):
        DimensionContrastive(768)


def test_available_memory_is_what_the_system_reports():
    reported = projector.available_memory(torch.device("cpu"))
    assert (reported is None) == (not Path("/proc/meminfo").exists())  # systems other than Linux do not report it
    assert reported is None or 2**20 < reported < 2**50


@pytest.mark.parametrize("width", [0, -1, 1.5, True, "8192"])
def test_an_invalid_width_is_refused(width):
    with pytest.raises(ValueError, match="projector_dim must be an integer above 0"):
        Projector(4, width)


def test_unsuitable_rows_and_batches_are_refused():
    objective = DimensionContrastive(4, projector_dim=6)
    for num_sentences in (1, 2):
        objective.check(TrainingRows(num_sentences, 2))
        objective.check(TrainingRows(num_sentences, 1, processes=2))
    with pytest.raises(ValueError, match="rows with 3 sentences.*hard negatives"):
        objective.check(TrainingRows(3, 8))
    with pytest.raises(ValueError, match="rows with relations"):
        objective.check(TrainingRows(2, 8, dataset=Dataset.from_dict({"input_ids": [[1]], "relations": [[0]]})))
    with pytest.raises(ValueError, match="per_device_train_batch_size to at least 2"):
        objective.check(TrainingRows(2, 1))
