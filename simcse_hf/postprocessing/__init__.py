"""Transforms of embeddings, fitted on unlabelled text with the encoder frozen: whitening and flow."""

from .flow import Flow, fit_flow
from .transform import VectorTransform, Whitening, fit_whitening

__all__ = ["Flow", "VectorTransform", "Whitening", "fit_flow", "fit_whitening"]
