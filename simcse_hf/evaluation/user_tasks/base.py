"""What every task from a user's own files can do: list its texts, score their embeddings, and split into two tasks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Self
from zlib import crc32

import numpy as np

from ..embeddings import SentenceEmbeddings

Encode = Callable[[list[str]], Any]


@dataclass
class TaskResult:
    """The figures of a task, and what the paired bootstrap needs.

    Args:
        metrics (`dict[str, float]`): The metrics by name, times 100.
        scores (`dict[str, numpy.ndarray]`): One value for each scored unit, in the order of the task: `gold`, `unit`
            (a fingerprint of the unit's texts and labels), and what [`resampled_figures`] resamples.
        details (`dict[str, Any]`, *optional*): The protocol and the counts, for the JSON document.
    """

    metrics: dict[str, float]
    scores: dict[str, np.ndarray]
    details: dict[str, Any] = field(default_factory=dict)


class UserTask(ABC):
    """A task from a user's own files.

    What is scored are its units: rows of a table, or queries.

    Args:
        source (`str`): The file or folder, for messages and results.
        name (`str`): Short name, which tells it from another task of its kind.

    Attributes:
        kind (`str`): Kind of task, a name in `KINDS`.
        metric (`str`): Name of the headline metric.
        texts (`list[str]`): The distinct texts whose embeddings the task needs.
    """

    kind: ClassVar[str]
    metric: ClassVar[str]
    #: What a unit is called in messages.
    unit: ClassVar[str] = "row"

    def __init__(self, source: str, name: str):
        self.source = source
        self.name = name
        self.texts: list[str] = []

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of scored units."""

    @abstractmethod
    def score(self, embeddings: np.ndarray) -> TaskResult:
        """Score the embeddings of `texts`.

        Args:
            embeddings (`numpy.ndarray`): Of shape `(len(texts), dim)`, not normalised.

        Returns:
            [`TaskResult`]: The metrics and the values that are resampled.
        """

    @abstractmethod
    def _divide(self, share: float, seed: int) -> np.ndarray:
        """Return which units belong to the first part, as booleans of shape `(len(self),)`."""

    @abstractmethod
    def _select(self, units: np.ndarray, source: str) -> Self:
        """Return the task with the units of these positions only."""

    def evaluate(self, encode: Encode) -> TaskResult:
        """Encode the texts of the task once, and score their embeddings.

        Args:
            encode (`Callable`): Takes a list of texts and returns an array or tensor of shape `(n, dim)`.

        Returns:
            [`TaskResult`]: The metrics and the values that are resampled.

        Raises:
            ValueError: If the embeddings have a wrong shape, are not finite, or are all the same.
        """
        return self.score(SentenceEmbeddings(SimpleNamespace(encode=encode), self.texts)(self.texts))

    def with_prompts(self, query: str, document: str) -> Self:
        """Return the task with a prompt before each query and each document, as a model was trained with them.

        Only retrieval and reranking tell queries from documents; other tasks are returned as they are.

        Args:
            query (`str`): What stands before each query, `""` for nothing.
            document (`str`): What stands before each document.

        Returns:
            [`UserTask`]: The task.
        """
        return self

    def split(self, share: float, seed: int = 0) -> tuple[Self, Self]:
        """Split the scored units into two tasks, for example to choose a model on one and to judge it on the other.

        Units that share a text are never separated. What both parts need, such as the corpus of a retrieval task or
        the training rows of a probe, is in both.

        Args:
            share (`float`): Share of the units in the first part, between 0 and 1. It is met as closely as the
                groups of units that belong together allow.
            seed (`int`, *optional*, defaults to `0`): Seed of the split.

        Returns:
            `tuple[UserTask, UserTask]`: The two parts, each with its units in the order of this task.

        Raises:
            ValueError: If `share` is out of range, or a part would be too small to be scored.
        """
        if not 0 < share < 1:
            raise ValueError(f"share must lie between 0 and 1, got {share}.")
        first = self._divide(share, seed)
        parts = (np.flatnonzero(first), np.flatnonzero(~first))
        if min(map(len, parts)) == 0:
            raise ValueError(
                f"{self.source}: {len(self)} {self.unit}(s) cannot be split into two parts that share no text. Give "
                "two files instead, or more data."
            )
        one, two = (self._select(units, f"{self.source}, part {n}") for n, units in enumerate(parts, 1))
        return one, two

    def document(self, result: TaskResult) -> dict[str, Any]:
        """Return the entry of a result in the JSON document of an evaluation; its first metric is the headline."""
        return {
            "kind": self.kind,
            "name": self.name,
            "metrics": list(result.metrics),
            **result.metrics,
            "source": self.source,
            **result.details,
        }


class RankingTask(UserTask):
    """A task that ranks documents for queries, each with a prompt of the model before it."""

    query_prompt = document_prompt = ""

    @abstractmethod
    def _list_texts(self) -> None:
        """Set `texts` to the queries and documents with their prompts."""

    def with_prompts(self, query: str, document: str) -> Self:
        """Return the task with these prompts; see [`UserTask.with_prompts`]."""
        prompted = copy(self)
        prompted.query_prompt, prompted.document_prompt = query, document
        prompted._list_texts()
        return prompted

    def _prompts(self) -> dict[str, dict[str, str]]:
        """Return the entry `prompts` of a result's details, or nothing if the task has no prompts."""
        prompts = {"query": self.query_prompt, "document": self.document_prompt}
        return {"prompts": prompts} if any(prompts.values()) else {}


def distinct(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts in order of appearance, and for each text its position among them."""
    rows: dict[str, int] = {}
    positions = np.array([rows.setdefault(text, len(rows)) for text in texts], dtype=np.int64)
    return list(rows), positions


def fingerprints(units: Sequence[Sequence[str]]) -> np.ndarray:
    """Return a 32-bit fingerprint of each unit's texts and labels, by which a comparison recognises the same data."""
    return np.array([crc32("\0".join(unit).encode("utf-8", "surrogatepass")) for unit in units], dtype=np.uint32)


def unit_length(embeddings: np.ndarray) -> np.ndarray:
    """Scale embeddings to length 1; a zero embedding stays zero."""
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(norms > 0, norms, 1)
