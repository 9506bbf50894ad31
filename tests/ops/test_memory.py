"""Memory that is freed is taken again without the system's help."""

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have habits of their own")
def test_large_blocks_are_not_taken_anew_from_the_system():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert int(ran.stdout) < 1000, ran.stderr  # page faults; 168,000 where every block is given back and taken anew
