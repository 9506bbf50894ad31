"""Whitening against a float64 reference in loops: covariance, streaming, and input that is refused."""

import math

import pytest
import torch

from simcse_hf.postprocessing.whitening import RunningCovariance, Whitening, fit_whitening


def skewed(count, dim, seed=0, offset=3.0):
    """Make correlated float32 vectors of shape `(count, dim)` far from the origin."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=generator) * torch.logspace(0, -2, dim)
    return torch.randn(count, dim, generator=generator) @ mixing.T + offset


def slow_covariance(vectors):
    rows = [[float(x) for x in row] for row in vectors]
    count, dim = len(rows), len(rows[0])
    mean = [math.fsum(row[j] for row in rows) / count for j in range(dim)]
    covariance = [
        [math.fsum((row[i] - mean[i]) * (row[j] - mean[j]) for row in rows) / count for j in range(dim)]
        for i in range(dim)
    ]
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(covariance, dtype=torch.float64)


@pytest.mark.parametrize(("count", "dim"), [(7, 2), (40, 5), (100, 9)])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_mean_and_covariance_do_not_depend_on_the_split_into_parts(count, dim, size):
    vectors = skewed(count, dim)
    running = RunningCovariance()
    for part in vectors.split(size):
        running.update(part)
    mean, covariance = slow_covariance(vectors)
    assert running.count == count
    torch.testing.assert_close(running.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(running.covariance, covariance, rtol=1e-10, atol=1e-12)


def test_a_large_mean_does_not_reduce_the_precision():
    vectors = skewed(500, 4).double()
    shifted = RunningCovariance()
    for part in (vectors + 1e6).split(50):
        shifted.update(part)
    torch.testing.assert_close(shifted.covariance, slow_covariance(vectors)[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("count", "dim"), [(12, 3), (300, 8), (2000, 64)])
def test_whitened_embeddings_have_the_identity_as_covariance(count, dim):
    vectors = skewed(count, dim)
    whitened = fit_whitening(vectors.split(100)).transform(vectors)
    assert whitened.dtype == torch.float32 and whitened.shape == vectors.shape
    mean, covariance = whitened.double().mean(dim=0), whitened.double().T.cov(correction=0)
    torch.testing.assert_close(mean, torch.zeros(dim, dtype=torch.float64), rtol=0, atol=1e-5)
    torch.testing.assert_close(covariance, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-4)
    assert (vectors.double().T.cov() - covariance).abs().max() > 0.1


@pytest.mark.parametrize("kept", [1, 3, 6])
def test_fewer_dimensions_are_the_directions_of_the_largest_variance(kept):
    vectors = skewed(400, 6)
    mean, covariance = slow_covariance(vectors)
    variances, directions = torch.linalg.eigh(covariance)
    whitening = fit_whitening([vectors], kept)
    assert whitening.output_dim == kept and whitening.input_dim == 6
    whitened = whitening.transform(vectors).double()
    for column in range(kept):
        direction, variance = directions[:, -1 - column], variances[-1 - column]
        wanted = (vectors.double() - mean) @ direction / variance.sqrt()
        sign = torch.sign(whitened[:, column] @ wanted)  # of an eigenvector it is arbitrary
        torch.testing.assert_close(sign * whitened[:, column], wanted, rtol=0, atol=1e-5)


def test_cosines_are_those_of_the_mahalanobis_inner_product():
    vectors = skewed(60, 5)
    mean, covariance = slow_covariance(vectors)
    inverse, centred = covariance.inverse(), vectors.double() - mean
    whitened = torch.nn.functional.normalize(fit_whitening([vectors]).transform(vectors).double(), dim=1)
    for i in range(5):
        for j in range(5, 10):
            a, b = centred[i], centred[j]
            wanted = (a @ inverse @ b) / ((a @ inverse @ a).sqrt() * (b @ inverse @ b).sqrt())
            assert (whitened[i] @ whitened[j]).item() == pytest.approx(wanted.item(), abs=1e-5)


def test_too_few_sentences_are_refused_and_the_error_says_how_many_are_needed():
    with pytest.raises(ValueError, match="8 dimensions .* these 5 vary in 4: give more .*at least 9 .*most 4"):
        fit_whitening([skewed(5, 8)])
    with pytest.raises(ValueError, match="these 400 vary in 3"):
        fit_whitening([skewed(4, 8).repeat(100, 1)])
    with pytest.raises(ValueError, match="these 1 vary in 0"):
        fit_whitening([skewed(1, 8)])
    assert fit_whitening([skewed(5, 8)], 4).output_dim == 4


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


def test_invalid_input_is_refused():
    vectors = skewed(50, 4)
    for dim in (0, 5, -1):
        with pytest.raises(ValueError, match=f"dim must be between 1 and the embeddings' 4 dimensions, got {dim}"):
            fit_whitening([vectors], dim)
    with pytest.raises(ValueError, match="no embeddings to fit"):
        fit_whitening([])
    vectors[3, 1] = math.nan
    with pytest.raises(ValueError, match="sentence 4 of those to fit on has an embedding that is not finite"):
        fit_whitening([vectors])
    with pytest.raises(ValueError, match="fitted on embeddings of 4 dimensions"):
        Whitening(4, 2).transform(torch.zeros(3, 5))
