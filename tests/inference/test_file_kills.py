"""A killed `encode` or index save loses nothing, and an addition that reports success is in the index."""

import os
import random
import shutil
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

import simcse_hf.inference.manifest
import simcse_hf.search
import simcse_hf.search.sentences
from benchmarks.file_kills import add_in_pairs, kill_encoding, kill_saving, load_model
from simcse_hf.search import describe

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def model():
    return load_model()


def test_a_killed_encoding_resumes_to_the_same_bytes(tmp_path):
    counts = kill_encoding("parquet, int8", tmp_path, 2, random.Random(0))
    assert counts["kills"] == 2 and counts["differing"] == 0, counts


@pytest.mark.parametrize(("name", "kills"), [("exact", 2), ("exact, new folder", 1)])
def test_a_killed_save_leaves_a_whole_index_and_the_other_files(model, tmp_path, name, kills):
    counts = kill_saving(model, name, tmp_path, kills, random.Random(0))
    assert counts["kills"] == kills and counts["lost"] == 0, counts
    assert counts["old"] + counts["new"] + counts["none"] == kills


def test_two_concurrent_additions_lose_no_sentence_that_one_reported_as_added(model, tmp_path):
    counts = add_in_pairs(model, "exact", tmp_path, 2, random.Random(0))
    assert counts["pairs"] == 2 and counts["lost"] == 0, counts
    assert counts["both succeeded"] + counts["one was refused"] == 2


# --- the checks notice what they look for ----------------------------------------------------------------------


def test_a_shard_that_is_written_in_place_is_noticed(tmp_path, monkeypatch):
    write_atomically = simcse_hf.inference.manifest.write_atomically

    @contextmanager
    def write_in_place(path):
        if path.suffix != ".npy":  # a half manifest would end the next run
            with write_atomically(path) as temporary:
                yield temporary
            return
        path.write_bytes(b"half")
        sign = path.with_name(f".{path.name}.1.partial")  # every second kill waits for it
        sign.touch()
        time.sleep(0.02)
        yield path
        sign.unlink()

    monkeypatch.setattr(simcse_hf.inference.manifest, "write_atomically", write_in_place)
    counts = kill_encoding("npy, float32", tmp_path, 3, random.Random(1))
    assert counts["differing"] > 0 and counts["differences"][0].startswith("vectors-")


def test_an_index_that_is_removed_before_it_is_replaced_is_noticed(model, tmp_path, monkeypatch):
    write_index = simcse_hf.search.sentences.write_index

    def remove_and_write(folder, *arguments):
        if (Path(folder) / "index.json").exists():
            shutil.rmtree(Path(folder) / describe(folder)["data"])
            time.sleep(0.1)
        return write_index(folder, *arguments)

    monkeypatch.setattr(simcse_hf.search.sentences, "write_index", remove_and_write)
    counts = kill_saving(model, "exact", tmp_path, 3, random.Random(0))
    assert counts["lost"] > 0 and any("missing" in loss for loss in counts["losses"]), counts


def test_an_addition_that_is_saved_over_by_another_is_noticed(model, tmp_path, monkeypatch):
    write_index = simcse_hf.search.sentences.write_index

    def write_slowly(folder, write, replaces=None):
        time.sleep(0.3)  # until the other process has loaded the index too
        for _ in range(100):
            try:
                return write_index(folder, write)
            except ValueError:  # the other process holds the folder
                time.sleep(0.01)
        raise AssertionError("the other process never released the folder")

    monkeypatch.setattr(simcse_hf.search, "hold_folder", lambda folder: nullcontext(Path(folder)))
    monkeypatch.setattr(simcse_hf.search.sentences, "write_index", write_slowly)
    counts = add_in_pairs(model, "exact", tmp_path, 2, random.Random(0))
    assert counts["lost"] > 0 and counts["both succeeded"] > 0, counts
