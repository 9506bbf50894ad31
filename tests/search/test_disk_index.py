"""The backend ivf_disk: blocks are merged into one file of lists, and codes of a few bytes still find neighbours."""

import json

import numpy as np
import pytest
from conftest import fast_first
from test_search_backends import DIM, numpy_search, unit_vectors
from test_search_folder import SENTENCES, CountingModel

import simcse_hf.search.disk_index as module
from simcse_hf.cli.search import index_main
from simcse_hf.inference.shards import read_shards, sample_shards
from simcse_hf.search import SentenceIndex, describe
from simcse_hf.search.disk_index import DiskIndex, default_cells

faiss = pytest.importorskip("faiss", reason="the extra `faiss` is not installed")


def recall(index, vectors, queries, top_k=10):
    positions = index.search(queries, top_k)[1]
    truth = numpy_search(vectors, queries, top_k)[1]
    return np.mean([len(set(a) & set(b)) / top_k for a, b in zip(positions, truth, strict=True)])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 300)


def test_blocks_merged_on_the_disk_equal_one_index_in_memory(small_blocks, tmp_path, monkeypatch):
    vectors, queries = unit_vectors(1000), unit_vectors(20, seed=1)
    index = DiskIndex(DIM, cells=20, probes=4, training=vectors)
    for part in np.array_split(vectors, 9):
        index.add(part)
    assert len(index) == 1000 and len(index._written) == 3
    expected = index.search(queries, 10)
    index.save(tmp_path)
    index.close()
    monkeypatch.setattr(module, "BLOCK", 10**6)
    whole = DiskIndex(DIM, cells=20, probes=4, training=vectors)
    whole.add(vectors)
    assert str(tmp_path).encode() not in (tmp_path / "index.faiss").read_bytes()
    loaded = DiskIndex.load(tmp_path, whole.options())
    assert isinstance(faiss.downcast_InvertedLists(loaded._saved.invlists), faiss.OnDiskInvertedLists)
    for scores, positions in (expected, loaded.search(queries, 10)):
        np.testing.assert_array_equal(positions, whole.search(queries, 10)[1])
        np.testing.assert_allclose(scores, whole.search(queries, 10)[0], atol=1e-6)


def test_full_blocks_leave_the_memory(small_blocks):
    index = DiskIndex(DIM, cells=4, training=unit_vectors(200))
    for part in np.array_split(unit_vectors(1000), 10):
        index.add(part)
        assert index._block.ntotal < 300
    folder = index._folder.name
    index.close()
    assert not module.Path(folder).exists()


def test_a_loaded_index_grows_and_the_saved_one_does_not_change(small_blocks, tmp_path):
    vectors, queries = unit_vectors(900), unit_vectors(20, seed=1)
    index = DiskIndex(DIM, cells=8, probes=8, training=vectors)
    index.add(vectors[:400])
    (tmp_path / "a").mkdir()
    index.save(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    loaded = DiskIndex.load(tmp_path / "a", index.options())
    loaded.add(vectors[400:])
    (tmp_path / "b").mkdir()
    loaded.save(tmp_path / "b")
    again = DiskIndex.load(tmp_path / "b", loaded.options())
    for each in (loaded, again):
        assert len(each) == 900 and recall(each, vectors, queries) > 0.9
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.parametrize("codes, bytes_per_vector, least", fast_first(("sq8", 16, 0.95), ("pq8", 8, 0.3)))
def test_codes_take_few_bytes_and_still_find_neighbours(codes, bytes_per_vector, least, tmp_path):
    vectors, queries = unit_vectors(4000), unit_vectors(50, seed=1)
    index = DiskIndex(DIM, codes, cells=10, probes=10, training=vectors)
    index.add(vectors)
    index.save(tmp_path)
    assert index._block.code_size == bytes_per_vector
    assert (tmp_path / "lists.ivfdata").stat().st_size < 4000 * (bytes_per_vector + 8) * 2
    assert recall(DiskIndex.load(tmp_path, index.options()), vectors, queries) > least


def test_more_probes_find_more(tmp_path):
    vectors, queries = unit_vectors(3000), unit_vectors(50, seed=1)
    index = DiskIndex(DIM, cells=60, training=vectors)
    index.add(vectors)
    found = []
    for probes in (1, 8, 60):
        index.probes = probes
        found.append(recall(index, vectors, queries))
    assert found[0] < found[1] < found[2] and found[2] > 0.95


def test_without_a_sample_the_first_block_is_learnt_from(small_blocks):
    index = DiskIndex(DIM, probes=100)
    vectors = unit_vectors(700)
    index.add(vectors[:200])
    assert index._block is None and len(index) == 200
    index.add(vectors[200:])
    assert index._block is not None and len(index) == 700
    assert recall(index, vectors, vectors[:20]) > 0.9


def test_the_default_number_of_cells_grows_with_the_root():
    assert (default_cells(10), default_cells(10**6), default_cells(10**9)) == (1, 4000, 126491)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"codes": "pq5"}, "which divide the 16 dimensions; got 'pq5'"),
        ({"codes": "sq4"}, "codes must be sq8, or pq"),
        ({"cells": 0}, "cells must be at least 1"),
        ({"probes": 2**63}, "probes must be at least 1, and an integer of 32 bits"),
        ({"cells": "many"}, "cells must be at least 1, and an integer of 32 bits, got 'many'"),
    ],
)
def test_invalid_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DiskIndex(DIM, **options)


