"""SimCSE and its relatives as a Hugging Face Trainer extension: train, evaluate, publish and use sentence vectors."""

from .auto import AutoModelForCL
from .callbacks import SimilarityEvalCallback
from .configuration import ContrastiveSettings
from .data.collator import ContrastiveCollator
from .data.nli import build_nli_triplets
from .data.readers import load_text_dataset
from .encoder import SimCSE
from .modeling import BertForCL, ContrastiveOutput, RobertaForCL
from .trainer import SimCSETrainer
from .training_args import SimCSETrainingArguments
from .version import __version__

__all__ = [
    "AutoModelForCL",
    "BertForCL",
    "ContrastiveCollator",
    "ContrastiveOutput",
    "ContrastiveSettings",
    "RobertaForCL",
    "SimCSE",
    "SimCSETrainer",
    "SimCSETrainingArguments",
    "SimilarityEvalCallback",
    "__version__",
    "build_nli_triplets",
    "load_text_dataset",
]
