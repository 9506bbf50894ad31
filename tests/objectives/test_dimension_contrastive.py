"""Barlow Twins and VICReg: the papers' projector and terms over the rows of the batch."""

import pytest
import torch
from objective_helpers import assert_same
from torch import nn
from torch.nn.functional import batch_norm, mse_loss

from simcse_hf.objectives import EncodedBatch, build_objective
from simcse_hf.objectives.base import named_losses

SIZES = pytest.mark.parametrize("rows, dim", [(2, 3), (7, 3), (5, 11)])


def unprojected(name, dim, **options):
    """The objective without its projector."""
    objective = build_objective(name, dim, {"projector_dim": 4} | options)
    objective.project = lambda batch: batch.embeddings.unbind(1)
    return objective


# --- Barlow Twins ---


def slow_barlow_twins(views, weight):
    """Eq. 1 and 2, one entry of the cross-correlation at a time."""
    first, second = (batch_norm(view, None, None, training=True) for view in views.unbind(1))
    loss = 0
    for i, x in enumerate(first.T):
        for j, y in enumerate(second.T):
            correlation = (x * y).mean()
            loss = loss + ((1 - correlation) ** 2 if i == j else weight * correlation**2)
    return loss


@SIZES
@pytest.mark.parametrize("weight", [0.0051, 0])
def test_barlow_twins_and_its_gradient_match_a_slow_reference(rows, dim, weight):
    views = torch.randn(rows, 2, dim, dtype=torch.float64, requires_grad=True)
    objective = unprojected("barlow_twins", dim, off_diagonal_weight=weight)
    loss = objective(EncodedBatch(views))
    assert_same(loss, slow_barlow_twins(views, weight), views, rtol=1e-8)


# --- VICReg ---


def slow_terms(views):
    """The mean squared difference of two views; for both, what deviations lack to 1, and squared covariances."""
    dim = views.shape[-1]
    lacking = 0
    squares = 0
    for view in views.unbind(1):
        covariances = torch.cov(view.T)
        lacking = lacking + (1 - (covariances.diag() + 1e-4).sqrt()).clamp(min=0).mean() / 2
        squares = squares + (covariances.square().sum() - covariances.diag().square().sum()) / dim
    return mse_loss(*views.unbind(1)), lacking, squares


@SIZES
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_each_term_of_vicreg_and_its_gradient_match_a_slow_reference(rows, dim, scale):
    views = (scale * torch.randn(rows, 2, dim, dtype=torch.float64)).requires_grad_()
    weights = {"invariance_weight": 2.0, "variance_weight": 3.0, "covariance_weight": 0.5}
    terms = unprojected("vicreg", dim, **weights)(EncodedBatch(views))
    assert list(terms) == ["invariance_loss", "variance_loss", "covariance_loss"]
    for found, weight, slow in zip(terms.values(), weights.values(), slow_terms(views), strict=True):
        assert_same(found, weight * slow, views, rtol=1e-8, atol=1e-12)


# --- both ---


@pytest.mark.parametrize("name", ["barlow_twins", "vicreg"])
@pytest.mark.parametrize("rows, dim", [(6, 4), (3, 8), (1, 4)])
def test_constant_dimensions_and_a_single_row_give_a_finite_loss_and_gradient(rows, dim, name):
    views = torch.randn(rows, 2, dim)
    views[:, :, 1] = 3.0
    views.requires_grad_()
    terms = unprojected(name, dim).eval()(EncodedBatch(views))
    loss = sum(named_losses(terms).values())
    loss.backward()
    assert loss.isfinite()
    assert views.grad.isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_the_projector_has_the_papers_layers_and_uses_the_statistics_of_the_batch_also_in_evaluation(training):
    objective = build_objective("barlow_twins", 4, {"projector_dim": 6}).double().train(training)
    assert objective.options["projector_dim"] == 8192  # as in the paper
    shapes = [tuple(parameter.shape) for parameter in objective.projector.parameters()]
    assert shapes == [(6, 4), (6,), (6,), (6, 6), (6,), (6,), (6, 6)]
    first, second, third = (layer.weight.T for layer in objective.projector if isinstance(layer, nn.Linear))
    batch = torch.randn(5, 2, 4)
    projected = objective.project(EncodedBatch(batch))
    for view, found in zip(batch.double().unbind(1), projected, strict=True):
        hidden = batch_norm(view @ first, None, None, training=True).relu()
        hidden = batch_norm(hidden @ second, None, None, training=True).relu()
        torch.testing.assert_close(found, hidden @ third, rtol=1e-10, atol=1e-10)
