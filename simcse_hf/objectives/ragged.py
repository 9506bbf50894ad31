"""Relations of the texts of a row to its first one, and rows with different numbers of texts."""

from torch import Tensor

from ..ops.distributed import gather_rows, missing_columns

#: The relation of a positive.
POSITIVE = 0
#: The relation of a hard negative.
NEGATIVE = 2
#: The relation where a row has fewer texts than the widest.
ABSENT = -100


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
    vectors = gather_rows(vectors, over_processes, missing)
    relations = gather_rows(relations, over_processes, missing, ABSENT)
    return vectors, relations
