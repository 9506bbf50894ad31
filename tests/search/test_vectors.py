"""Exact and faiss indexes of embeddings find what numpy finds, can grow, and are the same after saving and loading."""

import copy
import pickle
import shutil

import numpy as np
import pytest

from simcse_hf.indexes import exact
from simcse_hf.indexes.exact import ExactIndex
from simcse_hf.indexes.faiss_index import new_index

DIM = 16
#: With few vectors and all cells probed, the approximate indexes are exact as well.
BACKENDS = {"exact": None, "hnsw": None, "ivf": "nprobe=100", "Flat": None, "IVF8,SQ8": "nprobe=8"}
ALL = pytest.mark.parametrize("backend", BACKENDS)


def unit_vectors(count, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def numpy_search(vectors, queries, top_k, among=None):
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    if among is not None:
        scores[:, ~among] = -2
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return np.take_along_axis(scores, order, axis=1), order


def make(backend, parameters=None):
    if backend != "exact":
        pytest.importorskip("faiss", reason="the extra `faiss` is not installed")
    index = new_index(DIM, backend, "cosine")
    if parameters:
        index.set_parameters(parameters)
    return index


def load(backend, folder):
    index = make(backend)
    index.load(folder)
    return index


def assert_finds(index, vectors, queries, top_k, among=None):
    scores, positions = index.search(queries, top_k, among)
    expected_scores, expected = numpy_search(vectors, queries, top_k, among)
    coded = getattr(index, "backend", "").endswith("SQ8")
    np.testing.assert_allclose(scores, expected_scores, atol=0.03 if coded else 1e-6)
    if coded:  # whose codes may rank close neighbours in another order
        assert np.mean(positions == expected) > 0.5
    else:  # other positions are right only where their scores are equal but for the rounding
        own = np.einsum("qd,qkd->qk", queries, vectors[positions])
        np.testing.assert_allclose(own, expected_scores, atol=1e-6)
        assert np.mean(positions == expected) > 0.99 and all(len(set(row)) == top_k for row in positions.tolist())
    assert scores.dtype == np.float32 and positions.dtype == np.int64


@ALL
def test_an_index_finds_what_numpy_finds_while_it_grows_and_after_loading(backend, tmp_path):
    vectors, queries = unit_vectors(900), unit_vectors(70, seed=1)
    index, given = make(backend, BACKENDS[backend]), vectors.copy()
    index.add(given[:300])
    index.add(given[300:600])
    given[:] = 0  # the index holds a copy
    assert len(index) == 600
    assert_finds(index, vectors[:600], queries, 7)
    index.save(tmp_path)
    loaded = load(backend, tmp_path)
    assert_finds(loaded, vectors[:600], queries, 7)
    loaded.add(vectors[600:])
    assert_finds(loaded, vectors, queries, 7)
    assert len(load(backend, tmp_path)) == 600, "the file is as it was"
    loaded.save(tmp_path)
    assert_finds(load(backend, tmp_path), vectors, queries, 7)


def test_exact_search_is_exact_over_many_blocks_and_keeps_the_order_of_equal_scores(monkeypatch):
    monkeypatch.setattr(exact, "_BLOCK", 64)
    monkeypatch.setattr(exact, "_QUERIES", 3)
    vectors, queries = unit_vectors(1000), unit_vectors(10, seed=1)
    index, repeated = ExactIndex(DIM), ExactIndex(DIM)
    for part in np.array_split(vectors, 7):
        index.add(part)
    repeated.add(np.repeat(unit_vectors(2), 100, axis=0))
    for top_k in (1, 70, 200, 1000):
        assert_finds(index, vectors, queries, top_k)
        found = repeated.search(unit_vectors(1), min(top_k, 200))[1]
        assert found.tolist() == [list(range(min(top_k, 200)))]


def test_search_parameters_decide_how_much_is_found_and_are_saved(tmp_path):
    vectors, queries = unit_vectors(2000), unit_vectors(50, seed=1)
    truth = numpy_search(vectors, queries, 10)[1]
    recall = {}
    for parameters in ("nprobe=1", None, "nprobe=1000"):
        index = make("ivf", parameters)
        index.add(vectors)
        recall[parameters] = np.mean(index.search(queries, 10)[1] == truth)
    assert recall["nprobe=1"] < recall[None] < recall["nprobe=1000"] == 1
    index.save(tmp_path)
    assert np.mean(load("ivf", tmp_path).search(queries, 10)[1] == truth) == 1
    narrow = load("ivf", tmp_path)
    narrow.set_parameters("nprobe=1")
    narrow.add(vectors[:1])  # reads the whole file, which says nprobe=1000
    assert np.mean(narrow.search(queries, 10)[1] == truth) < 0.9


@ALL
@pytest.mark.parametrize(
    "sent", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("state", ["new", "searched", "loaded"])
def test_a_copy_and_one_in_another_process_find_the_same(backend, sent, state, tmp_path):
    vectors, queries = unit_vectors(400), unit_vectors(5, seed=1)
    index = make(backend, BACKENDS[backend])
    index.add(vectors)
    expected = sent(index).search(queries, 3) if state == "new" else index.search(queries, 3)
    if state == "loaded":
        (tmp_path / "saved").mkdir()
        index.save(tmp_path / "saved")
        index = load(backend, tmp_path / "saved")
    other = sent(index)
    shutil.rmtree(tmp_path / "saved", ignore_errors=True)
    np.testing.assert_array_equal(other.search(queries, 3)[1], expected[1])
    other.add(queries)
    assert other.search(queries, 1)[1][:, 0].tolist() == list(range(400, 405))
    assert len(index) == 400
