"""Time training steps as a whole, and profile a few: kernels, and the share of the time in which one runs."""

import time
from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

PROFILED = 3


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Stopwatch(TrainerCallback):
    """Let a run warm up, profile three steps, and time the steps after them.

    The attributes `seconds`, `warm_up_seconds`, `kernels` and `busy_share` hold what was found. The last two stay
    `None` without a GPU.

    Args:
        warm_up (`int`): Steps before the profiler starts: they allocate and compile.
        timed (`int`): Steps that are timed.
    """

    def __init__(self, warm_up: int, timed: int):
        self.first_timed, self.timed = warm_up + PROFILED, timed
        self.warm_up = warm_up
        self.seconds = self.warm_up_seconds = 0.0
        self.kernels: float | None = None
        self.busy_share: float | None = None
        self.problem: str | None = None
        self._start, self._profiler = time.perf_counter(), None

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.first_timed + self.timed

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.warm_up:
            synchronize()
            self.warm_up_seconds = time.perf_counter() - self._start
            self._start_profiler()
        elif state.global_step == self.first_timed:
            synchronize()
            self._stop_profiler()
            self._start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.steps:
            synchronize()
            self.seconds = time.perf_counter() - self._start

    def _start_profiler(self) -> None:
        if not torch.cuda.is_available():
            return
        try:
            self._profiler = profile(activities=[ProfilerActivity.CUDA])
            self._profiler.start()
        except Exception as error:  # without a profiler, the times are still worth having
            self._profiler, self.problem = None, repr(error)[:200]

    def _stop_profiler(self) -> None:
        if self._profiler is None:
            return
        try:
            self._profiler.stop()
            self.kernels, self.busy_share = kernels_and_share(device_events(self._profiler))
        except Exception as error:
            self.problem = repr(error)[:200]
        self._profiler = None


def device_events(profiler: profile) -> list[tuple[int, int, str]]:
    """List the start, the end and the name of what ran on the GPU, in nanoseconds."""
    found = []
    for event in profiler.profiler.kineto_results.events():
        if "CUDA" in str(event.device_type()):
            found.append((event.start_ns(), event.start_ns() + event.duration_ns(), event.name()))
    return found


def kernels_and_share(events: Iterable[tuple[int, int, str]], steps: int = PROFILED) -> tuple[float, float]:
    """Return the kernels of a step, and the share of the time in which at least one event runs on the device.

    Kernels from 0 to 4 and from 2 to 6 and a copy from 8 to 10, in one step, are two kernels and 8 / 10 of the time.

    Args:
        events (`Iterable[tuple[int, int, str]]`): Start, end and name of what ran on the device.
        steps (`int`, *optional*, defaults to `PROFILED`): Steps in which the events lie.

    Returns:
        `tuple[float, float]`: Kernels a step, and the share.
    """
    events = sorted(events)
    if not events:
        return 0.0, 0.0
    kernels = sum(not name.startswith(("Memcpy", "Memset")) for _, _, name in events)
    busy, end = 0, events[0][0]
    for start, stop, _ in events:
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
    return kernels / steps, busy / max(1, end - events[0][0])
