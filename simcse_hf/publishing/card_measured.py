"""Reads what was measured with the weights of a model, for its card."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers.utils import logging

from ..encoding.saved import SavedModel
from ..evaluation.compare import Comparison
from ..evaluation.report import Evaluation
from ..runtime.files import StrPath, read_json_object
from ..runtime.identity import Identity
from ..runtime.upload import PublicNames
from .card_results import Measured, protocol_of
from .card_subject import Subject

logger = logging.get_logger(__name__)

#: The record of `simcse-hf adapt` beside a model that it made.
ADAPTATION = "adaptation.json"
#: What a model may be measured with besides its own settings.
_MAY_CHANGE = ("max_length", "long_texts")


class Weights:
    """The weights in a folder, with which results are compared.

    Args:
        folder (`Path`): The folder of the model.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.model = SavedModel(folder)

    def made(self, path: Path, recorded: Iterable[Identity], is_named: bool = False) -> bool:
        """Return whether a result was made with these weights, and say why not.

        Args:
            path (`Path`): The file of the result.
            recorded (`Iterable[Identity]`): The identities of the models in it. One of them has to be this one.
            is_named (`bool`, *optional*, defaults to `False`): Refuse the file, which somebody named, in place of a
                warning.

        Returns:
            `bool`: Whether a card of the model may show the result.

        Raises:
            ValueError: If a named file was made with other weights.
        """
        reasons = []
        for each in recorded:
            if each.weights is None:
                continue
            changed = each.changes(self.model.identity(each.dtype), _MAY_CHANGE)
            if not changed:
                return True
            reasons.append(f"{each.name_or_path}: {', '.join(changed)}")
        reason = "; ".join(reasons) or "it records no weights, as in version 0.1"
        message = f"{path} holds no results of the model in {self.folder} ({reason}): evaluate this model again"
        if is_named:
            raise ValueError(message)
        logger.warning(f"{message}. The card does not show the file.")
        return False

    def trained(self, run: dict) -> dict:
        """Return the record of a run, or an empty one if other weights lie in the folder now."""
        known = run.get("weights")
        if known is None or self.model.digests().encoder == known:
            return run
        logger.warning(
            f"{self.folder}/results.json is about the training of other weights than those in {self.folder}. The card "
            "does not show it."
        )
        return {}


def read_adaptation(weights: Weights) -> dict:
    """Return the content of `adaptation.json`; empty if there is none of these weights."""
    path = weights.folder / ADAPTATION
    if not path.is_file():
        return {}
    adaptation = read_json_object(path, advice="Remove it, or adapt the model again.")
    is_of_weights = weights.made(path, [Identity.from_dict(adaptation.get("identity", {}))])
    return PublicNames()(adaptation) if is_of_weights else {}


def read_comparisons(weights: Weights, files: Sequence[StrPath] | None) -> list[str]:
    """Return the tables of comparisons with these weights.

    Args:
        weights (`Weights`): The weights.
        files (`Sequence`, *optional*): The files; by default all `comparison*.json` of the folder.

    Returns:
        `list[str]`: The tables as preformatted text.

    Raises:
        ValueError: If a named file was made with other weights, or a model in it has changed since.
    """
    texts = []
    for path in map(Path, sorted(weights.folder.glob("comparison*.json")) if files is None else files):
        comparison = Comparison.read(path)
        if not weights.made(path, comparison.identities.values(), files is not None):
            continue
        changed = _changed(comparison)
        if changed:
            message = f"{path} compares with other weights than those of {', '.join(changed)} now: compare again"
            if files is not None:
                raise ValueError(message)
            logger.warning(f"{message}. The card does not show the file.")
            continue
        texts.append(str(Comparison(**PublicNames()(vars(comparison)))))
    return texts


def _changed(comparison: Comparison) -> list[str]:
    """Return the files and folders of a comparison that hold other weights now than when they were compared."""
    changed = []
    for name, before in comparison.identities.items():
        path = Path(name)
        if before.weights is None or not path.exists():
            continue
        now = SavedModel(path).identity(before.dtype) if path.is_dir() else Evaluation.read(path).identity
        if before.changes(now, _MAY_CHANGE):
            changed.append(name)
    return changed


def read_evaluations(model: Subject, weights: Weights, files: Sequence[StrPath] | None) -> list[Measured]:
    """Read the evaluations of a model, each with those of its other seeds under the same name in their folders.

    Args:
        model (`Subject`): The model.
        weights (`Weights`): Its weights.
        files (`Sequence`, *optional*): The files; by default all `evaluation*.json` of the folder.

    Returns:
        `list[Measured]`: The evaluations.

    Raises:
        ValueError: If a file is no evaluation, a named one is of another model, or two seeds were measured with
            different protocols.
    """
    measured = []
    for path in map(Path, sorted(weights.folder.glob("evaluation*.json")) if files is None else files):
        evaluation = Evaluation.read(path)
        if weights.made(path, [evaluation.identity], files is not None):
            measured.append(Measured(path, evaluation, _read_seeds(model, weights.folder, path, evaluation)))
    return measured


def _read_seeds(model: Subject, directory: Path, path: Path, published: Evaluation) -> list[dict]:
    """Read the results of every seed; none if one is missing."""
    if len(model.runs) < 2 or model.transform is not None:
        return []
    seeds = []
    for seed in model.seeds:
        other = directory / f"seed-{seed}" / path.name
        if not other.is_file():
            return []
        evaluation = Evaluation.read(other)
        if not Weights(other.parent).made(other, [evaluation.identity]):
            return []
        theirs = protocol_of(evaluation, transfer=False)
        ours = protocol_of(published, transfer=False)
        if theirs != ours:
            raise ValueError(
                f"{other} and {path} were measured with different protocols. Evaluate both alike. The first: {theirs} "
                f"The second: {ours}"
            )
        seeds.append(evaluation.results)
    return seeds
