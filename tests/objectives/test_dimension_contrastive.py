"""Barlow Twins and VICReg: the papers' projector and terms over the rows of the batch."""

import pytest
import torch
from objective_helpers import assert_same
from torch import nn

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.base import named_losses

SIZES = [(2, 3), (4, 4), (7, 3), (5, 11)]  # rows, dimensions
WEIGHTS = {"invariance_weight": 2.0, "variance_weight": 3.0, "covariance_weight": 0.5}
PARTS = ["invariance_loss", "variance_loss", "covariance_loss"]


def unprojected(name, dim, **options):
    objective = build_objective(name, dim, {"projector_dim": 4} | options)
    objective.project = lambda batch: batch.embeddings.unbind(1)
    return objective


def slow_barlow_twins(views, weight):
    """Slow reference: Eq. 1 and 2, one entry at a time."""
    rows, _, dim = views.shape

    def standardised(column):
        mean = sum(column) / rows
        variance = sum((x - mean) ** 2 for x in column) / rows
        return [(x - mean) / (variance + 1e-5) ** 0.5 for x in column]

    first, second = ([standardised(list(views[:, v, i])) for i in range(dim)] for v in (0, 1))
    loss = 0
    for i in range(dim):
        for j in range(dim):
            c = sum(x * y for x, y in zip(first[i], second[j], strict=True)) / rows
            loss = loss + ((1 - c) ** 2 if i == j else weight * c**2)
    return loss


def slow_vicreg(views):
    """Slow reference: the unweighted terms, one entry at a time."""
    rows, _, dim = views.shape
    invariance = sum((views[n, 0, i] - views[n, 1, i]) ** 2 for n in range(rows) for i in range(dim)) / (rows * dim)
    variance, covariance = 0, 0
    for v in (0, 1):
        means = [sum(views[n, v, i] for n in range(rows)) / rows for i in range(dim)]
        for i in range(dim):
            for j in range(dim):
                products = [(views[n, v, i] - means[i]) * (views[n, v, j] - means[j]) for n in range(rows)]
                entry = sum(products) / (rows - 1)
                if i == j:
                    lacking = 1 - (entry + 1e-4) ** 0.5
                    variance = variance + (lacking if lacking > 0 else 0 * lacking) / (2 * dim)
                else:
                    covariance = covariance + entry**2 / dim
    return [invariance, variance, covariance]


@pytest.mark.parametrize("rows, dim", SIZES)
@pytest.mark.parametrize("weight", [0.0051, 1.0, 0])
def test_barlow_twins_and_its_gradient_match_a_slow_reference(rows, dim, weight):
    views = torch.randn(rows, 2, dim, dtype=torch.float64, requires_grad=True)
    loss = unprojected("barlow_twins", dim, off_diagonal_weight=weight)(EncodedBatch(views))
    expected = slow_barlow_twins(views, weight)
    assert_same(loss, expected, views, rtol=1e-8)


@pytest.mark.parametrize("rows, dim", SIZES)
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_every_term_of_vicreg_and_its_gradient_match_a_slow_reference(rows, dim, scale):
    views = (scale * torch.randn(rows, 2, dim, dtype=torch.float64)).requires_grad_()
    terms = unprojected("vicreg", dim, **WEIGHTS)(EncodedBatch(views))
    assert list(terms) == PARTS
    for loss, expected, weight in zip(terms.values(), slow_vicreg(views), WEIGHTS.values(), strict=True):
        assert_same(loss, weight * expected, views, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["barlow_twins", "vicreg"])
@pytest.mark.parametrize("rows, dim", [(6, 4), (3, 8), (1, 4)])
def test_constant_dimensions_and_a_single_row_give_a_finite_loss_and_gradient(rows, dim, name):
    views = torch.randn(rows, 2, dim)
    views[:, :, 1] = 3.0
    views.requires_grad_()
    loss = sum(named_losses(unprojected(name, dim).eval()(EncodedBatch(views))).values())
    loss.backward()
    assert loss.isfinite() and views.grad.isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_the_layers_are_those_of_the_paper_with_the_statistics_of_the_batch(training):
    objective = build_objective("barlow_twins", 4, {"projector_dim": 6}).double().train(training)
    projector = objective.projector
    shapes = [tuple(p.shape) for p in projector.parameters()]
    assert shapes == [(6, 4), (6,), (6,), (6, 6), (6,), (6,), (6, 6)]
    x = torch.randn(5, 2, 4)
    first, second, third = (layer.weight for layer in projector if isinstance(layer, nn.Linear))
    norm = nn.BatchNorm1d(6, affine=False).double()
    for view, projected in enumerate(objective.project(EncodedBatch(x))):
        expected = norm(norm(x[:, view].double() @ first.T).relu() @ second.T).relu() @ third.T
        torch.testing.assert_close(projected, expected, rtol=1e-10, atol=1e-10)
    assert objective.options["projector_dim"] == 8192
