"""Freed memory stays with the process on a CPU."""

from functools import cache

import torch

_LARGEST = (32 << 20) - (1 << 16)  # bytes; glibc minds blocks of up to 32 MB


@cache
def keep_freed_memory() -> None:
    """Takes and frees one large block, once a process, before many of a few megabytes come and go.

    glibc gives a large block back to the system when it is freed, and the next one is taken anew and filled with zeros
    page by page: a tenth of the time of encoding in bfloat16. What counts as large starts at 128 KB and rises to the
    largest block that was ever freed, up to 32 MB (mallopt(3), M_MMAP_THRESHOLD). The block is never written to, so it
    takes up no memory; other allocators are not affected.
    """
    torch.empty(_LARGEST, dtype=torch.uint8)
