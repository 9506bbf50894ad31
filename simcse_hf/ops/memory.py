"""Keep freed memory within the process on a CPU."""

from functools import cache

import torch

_LARGEST_BLOCK = (32 << 20) - (1 << 16)  # bytes; glibc's threshold rises to 32 MB at most


@cache
def keep_freed_memory() -> None:
    """Allocate and free one large block, so that glibc keeps later blocks of a few megabytes for reuse.

    glibc returns a large block to the system when it is freed; the next one is requested anew, and the kernel fills it
    with zeros page by page. This takes a tenth of the time of encoding in bfloat16. A block counts as large from
    128 KB at first, and later from the size of the largest block that was ever freed, up to 32 MB (see
    `M_MMAP_THRESHOLD` in mallopt(3)). The block is never written to and so takes up no memory. Other allocators are
    not affected.
    """
    torch.empty(_LARGEST_BLOCK, dtype=torch.uint8)
