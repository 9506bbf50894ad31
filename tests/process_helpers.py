"""Other processes: groups of gloo processes, and one that holds a folder."""

import datetime
import os
import signal
import socket
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate.state import AcceleratorState
from packaging import version

from benchmarks.harness import prepare_forked_process
from simcse_hf.runtime.files import lock


def variables(rank, processes, port):
    """What torchrun tells a process."""
    values = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in values.items()}


def _launched(rank, function, args, processes, port):
    prepare_forked_process()
    AcceleratorState._reset_state(True)  # that of the process of the tests, which is alone
    os.environ |= variables(rank, processes, port)
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
    """Run `function(*args)` in processes that have the variables of torchrun, and wait for them.

    They are forked from this one, because imports take seconds.
    """
    given = (function, args, processes, free_port())
    mp.start_processes(_launched, args=given, nprocs=processes, start_method="fork")


def _saved(function, folder):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))  # a hang becomes an error
    rank = dist.get_rank()
    torch.save(function(rank, dist.get_world_size()), folder / f"{rank}.pt")


def in_processes(function, folder, processes=2):
    """`[function(rank, processes), ...]` of that many processes; the function is one of a module."""
    launch(_saved, function, folder, processes=processes)
    return [torch.load(folder / f"{rank}.pt") for rank in range(processes)]


@contextmanager
def held_elsewhere(folder, with_worker=False):
    """Let another process hold a folder, yield its number, and kill it at the end. Its worker lives for 20 seconds."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            with lock(folder):
                is_parent = with_worker and os.fork()
                if not is_parent:  # a worker writes, because filelock lets go of the lock as it starts
                    os.write(writer, b"held")
                    signal.alarm(20 if with_worker else 0)
                signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(reader, 4) == b"held"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
