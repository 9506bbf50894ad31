"""Vectors for the tests of transforms."""

import torch

from simcse_hf.postprocessing import Flow, fit_flow
from simcse_hf.postprocessing.transform import Fit

FIT = Fit("avg", 40, "texts.txt", ["text"], 60, {"dim": 4}, None)


def skewed(count, dim, seed=0):
    """Make correlated float32 vectors of shape `(count, dim)` far from the origin."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=generator) * torch.logspace(0, -2, dim)
    return torch.randn(count, dim, generator=generator) @ mixing.T + 3.0


def small_flow() -> Flow:
    """Fits a flow of two blocks over six dimensions."""
    return fit_flow(skewed(60, 6), blocks=2, width=5, epochs=1, batch_size=30)[0]
