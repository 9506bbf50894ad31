"""Rows with different numbers of texts: gathered from all processes, padded to the widest row of any."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.distributed import gather_rows, world

#: The relation of a positive.
POSITIVE = 0
#: The relation of a hard negative.
NEGATIVE = 2
#: The relation where a row has fewer texts than the widest.
ABSENT = -100


def missing_columns(relations: Tensor, over_processes: bool) -> int:
    """Return how many columns the rows of this process lack to be as wide as those of any process.

    Args:
        relations (`torch.Tensor`): Of shape `(n, width)`.
        over_processes (`bool`): With `False`, no other process is asked, and nothing is missing.

    Returns:
        `int`: The number of columns.
    """
    if not over_processes or world()[1] == 1:
        return 0
    width = relations.shape[1]
    return int(gather_rows(torch.tensor([width], device=relations.device)).max()) - width


def gather_columns(texts: Tensor, missing: int, over_processes: bool, value: int = 0) -> Tensor:
    """Gather rows of texts of shape `(n, width, ...)`, with some columns more, which hold a value everywhere."""
    if missing:
        texts = F.pad(texts, (0, 0) * (texts.dim() - 2) + (0, missing), value=value)
    return gather_rows(texts, over_processes)


def gather_ragged(vectors: Tensor, relations: Tensor, over_processes: bool) -> tuple[Tensor, Tensor]:
    """Gather the rows of all processes, padded to the most texts that a row has in any of them.

    Args:
        vectors (`torch.Tensor`): Of shape `(n, width, dim)`.
        relations (`torch.Tensor`): Of shape `(n, width)`.
        over_processes (`bool`): With `False`, return the rows of this process.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The vectors, with zeros where a row has no text, and the relations, with
            -100 there.
    """
    missing = missing_columns(relations, over_processes)
    vectors = gather_columns(vectors, missing, over_processes)
    relations = gather_columns(relations, missing, over_processes, ABSENT)
    return vectors, relations
