"""Freed memory is reused without a request to the system."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from simcse_hf.ops.memory import keep_freed_memory
keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(30):
    if step == 10:
        before = faults()
    blocks = [torch.ones(size << 18) for size in (10, 12, 12, 9)]  # MB
    del blocks
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this threshold")
def test_freed_blocks_are_reused():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert int(ran.stdout) < 1000, (
        ran.stderr
    )  # page faults; 168,000 if every block is returned to the system and requested anew
