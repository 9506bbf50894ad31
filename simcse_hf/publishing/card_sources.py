"""Read the files beside a model from which its card is written: the training run, its seeds, and evaluations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging

from ..evaluation.compare import format_comparison
from ..evaluation.report import read_results
from ..evaluation.scoring import Evaluation
from ..ops.files import read_json_object
from ..postprocessing.transform import FOLDER
from .card_training import public_name

logger = logging.get_logger(__name__)


def read_run(path: Path, described: dict | None = None) -> dict:
    """Read the `results.json` of a training run.

    Args:
        path (`Path`): The file, which need not exist.
        described (`dict`, *optional*): The result of `describe_run`, which is completed by the file, or returned as it
            is if the file belongs to another run.

    Returns:
        `dict`: What is known about the run; empty without a record.

    Raises:
        ValueError: If the file was not written by a training run.
    """
    run = {}
    if path.exists():
        advice = "A training run writes this file: restore it, or move it out of the model's directory."
        run = read_json_object(path, "settings", advice=advice)
    if described is None:
        return run
    for name in ("steps", "train_loss"):
        if run.get(name) != described[name]:
            return described
    return run | described


def seeds_of(run: dict) -> list[int]:
    """Return the seeds of a training run or an adaptation; empty without a record."""
    if "seeds" in run:
        return [each["seed"] for each in run["seeds"]["runs"]]
    seed = run.get("seed")
    return [] if seed is None else [seed]


@dataclass
class Measured:
    """An evaluation of the published model.

    Args:
        path (`Path`): The result file.
        document (`dict`): Its content.
        evaluation (`Evaluation`): Its results and scores.
        seeds (`list[Evaluation]`): The same evaluation of the model of every seed; empty if one of them is missing.
    """

    path: Path
    document: dict
    evaluation: Evaluation
    seeds: list[Evaluation]

    @property
    def every(self) -> list[dict[str, Any]]:
        """The results of the published model, and after them those of all seeds."""
        return [self.document["results"], *(each.results for each in self.seeds)]


def read_measured(
    path: Path, directory: Path, repo_id: str | None, run: dict, pooler: str, transform: str | None
) -> Measured:
    """Read an evaluation of a model, and those of its other seeds under the same file name in their folders.

    Args:
        path (`Path`): The result file.
        directory (`Path`): The directory of the model.
        repo_id (`str`, *optional*): The model's name on the hub, which the file may name instead of the directory.
        run (`dict`): The content of `results.json`; empty without a record.
        pooler (`str`): The pooler of the model.
        transform (`str`, *optional*): The method of the transform that is saved with the model.

    Returns:
        [`Measured`]: The evaluation.

    Raises:
        ValueError: If a file is not a result file, or was measured with another model, pooler, transform or protocol.
    """
    measured = _read_evaluation(path, directory, repo_id, pooler, transform)
    seeds = seeds_of(run)
    if len(seeds) < 2 or transform is not None:
        return measured
    folders = [directory / f"seed-{seed}" for seed in seeds]
    if not all(without_outdated([folder / path.name], folder) for folder in folders):
        return measured
    for folder in folders:
        other = _read_evaluation(folder / path.name, folder, None, pooler, transform)
        _check_protocol(other, measured)
        measured.seeds.append(other.evaluation)
    return measured


def _read_evaluation(path: Path, directory: Path, repo_id: str | None, pooler: str, transform: str | None) -> Measured:
    """Read a result file of `simcse-hf evaluate` and check that it belongs to the model in `directory`."""
    document, scores = read_results(path)
    model = document.get("model")
    is_this_model = model is not None
    if is_this_model and model != repo_id:
        is_this_model = Path(model).resolve().name == directory.resolve().name
    if not is_this_model:
        raise ValueError(
            f"{path} holds results of {model}, but the card is for {directory}. Evaluate this model and try again."
        )
    if document.get("pooler") != pooler:
        raise ValueError(
            f"{path} was measured with pooler {document.get('pooler')!r}, but the model's pooler is {pooler!r}. "
            "Evaluate the model without --pooler_type."
        )
    if document.get("postprocessing") != transform:
        raise ValueError(
            f"{path} was measured with transform {document.get('postprocessing')}, but {directory} has {transform}. "
            "Evaluate the model as it is saved, without --no_postprocess."
        )
    return Measured(path, document, Evaluation(document["results"], scores), [])


def _check_protocol(other: Measured, reference: Measured) -> None:
    ours = reference.document["protocol"]
    theirs = other.document["protocol"]
    for key in ("mode", "aggregation", "metric"):
        if ours.get(key) != theirs.get(key):
            raise ValueError(
                f"{other.path} and {reference.path} were measured with different protocols ({key} {theirs.get(key)} "
                f"and {ours.get(key)}). Evaluate both alike."
            )


def without_outdated(paths: Iterable[Path], directory: Path) -> list[Path]:
    """Return the result files that exist and are not older than the weights in `directory`; warn about older ones.

    The weights of a whitening or flow count as well.
    """
    weights = [*directory.glob("model*.safetensors"), *directory.glob(f"{FOLDER}/*.safetensors")]
    written = max((path.stat().st_mtime for path in weights), default=0.0)
    current = []
    for path in paths:
        if not path.is_file():
            continue
        if path.stat().st_mtime >= written:
            current.append(path)
            continue
        logger.warning(
            f"{path} is older than the model's weights, so the card does not use it. If it was measured with these "
            "weights, name it with --results."
        )
    return current


def comparison_text(paths: Sequence[Path]) -> str:
    """Return the tables that `simcse-hf compare` wrote, as blocks of preformatted text.

    Args:
        paths (`Sequence[Path]`): JSON files that `simcse-hf compare --output` wrote.

    Returns:
        `str`: The tables.

    Raises:
        ValueError: If a file is not such a comparison. The message names the file.
    """
    advice = "Name a file that `simcse-hf compare --output` wrote."
    tables = []
    for path in paths:
        comparison = read_json_object(path, "baseline", "scores", "differences", advice=advice)
        text = format_comparison(comparison)
        for name in (comparison["baseline"], *comparison["differences"]):  # as wide as before, without a local folder
            public = str(public_name(name))
            text = text.replace(name, public.ljust(len(name)))
        tables.append(f"```\n{text}\n```")
    return "\n\n".join(tables)
