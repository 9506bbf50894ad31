"""Training objectives, one per file: they turn the embeddings of a batch into a loss."""

from pathlib import Path

import yaml

from .base import EncodedBatch, Objective, TrainingRows
from .combined import ByDataset
from .contrastive_tension import ContrastiveTension
from .declutr import DeCLUTR
from .diffcse import DiffCSE
from .dimension_contrastive import BarlowTwins, VICReg
from .distill import Distill
from .esimcse import ESimCSE
from .info_nce import InfoNCE, SimCSEObjective
from .is_bert import ISBERT
from .labelled.contrastive import ClassLabels, Softmax, SupCon
from .labelled.graded_pairs import AnglE, CoSENT
from .promptbert import PromptBERT
from .registry import (
    OBJECTIVES,
    build_objective,
    import_objective,
    objective_class,
    part_weights,
    register,
    split_options,
)
from .tsdae import TSDAE

__all__ = [
    "OBJECTIVES",
    "ByDataset",
    "EncodedBatch",
    "InfoNCE",
    "Objective",
    "TrainingRows",
    "build_objective",
    "import_objective",
    "objective_class",
    "part_weights",
    "register",
    "split_options",
]

#: The settings of each objective's paper; see `Objective.defaults`.
PAPER_SETTINGS = yaml.safe_load(Path(__file__).with_name("paper_settings.yaml").read_text("utf-8"))
BUILT_IN: dict[str, type[Objective]] = {
    "simcse": SimCSEObjective,
    "barlow_twins": BarlowTwins,
    "vicreg": VICReg,
    "contrastive_tension": ContrastiveTension,
    "is_bert": ISBERT,
    "esimcse": ESimCSE,
    "promptbert": PromptBERT,
    "diffcse": DiffCSE,
    "tsdae": TSDAE,
    "cosent": CoSENT,
    "angle": AnglE,
    "declutr": DeCLUTR,
    "distill": Distill,
    "softmax": Softmax,
    "supcon": SupCon,
    "class_labels": ClassLabels,
}
for name, objective in BUILT_IN.items():
    register(name, objective)
for name, settings in PAPER_SETTINGS.items():
    BUILT_IN[name].defaults = settings
