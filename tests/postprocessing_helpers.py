"""Vectors for the tests of transforms."""

import torch


def skewed(count, dim, seed=0, offset=3.0):
    """Make correlated float32 vectors of shape `(count, dim)` far from the origin."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=generator) * torch.logspace(0, -2, dim)
    return torch.randn(count, dim, generator=generator) @ mixing.T + offset
