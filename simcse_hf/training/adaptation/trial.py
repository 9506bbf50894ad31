"""The models that a search has measured on dev, and the choice among them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .plan import Candidate, Stage
from .variants import Variant

START = "start"
#: Points on dev that do not outweigh a simpler model. Dev parts of at most 2,000 rows cannot tell differences as small
#: as this apart, and without the rule a whitening's gain would be put down to a training run that adds 0.1 by chance.
TIE_MARGIN = 0.25


@dataclass(frozen=True)
class Trial:
    """A model that the search has measured on dev.

    Args:
        name (`str`): `"start"`, `"untrained"`, or the stages of the candidate.
        round (`str`): `"start"`, `"untrained"`, `"short"`, `"long"` or `"seed"`.
        variant (`str`): Pooler and whitening of the figures below, the best of those that were tried.
        dev (`dict[str, float]`): Headline metric of the first task, x 100, by its name; empty for a run that failed.
        seconds (`float`): Time for training and scoring.
        variants (`dict[str, float]`): Headline metric of the first task for every variant that was tried.
        steps (`list[int]`): Steps of each stage.
        stages (`list[dict]`): Method and learning rate of each stage.
        seed (`int`, *optional*): Seed of the training.
        failure (`str`): Why the run failed; empty if it did not.
    """

    name: str
    round: str
    variant: str
    dev: dict[str, float]
    seconds: float
    variants: dict[str, float] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    seed: int | None = None
    failure: str = ""

    @property
    def candidate(self) -> Candidate:
        """The stages of training."""
        return tuple(Stage(**stage) for stage in self.stages)

    @property
    def headline(self) -> float:
        """The metric of the first task, by which models are chosen."""
        return next(iter(self.dev.values()), float("-inf"))

    def each_variant(self) -> "list[Trial]":
        """Return the trial once for every variant that was tried, with the figures of that variant."""
        return [
            replace(self, variant=variant, dev=dict.fromkeys(self.dev, value))
            for variant, value in self.variants.items()
        ]


def contenders(trials: Sequence[Trial]) -> list[Trial]:
    """List the models that a search may still choose, the simplest first, which it chooses if it ends now.

    Of two models whose dev figures differ by at most `TIE_MARGIN`, the simpler one is chosen: the start model before
    any other, no training before training, no whitening before whitening, and then fewer stages and fewer steps. With
    80.0 for a whitening, 80.2 for 100 steps of SimCSE and 80.1 for 500, the whitening is chosen. The 100 steps stay a
    contender, because after a further run with 80.4 they would be chosen; the 500 steps cannot be chosen any more.

    Args:
        trials (`Sequence[Trial]`): What was measured. Further seeds of a run are left out.

    Returns:
        `list[Trial]`: Models within `TIE_MARGIN` of the best, each better on dev than all simpler ones.
    """
    measured = [option for trial in trials if trial.round != "seed" for option in trial.each_variant()]
    better: list[Trial] = []
    for option in sorted(measured, key=_complexity):
        if not better or option.headline > better[-1].headline:
            better.append(option)
    return [option for option in better if option.headline >= better[-1].headline - TIE_MARGIN]


def _complexity(trial: Trial) -> tuple[bool, bool, bool, int, int, float]:
    whitens = Variant.parse(trial.variant).whitening
    effort = (len(trial.stages), sum(trial.steps))
    return trial.round != START, bool(trial.stages), whitens, *effort, -trial.headline
