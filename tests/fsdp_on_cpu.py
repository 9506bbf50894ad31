"""Runs a script with FSDP2 on CPU processes: `accelerate launch ... tests/fsdp_on_cpu.py SCRIPT ARGUMENTS`.

accelerate (1.15) reads an FSDP configuration on GPUs and other accelerators only; on CPUs it silently trains with
DistributedDataParallel. torch itself shards over gloo, so here the processes are declared FSDP's after accelerate has
looked at them, and everything from there on is what GPUs run.
"""

import os
import runpy
import sys

import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState

_original = AcceleratorState.__init__


def _sharded_on_cpus(self, *args, fsdp_plugin=None, **kwargs):
    _original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # as accelerate's own branch does


if __name__ == "__main__":
    assert os.environ["ACCELERATE_USE_FSDP"] == "true", "start this with an FSDP configuration"
    torch.set_num_threads(1)
    AcceleratorState.__init__ = _sharded_on_cpus
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
