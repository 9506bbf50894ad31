"""Train, evaluate, publish and use sentence embeddings: SimCSE and its relatives as a Hugging Face Trainer extension.

Importing this package is cheap. A public name, or a subpackage such as `simcse_hf.objectives`, is imported when it is
first used (PEP 562), because torch and transformers take seconds to import and `simcse-hf --help` needs neither.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:  # the public names in the form that type checkers and editors read
    from .data.collator import ContrastiveCollator as ContrastiveCollator
    from .data.nli_pairs import build_nli as build_nli
    from .data.nli_pairs import build_nli_triplets as build_nli_triplets
    from .data.read import load_text_dataset as load_text_dataset
    from .evaluation.compare import compare as compare
    from .evaluation.scoring import evaluate as evaluate
    from .inference.encode import encode as encode
    from .inference.fitting import fit_postprocessing as fit_postprocessing
    from .inference.serving import check_server as check_server
    from .inference.simcse import SimCSE as SimCSE
    from .models.modeling import AutoModelForCL as AutoModelForCL
    from .models.modeling import BertForCL as BertForCL
    from .models.modeling import ContrastiveOutput as ContrastiveOutput
    from .models.modeling import RobertaForCL as RobertaForCL
    from .models.settings import ContrastiveSettings as ContrastiveSettings
    from .publishing.analysis import analyze as analyze
    from .publishing.card import card as card
    from .publishing.exports import export as export
    from .publishing.hub import push as push
    from .search.commands import duplicates as duplicates
    from .search.commands import index as index
    from .search.commands import mine as mine
    from .search.demo import demo as demo
    from .training.adaptation.adaptation import adapt as adapt
    from .training.dev_sets import SimilarityEvalCallback as SimilarityEvalCallback
    from .training.recipe import Recipe as Recipe
    from .training.recipe import train as train
    from .training.trainer import SimCSETrainer as SimCSETrainer
    from .training.training_args import SimCSETrainingArguments as SimCSETrainingArguments

#: The module of each public name.
_MODULE_OF = {
    "AutoModelForCL": "models.modeling",
    "BertForCL": "models.modeling",
    "ContrastiveCollator": "data.collator",
    "ContrastiveOutput": "models.modeling",
    "ContrastiveSettings": "models.settings",
    "Recipe": "training.recipe",
    "RobertaForCL": "models.modeling",
    "SimCSE": "inference.simcse",
    "SimCSETrainer": "training.trainer",
    "SimCSETrainingArguments": "training.training_args",
    "SimilarityEvalCallback": "training.dev_sets",
    "adapt": "training.adaptation.adaptation",
    "analyze": "publishing.analysis",
    "build_nli": "data.nli_pairs",
    "build_nli_triplets": "data.nli_pairs",
    "card": "publishing.card",
    "check_server": "inference.serving",
    "compare": "evaluation.compare",
    "demo": "search.demo",
    "duplicates": "search.commands",
    "encode": "inference.encode",
    "evaluate": "evaluation.scoring",
    "export": "publishing.exports",
    "fit_postprocessing": "inference.fitting",
    "index": "search.commands",
    "load_text_dataset": "data.read",
    "mine": "search.commands",
    "push": "publishing.hub",
    "train": "training.recipe",
}
_SUBPACKAGES = (
    "cli data evaluation indexes inference models objectives ops postprocessing publishing search training".split()
)
__all__ = [*_MODULE_OF, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name or a subpackage when it is first used."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_MODULE_OF[name]}", __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    """List the public names, whether they have been imported yet or not."""
    return sorted({*globals(), *__all__, *_SUBPACKAGES})
