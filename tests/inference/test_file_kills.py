"""A killed `encode` or index save loses nothing, and an addition that reports success is in the index."""

import os
import random
import shutil
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

import benchmarks.file_kills
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
#
# Each faulty process here stops at the moment of its fault and waits until it is killed, or until the other process
# is done. So these tests do not depend on how fast the machine is.


class AlwaysZero(random.Random):
    """Draws 0.0: every kill waits until a file is written, and comes at once."""

    def random(self):
        return 0.0


def wait_for_the_kill():
    time.sleep(120)
    raise AssertionError("the process was not killed")


def test_a_shard_that_is_written_in_place_is_noticed(tmp_path, monkeypatch):
    write_atomically = simcse_hf.inference.manifest.write_atomically
    sign = tmp_path / "a shard was half written"

    @contextmanager
    def write_in_place(path):
        if path.parent.name == "killed" and path.suffix == ".npy" and not sign.exists():
            path.write_bytes(b"half")
            sign.touch()
            wait_for_the_kill()
        with write_atomically(path) as temporary:
            yield temporary

    monkeypatch.setattr(simcse_hf.inference.manifest, "write_atomically", write_in_place)
    monkeypatch.setattr(benchmarks.file_kills, "temporary_files", lambda folder: set(tmp_path.glob(sign.name)))
    counts = kill_encoding("npy, float32", tmp_path, 1, AlwaysZero())
    assert counts["differing"] == 1 and counts["differences"][0].startswith("vectors-"), counts


def test_an_index_that_is_removed_before_it_is_replaced_is_noticed(model, tmp_path, monkeypatch):
    write_index = simcse_hf.search.sentences.write_index

    def remove_and_write(folder, *arguments):
        if (Path(folder) / "index.json").exists():
            shutil.rmtree(Path(folder) / describe(folder)["data"])
            (Path(folder) / "removed").touch()
            wait_for_the_kill()
        return write_index(folder, *arguments)

    monkeypatch.setattr(simcse_hf.search.sentences, "write_index", remove_and_write)
    counts = kill_saving(model, "exact", tmp_path, 1, AlwaysZero())
    assert counts["lost"] == 1 and "missing" in counts["losses"][0], counts


def test_an_addition_that_is_saved_over_by_another_is_noticed(model, tmp_path, monkeypatch):
    write_index = simcse_hf.search.sentences.write_index

    def write_over(folder, write, replaces=None):
        deadline = time.monotonic() + 120
        if (Path(folder) / "index.json").exists():  # an addition: wait until the other one has loaded the index too
            (tmp_path / f"arrived-{os.getpid()}").touch()
            while len(list(tmp_path.glob("arrived-*"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        while time.monotonic() < deadline:
            try:
                return write_index(folder, write)
            except ValueError:  # the other process holds the folder
                time.sleep(0.01)
        raise AssertionError("the other process never released the folder")

    monkeypatch.setattr(simcse_hf.search, "hold_folder", lambda folder: nullcontext(Path(folder)))
    monkeypatch.setattr(simcse_hf.search.sentences, "write_index", write_over)
    counts = add_in_pairs(model, "exact", tmp_path, 1, random.Random(0))
    assert counts["lost"] == 1 and counts["both succeeded"] == 1, counts
