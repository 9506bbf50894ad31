"""How many processes the launcher has started, and whether they work together. Nothing here imports torch at once."""

import os
from typing import Any

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
        ValueError: If there are more processes. Each would do all the work, and write the same files. Also if
            `accelerate launch` was asked for several processes and has started one.
    """
    sizes = [int(os.environ[name]) for name in _SIZES if name in os.environ]
    # Accelerate names an address where several processes are asked for, and starts one if it finds no GPU for each.
    if not sizes and {"MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"} <= os.environ.keys():
        raise ValueError(
            f"accelerate launch was asked for several processes, and has started one (MASTER_ADDR is set, and "
            f"WORLD_SIZE is not). {_THAT_WORKS}"
        )
    started = sizes[0] if sizes else 1
    if started > joined and alone:
        raise ValueError(f"{alone} runs in one process: start it without torchrun, accelerate launch or mpirun.")
    if started > joined:
        raise ValueError(
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

    from .cpu import has_only_cpu

    asks_for_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    state = PartialState(cpu=has_only_cpu() or asks_for_cpu)
    check_together(state.num_processes)
    return state
