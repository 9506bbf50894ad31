"""Cached rows are used only if they are as they were written; otherwise they are made again, with one warning."""

import json
import logging

import pytest

from simcse_hf.data import read
from simcse_hf.data.read import load_text_dataset
from simcse_hf.data.tokenize import tokenize_dataset

TEXTS = [f"the cat {i} sat on the mat" for i in range(40)]


@pytest.fixture
def rows(tmp_path, tokenizer):
    """Reads a file with an empty cell through both caches, and returns the texts, the token ids and the folder."""
    source = tmp_path / "texts.csv"
    source.write_text(
        "text,other\n" + "".join(f"{text},x\n" for text in TEXTS) + ",x\n"
    )

    def load(**options):
        texts = load_text_dataset(
            source, columns=["text"], cache_dir=tmp_path / "cache"
        )
        ids = tokenize_dataset(texts, tokenizer, 16, **options)
        return list(texts["sent0"]), list(ids["input_ids"]), tmp_path / "cache"

    return load


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a flipped bit": flip_a_bit,
    "truncated": lambda path: path.write_bytes(
        path.read_bytes()[: path.stat().st_size // 2]
    ),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "other JSON": lambda path: path.write_text(json.dumps({"files": 3})),
}


def warnings_of(caplog):
    return [
        record.message for record in caplog.records if "made again" in record.message
    ]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again_with_one_warning(rows, caplog, damage):
    texts, ids, folder = rows()
    files = sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.suffix in (".arrow", ".json")
    )
    assert len(files) == 5, (
        "the texts with what was dropped, the token ids, and two manifests"
    )
    for name in files:
        DAMAGES[damage](folder / name)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert rows()[:2] == (texts, ids), name
        assert len(warnings_of(caplog)) == 1, name
        dropped = [
            record.message
            for record in caplog.records
            if "1 of 41 rows dropped" in record.message
        ]
        assert len(dropped) == 1, (
            "the row that was left out is reported as it was at first"
        )
    caplog.clear()
    assert rows()[:2] == (texts, ids) and not warnings_of(caplog)


def test_a_second_load_makes_nothing_again(rows, monkeypatch):
    first = rows()
    monkeypatch.setattr(read, "write_atomically", None)
    assert rows() == first
