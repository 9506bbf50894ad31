"""Training objectives, one per file: they turn the embeddings of a batch into a loss."""

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
from .labelled.scored_pairs import AnglE, CoSENT
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

register("simcse", SimCSEObjective)
register("barlow_twins", BarlowTwins)
register("vicreg", VICReg)
register("contrastive_tension", ContrastiveTension)
register("is_bert", ISBERT)
register("esimcse", ESimCSE)
register("promptbert", PromptBERT)
register("diffcse", DiffCSE)
register("tsdae", TSDAE)
register("cosent", CoSENT)
register("angle", AnglE)
register("declutr", DeCLUTR)
register("distill", Distill)
register("softmax", Softmax)
register("supcon", SupCon)
register("class_labels", ClassLabels)
