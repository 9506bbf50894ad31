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
from packaging import version

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
    # torch 2.6 holds Python's lock while it waits for a thread of the group, which may need the lock. Left alone, the
    # group ends with the process.
    if dist.is_initialized() and version.parse(torch.__version__) >= version.parse("2.8"):
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
