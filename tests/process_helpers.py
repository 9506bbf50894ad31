"""Other processes: groups of gloo processes, and one that holds a folder."""

import datetime
import multiprocessing
import os
import signal
import socket
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcse_hf.objectives import EncodedBatch
from simcse_hf.ops.files import hold


def _worker(rank, function, processes, folder):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=120)  # a hang becomes an error
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=processes, timeout=timeout
    )
    torch.save(function(rank, processes), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def start_processes(function, args, processes):
    """Run `function(rank, *args)` in that many processes, and wait for them.

    A server process imports torch and the package once and forks the others, because each import takes seconds.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(["simcse_hf.training.trainer"])
    mp.start_processes(function, args=args, nprocs=processes, start_method="forkserver")


def variables(rank, processes, port):
    """What torchrun tells a process."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}}


def _launched(rank, function, args, processes, port):
    os.environ |= variables(rank, processes, port)
    torch.set_num_threads(1)
    function(*args)
    if dist.is_initialized():
        dist.destroy_process_group()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def launch(function, *args, processes=2):
    """Run `function(*args)` in processes that have the variables of torchrun, and wait for them."""
    start_processes(_launched, (function, args, processes, free_port()), processes)


def in_processes(function, folder, processes=2):
    """`[function(rank, processes), ...]` of that many processes; the function is one of a module."""
    start_processes(_worker, (function, processes, str(folder)), processes)
    return [torch.load(folder / f"{rank}.pt") for rank in range(processes)]


@contextmanager
def held_elsewhere(folder):
    """Let another process hold a folder, yield its number, and kill it at the end."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            with hold(folder):
                os.write(writer, b"held")
                signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(reader, 4) == b"held"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Encoded(nn.Module):
    """An objective over a linear map in place of an encoder, in float64."""

    def __init__(self, objective, width=6):
        super().__init__()
        self.encoder = nn.Linear(width, objective.dim)
        self.objective = objective
        self.double()

    def forward(self, texts, attention_mask=None):
        """(batch, num_sentences, width), or (batch, num_sentences, length, width) of tokens where there is a mask."""
        vectors = self.encoder(texts)
        if attention_mask is None:
            loss = self.objective(EncodedBatch(vectors))
        else:
            loss = self.objective(EncodedBatch(vectors[:, :, 0], {"attention_mask": attention_mask}, None, vectors))
        return sum(loss.values()) if isinstance(loss, dict) else loss


def train(model, batch, steps=3):
    """Losses and gradients of a few steps of gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        gradients = {name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters()}
        found.append((loss.item(), gradients))
        optimizer.step()
    return found


def share(batch, rank, processes):
    """The rows of a batch that a process gets."""
    rows = len(batch[0]) // processes
    return tuple(x[rank * rows : (rank + 1) * rows] for x in batch)


def train_share(model, batch, rank, processes):
    """What `train` finds in one process, and the loss of its rows in evaluation before."""
    mine = share(batch, rank, processes)
    with torch.no_grad():
        evaluated = model.eval()(*mine).item()
    return evaluated, train(DistributedDataParallel(model.train()), mine)


def assert_same(found, model, batch):
    """That processes found, by `train_share`, what one with the whole batch does."""
    for rank, (evaluated, _) in enumerate(found):
        with torch.no_grad():
            alone = model.eval()(*share(batch, rank, len(found))).item()
        assert abs(evaluated - alone) < 1e-9 * max(1, abs(alone)), "evaluation: a process has its own rows only"
    whole = train(model.train(), batch)
    for step, (loss, gradients) in enumerate(whole):
        mean = sum(steps[step][0] for _, steps in found) / len(found)
        assert abs(mean - loss) < 1e-9 * max(1, abs(loss))
        largest = max(gradient.abs().max().item() for gradient in gradients.values())
        assert largest > 0
        for _, steps in found:
            for name, gradient in gradients.items():
                torch.testing.assert_close(steps[step][1][name], gradient, rtol=1e-7, atol=1e-10 * largest)
