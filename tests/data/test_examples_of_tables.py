"""The example that reads tables: pairs from captions."""

import subprocess
import sys
from pathlib import Path

from simcse_hf import load_text_dataset

SCRIPT = Path(__file__).parents[2] / "examples/build_pairs.py"
CAPTIONS = (
    'picture,caption\n,No picture.\n,Another one.\n7,"A dog, running."\n8,Two cats.\n7,NA\n8,Cats sleep.\n8,\n'
    '7,"A dog, running."\n8,Test text!\n'
)


def test_texts_of_a_group_become_pairs(tmp_path):
    (tmp_path / "a.csv").write_text(CAPTIONS)
    (tmp_path / "test.txt").write_text("test TEXT\n")
    options = "a.csv pairs.csv --columns caption --group picture --exclude test.txt"
    subprocess.run([sys.executable, SCRIPT, *options.split()], cwd=tmp_path, check=True)
    rows = load_text_dataset(tmp_path / "pairs.csv", cache_dir=tmp_path)
    assert [tuple(row.values()) for row in rows] == [("A dog, running.", "NA"), ("Two cats.", "Cats sleep.")]
