"""The flow against autograd and float64: exact log-determinant, and a growing likelihood."""

import math

import pytest
import torch
from postprocessing_helpers import skewed

from simcse_hf.postprocessing.flow import Flow, fit_flow


def moved(module):
    """Make a flow with all parameters changed, because an error in one that starts at 0 would go unnoticed."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def jacobian_log_det(module, row):
    jacobian = torch.autograd.functional.jacobian(lambda x: module(x[None])[0][0], row)
    return torch.linalg.slogdet(jacobian).logabsdet


@pytest.mark.parametrize(("dim", "blocks", "width"), [(2, 1, 3), (5, 2, 8), (7, 4, 16)])
def test_the_flow_agrees_with_its_jacobian(dim, blocks, width):
    flow, x = moved(Flow(dim, blocks, width).double()), torch.randn(5, dim, dtype=torch.float64)
    z, log_det = flow(x)
    for row in range(5):
        wanted = jacobian_log_det(flow, x[row])
        torch.testing.assert_close(log_det[row], wanted, rtol=0, atol=1e-9)
        density = sum(-0.5 * (value**2 + math.log(2 * math.pi)) for value in z[row].tolist())
        assert flow.log_likelihood(x)[row].item() == pytest.approx(density + wanted.item(), abs=1e-9)


def test_fitting_raises_the_likelihood():
    x = skewed(1000, 16)
    flow, history = fit_flow(x[:800], blocks=2, width=16, epochs=6, batch_size=50, learning_rate=3e-3)
    assert len(history) == 7 and history[-1] > history[1] > history[0]
    fresh = Flow(16, 2, 16)
    fresh.initialise(x[:800])
    with torch.no_grad():  # also of vectors it has not seen
        assert flow.log_likelihood(x[800:]).mean() > fresh.log_likelihood(x[800:]).mean() + 1
        z, _ = flow(x)
    assert torch.equal(flow.transform(x), z) and z.dtype == torch.float32
    deviation = (z.T.cov() - torch.eye(16)).square().sum()
    assert deviation < 0.2 * (fresh(x)[0].T.cov() - torch.eye(16)).square().sum()


def test_the_seed_determines_the_flow_and_the_global_random_state_is_kept():
    x, options = skewed(60, 4), {"blocks": 1, "width": 4, "epochs": 2, "batch_size": 16}
    torch.manual_seed(7)
    wanted = torch.rand(1)
    torch.manual_seed(7)
    one = fit_flow(x, seed=1, **options)[0].transform(x)
    assert torch.equal(torch.rand(1), wanted)
    assert torch.equal(one, fit_flow(x, seed=1, **options)[0].transform(x))
    assert not torch.allclose(one, fit_flow(x, seed=2, **options)[0].transform(x), atol=1e-2)
