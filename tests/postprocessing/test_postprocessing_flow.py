"""The flow against autograd and float64: exact log-determinant, and a growing likelihood."""

import math

import pytest
import torch
from encoding_helpers import perturb
from postprocessing_helpers import skewed

from simcse_hf.postprocessing.flow import Flow, fit_flow

# --- the density ---


def jacobian_log_det(flow, vector):
    def transform_one(x):
        z, _ = flow(x[None])
        return z[0]

    jacobian = torch.autograd.functional.jacobian(transform_one, vector)
    return torch.linalg.slogdet(jacobian).logabsdet


@pytest.mark.parametrize("dim, blocks, width", [(2, 1, 3), (5, 2, 8), (7, 4, 16)])
def test_the_likelihood_is_the_normal_density_times_the_determinant_of_the_jacobian(dim, blocks, width):
    """All parameters are changed first, because an error in one that starts at 0 would go unnoticed."""
    flow = perturb(Flow(dim, blocks, width).double(), 0.3)
    vectors = torch.randn(5, dim, dtype=torch.float64)
    z, log_det = flow(vectors)
    expected = torch.stack([jacobian_log_det(flow, vector) for vector in vectors])
    torch.testing.assert_close(log_det, expected, rtol=0, atol=1e-9)
    density = -0.5 * (z**2 + math.log(2 * math.pi)).sum(dim=1)
    torch.testing.assert_close(flow.log_likelihood(vectors), density + expected, rtol=0, atol=1e-9)


# --- fitting ---

SKEWED = skewed(1000, 16)
SEEN, UNSEEN = SKEWED[:800], SKEWED[800:]


def distance_from_standard_normal(z):
    return (z.T.cov() - torch.eye(16)).square().sum()


def test_fitting_raises_the_likelihood_also_of_vectors_that_it_has_not_seen():
    """The history has the likelihood before training, and after each of six epochs."""
    flow, history = fit_flow(SEEN, blocks=2, width=16, epochs=6, batch_size=50, learning_rate=3e-3)
    fresh = Flow(16, 2, 16)
    fresh.initialise(SEEN)
    assert len(history) == 7 and history[0] < history[1] < history[-1]
    assert flow.log_likelihood(UNSEEN).mean() > fresh.log_likelihood(UNSEEN).mean() + 1
    z = flow.transform(SKEWED)
    assert z.dtype == torch.float32 and torch.equal(z, flow(SKEWED)[0])
    assert distance_from_standard_normal(z) < 0.2 * distance_from_standard_normal(fresh(SKEWED)[0])


# --- seeds ---


def fit_and_transform(seed):
    vectors = skewed(60, 4)
    flow, _ = fit_flow(vectors, seed=seed, blocks=1, width=4, epochs=2, batch_size=16)
    return flow.transform(vectors)


def test_the_seed_decides_the_flow_and_the_global_random_state_stays():
    state = torch.get_rng_state()
    first = fit_and_transform(seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, fit_and_transform(seed=1))
    assert not torch.allclose(first, fit_and_transform(seed=2), atol=1e-2)
