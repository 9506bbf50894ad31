"""Reads what was measured with a model, for its card."""

from collections.abc import Sequence
from pathlib import Path

from transformers.utils import logging

from ..evaluation.report import read_results
from ..ops.files import StrPath
from ..postprocessing.transform import FOLDER
from .card_results import Measured, protocol_of
from .card_subject import Subject

logger = logging.get_logger(__name__)


def is_outdated(path: Path, directory: Path) -> bool:
    """Return whether a result file is older than the weights in `directory`, and warn about it.

    The weights of a whitening or flow count as well.
    """
    weights = [*directory.glob("model*.safetensors"), *directory.glob(f"{FOLDER}/*.safetensors")]
    written = max((weight.stat().st_mtime for weight in weights), default=0.0)
    if path.stat().st_mtime >= written:
        return False
    logger.warning(
        f"{path} is older than the model's weights, so the card does not use it. If it was measured with these "
        "weights, name it with --results."
    )
    return True


def read_evaluations(
    model: Subject, directory: Path, files: Sequence[StrPath] | None, repo_id: str | None
) -> list[Measured]:
    """Read the evaluations."""
    found = files
    if found is None:
        found = [file for file in sorted(directory.glob("evaluation*.json")) if not is_outdated(file, directory)]
    return [read_measured(Path(file), directory, repo_id, model) for file in found]


def _read(path: Path, directory: Path, repo_id: str | None, pooler: str, transform: str | None) -> dict:
    document, _ = read_results(path)
    model = document.get("model")
    if model is None or (model != repo_id and Path(model).resolve().name != directory.resolve().name):
        raise ValueError(
            f"{path} holds results of {model}, but the card is for {directory}. Evaluate this model and try again."
        )
    used = document.get("pooler")
    applied = document.get("postprocessing")
    if (used, applied) != (pooler, transform):
        raise ValueError(
            f"{path} was measured with transform {applied} and pooler {used!r}, but the model's pooler is {pooler!r} "
            f"and its transform {transform}. Evaluate it as it is saved, without --pooler_type and --no_postprocess."
        )
    return document


def read_measured(path: Path, directory: Path, repo_id: str | None, model: Subject) -> Measured:
    """Read an evaluation of a model, and those of its other seeds under the same file name in their folders.

    Returns:
        `Measured`: The evaluation.

    Raises:
        ValueError: If two seeds were measured with different protocols.
    """
    transform = model.method or None
    document = _read(path, directory, repo_id, model.pooler, transform)
    if len(model.runs) < 2 or transform is not None:
        return Measured(path, document, [])

    folders = [directory / f"seed-{each['seed']}" for each in model.runs]
    if any(not (folder / path.name).is_file() or is_outdated(folder / path.name, folder) for folder in folders):
        return Measured(path, document, [])
    seeds = []
    for folder in folders:
        other = _read(folder / path.name, folder, None, model.pooler, transform)
        theirs = protocol_of(other, transfer=False)
        ours = protocol_of(document, transfer=False)
        if theirs != ours:
            raise ValueError(
                f"{folder / path.name} and {path} were measured with different protocols. Evaluate both alike. The "
                f"first: {theirs} The second: {ours}"
            )
        seeds.append(other["results"])
    return Measured(path, document, seeds)
