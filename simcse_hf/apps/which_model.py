"""Which of several models to take on somebody's own tasks; what was evaluated is kept."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from .. import SettingError
from ..evaluation.bm25 import BM25
from ..evaluation.compare import Comparison, compare_models
from ..evaluation.protocol import Protocol
from ..evaluation.report import Evaluation, versions
from ..evaluation.scoring import kept_files, score_missing, score_model
from ..evaluation.tasks import Task
from ..names import EvaluationOptions
from ..runtime.encoders import Encoder, TextEncoder
from ..runtime.errors import as_list
from ..runtime.files import StrPath
from ..training.parser import read_yaml
from .study.result import Study
from .study.study import study


def which_model(
    models: Sequence[str | Encoder],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    output: StrPath | None = None,
    overwrite: bool = False,
    train: StrPath | None = None,
    seeds: int = 3,
    show_progress_bar: bool = True,
    **options: Unpack[EvaluationOptions],
) -> Comparison | Study:
    """Name the fastest of several models that was not shown to be worse than the best one on your tasks.

    With `train`, name the start to train: a study trains every model with the same recipe and seeds, and compares them
    after training, beside what they were before.

    With an output NAME.json, evaluations are kept in the folder NAME.evaluations beside it, and a later call reads
    those whose model and task have not changed.

    Args:
        models (`Sequence[str | Encoder]`): At least two: folders or hub names of models, bm25 for keyword search,
            result files (.json) of `simcse-hf evaluate`; in Python also loaded models.
        resamples (`int`, *optional*, defaults to `1000`): Bootstrap resamples.
        confidence (`float`, *optional*, defaults to `0.95`): Level of the intervals.
        output (`str` or `os.PathLike`, *optional*): JSON file of the comparison; the folder of the study, with
            `train`.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        train (`str` or `os.PathLike`, *optional*): A recipe: a YAML file of arguments of `simcse-hf train`, with the
            command unsup or sup. Train each model with it first.
        seeds (`int`, *optional*, defaults to `3`): Runs of each model, with `train`.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a bar while texts are encoded.
        **options (`EvaluationOptions`): What models are scored on, how, and how they are loaded.

    Returns:
        [`Comparison`] or [`Study`]: The comparison with the best model, and the `choice`; with `train`, the study.
        With several processes, only the first one scores the models and returns it.

    Raises:
        SettingError: If there are fewer than two models, nothing to evaluate them on, or an option that a study does
            not have.
        FileNotFoundError: If a file does not exist.

    Examples:
        >>> from simcse_hf import SimCSE, which_model
        >>> other = SimCSE("outputs/my-model", pooler_type="max")
        >>> other.name_or_path = "max"
        >>> comparison = which_model(["outputs/my-model", other], task=["classification=tickets.csv"])
        >>> comparison.choice in ("outputs/my-model", "max")
        True
    """
    if train is not None:
        if resamples != 1000 or overwrite:
            raise SettingError("with train, leave out resamples and overwrite: a study keeps its runs, and goes on")
        return study_starts(models, train, seeds, output, confidence, show_progress_bar, options)
    if seeds != 3:
        raise SettingError(f"seeds is {seeds} and nothing is trained: name a recipe with train, or leave out seeds")
    folder = Path(output).expanduser().with_suffix(".evaluations") if output else None

    def score(encoder: TextEncoder | BM25, data: Mapping[str, Task], protocol: Protocol) -> Evaluation:
        identity = encoder.identity()
        if folder is None or not identity.tokenizer:  # that of a foreign encoder says nothing of its tokenizer
            return score_model(encoder, data, protocol, show_progress_bar)
        # What changes a score, or its cost.
        model = replace(identity, name_or_path=None, revision=None)
        made_by = [model, versions(), options.get("device"), torch.get_num_threads()]
        files = kept_files(folder, data, protocol, *made_by)
        return replace(score_missing(files, lambda: encoder, data, protocol, show_progress_bar), identity=identity)

    return compare_models(models, score, options, resamples, confidence, output, overwrite, choose=True)


def study_starts(
    models: Sequence[str | Encoder],
    recipe: StrPath,
    seeds: int,
    output: StrPath | None,
    confidence: float,
    show_progress_bar: bool,
    options: EvaluationOptions,
) -> Study:
    """Train each model with the same recipe, and compare them before and after it; see [`which_model`]."""
    given: dict[str, Any] = dict(options)
    test = [word for name in ("tasks", "pairs", "task") for word in as_list(given.pop(name, ()))]
    where = {name: given.pop(name) for name in ("data_dir", "label_separator") if name in given}
    if given:
        raise SettingError(f"with train, leave out {', '.join(given)}: name tasks, pairs or task, and their data_dir")
    ways = {
        str(model): {"model_name_or_path": str(model)} for model in models if isinstance(model, (str, os.PathLike))
    }
    if len(ways) < max(2, len(models)):
        raise SettingError(
            "with train, give at least two folders or hub names of models: each is trained from its files"
        )
    found = {"base": read_yaml(recipe), "ways": ways}
    result = study(
        found,
        seeds=seeds,
        test=test,
        output=output,
        confidence=confidence,
        show_progress_bar=show_progress_bar,
        **where,
    )
    assert isinstance(result, Study)  # and no plan
    return result
