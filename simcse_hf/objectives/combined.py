"""The base class of objectives that are made of several."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from .base import Objective, TrainingRows
from .encoder import Encoder


class Combined(Objective):
    """Base class of objectives that are made of several, its `objectives`, which read the same batches.

    What it says about itself follows from them. It needs what any of them needs, works with GradCache if all do, and
    has the rows of the first one. The subclass registers them as modules.

    Args:
        dim (`int`): Embedding size.
        objectives (`Iterable[Objective]`): The objectives, without repetition.
    """

    def __init__(self, dim: int, objectives: Iterable[Objective]):
        super().__init__(dim)
        self.objectives: tuple[Any, ...] = tuple(objectives)
        self.name = ", ".join(dict.fromkeys(self._of_parts("name")))
        self.summary = self.objectives[0].summary
        self.rows = self.objectives[0].rows
        self.reconstructs = self.objectives[0].reconstructs
        self.papers = tuple(dict.fromkeys(chain(*self._of_parts("papers"))))
        self.vectors = tuple(dict.fromkeys(chain(*self._of_parts("vectors"))))
        self.encoders = max(self._of_parts("encoders"))
        self.num_views = max(self._of_parts("num_views"))
        self._follow_parts()

    def _of_parts(self, attribute: str) -> list[Any]:
        return [getattr(part, attribute) for part in self.objectives]

    def _follow_parts(self) -> None:
        """Take over what may change when the parts are attached to a model."""
        self.supports_gradcache = all(self._of_parts("supports_gradcache"))
        self.needs_hidden_states = any(self._of_parts("needs_hidden_states"))
        self.needs_text_ids = any(self._of_parts("needs_text_ids"))

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
