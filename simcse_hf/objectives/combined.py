"""The base class of objectives that are made of several."""

from collections.abc import Iterable
from typing import Any

from .base import Objective, TrainingRows
from .encoder import Encoder


class Combined(Objective):
    """Base class of objectives that are made of several, its `objectives`, which read the same batches.

    What it says about itself follows from them. It needs what any of them needs, works with GradCache if all do, and
    has the rows, the view and the defaults of the first one. The subclass registers them as modules.

    Args:
        dim (`int`): Embedding size.
        objectives (`Iterable[Objective]`): The objectives, without repetition.
    """

    def __init__(self, dim: int, objectives: Iterable[Objective]):
        super().__init__(dim)
        self.objectives: tuple[Any, ...] = tuple(objectives)
        first = self.objectives[0]
        self.name = ", ".join(_unique(part.name for part in self.objectives))
        self.summary = first.summary
        self.papers = _unique(paper for part in self.objectives for paper in part.papers)
        self.defaults = first.defaults
        self.rows = first.rows
        self.view = first.view
        self.reconstructs = first.reconstructs
        self.vectors = _unique(kind for part in self.objectives for kind in part.vectors)
        self.supports_matryoshka = all(part.supports_matryoshka for part in self.objectives)
        self.encoders = max(part.encoders for part in self.objectives)
        self.num_views = max(part.num_views for part in self.objectives)
        self._follow_parts()

    def _follow_parts(self) -> None:
        """Take over what may change when the parts are attached to a model."""
        self.supports_gradcache = all(part.supports_gradcache for part in self.objectives)
        self.needs_hidden_states = any(part.needs_hidden_states for part in self.objectives)
        self.needs_text_ids = any(part.needs_text_ids for part in self.objectives)

    def attach(self, model: Encoder) -> None:
        """Attach every part; see [`Objective.attach`]."""
        for part in self.objectives:
            part.attach(model)
        self._follow_parts()

    def check(self, rows: TrainingRows) -> None:
        """Check the training data as every part does; see [`Objective.check`]."""
        for part in self.objectives:
            part.check(rows)

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Mask the columns that a part masks; see [`Objective.mlm_columns`]."""
        for part in self.objectives:
            columns = part.mlm_columns(num_sentences)
            if columns is not None:
                return columns
        return None


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
