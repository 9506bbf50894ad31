"""The faults that tools/mutate.py draws: every kind is found, and each is a program that differs in one place."""

import ast
import runpy
from pathlib import Path

SOURCE = b'''"""A docstring: 1 < 2."""

def first(rows: list[int], least=1):
    if least < 0 or not rows:
        raise ValueError(f"{rows} has {least < 0}")
    if len(rows) >= least:
        rows.append("\xc3\xa4")
    return min(rows[0], least)
'''


def test_a_fault_of_every_kind_is_found():
    faults = list(runpy.run_path(str(Path(__file__).parents[2] / "tools/mutate.py"))["faults_of"]("first.py", SOURCE))
    changed = {}
    for fault in faults:
        program = SOURCE[: fault.start] + fault.text.encode() + SOURCE[fault.end :]
        ast.parse(program)
        changed.setdefault(fault.kind, []).append(program.splitlines()[fault.line - 1].strip().decode())
    assert changed == {
        "off by one": [
            "def first(rows: list[int], least=2):",
            "if (least <= 0) or not rows:",
            "if least < 1 or not rows:",
            "if (len(rows) > least):",
            "return min(rows[1], least)",
        ],
        "refusal left out": ["if False:"],
        "and/or": ["if (least < 0 and not rows):"],
        "comparison turned": ["if (least > 0) or not rows:", "if (len(rows) <= least):"],
        "condition negated": ["if (not (len(rows) >= least)):"],
        "line left out": ["pass"],
        "arguments swapped": ["return min(least, rows[0])"],
    }
