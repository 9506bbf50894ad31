"""Several processes encode one file: each reads its own rows only, and waits for the first one without a time limit.

The processes are threads here, which share a store as the processes of a group do. In test_shards.py two real
processes write the shards of one.
"""

import gzip
import itertools
import json
import os
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
from conftest import WORDS, tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.inference import shard_rows, shard_run, shards
from simcse_hf.inference.shards import encode_file, read_manifest, shard_paths
from simcse_hf.ops import distributed
from simcse_hf.ops.distributed import from_first_process

PROCESSES = 3


@pytest.fixture
def in_processes(monkeypatch):
    """Run `function(rank)` for each rank, and return the results or errors."""
    local, store = threading.local(), dist.HashStore()
    calls = {rank: itertools.count() for rank in range(PROCESSES)}

    class Calls:
        def __next__(self):
            return next(calls[local.rank])

    def fail(*arguments, **options):
        raise AssertionError("a collective was called")

    for module in (distributed, shards):
        monkeypatch.setattr(module, "world", lambda: (getattr(local, "rank", 0), getattr(local, "processes", 1)))
    monkeypatch.setattr(distributed, "_calls", Calls())
    monkeypatch.setattr(distributed, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(shard_run, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    for name in ("barrier", "all_reduce", "broadcast_object_list", "all_gather_object"):
        monkeypatch.setattr(dist, name, fail)

    def run(function):
        results = [None] * PROCESSES

        def process(rank):
            local.rank, local.processes = rank, PROCESSES
            try:
                results[rank] = function(rank)
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=process, args=(rank,)) for rank in range(PROCESSES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results

    return run


@pytest.fixture
def model(save_checkpoint):
    return SimCSE(save_checkpoint(AutoModelForCL.from_config(tiny_config("bert"), pooler_type="avg")), device="cpu")


def make_texts(count):
    words = [word for word in WORDS.split() if word.isalpha()]
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(words, generator.integers(1, 12))) for _ in range(count)]


def write(path, texts):
    suffix = path.name.split(".")[1]
    if suffix == "parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=10)
        return path
    lines = {
        "txt": [f"{text}\n" + "\n" * (number % 3) for number, text in enumerate(texts)],
        "csv": ["text,n\n", *(f'"{text}\n and more",{number}\n' for number, text in enumerate(texts))],
        "jsonl": [json.dumps({"text": text}) + "\n" for text in texts],
    }[suffix]
    content = "".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- waiting -------------------------------------------------------------------------------------------------------


def test_all_processes_get_the_result_of_the_first_and_say_what_they_wait_for(in_processes, monkeypatch, caplog):
    monkeypatch.setattr(distributed, "_SILENT_SECONDS", 0.1)

    def work():
        time.sleep(0.4)
        return "counted"

    with caplog.at_level("WARNING"):
        assert in_processes(lambda rank: from_first_process(work, "counts the rows of a.txt")) == ["counted"] * 3
    waits = [record.getMessage() for record in caplog.records if "counts the rows of a.txt" in record.getMessage()]
    assert {message[:9] for message in waits} == {"Process 1", "Process 2"} and len(waits) <= 4
    assert in_processes(lambda rank: from_first_process(lambda: "again", "counts")) == ["again"] * 3


def test_an_error_of_the_first_process_ends_the_others_at_once(in_processes):
    def work():
        raise OSError("the disk is gone")

    first, *others = in_processes(lambda rank: from_first_process(work, "counts the rows of a.txt"))
    assert isinstance(first, OSError) and len(others) == 2
    for error in others:
        assert str(error) == "the first process stopped while it counts the rows of a.txt: the disk is gone"


# --- shards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.txt", "t.csv", "t.jsonl", "t.parquet"])
def test_each_process_reads_the_rows_of_its_own_shards_only(model, tmp_path, in_processes, monkeypatch, name):
    source = write(tmp_path / name, make_texts(75))
    read = {}
    placed_texts = shard_rows.placed_texts

    def counting(*arguments):
        for item in placed_texts(*arguments):
            read.setdefault(item[0].number, 0)
            read[item[0].number] += 1
            yield item

    monkeypatch.setattr(shard_rows, "placed_texts", counting)
    paths = in_processes(lambda rank: encode_file(model, source, tmp_path / "out", shard_size=10))
    assert paths == [shard_paths(tmp_path / "out")] * PROCESSES
    assert len(read) == 75 and set(read.values()) == {1}
    encode_file(model, source, tmp_path / "one", shard_size=10)
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


