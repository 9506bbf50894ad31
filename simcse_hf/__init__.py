"""Train, evaluate, publish and use sentence embeddings: SimCSE and its relatives as a Hugging Face Trainer extension.

Importing this package is cheap. A public name, or a subpackage such as `simcse_hf.objectives`, is imported when it is
first used (PEP 562), because torch and transformers take seconds to import and `simcse-hf --help` needs neither.
"""

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:  # the public names in the form that type checkers and editors read
    from .apps.adapt.adapt import adapt as adapt
    from .apps.analysis import analyze as analyze
    from .apps.build_nli import build_nli as build_nli
    from .apps.check_server import check_server as check_server
    from .apps.demo import demo as demo
    from .apps.export import export as export
    from .apps.mining import mine as mine
    from .apps.pretraining import pretrain as pretrain
    from .apps.search import duplicates as duplicates
    from .apps.search import index as index
    from .apps.search import index_add as index_add
    from .apps.search import index_delete as index_delete
    from .apps.search import search as search
    from .apps.study.study import study as study
    from .apps.which_model import which_model as which_model
    from .data.collator import ContrastiveCollator as ContrastiveCollator
    from .data.nli import build_nli_triplets as build_nli_triplets
    from .data.read import load_text_dataset as load_text_dataset
    from .data.sample import sample_files as sample_files
    from .data.scored_pairs import ScoredPairs as ScoredPairs
    from .data.views.words import TextView as TextView
    from .encoding.files import encode as encode
    from .encoding.fitting import fit_postprocessing as fit_postprocessing
    from .encoding.quantization import quantize as quantize
    from .encoding.simcse import SimCSE as SimCSE
    from .evaluation.compare import compare as compare
    from .evaluation.mteb import evaluate_mteb as evaluate_mteb
    from .evaluation.scoring import evaluate as evaluate
    from .evaluation.tasks import read_task as read_task
    from .evaluation.tasks.base import paired_interval as paired_interval
    from .models.modeling import AutoModelForCL as AutoModelForCL
    from .models.modeling import BertForCL as BertForCL
    from .models.modeling import ContrastiveOutput as ContrastiveOutput
    from .models.modeling import RobertaForCL as RobertaForCL
    from .models.settings import ContrastiveSettings as ContrastiveSettings
    from .objectives.base import EncodedBatch as EncodedBatch
    from .objectives.base import Objective as Objective
    from .publishing.card import card as card
    from .publishing.hub import push as push
    from .retrieval.description import describe as describe
    from .retrieval.sentences import Match as Match
    from .retrieval.sentences import SentenceIndex as SentenceIndex
    from .runtime.distributed import gather_rows as gather_rows
    from .runtime.errors import DataError as DataError
    from .runtime.errors import ModelError as ModelError
    from .runtime.errors import NotFiniteError as NotFiniteError
    from .runtime.errors import SettingError as SettingError
    from .runtime.errors import SimCSEError as SimCSEError
    from .training.arguments import SimCSETrainingArguments as SimCSETrainingArguments
    from .training.checkpoints import WholeCheckpointTrainer as WholeCheckpointTrainer
    from .training.dev_sets import SimilarityEvalCallback as SimilarityEvalCallback
    from .training.recipe import Recipe as Recipe
    from .training.recipe import train as train
    from .training.trainer import SimCSETrainer as SimCSETrainer

#: The module of each public name, read from the imports above: nothing else lists the names.
_MODULE_OF: dict[str, str] = {}
for _node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8"))):
    if isinstance(_node, ast.ImportFrom) and _node.level and _node.module:
        for _imported in _node.names:
            _MODULE_OF[_imported.name] = _node.module
_SUBPACKAGES = [path.parent.name for path in Path(__file__).parent.glob("*/__init__.py")]
__all__ = list(_MODULE_OF)


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
