"""SimCSE and its relatives as a Hugging Face Trainer extension: train, evaluate, publish and use sentence vectors."""

from .data.collator import ContrastiveCollator
from .data.nli import build_nli_triplets
from .data.readers import load_text_dataset
from .inference.simcse import SimCSE
from .models.auto import AutoModelForCL
from .models.configuration import ContrastiveSettings
from .models.modeling import BertForCL, ContrastiveOutput, RobertaForCL
from .training.callbacks import SimilarityEvalCallback
from .training.trainer import SimCSETrainer
from .training.training_args import SimCSETrainingArguments

__version__ = "0.1.0"

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