def test_a_gzipped_file_is_read_by_each_process_and_the_log_says_so(model, tmp_path, in_processes, caplog):
    packed, source = write(tmp_path / "t.txt.gz", make_texts(75)), write(tmp_path / "t.txt", make_texts(75))
    with caplog.at_level("WARNING"):
        in_processes(lambda rank: encode_file(model, packed, tmp_path / "out", shard_size=10))
    assert sum("each of the 3 processes reads it from its start" in r.getMessage() for r in caplog.records) == 1
    encode_file(model, source, tmp_path / "one", shard_size=10)
    assert "starts" not in read_manifest(tmp_path / "out") and len(read_manifest(tmp_path / "one")["starts"]) == 8
    for ours, expected in zip(shard_paths(tmp_path / "out"), shard_paths(tmp_path / "one"), strict=True):
        assert ours.read_bytes() == expected.read_bytes()


def test_a_resumed_run_of_several_processes_fills_the_gaps(model, tmp_path, in_processes):
    source = write(tmp_path / "t.csv", make_texts(75))
    paths = encode_file(model, source, tmp_path / "one", shard_size=10)
    encode_file(model, source, tmp_path / "out", shard_size=10)
    for number in (0, 3, 4, 7):
        (tmp_path / "out" / paths[number].name).unlink()
    (tmp_path / "out" / f".{paths[3].name}.1.partial").write_text("half")
    in_processes(lambda rank: encode_file(model, source, tmp_path / "out", shard_size=10, resume=True))
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


def test_a_run_that_an_earlier_version_started_is_finished_with_the_same_bytes(model, tmp_path):
    source = write(tmp_path / "t.jsonl", make_texts(35))
    encode_file(model, source, tmp_path / "one", shard_size=10)
    encode_file(model, source, tmp_path / "out", shard_size=10)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    del manifest["starts"]
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    for number in (1, 3):
        shard_paths(tmp_path / "out")[number].unlink()
    encode_file(model, source, tmp_path / "out", shard_size=10, resume=True)
    for ours, expected in zip(shard_paths(tmp_path / "out"), shard_paths(tmp_path / "one"), strict=True):
        assert ours.read_bytes() == expected.read_bytes()


def test_a_refused_run_is_refused_in_every_process(model, tmp_path, in_processes):
    source = write(tmp_path / "t.txt", make_texts(20))
    encode_file(model, source, tmp_path / "out", shard_size=10)
    before = contents(tmp_path / "out")
    first, *others = in_processes(lambda rank: encode_file(model, source, tmp_path / "out", shard_size=5, resume=True))
    for error in (first, *others):
        assert isinstance(error, ValueError) and "shard_size was 10 and is now 5" in str(error)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("change", ["longer", "touched", "shorter"])
def test_a_file_that_is_changed_after_its_rows_were_counted_is_refused(model, tmp_path, monkeypatch, change):
    source = write(tmp_path / "t.txt", make_texts(35))
    start_run = shards.start_run

    def start_and_change(*arguments):
        digest = start_run(*arguments)
        if change == "longer":
            source.write_text("one more\n" + source.read_text())
        elif change == "shorter":
            source.write_text("a cat\n")
        else:
            os.utime(source, ns=(0, 0))
        return digest

    monkeypatch.setattr(shards, "start_run", start_and_change)
    with pytest.raises(ValueError, match=r"t\.txt: the file was changed while it was encoded"):
        encode_file(model, source, tmp_path / "out", shard_size=10)
    assert not list((tmp_path / "out").glob("vectors-*"))


def test_a_folder_that_the_machines_do_not_share_is_named(model, tmp_path, in_processes, monkeypatch):
    monkeypatch.setattr(shard_run, "_VISIBLE_SECONDS", 0.2)
    source = write(tmp_path / "t.txt", make_texts(20))
    first, *others = in_processes(lambda rank: encode_file(model, source, tmp_path / f"out{rank}", shard_size=10))
    assert len(first) == 2
    for rank, error in enumerate(others, 1):
        assert isinstance(error, ValueError) and f"out{rank}: manifest.json is not the one" in str(error)
        assert "must be shared by the machines" in str(error)
