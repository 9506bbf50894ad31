"""Gather rows and sum values over the processes, with exact gradients, and let the first process work for all."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather, all_reduce

from .errors import SettingError
from .files import StrPath, lock

T = TypeVar("T")


def world() -> tuple[int, int]:
    """Return (rank, number of processes), which is (0, 1) outside a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def on_first_process(function: Callable[[], T]) -> T:
    """Call a function in the first process, and return its result or raise an error in all of them.

    The others wait in a collective operation, so the work must take less than its timeout (10 minutes with NCCL).

    Args:
        function (`Callable[[], T]`): What the first process calls. Its result must be picklable.

    Returns:
        `T`: What the function returned.

    Raises:
        Exception: In the first process, what the function raised.
        SettingError: In the other processes, if the function raised an error, with its text.
    """
    rank, processes = world()
    if processes == 1:
        return function()
    outcome: list[Any] = [None, None]
    if rank == 0:
        try:
            outcome[0] = function()
        except Exception as error:  # The other processes have to learn of it, or they would wait for ever.
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            dist.broadcast_object_list([None, f"{kind}{error}"])
            raise
    dist.broadcast_object_list(outcome)
    result, problem = outcome
    if problem is not None:
        raise SettingError(problem)
    return result


@contextmanager
def lock_together(folder: StrPath) -> Iterator[None]:
    """Let the first process lock a folder until all processes of the run have left the block; see [`lock`]."""
    with ExitStack() as stack:
        on_first_process(lambda: stack.enter_context(lock(folder)))
        yield
        wait_for_all()


def wait_for_all() -> None:
    """Wait until all processes have come here."""
    if world()[1] > 1:
        dist.barrier()


@contextmanager
def same_noise(seed: int) -> Iterator[None]:
    """Let all processes of a run draw the same numbers from torch's generator, and then each but the first its own.

    transformers gives all of them the same seed. Texts in the same place of two processes would lose the same numbers
    in dropout, so that their noise correlates. A single process draws as before.

    Args:
        seed (`int`): The seed of the run.
    """
    rank, processes = world()
    is_shared = processes > 1
    with torch.random.fork_rng(devices=[], enabled=is_shared):
        if is_shared:
            torch.default_generator.manual_seed(seed)
        yield
    if rank > 0:
        (own_seed,) = np.random.SeedSequence([seed, rank]).generate_state(1)
        torch.manual_seed(int(own_seed))


def own_rows(rows: Tensor, over_processes: bool = True) -> Tensor:
    """Return the numbers of this process's rows among those of all processes, each of which has as many."""
    number = len(rows)
    rank, _ = world()
    first = rank * number if over_processes else 0
    return torch.arange(first, first + number, device=rows.device)


def gather_rows(rows: Tensor, over_processes: bool = True, missing: int = 0, value: int = 0) -> Tensor:
    """Stack the rows of all processes in rank order; the result is differentiable.

    If each process computes the mean loss of its own anchors against the gathered rows, DistributedDataParallel's mean
    over the processes is exactly the gradient that one process gets from the whole batch. The reference implementation
    puts only the local rows back into a detached gather, which divides that gradient by the number of processes.

    Args:
        rows (`torch.Tensor`): Of shape `(n, ...)`, with the same `n` in every process. Accelerate's `even_batches`
            (its default) ensures this.
        over_processes (`bool`, *optional*, defaults to `True`): With `False`, as in an evaluation, return `rows`.
        missing (`int`, *optional*, defaults to `0`): Columns to add to each row, from [`missing_columns`].
        value (`int`, *optional*, defaults to `0`): What the added columns hold.

    Returns:
        `torch.Tensor`: Of shape `(processes * n, ...)`; in a single process, `rows` itself.

    Examples:
        >>> import torch
        >>> from simcse_hf import gather_rows
        >>> gather_rows(torch.ones(4, 8)).shape  # with two processes (8, 8)
        torch.Size([4, 8])
    """
    if missing:
        later_axes = (0, 0) * (rows.dim() - 2)
        rows = F.pad(rows, (*later_axes, 0, missing), value=value)
    if not over_processes or world()[1] == 1:
        return rows
    # Every process compares its own anchors with the rows of this one, and the backward pass adds their gradients up.
    gathered = torch.cat(all_gather(rows.contiguous()))
    if gathered.requires_grad:  # torch sends parts of the gradient as they lie in memory, whatever their strides
        gathered.register_hook(Tensor.contiguous)
    return gathered


def missing_columns(rows: Tensor, over_processes: bool) -> int:
    """Return how many columns the rows of this process lack to be as wide as those of any process.

    Args:
        rows (`torch.Tensor`): Of shape `(n, width, ...)`.
        over_processes (`bool`): With `False`, no other process is asked, and nothing is missing.

    Returns:
        `int`: The number of columns.
    """
    if not over_processes or world()[1] == 1:
        return 0
    width = rows.shape[1]
    widths = gather_rows(torch.tensor([width], device=rows.device))
    return int(widths.max()) - width


def differentiable_sum(value: Tensor, over_processes: bool = True) -> Tensor:
    """Sum a tensor over all processes; the result is differentiable.

    As with [`gather_rows`], the mean of the gradients over the processes is the gradient that one process gets from
    the whole batch.

    Args:
        value (`torch.Tensor`): Of the same shape in every process.
        over_processes (`bool`, *optional*, defaults to `True`): With `False`, return `value`.

    Returns:
        `torch.Tensor`: The sum; in a single process, `value` itself.
    """
    if not over_processes or world()[1] == 1:
        return value
    return all_reduce(value)


def sum_over_processes(value: Tensor) -> Tensor:
    """Sum a tensor over all processes without a gradient; in a single process, return the tensor itself."""
    if world()[1] == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def mean_over_processes(total: Tensor, count: Tensor | int, over_processes: bool = True) -> Tensor:
    """Scale this process's sum so that the average over the processes is the mean over all items.

    The processes may hold different numbers of items. Two processes with the items 1, 2, 3 and 6 return
    (1 + 2 + 3) * 2 / 4 = 3 and 6 * 2 / 4 = 3; DistributedDataParallel averages gradients over the processes, and the
    average of 3 and 3 is the mean of the four items.

    Args:
        total (`torch.Tensor`): The sum over this process's items.
        count (`torch.Tensor` or `int`): The number of this process's items.
        over_processes (`bool`, *optional*, defaults to `True`): Whether to count the items of all processes. With
            `False` the result is the mean over this process's own items.

    Returns:
        `torch.Tensor`: A scalar; 0 if no process has an item.
    """
    if isinstance(count, int):
        count = torch.full((), count, device=total.device)
    if over_processes:
        total = total * world()[1]
        count = sum_over_processes(count)
    return total / count.clamp(min=1)
