"""Which of several models to take on somebody's own tasks; what was evaluated is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
import torch

from ..evaluation.bm25 import BM25
from ..evaluation.compare import Comparison, compare_models
from ..evaluation.protocol import Protocol
from ..evaluation.report import Evaluation, versions, write_results
from ..evaluation.scoring import score_model
from ..evaluation.tasks import Task
from ..names import EvaluationOptions
from ..runtime.distributed import wait_for_all
from ..runtime.encoders import Encoder, TextEncoder
from ..runtime.files import StrPath
from ..runtime.identity import digest_value


def which_model(
    models: Sequence[str | Encoder],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    output: StrPath | None = None,
    overwrite: bool = False,
    show_progress_bar: bool = True,
    **options: Unpack[EvaluationOptions],
) -> Comparison:
    """Name the fastest of several models that was not shown to be worse than the best one on your tasks.

    With an output NAME.json, evaluations are kept in the folder NAME.evaluations beside it, and a later call reads
    those whose model and task have not changed.

    Args:
        models (`Sequence[str | Encoder]`): At least two: folders or hub names of models, bm25 for keyword search,
            result files (.json) of `simcse-hf evaluate`; in Python also loaded models.
        resamples (`int`, *optional*, defaults to `1000`): Bootstrap resamples.
        confidence (`float`, *optional*, defaults to `0.95`): Level of the intervals.
        output (`str` or `os.PathLike`, *optional*): JSON file of the comparison.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a bar while texts are encoded.
        **options (`EvaluationOptions`): What models are scored on, how, and how they are loaded.

    Returns:
        [`Comparison`]: The comparison with the best model, and the `choice`. With several processes, only the first
        one scores the models and returns it.

    Raises:
        ValueError: If there are fewer than two models, or nothing to evaluate them on.
        FileNotFoundError: If a file does not exist.

    Examples:
        >>> from simcse_hf import SimCSE, which_model
        >>> other = SimCSE("outputs/my-model", pooler_type="max")
        >>> other.name_or_path = "max"
        >>> comparison = which_model(["outputs/my-model", other], task=["classification=tickets.csv"])
        >>> comparison.choice in ("outputs/my-model", "max")
        True
    """
    folder = Path(output).expanduser().with_suffix(".evaluations") if output else None

    def score(encoder: TextEncoder | BM25, data: Mapping[str, Task], protocol: Protocol) -> Evaluation:
        if folder is None:
            return score_model(encoder, data, protocol, show_progress_bar)
        # Each task has an evaluation of its own in the folder. It is scored again if its data, the model, the
        # packages, the device or the number of threads have changed; and with an encoder whose identity says nothing
        # of its tokenizer.
        identity = encoder.identity()
        model = replace(identity, name_or_path=None, revision=None)
        made_by = [model, versions(), options.get("device"), torch.get_num_threads()]
        whole = Evaluation({}, {}, protocol, identity)
        costs = []
        for name, each in data.items():
            path = folder / f"{digest_value([name, each, *made_by])}.json"
            if path.exists() and identity.tokenizer:
                evaluation = Evaluation.read(path)
            else:
                evaluation = score_model(encoder, {name: each}, protocol, show_progress_bar)
                if evaluation.results:
                    write_results(path, evaluation.to_dict(), evaluation.scores)
            wait_for_all()  # or one process would see a file that another one has not seen
            whole.results.update(evaluation.results)
            whole.scores.update(evaluation.scores)
            if evaluation.scores:
                costs.append(evaluation.cost)
        cost = {key: float(np.mean([each[key] for each in costs])) for key in evaluation.cost}
        return replace(whole, cost=cost)

    return compare_models(models, score, options, resamples, confidence, output, overwrite, choose=True)
