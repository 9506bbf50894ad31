"""Objectives: sentence vectors in, a scalar out. Pure tensor code, one file each."""

from .info_nce import InfoNCE
from .interface import OBJECTIVES, Embedded, Objective, TrainingRows, make_objective, register
from .simcse import SimCSEObjective

__all__ = [
    "OBJECTIVES",
    "Embedded",
    "InfoNCE",
    "Objective",
    "TrainingRows",
    "make_objective",
    "register",
]

register("simcse", SimCSEObjective)
