"""What a program shows of the log, and how many processes work together. Nothing here imports torch at once."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import SettingError


def show_messages(quiet: bool = False) -> None:
    """Show this package's messages on the first process, and its warnings on all.

    Args:
        quiet (`bool`, *optional*, defaults to `False`): Show warnings only.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(module)s: %(message)s"))
    package = logging.getLogger("simcse_hf")
    package.handlers = [handler]
    package.propagate = False
    is_first = int(os.environ.get("RANK", "0")) == 0
    package.setLevel(logging.INFO if is_first and not quiet else logging.WARNING)


@contextmanager
def errors_only() -> Iterator[None]:
    """Log only errors and show no bars of loading, for a program that says itself what its runs are for."""
    import datasets
    import transformers.utils.logging as transformers_log

    levels = {name: logging.getLogger(name).level for name in ("simcse_hf", "transformers")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers_log.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        transformers_log.enable_progress_bar()
        datasets.enable_progress_bars()


#: How many processes there are, as torchrun, `accelerate launch` and MPI tell each of them.
_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
#: Variables of which each launcher sets at least one. Without them, a process works alone.
LAUNCHED = frozenset(_SIZES) | {"MASTER_ADDR"}
_THAT_WORKS = (
    "Start them with `torchrun --nproc_per_node N -m simcse_hf ...` (on a machine with GPUs, N is at most their "
    "number), or start one without a launcher."
)


def check_together(joined: int, alone: str = "") -> None:
    """Refuse to work if the launcher has started more processes than work together.

    Args:
        joined (`int`): The number of processes that work together with this one, itself included.
        alone (`str`, *optional*): A command that runs in one process.

    Raises:
        SettingError: If there are more processes. Each would do all the work, and write the same files. Also if
            `accelerate launch` was asked for several processes and has started one.
    """
    sizes = [int(os.environ[name]) for name in _SIZES if name in os.environ]
    # Accelerate names an address where several processes are asked for, and starts one if it finds no GPU for each.
    if not sizes and {"MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"} <= os.environ.keys():
        raise SettingError(
            f"accelerate launch was asked for several processes, and has started one (MASTER_ADDR is set, and "
            f"WORLD_SIZE is not). {_THAT_WORKS}"
        )
    started = sizes[0] if sizes else 1
    if started > joined and alone:
        raise SettingError(f"{alone} runs in one process: start it without torchrun, accelerate launch or mpirun.")
    if started > joined:
        raise SettingError(
            f"the launcher has started {started} processes, and this one works with {joined - 1} others: each of them "
            f"would do all the work and write the same files. {_THAT_WORKS}"
        )


def join_processes() -> Any:
    """Join the processes that the launcher has started, on CPUs as well.

    Returns:
        `PartialState`: Accelerate's state, with the device of this process and its number.

    Raises:
        ValueError: If not all of them work together.
    """
    from accelerate import PartialState

    from ..kernels.cpu import has_only_cpu

    asks_for_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    state = PartialState(cpu=has_only_cpu() or asks_for_cpu)
    check_together(state.num_processes)
    return state
