"""An evaluation from data to results: read the tasks, encode their texts once, score them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

from .classifier import SEED
from .geometry import alignment, isotropy, singular_spectrum, uniformity
from .pairs import ScoredPairs
from .regressor import score_regressor
from .report import add_averages
from .sts import AGGREGATIONS, METRICS, correlations, predict_similarities, score_splits, score_subsets
from .sts_data import HUB, read_sts_task
from .tasks import STS_SUBSETS, STS_TASKS, TaskNotFound, check_tasks, default_tasks, headline_split
from .transfer import score_transfer_task
from .transfer_data import LabelledTexts, read_transfer_task
from .vectors import SentenceVectors

logger = logging.get_logger(__name__)

ALIGNMENT_ABOVE = 4.0  # gold score of the STS-B pairs that count as positive (paper, footnote 3)
ALL_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Protocol:
    """What decides a figure besides model and data (paper, appendix B).

    Args:
        mode (`str`, *optional*, defaults to `"test"`): `test`; `dev` (dev splits, and dev accuracy for transfer);
            or `fasttest` (test splits, transfer with the reference's fast settings).
        aggregation (`str`, *optional*, defaults to `"all"`): How the subsets of STS12 to STS16 make one figure: `all`,
            `mean` or `wmean`.
        metric (`str`, *optional*, defaults to `"spearman"`): `spearman` or `pearson`.
        regressor (`bool`, *optional*, defaults to `False`): Whether STS-B and SICK-R are scored by SentEval's trained
            regressor in place of the cosine.
        seed (`int`, *optional*, defaults to 1111): Seed of the classifiers and the regressor.

    Raises:
        ValueError: Naming the argument, for an unknown value.
    """

    mode: str = "test"
    aggregation: str = "all"
    metric: str = "spearman"
    regressor: bool = False
    seed: int = SEED

    def __post_init__(self):
        check_tasks((), self.mode)
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation {self.aggregation!r} is not one of {', '.join(AGGREGATIONS)}.")
        if self.metric not in METRICS:
            raise ValueError(f"metric {self.metric!r} is not one of {', '.join(METRICS)}.")


PAPER_PROTOCOL = Protocol()


@dataclass
class TaskData:
    """The data of the tasks of one evaluation; `missing` gives the reason for each task whose data is not there."""

    sts: dict[str, dict[str, ScoredPairs]] = field(default_factory=dict)
    transfer: dict[str, dict[str, LabelledTexts]] = field(default_factory=dict)
    pairs: dict[str, ScoredPairs] = field(default_factory=dict)
    geometry: dict[str, ScoredPairs] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """All texts of all tasks, repeated where they repeat."""
        every = chain(*(parts.values() for parts in self.sts.values()), self.pairs.values(), self.geometry.values())
        for pairs in every:
            yield from pairs.sentences1
            yield from pairs.sentences2
        for splits in self.transfer.values():
            for examples in splits.values():
                yield from examples.texts
                yield from examples.texts2 or ()


@dataclass
class Evaluation:
    """Results, and what a paired comparison with another model's needs.

    Args:
        results (`dict`): By task name as `docs/evaluation.md` lists it, and `average`.
        scores (`dict`): By task, then part (subset or split): arrays `predicted` and `gold` of shape `(n,)`, for a
            transfer task `correct` and `gold`, in the same order for every model.
    """

    results: dict
    scores: dict[str, dict[str, dict[str, np.ndarray]]]


def read_tasks(
    tasks: tuple[str, ...],
    data_dir: str | Path | None,
    protocol: Protocol = PAPER_PROTOCOL,
    pairs: tuple[ScoredPairs, ...] = (),
    geometry: bool = False,
) -> TaskData:
    """Reads the data of the tasks.

    Args:
        tasks (`tuple[str]`): Names of tasks.
        data_dir (`str` or `Path`, *optional*): SentEval's `downstream` folder, or for the STS tasks another source
            that `read_sts_task` takes. Needed if there are tasks.
        protocol ([`Protocol`], *optional*): Its mode and regressor decide which splits are read.
        pairs (`tuple[ScoredPairs]`, *optional*): Further sets of pairs, each a task of its own name.
        geometry (`bool`, *optional*, defaults to `False`): Whether to read all of STS-B for the geometry.

    Raises:
        FileNotFoundError: If `data_dir` does not exist, or a task's folder is there but incomplete.
        ValueError: For unknown tasks, malformed data, and a `data_dir` that holds none of the tasks.
    """
    check_tasks(tasks, protocol.mode)
    if data_dir is None and (tasks or geometry):
        raise ValueError("the tasks need data_dir, SentEval's `downstream` folder.")
    if data_dir is not None and data_dir != HUB and not Path(data_dir).is_dir():
        raise FileNotFoundError(f"data_dir {data_dir} does not exist; it is SentEval's `downstream` folder.")
    data = TaskData()
    for task in tasks:
        try:
            if task not in STS_TASKS:
                if data_dir == HUB:
                    raise TaskNotFound("transfer tasks are read from SentEval's folders only")
                data.transfer[task] = read_transfer_task(task, data_dir)
            elif task in STS_SUBSETS and protocol.mode == "dev":
                raise TaskNotFound("the task has no dev split")
            else:
                data.sts[task] = read_sts_task(task, data_dir, _splits_of(task, protocol))
        except TaskNotFound as error:
            data.missing[task] = str(error)
    if tasks and len(data.missing) == len(tasks):
        first = next(iter(data.missing))
        raise ValueError(
            f"data_dir {data_dir} has none of the tasks {', '.join(tasks)} ({first}: {data.missing[first]}); it is "
            "SentEval's `downstream` folder."
        )
    for task, reason in data.missing.items():
        logger.warning(f"{task} is not evaluated: {reason}.")
    for extra in pairs:
        if extra.name in data.pairs or extra.name in tasks:
            raise ValueError(f"two sets of pairs are named {extra.name}; rename one of the files.")
        data.pairs[extra.name] = extra
    if geometry:
        try:
            data.geometry = read_sts_task("STSBenchmark", data_dir, ALL_SPLITS)
        except TaskNotFound as error:
            raise FileNotFoundError(f"the geometry is measured on STS-B: {error}.") from error
    return data


def _splits_of(task: str, protocol: Protocol) -> tuple[str, ...]:
    if protocol.regressor and task not in STS_SUBSETS:
        return ("test", "dev", "train")
    return ("dev",) if protocol.mode == "dev" else ("test", "dev")


def score_tasks(
    data: TaskData,
    vectors: SentenceVectors,
    tasks: tuple[str, ...],
    protocol: Protocol = PAPER_PROTOCOL,
    device: str | None = None,
) -> Evaluation:
    """Scores the tasks that `data` holds with the vectors of its texts.

    Args:
        data ([`TaskData`]): What `read_tasks` returned.
        vectors ([`SentenceVectors`]): Vectors of `data.texts()`.
        tasks (`tuple[str]`): The tasks asked for, in the order of the results.
        protocol ([`Protocol`], *optional*): How to score.
        device (`str`, *optional*): Where to train classifiers; a GPU where there is one.

    Raises:
        ValueError: Naming task and part, for similarities or gold scores that are constant.
    """
    results, scores = {}, {}
    for task in tasks:
        if task in data.missing:
            results[task] = {"missing": data.missing[task]}
        elif task in data.sts:
            results[task], scores[task] = _score_sts(task, data.sts[task], vectors, protocol, device)
        else:
            results[task], score = score_transfer_task(
                task, data.transfer[task], vectors, protocol.mode, device, protocol.seed
            )
            scores[task] = {task: {"correct": score.correct, "gold": score.labels}}
    for name, pairs in data.pairs.items():
        predicted, gold = predict_similarities(vectors, pairs), np.asarray(pairs.scores)
        results[name] = correlations(predicted, gold, name)
        scores[name] = {"pairs": {"predicted": predicted, "gold": gold}}
    if data.geometry:
        results["geometry"] = _geometry(data.geometry, vectors)
    add_averages(results, tuple(tasks) + tuple(data.pairs), protocol.mode, protocol.aggregation, protocol.metric)
    return Evaluation(results, scores)


def _score_sts(task, parts: dict[str, ScoredPairs], vectors, protocol: Protocol, device) -> tuple[dict, dict]:
    predicted = {part: predict_similarities(vectors, pairs) for part, pairs in parts.items()}
    gold = {part: np.asarray(pairs.scores) for part, pairs in parts.items()}
    if task in STS_SUBSETS:
        return score_subsets(task, predicted, gold), {
            part: {"predicted": predicted[part], "gold": gold[part]} for part in parts
        }
    result = score_splits(task, predicted, gold)
    split = headline_split(protocol.mode)
    scores = {"predicted": predicted[split], "gold": gold[split]}
    if protocol.regressor:
        result["regressor"], regressed = score_regressor(task, parts, vectors, device, protocol.seed)
        scores = regressed[split]
    return result, {split: scores}


def _geometry(splits: dict[str, ScoredPairs], vectors: SentenceVectors) -> dict:
    """Alignment of the STS-B pairs scored above 4, the rest over all distinct STS-B sentences (paper, footnote 3)."""
    rows = [
        row for pairs in splits.values() for row in zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
    ]
    positives = [(first, second) for first, second, score in rows if score > ALIGNMENT_ABOVE]
    sentences = list(dict.fromkeys(text for first, second, _ in rows for text in (first, second)))
    x = torch.from_numpy(vectors(sentences))
    return {
        "alignment": alignment(*(torch.from_numpy(vectors(list(side))) for side in zip(*positives, strict=True))),
        "uniformity": uniformity(x),
        "isotropy": isotropy(x),
        "singular_spectrum": singular_spectrum(x),
        "positive_pairs": len(positives),
        "sentences": len(sentences),
        "splits": list(splits),
    }


def evaluate_tasks(
    model,
    data_dir: str | Path | None,
    tasks: tuple[str, ...],
    protocol: Protocol = PAPER_PROTOCOL,
    pairs: tuple[ScoredPairs, ...] = (),
    geometry: bool = False,
    device: str | None = None,
) -> Evaluation:
    """Reads the tasks, encodes each distinct text of all of them once, and scores them.

    Args:
        model: An object with `encode(list[str]) -> (n, dim)`.
        data_dir, tasks, protocol, pairs, geometry: As in `read_tasks`.
        device (`str`, *optional*): Where to train classifiers; a GPU where there is one.

    Raises:
        FileNotFoundError, ValueError: As `read_tasks`, `SentenceVectors` and `score_tasks` say.
    """
    data = read_tasks(tasks, data_dir, protocol, pairs, geometry)
    return score_tasks(data, SentenceVectors(model, data.texts()), tasks, protocol, device)


def evaluate_sts(
    model,
    data_dir: str | Path,
    tasks: tuple[str, ...] | None = None,
    mode: str = "test",
    aggregation: str = "all",
    metric: str = "spearman",
    regressor: bool = False,
    device: str | None = None,
) -> dict:
    """Evaluates on the STS tasks by the paper's protocol: cosine similarity, Spearman's correlation, `all`.

    Args:
        model: An object with `encode(list[str]) -> (n, dim)` float array or tensor.
        data_dir (`str` or `Path`): SentEval's `downstream` folder, a folder of plain tables, or `"hub"`.
        tasks (`tuple[str]`, *optional*): Names of tasks; by default the seven of the paper, of which only
            STSBenchmark and SICKRelatedness have the dev split that `mode="dev"` scores.
        mode, aggregation, metric, regressor: See [`Protocol`].
        device (`str`, *optional*): Where to train the regressor; a GPU where there is one.

    Returns:
        `dict`: By task, times 100, and `average`: `results["STS12"]["aggregate"]["all"]["spearman"]`,
        `results["STSBenchmark"]["splits"]["test"]["spearman"]`, `results["average"]["value"]`.

    Raises:
        FileNotFoundError, ValueError: As `evaluate_tasks`.
    """
    protocol = Protocol(mode, aggregation, metric, regressor)
    return evaluate_tasks(model, data_dir, tuple(tasks or default_tasks("sts", mode)), protocol, device=device).results


def evaluate_transfer(
    model,
    data_dir: str | Path,
    tasks: tuple[str, ...] | None = None,
    mode: str = "test",
    device: str | None = None,
    seed: int = SEED,
) -> dict:
    """Evaluates on the transfer tasks by SentEval's protocol: logistic regression on frozen sentence vectors.

    Args:
        model: An object with `encode(list[str]) -> (n, dim)` float array or tensor.
        data_dir (`str` or `Path`): SentEval's `downstream` folder.
        tasks (`tuple[str]`, *optional*): Names of tasks, by default the seven of the paper.
        mode (`str`, *optional*, defaults to `"test"`): See [`Protocol`].
        device (`str`, *optional*): Where to train the classifiers; a GPU where there is one.
        seed (`int`, *optional*, defaults to 1111): Seed of folds, starts and orders.

    Returns:
        `dict`: By task, times 100, and `average`: `results["MR"]["accuracy"]`, `results["average"]["value"]`.

    Raises:
        FileNotFoundError, ValueError: As `evaluate_tasks`.
    """
    protocol = Protocol(mode, seed=seed)
    return evaluate_tasks(
        model, data_dir, tuple(tasks or default_tasks("transfer", mode)), protocol, device=device
    ).results
