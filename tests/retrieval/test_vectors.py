"""Exact and faiss indexes of embeddings find what numpy finds, can grow, and are the same after saving and loading."""

import copy
import pickle

import numpy as np
import pytest

from simcse_hf.retrieval import exact
from simcse_hf.retrieval.exact import ExactIndex
from simcse_hf.retrieval.faiss_index import new_index

DIM = 16
#: Backends with their parameters. With few vectors and all cells probed, the approximate indexes are exact as well.
BACKENDS = {
    "exact": None,
    "hnsw": None,
    "ivf": "nprobe=100",
    "Flat": None,
    "IVF8,SQ8": "nprobe=8",
}
ALL = pytest.mark.parametrize("backend", BACKENDS)


def unit_vectors(count, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def numpy_search(vectors, queries, top_k):
    """The highest scores in float64, and the places of their vectors."""
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    places = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return np.take_along_axis(scores, places, axis=1), places


def make(backend, parameters=None):
    if backend != "exact":
        pytest.importorskip("faiss")
    index = new_index(DIM, backend, "cosine")
    if parameters:
        index.set_parameters(parameters)
    return index


def load(backend, folder):
    index = make(backend)
    index.load(folder)
    return index


def assert_finds(index, vectors, queries, top_k):
    """That an index finds what numpy finds; quantized vectors may rank close neighbours in another order."""
    scores, places = index.search(queries, top_k)
    expected_scores, expected = numpy_search(vectors, queries, top_k)
    assert scores.dtype == np.float32
    assert places.dtype == np.int64
    if index.backend.endswith("SQ8"):
        np.testing.assert_allclose(scores, expected_scores, atol=0.03)
        assert np.mean(places == expected) > 0.5
        return
    np.testing.assert_allclose(scores, expected_scores, atol=1e-6)
    # Other places are right only where their scores are equal but for the rounding.
    np.testing.assert_allclose(np.einsum("qd,qkd->qk", queries, vectors[places]), expected_scores, atol=1e-6)
    assert np.mean(places == expected) > 0.99
    for found in places.tolist():
        assert len(set(found)) == len(found)


# --- an index that grows ---

VECTORS = unit_vectors(900)
QUERIES = unit_vectors(70, seed=1)


@ALL
def test_an_index_finds_what_numpy_finds_also_after_saving_loading_and_growing(backend, tmp_path):
    """The vectors are added in two parts, and copied."""
    index = make(backend, BACKENDS[backend])
    for part in (VECTORS[:300], VECTORS[300:600]):
        given = part.copy()
        index.add(given)
        given[:] = 0
    assert len(index) == 600
    assert_finds(index, VECTORS[:600], QUERIES, 7)
    index.save(tmp_path)
    loaded = load(backend, tmp_path)
    assert_finds(loaded, VECTORS[:600], QUERIES, 7)
    loaded.add(VECTORS[600:])
    assert_finds(loaded, VECTORS, QUERIES, 7)
    assert len(load(backend, tmp_path)) == 600, "the file stays as it was"
    loaded.save(tmp_path)
    assert_finds(load(backend, tmp_path), VECTORS, QUERIES, 7)


# --- exact search ---


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(exact, "_BLOCK", 64)
    monkeypatch.setattr(exact, "_QUERIES", 3)


@pytest.mark.parametrize("top_k", [1, 70, 200, 1000])
def test_exact_search_is_exact_over_many_blocks(small_blocks, top_k):
    vectors = unit_vectors(1000)
    index = ExactIndex(DIM)
    for part in np.array_split(vectors, 7):
        index.add(part)
    assert_finds(index, vectors, unit_vectors(10, seed=1), top_k)


@pytest.mark.parametrize("top_k", [1, 70, 200])
def test_exact_search_keeps_the_order_of_equal_scores(small_blocks, top_k):
    """Two vectors stand in the index a hundred times each; the query is the first."""
    index = ExactIndex(DIM)
    index.add(np.repeat(unit_vectors(2), 100, axis=0))
    _, places = index.search(unit_vectors(1), top_k)
    assert places.tolist() == [list(range(top_k))]


# --- parameters of a search ---

MANY = unit_vectors(2000)
FEW_QUERIES = unit_vectors(50, seed=1)


def recall(index):
    """The share of the ten nearest vectors that are found."""
    _, expected = numpy_search(MANY, FEW_QUERIES, 10)
    _, places = index.search(FEW_QUERIES, 10)
    return np.mean(places == expected)


def index_of_cells(parameters):
    index = make("ivf", parameters)
    index.add(MANY)
    return index


def test_search_parameters_are_saved_and_others_hold_when_the_whole_file_is_read(tmp_path):
    """The file says nprobe=1000, and is read when a vector is added."""
    index_of_cells("nprobe=1000").save(tmp_path)
    loaded = load("ivf", tmp_path)
    assert recall(loaded) == 1
    loaded.set_parameters("nprobe=1")
    loaded.add(MANY[:1])
    assert recall(loaded) < 0.9 and recall(loaded) < recall(index_of_cells(None)) < 1


# --- copies ---


@ALL
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_a_copy_and_one_in_another_process_find_the_same_and_can_grow(copied, backend, tmp_path):
    """Of an index that is new, one that was searched, and one that was loaded, whose file is gone since."""
    queries = unit_vectors(5, seed=1)
    index = make(backend, BACKENDS[backend])
    index.add(VECTORS[:400])
    of_new = copied(index)
    _, expected = index.search(queries, 3)
    of_searched = copied(index)
    index.save(tmp_path)
    loaded = load(backend, tmp_path)
    of_loaded = copied(loaded)
    for path in tmp_path.iterdir():
        path.unlink()
    for found in (of_new, of_searched, of_loaded):
        _, places = found.search(queries, 3)
        np.testing.assert_array_equal(places, expected)
        found.add(queries)
        _, places = found.search(queries, 1)
        assert places[:, 0].tolist() == [400, 401, 402, 403, 404]
    assert len(index) == len(loaded) == 400
