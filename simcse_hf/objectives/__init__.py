"""Training objectives, one per file: they turn the embeddings of a batch into a loss."""

from .angle import AnglE
from .barlow_twins import BarlowTwins
from .base import OBJECTIVES, EncodedBatch, Objective, TrainingRows, make_objective, objective_class, register
from .contrastive_tension import ContrastiveTension
from .cosent import CoSENT
from .declutr import DeCLUTR
from .diffcse import DiffCSE
from .esimcse import ESimCSE
from .info_nce import InfoNCE
from .is_bert import ISBERT
from .promptbert import PromptBERT
from .simcse import SimCSEObjective
from .softmax import Softmax
from .softmax_supcon import SoftmaxSupCon
from .supcon import SupCon
from .tsdae import TSDAE
from .vicreg import VICReg

__all__ = [
    "OBJECTIVES",
    "EncodedBatch",
    "InfoNCE",
    "Objective",
    "TrainingRows",
    "make_objective",
    "objective_class",
    "register",
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
register("softmax", Softmax)
register("softmax+supcon", SoftmaxSupCon)
register("supcon", SupCon)