def test_a_missing_or_foreign_file_is_named(tmp_path):
    index = DiskIndex(DIM, cells=4, training=unit_vectors(200))
    index.add(unit_vectors(200))
    index.save(tmp_path)
    (tmp_path / "lists.ivfdata").unlink()
    with pytest.raises(ValueError, match=r"lists\.ivfdata: missing or damaged; build the index again"):
        DiskIndex.load(tmp_path, index.options())
    faiss.write_index(faiss.IndexFlatIP(DIM), str(tmp_path / "index.faiss"))
    with pytest.raises(ValueError, match="another kind of index"):
        DiskIndex.load(tmp_path, index.options())


def write_shards(folder, source, vectors, size):
    """Write the folder that `simcse-hf encode` writes, as far as an index reads it."""
    folder.mkdir()
    count = -(-len(vectors) // size)
    for number in range(count):
        np.save(folder / f"vectors-{number:05d}-of-{count:05d}.npy", vectors[number * size : (number + 1) * size])
    settings = {"shard_size": size, "format": "npy", "precision": "float32"}
    manifest = {"layout": 1, "input": {"file": source.name, "rows": len(vectors)}, "model": {}, "settings": settings}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_the_sample_comes_from_all_shards(tmp_path):
    vectors = unit_vectors(100)
    write_shards(tmp_path / "v", tmp_path / "t.txt", vectors, 30)
    sample = sample_shards(tmp_path / "v", 40)
    rows = [int(np.flatnonzero((vectors == vector).all(1))[0]) for vector in sample]
    assert len(set(rows)) == 40 and {row // 30 for row in rows} == {0, 1, 2, 3} and rows == sorted(rows)
    assert len(sample_shards(tmp_path / "v", 1000)) == 100


def test_the_command_builds_it_from_the_shards_of_encode(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("simcse_hf.cli.search.load_encoder", lambda *_, **__: CountingModel())
    source, folder = tmp_path / "t.txt", tmp_path / "index"
    source.write_text("\n".join(SENTENCES))
    vectors = CountingModel().encode(SENTENCES)
    write_shards(tmp_path / "v", source, vectors, 15)
    words = ["--model", "m", "--input", str(source), "--vectors", str(tmp_path / "v"), "--output", str(folder)]
    assert index_main([*words, "--backend", "ivf_disk", "--codes", "sq8", "--cells", "2", "--json", "--quiet"]) == 0
    assert json.loads(capfd.readouterr().out)["sentences"] == 40  # and nothing that faiss prints
    assert set(describe(folder)["files"]) == {"index.faiss", "lists.ivfdata", "sentences.arrow"}
    index = SentenceIndex.load(folder, CountingModel())
    assert index.search(SENTENCES[7], top_k=1)[0][0] == SENTENCES[7]
    assert sum(map(len, read_shards(tmp_path / "v"))) == len(index)
