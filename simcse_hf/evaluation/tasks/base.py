"""What every task can do: score embeddings, split into two tasks, and compare two systems."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from ...data.columns import check_text
from ...data.scored_pairs import connected_groups
from ...data.table import SUFFIX, Table
from ...runtime.encoders import Encoder, Role
from ...runtime.errors import DataError, SettingError
from ...runtime.identity import mark
from ..bm25 import BM25
from ..bootstrap import Arrays, Parts, check_interval, divide_groups
from ..embeddings import SentenceEmbeddings, embed_all
from ..protocol import PAPER_PROTOCOL, Protocol
from ..verdict import Scored, Seed, differences, make_samples

#: What tasks that need no vectors are scored by: embeddings, or the words of their texts (keyword search).
Ranker = SentenceEmbeddings | BM25


@dataclass
class TaskResult:
    """The scores of a task, and what the paired bootstrap needs.

    Args:
        metrics (`dict[str, float]`): The metrics by name, times 100, the headline first.
        scores (`dict[str, dict[str, numpy.ndarray]]`): For each subset or split that counts, by the name of the kind
            if there is none, one value for each scored unit: what [`resampled_scores`] resamples, `gold` and `group`;
            for a task from a user's own files also `unit`, a fingerprint of the unit's texts and labels.
        details (`dict`, *optional*): The protocol and the counts, for the JSON document.
    """

    metrics: dict[str, float]
    scores: Parts
    details: dict = field(default_factory=dict)


@dataclass(eq=False)
class Task(ABC):
    """Something that embeddings are scored by: texts, and what is known of them.

    A subclass is all that a new task needs, beside its entry in `KINDS`. It says what it scores ([`score`]), how its
    file is read ([`read`]), and by its attributes how reports and cards treat it. What is resampled for an interval,
    the arrays of a result say by their names, see [`resampled_scores`].

    Args:
        source (`str`): The file or folder, for messages and results.
        name (`str`): Short name, which tells it from another task of its kind.
        units (`list`): What is scored: rows of a table, pairs or queries.
        shared (`Any`, *optional*): What both parts of a split need, such as training rows or a corpus.
        protocol (`Protocol`, *optional*): The splits, the correlation and the classifier, where there is a choice.

    Attributes:
        kind (`str`): Kind of task, which is also its name in results.
        metrics (`tuple[str, ...]`): Names of the metrics, the headline first.
        unit (`str`): What a unit is called in messages.
        needs_vectors (`bool`): Whether keyword search cannot do it.
        average (`str`): The average of results that it enters, if it enters one.
        hub_type (`str`): The hub's word for such tasks.
        order (`int`): Texts of tasks with a lower one are encoded first; the last bits of embeddings depend on it.
        roles (`Mapping[Role, list[str]]`): The texts, by what they are to a model: retrieval and reranking tell
            queries from documents.
        links (`list[Sequence[str]]`): The texts of each unit that must not be in both parts of a split.
    """

    kind: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str] = "row"
    needs_vectors: ClassVar[bool] = True
    average: ClassVar[str] = ""
    hub_type: ClassVar[str] = "text-classification"
    order: ClassVar[int] = 2

    source: str = field(repr=False)  # `repr` tells tasks apart by their content
    name: str = field(repr=False)
    units: list
    shared: Any = None
    protocol: Protocol = PAPER_PROTOCOL

    @abstractmethod
    def __post_init__(self) -> None:
        """Check the units, and set `roles` and `links`."""
        self.roles: Mapping[Role, list[str]]
        self.links: list[Sequence[str]]

    @classmethod
    def read(cls, path: Path | Table, label_separator: str | None) -> "Task":
        """Read a task from a file, a folder or a table; see [`read_task`]."""
        raise NotImplementedError(f"{cls.__name__} is not read from a file")

    def __len__(self) -> int:
        return len(self.units)

    @property
    def metric(self) -> str:
        """Name of the headline metric."""
        return self.metrics[0]

    @property
    def texts(self) -> list[str]:
        """The distinct texts whose embeddings the task needs."""
        return list(dict.fromkeys(chain.from_iterable(self.roles.values())))

    @abstractmethod
    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Score the embeddings of `texts`, which are not normalized.

        Args:
            embeddings (`SentenceEmbeddings`): Those of the texts in `roles`, which they also compare.

        Returns:
            [`TaskResult`]: The metrics and the values that are resampled.
        """

    def evaluate(self, model: Encoder | Callable, similarity: str = "cosine") -> TaskResult:
        """Encode the texts of the task once, and score their embeddings.

        Args:
            model (`Encoder` or `Callable`): A model; or a function that takes a list of texts, to which no prompt is
                added, and returns an array or tensor of shape `(n, dim)`.
            similarity (`str`, *optional*, defaults to `"cosine"`): How embeddings of a function are compared.

        Returns:
            [`TaskResult`]: The metrics and the values that are resampled.

        Raises:
            ValueError: If the embeddings have a wrong shape, are not finite, or are all the same.
        """
        if not hasattr(model, "encode"):
            model = SimpleNamespace(encode=model, similarity_fn_name=similarity)
        return self.score(embed_all(model, self.roles))

    def split(self, share: float, seed: int = 0) -> tuple:
        """Split the scored units into two tasks, for example to choose a model on one and to judge it on the other.

        Units that share a text are never separated. What both parts need, such as the corpus of a retrieval task or
        the training rows of a probe, is in both.

        Args:
            share (`float`): Share of the units in the first part, between 0 and 1. It is met as closely as the
                groups of units that belong together allow.
            seed (`int`, *optional*, defaults to `0`): Seed of the split.

        Returns:
            `tuple[Task, Task]`: The two parts, each with its units in the order of this task.

        Raises:
            SettingError: If `share` is out of range.
            DataError: If a part would be too small to be scored.
        """
        if not 0 < share < 1:
            raise SettingError(f"share must lie between 0 and 1, got {share}.")
        first = self._divide(share, seed)
        if first.all() or not first.any():
            raise DataError(
                f"{self.source}: {len(self)} {self.unit}(s) cannot be split into two parts that share no text. Give "
                "two files instead, or more data."
            )
        parts = []
        for number, chosen in enumerate((first, ~first), start=1):
            units = list(compress(self.units, chosen))
            parts.append(replace(self, source=f"{self.source}, part {number}", units=units))
        return tuple(parts)

    def _divide(self, share: float, seed: int) -> ndarray:
        """Return which units belong to the first part, as booleans of shape `(len(self),)`."""
        return divide_groups(connected_groups(self.links), share, seed, self.source)

    def _result(self, metrics: dict, scores: Arrays, marks: Iterable, **details: object) -> TaskResult:
        """Return a result with a 32-bit fingerprint of each unit, by which a comparison recognises the same data.

        The `marks` of a unit are its texts and labels. Where there are no `gold` labels, the fingerprints stand for
        them.
        """
        unit = np.array([mark(each) for each in marks], dtype=np.uint32)
        scores = {"gold": unit, "unit": unit, **scores, "group": connected_groups(self.links)}
        return TaskResult(metrics, {self.kind: scores}, {"examples": len(self), **details})

    def document(self, result: TaskResult) -> dict:
        """Return the entry of a result in the JSON document of an evaluation."""
        return {
            "kind": self.kind,
            "name": self.name,
            "metrics": list(result.metrics),
            **result.metrics,
            "source": self.source,
            **result.details,
        }


