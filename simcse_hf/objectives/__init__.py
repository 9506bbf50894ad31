"""Objectives: sentence vectors in, a scalar out. Pure tensor code, one file each."""

from .info_nce import InfoNCE

__all__ = ["InfoNCE"]
