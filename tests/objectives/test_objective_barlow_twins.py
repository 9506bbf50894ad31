"""Barlow Twins: the paper's sum over the correlations of the global batch."""

import inspect

import pytest
import torch
from process_helpers import Encoded, assert_same, in_processes, train_share
from torch import nn

from simcse_hf.objectives import OBJECTIVES, EncodedBatch, make_objective

SIZES = [(2, 3), (4, 4), (7, 3), (5, 11)]  # rows, dimensions


def unprojected(dim, **options):
    objective = make_objective("barlow_twins", dim, {}, {"projector_dim": 4} | options)
    objective.projector = nn.Identity()
    return objective


def reference(views, weight):
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


def parts():
    torch.manual_seed(0)
    objective = make_objective("barlow_twins", 8, {}, {"projector_dim": 12, "off_diagonal_weight": 0.3})
    return Encoded(objective), (torch.randn(6, 2, 6, dtype=torch.float64),)


def one_process(rank, processes):
    return train_share(*parts(), rank, processes)


@pytest.mark.parametrize("rows, dim", SIZES)
@pytest.mark.parametrize("weight", [0.0051, 1.0, 0])
def test_loss_and_gradient_match_a_slow_reference(rows, dim, weight):
    views = torch.randn(rows, 2, dim, dtype=torch.float64, requires_grad=True)
    loss = unprojected(dim, off_diagonal_weight=weight)(EncodedBatch(views))
    expected = reference(views, weight)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    gradient, exact = (torch.autograd.grad(x, views)[0] for x in (loss, expected))
    torch.testing.assert_close(gradient, exact, rtol=1e-8, atol=1e-10)


def test_the_defaults_are_those_of_the_paper():
    options = inspect.signature(OBJECTIVES["barlow_twins"]).parameters
    assert options["off_diagonal_weight"].default == 0.0051 and options["projector_dim"].default == 8192


def test_identical_views_with_uncorrelated_dimensions_have_no_loss():
    signs = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    assert unprojected(3)(EncodedBatch(torch.stack([signs, 5 * signs + 2], 1))).item() == pytest.approx(0, abs=1e-8)
    assert unprojected(3)(EncodedBatch(torch.stack([signs, -signs], 1))).item() == pytest.approx(12, abs=1e-3)


def test_two_processes_equal_one(tmp_path):
    assert_same(in_processes(one_process, tmp_path), *parts())


@pytest.mark.parametrize("rows, dim", [(6, 4), (3, 8)])
def test_constant_dimensions_give_a_finite_loss_and_gradient(rows, dim):
    views = torch.randn(rows, 2, dim)
    views[:, :, 1] = 3.0
    views.requires_grad_()
    loss = unprojected(dim)(EncodedBatch(views))
    loss.backward()
    assert loss.isfinite() and views.grad.isfinite().all()


def test_an_evaluation_batch_may_hold_a_single_row():
    objective = make_objective("barlow_twins", 4, {}, {"projector_dim": 6}).eval()
    assert objective(EncodedBatch(torch.randn(1, 2, 4))).item() == pytest.approx(6, abs=1e-4)


def test_half_precision_embeddings_are_computed_in_float32():
    views = torch.randn(8, 2, 16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = unprojected(16)(EncodedBatch(views))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(reference(views.double(), 0.0051).item(), rel=1e-5)


def test_the_correlation_matrix_is_never_stored():
    views = torch.randn(4, 2, 500, requires_grad=True)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        unprojected(500)(EncodedBatch(views)).backward()
    assert 0 < max(sizes) <= views.numel()


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_an_invalid_weight_is_refused(weight):
    with pytest.raises(ValueError, match="off_diagonal_weight must be finite and 0 or more"):
        make_objective("barlow_twins", 4, {}, {"off_diagonal_weight": weight})
