"""Say what would fit where the memory of a device does not suffice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class FullMemoryError(torch.OutOfMemoryError):
    """The memory of a device does not suffice. The message says for what, and what would fit."""

    exit_status = 1  # of the command line


@contextmanager
def explain_full_memory(describe: Callable[[], str]) -> Iterator[None]:
    """Add what would fit to an error of a full memory; other errors pass through.

    Args:
        describe (`Callable`): Says what does not fit, and what to do.

    Raises:
        FullMemoryError: In place of the error, which is its cause.
    """
    try:
        yield
    except Exception as error:
        from accelerate.utils.memory import should_reduce_batch_size  # knows the messages of all devices

        is_full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or should_reduce_batch_size(error)
        if isinstance(error, FullMemoryError) or not is_full:
            raise
        first = str(error).partition("\n")[0] or type(error).__name__
        raise FullMemoryError(f"{describe()} ({first})") from error
