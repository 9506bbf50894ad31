"""The choices besides model and data that a score depends on."""

from dataclasses import dataclass
from typing import get_args

from ..names import AGGREGATIONS, MODES, Aggregation, Correlation, Mode
from ..runtime.errors import check_values
from .classifier import SEED


@dataclass(frozen=True)
class Protocol:
    """The choices besides model and data that a score depends on (SimCSE, appendix B).

    Args:
        mode (`str`, *optional*, defaults to `"test"`): `"test"`; `"dev"` (dev splits, and dev accuracy for transfer
            tasks); or `"fasttest"` (test splits, and the reference's fast settings for transfer tasks).
        aggregation (`str`, *optional*, defaults to `"all"`): How the subsets of STS12 to STS16 give one score:
            `"all"`, `"mean"` or `"wmean"`.
        metric (`str`, *optional*, defaults to `"spearman"`): `"spearman"` or `"pearson"`.
        seed (`int`, *optional*, defaults to `1111`): Seed of the classifiers.

    Raises:
        ValueError: If a value is unknown. The message names the argument.
    """

    mode: Mode = "test"
    aggregation: Aggregation = "all"
    metric: Correlation = "spearman"
    seed: int = SEED

    def __post_init__(self) -> None:
        check_values(MODES, mode=self.mode)
        check_values(AGGREGATIONS, aggregation=self.aggregation)
        check_values(get_args(Correlation), metric=self.metric)

    @property
    def split(self) -> str:
        """The split that is scored: `"dev"` or `"test"`."""
        return "dev" if self.mode == "dev" else "test"


PAPER_PROTOCOL = Protocol()