def headline(document: Mapping[str, Any], protocol: Protocol) -> float | None:
    """Return the score of a task's entry in a result file, times 100, or `None` if there is none."""
    if "missing" in document:
        return None
    if "kind" in document:  # of a user's own file
        return document[document["metrics"][0]]
    if "dev_accuracy" in document:
        return document["dev_accuracy" if protocol.mode == "dev" else "accuracy"]
    if "splits" in document:
        document = document["splits"][protocol.split]
    elif "aggregate" in document:  # without known subsets, an aggregation has no value
        document = document["aggregate"][protocol.aggregation]
    return document[protocol.metric]


def roles_of(tasks: Mapping[str, Task]) -> dict[Any, list[str]]:
    """Return the texts of tasks, which may repeat, by what they are to a model."""
    found: dict[Any, list[str]] = {}
    for task in sorted(tasks.values(), key=lambda task: task.order):
        for role, texts in task.roles.items():
            found.setdefault(role, []).extend(texts)
    return found


def paired_interval(
    task: Task,
    before: list,
    after: list,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> tuple:
    """Compare two systems on the same resamples of the scored units (a paired percentile bootstrap).

    A system that was trained with several seeds has a result for each of them, and its score is the mean over them.
    The interval says what another draw of rows or queries could have shown and, for such a system, what other seeds
    could have shown: two of them are compared seed by seed (see [`differences`]).

    Args:
        task (`Task`): The task that gave the results.
        before (`list[TaskResult]`): Results of the first system, one for each seed.
        after (`list[TaskResult]`): Results of the second system, one for each seed, in the same order.
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.
        confidence (`float`, *optional*, defaults to `0.95`): Confidence level.

    Returns:
        `tuple[float, float, float]`: The difference of the headline metric (after minus before, times 100), and the
        two ends of its interval.

    Raises:
        SettingError: If a list is empty, both have several results but not as many, or a setting is out of range.
        DataError: If the results are not those of the same units.

    Examples:
        >>> from simcse_hf import SimCSE, paired_interval, read_task
        >>> task = read_task("classification", "tickets.csv")
        >>> result = task.evaluate(SimCSE("outputs/my-model", device="cpu"))
        >>> difference, low, high = paired_interval(task, [result], [result], resamples=100)
        >>> difference, low < 0 < high
        (0.0, True)
    """
    check_interval(confidence, resamples)
    if not before or not after:
        raise SettingError("a comparison needs at least one result of each system.")
    if len(before) != len(after) and min(len(before), len(after)) > 1:
        raise SettingError(
            f"one system has {len(before)} results and the other {len(after)}: give results of the same seeds, in "
            "their order, or a single result of a system that is not trained."
        )
    scores: dict[str, dict[Seed, Scored]] = {}
    for name, results in (("before", before), ("after", after)):
        scored = [Scored(result.metrics[task.metric], result.scores) for result in results]
        scores[name] = dict(enumerate(scored)) if len(scored) > 1 else {None: scored[0]}
    samples = make_samples(scores, task.source, task.protocol, resamples, np.random.default_rng(0))
    [found] = differences(samples, [("after", "before")], confidence).values()
    return found.value, found.low, found.high


def checked_text(value: object, where: str) -> str:
    """Return a text without the white space around it, or raise a `ValueError` that says where it is missing."""
    text = check_text(value, where).strip()
    if not text:
        raise DataError(f"{where}: the text is empty. Fill or remove the row.")
    return text


def file_of(folder: Path, stem: str, refusal: str = "") -> Any:
    """Return the table `stem.*` in a folder, such as `train.csv`, or `None`.

    Args:
        folder (`Path`): The folder.
        stem (`str`): The file's name without its extension.
        refusal (`str`, *optional*): The error if there is no such file; by default there is none.

    Returns:
        `Path`, *optional*: The file.

    Raises:
        DataError: If there are several, or none and a `refusal`.
    """
    files = [path for path in sorted(folder.glob(f"{stem}.*")) if SUFFIX.sub("", path.name) == stem]
    if len(files) > 1:
        raise DataError(f"{folder}: both {files[0].name} and {files[1].name} are there. Keep one of them.")
    if refusal and not files:
        raise DataError(f"{folder}: {refusal}")
    return files[0] if files else None


def short_name(path: Path | Table) -> str:
    """Return the name of a file without its extension, or the name of a folder or of rows in memory."""
    if isinstance(path, Table):
        return path.name
    return SUFFIX.sub("", path.name) or path.resolve().name
