"""Whitening against a float64 reference in loops: covariance, streaming, and input that is refused."""

import pytest
import torch
from postprocessing_helpers import skewed

from simcse_hf.postprocessing.whitening import fit_whitening


def exact(vectors):
    """The mean and the covariance of all vectors at once in float64."""
    return vectors.double().mean(0), vectors.double().T.cov(correction=0)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_whitening_does_not_depend_on_the_parts_nor_lose_precision_to_a_large_mean(size):
    vectors = skewed(100, 9).double()
    for offset in (0, 1000):
        linear = fit_whitening((vectors + offset).split(size)).linear
        mean, covariance = exact(vectors + offset)
        identity = linear.weight @ covariance @ linear.weight.T
        torch.testing.assert_close(identity, torch.eye(9, dtype=torch.float64), rtol=0, atol=1e-7)
        assert linear(mean).abs().max() < 1e-8


@pytest.mark.parametrize("kept", [1, 3, 6])
def test_fewer_dimensions_are_the_directions_of_the_largest_variance(kept):
    vectors = skewed(400, 6)
    mean, covariance = exact(vectors)
    variances, directions = torch.linalg.eigh(covariance)
    whitening = fit_whitening([vectors], kept)
    assert whitening.output_dim == kept and whitening.input_dim == 6
    whitened = whitening.transform(vectors).double()
    for column in range(kept):
        direction, variance = directions[:, -1 - column], variances[-1 - column]
        wanted = (vectors.double() - mean) @ direction / variance.sqrt()
        wanted *= torch.sign(whitened[:, column] @ wanted)  # of an eigenvector it is arbitrary
        torch.testing.assert_close(whitened[:, column], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("constant", [0.0, 7.0, 1e4])
def test_a_constant_direction_does_not_count_as_a_direction(constant):
    vectors = skewed(200, 4)
    vectors[:, 2] = constant
    whitened = fit_whitening([vectors]).transform(vectors).double()  # one may be missing, as in a hyperplane
    torch.testing.assert_close(whitened.T.cov(correction=0), torch.eye(3).double(), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="these 200 vary in 3: .*a dim of at most 3"):
        fit_whitening([vectors], 4)
    vectors[:, 1] = constant
    with pytest.raises(ValueError, match="these 200 vary in 2"):
        fit_whitening([vectors])
