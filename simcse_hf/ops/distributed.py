"""What several training processes share: gathered rows and sums, with their exact gradient."""

import torch
import torch.distributed as dist


def world() -> tuple[int, int]:
    """(rank, number of processes); (0, 1) outside a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        # Every process scored its own anchors against our rows: our gradient is the sum of what they all found.
        parts = [part.contiguous() for part in grad.chunk(dist.get_world_size())]
        ours = torch.empty_like(parts[0])
        dist.reduce_scatter(ours, parts)
        return ours


def gather_rows(rows: torch.Tensor) -> torch.Tensor:
    """Stacks the rows of all processes in rank order, differentiably.

    Each process takes the mean loss of its own anchors against the gathered rows; DistributedDataParallel's mean over
    the processes is then exactly the gradient of one process with the whole batch. (Putting only the local rows back
    into a detached gather, as the reference does, gives that gradient divided by the number of processes.)

    Args:
        rows: (n, ...), with the same n in every process (Accelerate's `even_batches`, its default, sees to that).

    Returns:
        (processes * n, ...); `rows` itself in a single process.
    """
    return rows if world()[1] == 1 else _GatherRows.apply(rows)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value: torch.Tensor) -> torch.Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        # The loss of every process depends on our term.
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def differentiable_sum(value: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all processes, with the exact gradient; the tensor itself in a single process.

    The convention is that of [`gather_rows`]: each process takes its share of the loss, and the mean of the gradients
    over the processes is that of one process with the whole batch.

    Args:
        value: of the same shape in every process.
    """
    return value if world()[1] == 1 else _Sum.apply(value)


def sum_over_processes(value: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all processes, without gradient; the tensor itself in a single process."""
    if world()[1] == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def mean_over_processes(total: torch.Tensor, count: torch.Tensor, over_processes: bool = True) -> torch.Tensor:
    """This process's share of a mean over the items of all processes, which may hold different numbers of them.

    The mean of the shares over the processes, which DistributedDataParallel takes of the gradients, is the mean of the
    items, whoever holds them.

    Args:
        total: the sum over this process's items.
        count: how many they are, an integer tensor.
        over_processes: False: the mean of this process's own items.

    Returns:
        A scalar; 0 where nobody has an item.
    """
    processes = 1
    if over_processes:
        count, processes = sum_over_processes(count), world()[1]
    return total * processes / count.clamp(min=1)
