"""Examples that read tables: pairs from duplicates, paraphrases and captions."""

import subprocess
import sys
from pathlib import Path

import pytest

from simcse_hf import load_text_dataset

SCRIPT = Path(__file__).parents[2] / "examples/build_pairs.py"
CAPTIONS = (
    'picture,caption\n,No picture.\n,Another one.\n7,"A dog, running."\n8,Two cats.\n7,NA\n8,Cats sleep.\n8,\n'
    '7,"A dog, running."\n8,Test text!\n'
)
PARAPHRASES = '"a\tb\t0.5\nc\td\t0.1\ne"\tf\t0.9\n'


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        (
            "a.csv",
            CAPTIONS,
            "--columns caption --group picture",
            [("A dog, running.", "NA"), ("Two cats.", "Cats sleep.")],
        ),
        (
            "a.tsv",
            PARAPHRASES,
            "--names x y score --columns x y --where score>=0.4",
            [('"a', "b"), ('e"', "f")],
        ),
        (
            "a.tsv",
            PARAPHRASES,
            "--names x y score --columns x y --max_rows 2 --seed 1",
            2,
        ),
    ],
)
def test_texts_of_a_row_or_a_group_become_pairs(tmp_path, name, content, options, expected):
    (tmp_path / name).write_text(content)
    (tmp_path / "test.txt").write_text("test TEXT\n")
    command = [
        sys.executable,
        SCRIPT,
        name,
        "pairs.csv",
        *options.split(),
        "--exclude",
        "test.txt",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    pairs = [tuple(row.values()) for row in load_text_dataset(tmp_path / "pairs.csv", cache_dir=tmp_path)]
    assert pairs == expected if isinstance(expected, list) else len(pairs) == expected
