"""Whitening against a float64 reference: covariance, streaming, and directions without variance."""

import pytest
import torch
from postprocessing_helpers import skewed
from trainer_helpers import refuses

from simcse_hf.postprocessing.transform import fit_whitening


def exact(vectors):
    """The mean and the covariance of all vectors at once in float64."""
    return vectors.double().mean(0), vectors.double().T.cov(correction=0)


@pytest.mark.parametrize("size, offset", [(1, 1000), (3, 0), (1000, 1000)])
def test_a_whitening_does_not_depend_on_the_parts_nor_lose_precision_to_a_large_mean(size, offset):
    vectors = skewed(100, 9).double() + offset
    linear = fit_whitening(vectors.split(size)).linear
    mean, covariance = exact(vectors)
    whitened_covariance = linear.weight @ covariance @ linear.weight.T
    identity = torch.eye(9, dtype=torch.float64)
    torch.testing.assert_close(whitened_covariance, identity, rtol=0, atol=1e-7)
    assert linear(mean).abs().max() < 1e-8


def principal_component(vectors, number):
    """The vectors along the direction of the largest, second largest ... variance, divided by its deviation."""
    mean, covariance = exact(vectors)
    variances, directions = torch.linalg.eigh(covariance)
    place = -1 - number
    return (vectors.double() - mean) @ directions[:, place] / variances[place].sqrt()


@pytest.mark.parametrize("kept", [1, 3, 6])
def test_fewer_dimensions_are_the_directions_of_the_largest_variance(kept):
    vectors = skewed(400, 6)
    whitening = fit_whitening([vectors], kept)
    assert whitening.input_dim == 6 and whitening.output_dim == kept
    whitened = whitening.transform(vectors).double()
    for number in range(kept):
        component = principal_component(vectors, number)
        sign = torch.sign(whitened[:, number] @ component)  # that of an eigenvector is arbitrary
        torch.testing.assert_close(whitened[:, number], sign * component, rtol=0, atol=1e-5)


@pytest.mark.parametrize("constant", [0.0, 1e4])
def test_a_constant_direction_is_left_out_and_does_not_count(constant):
    """One may be missing, as in a hyperplane."""
    vectors = skewed(200, 4)
    vectors[:, 2] = constant
    covariance = fit_whitening([vectors]).transform(vectors).double().T.cov(correction=0)
    torch.testing.assert_close(covariance, torch.eye(3).double(), rtol=0, atol=1e-4)
    with refuses("these 200 vary in 3: a dim of at most 3"):
        fit_whitening([vectors], 4)
    vectors[:, 1] = constant
    with refuses("these 200 vary in 2"):
        fit_whitening([vectors])
