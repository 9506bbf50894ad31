"""VICReg: its three named terms over the global batch."""

import inspect

import pytest
import torch
from process_helpers import Encoded, assert_same, in_processes, train_share
from torch import nn

from simcse_hf.objectives import OBJECTIVES, EncodedBatch, make_objective

SIZES = [(2, 3), (4, 4), (7, 3), (5, 11)]  # rows, dimensions
PARTS = ["invariance_loss", "variance_loss", "covariance_loss"]


def unprojected(dim, **options):
    objective = make_objective("vicreg", dim, {}, {"projector_dim": 4} | options)
    objective.projector = nn.Identity()
    return objective


def reference(views):
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


def parts():
    torch.manual_seed(0)
    objective = make_objective("vicreg", 8, {}, {"projector_dim": 12, "covariance_weight": 3.0})
    return Encoded(objective), (torch.randn(6, 2, 6, dtype=torch.float64),)


def one_process(rank, processes):
    return train_share(*parts(), rank, processes)


@pytest.mark.parametrize("rows, dim", SIZES)
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_every_term_and_its_gradient_match_a_slow_reference(rows, dim, scale):
    views = (scale * torch.randn(rows, 2, dim, dtype=torch.float64)).requires_grad_()
    terms = unprojected(dim, invariance_weight=2.0, variance_weight=3.0, covariance_weight=0.5)(EncodedBatch(views))
    assert list(terms) == PARTS
    for loss, expected, weight in zip(terms.values(), reference(views), (2.0, 3.0, 0.5), strict=True):
        assert loss.item() == pytest.approx(weight * expected.item(), rel=1e-10, abs=1e-14)
        ours, exact = (torch.autograd.grad(x, views, retain_graph=True)[0] for x in (loss, weight * expected))
        torch.testing.assert_close(ours, exact, rtol=1e-8, atol=1e-12)


def test_the_defaults_are_those_of_the_paper():
    options = inspect.signature(OBJECTIVES["vicreg"]).parameters
    assert [options[f"{part.removesuffix('_loss')}_weight"].default for part in PARTS] == [25, 25, 1]
    assert options["projector_dim"].default == 8192


def test_a_weight_of_zero_removes_its_term():
    views = torch.randn(4, 2, 5)
    for name in ("invariance", "variance", "covariance"):
        terms = unprojected(5, **{f"{name}_weight": 0})(EncodedBatch(views))
        assert [part for part, value in terms.items() if value == 0] == [f"{name}_loss"]


def test_two_processes_equal_one(tmp_path):
    assert_same(in_processes(one_process, tmp_path), *parts())


@pytest.mark.parametrize("rows, dim", [(6, 4), (3, 8)])
def test_collapsed_embeddings_have_a_finite_gradient(rows, dim):
    views = torch.ones(rows, 2, dim, requires_grad=True)
    terms = unprojected(dim)(EncodedBatch(views))
    assert [value.item() for value in terms.values()] == pytest.approx([0, 25 * 0.99, 0], abs=1e-5)
    sum(terms.values()).backward()
    assert views.grad.isfinite().all()


def test_an_evaluation_batch_may_hold_a_single_row():
    objective = make_objective("vicreg", 4, {}, {"projector_dim": 6}).eval()
    assert all(value.isfinite() for value in objective(EncodedBatch(torch.randn(1, 2, 4))).values())


def test_half_precision_embeddings_are_computed_in_float32():
    views = torch.randn(8, 2, 16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        terms = unprojected(16, invariance_weight=1, variance_weight=1)(EncodedBatch(views))
    for loss, expected in zip(terms.values(), reference(views.double()), strict=True):
        assert loss.dtype == torch.float32 and loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_covariance_matrix_is_never_stored():
    views = torch.randn(4, 2, 500, requires_grad=True)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        sum(unprojected(500)(EncodedBatch(views)).values()).backward()
    assert 0 < max(sizes) <= views.numel()


@pytest.mark.parametrize("name", ["invariance_weight", "variance_weight", "covariance_weight"])
@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_an_invalid_weight_is_refused(name, weight):
    with pytest.raises(ValueError, match=f"{name} must be finite and 0 or more"):
        make_objective("vicreg", 4, {}, {name: weight})
