"""Index backends find what numpy finds, can grow, and are the same after saving and loading."""

import numpy as np
import pytest
import torch

from simcse_hf.search.exact import ExactIndex
from simcse_hf.search.faiss_index import FaissIndex
from simcse_hf.search.pgvector_index import PgvectorIndex
from simcse_hf.search.qdrant_index import QdrantIndex

DIM = 16


def unit_vectors(count, seed=0, dim=DIM):
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def numpy_search(vectors, queries, top_k):
    scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return np.take_along_axis(scores, order, axis=1), order


@pytest.fixture
def make(request):
    """Create an index of a backend; one of `pgvector` is a new table on the tests' own server."""

    def create(backend, dim=DIM, **options):
        if backend == "pgvector":
            postgres = request.getfixturevalue("postgres")
            return PgvectorIndex(dim, url=postgres.url, collection=postgres.name(), **options)
        return make_local(backend, dim, **options)

    return create


def make_local(backend, dim=DIM, **options):
    if backend == "exact":
        return ExactIndex(dim, **options)
    if backend == "qdrant":
        pytest.importorskip("qdrant_client", reason="the extra `qdrant` is not installed")
        return QdrantIndex(dim, **options)
    pytest.importorskip("faiss", reason="the extra `faiss` is not installed")
    if backend == "ivf":
        return FaissIndex(dim, "ivf", **{"cells": 8, "probes": 8} | options)
    return FaissIndex(dim, backend, **options)


LOCAL = ["exact", "flat", "ivf", "hnsw", "qdrant"]
ALL = pytest.mark.parametrize("backend", [*LOCAL, "pgvector"])
#: Those that are saved in a folder.
SAVED = pytest.mark.parametrize("backend", LOCAL)


@ALL
def test_results_equal_those_of_numpy(backend, make):
    """With few vectors and all cells probed, the approximate backends are exact as well."""
    vectors, queries = unit_vectors(500), unit_vectors(20, seed=1)
    index = make(backend)
    index.add(vectors)
    assert len(index) == 500
    scores, positions = index.search(queries, 7)
    expected_scores, expected_positions = numpy_search(vectors, queries, 7)
    np.testing.assert_array_equal(positions, expected_positions)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-6)


@SAVED
def test_an_index_grows_before_and_after_it_is_saved(backend, tmp_path):
    vectors, queries = unit_vectors(300), unit_vectors(5, seed=1)
    index = make_local(backend)
    index.add(vectors[:120])
    index.add(vectors[120:200])
    index.save(tmp_path)
    loaded = type(index).load(tmp_path, index.options())
    assert len(loaded) == 200 and loaded.dim == DIM and loaded.options() == index.options()
    np.testing.assert_array_equal(loaded.search(queries, 4)[1], numpy_search(vectors[:200], queries, 4)[1])
    loaded.add(vectors[200:])
    np.testing.assert_array_equal(loaded.search(queries, 4)[1], numpy_search(vectors, queries, 4)[1])
    # What is added to a loaded index stays out of the folder, and of the one that was saved.
    assert len(type(index).load(tmp_path, index.options())) == len(index) == 200


@ALL
def test_the_callers_arrays_are_copied_and_not_changed(backend, make):
    vectors = unit_vectors(50)
    given = vectors.copy()
    index = make(backend)
    index.add(given)
    np.testing.assert_array_equal(given, vectors)
    given[:] = 0
    assert index.search(vectors[7:8], 1)[1].tolist() == [[7]]


@SAVED
def test_a_missing_or_damaged_file_is_named(backend, tmp_path):
    index = make_local(backend)
    index.add(unit_vectors(50))
    index.save(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{path.name}.*build the index again"):
        type(index).load(tmp_path, index.options())
    path.unlink()
    with pytest.raises(ValueError, match=f"{path.name}.*build the index again"):
        type(index).load(tmp_path, index.options())


# --- exact -------------------------------------------------------------------------------------------------------


def test_exact_search_is_exact_over_many_chunks_and_query_batches(monkeypatch):
    import simcse_hf.search.exact as exact

    monkeypatch.setattr(exact, "_CHUNK", 64)
    monkeypatch.setattr(exact, "_QUERIES", 3)
    vectors, queries = unit_vectors(1000), unit_vectors(10, seed=1)
    index = ExactIndex(DIM)
    for part in np.array_split(vectors, 7):
        index.add(part)
    for top_k in (1, 100, 1000):
        np.testing.assert_array_equal(index.search(queries, top_k)[1], numpy_search(vectors, queries, top_k)[1])


@pytest.mark.parametrize("top_k", [1, 3, 7, 10])
@pytest.mark.parametrize("chunk", [4, 100])
def test_equal_scores_come_in_the_order_of_the_index(top_k, chunk, monkeypatch):
    import simcse_hf.search.exact as exact

    monkeypatch.setattr(exact, "_CHUNK", chunk)
    index = ExactIndex(DIM)
    index.add(np.repeat(unit_vectors(2), 5, axis=0))
    assert index.search(unit_vectors(1), top_k)[1].tolist() == [list(range(top_k))]


def test_equal_scores_keep_their_order_however_the_matrix_product_rounds(monkeypatch):
    """A processor may round the products of equal rows differently, depending on their position in the matrix."""
    import simcse_hf.search.exact as exact

    generator = torch.Generator().manual_seed(0)

    class Rounding(torch.Tensor):
        def __matmul__(self, other):
            product = torch.Tensor(self) @ torch.Tensor(other)
            return product + 1e-7 * (torch.rand(product.shape, generator=generator) - 0.5)

    monkeypatch.setattr(exact, "_CHUNK", 16)
    vectors = np.repeat(unit_vectors(10), 8, axis=0)
    index, queries = ExactIndex(DIM), unit_vectors(5, seed=1)
    index.add(vectors)
    search_batch = index._search_batch
    monkeypatch.setattr(index, "_search_batch", lambda batch, *rest: search_batch(batch.as_subclass(Rounding), *rest))
    for top_k in (3, 20, 80):
        scores, positions = index.search(queries, top_k)
        np.testing.assert_array_equal(positions, numpy_search(vectors, queries, top_k)[1])
        np.testing.assert_allclose(scores, numpy_search(vectors, queries, top_k)[0], atol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("top_k", [1, 5])
def test_products_in_bfloat16_only_select_candidates(spread, top_k, monkeypatch):
    """Also where all embeddings are nearly equal, so that bfloat16 cannot tell them apart."""
    import simcse_hf.search.exact as exact

    monkeypatch.setattr(exact, "_MANY_QUERIES", 4)
    monkeypatch.setattr(exact, "_CHUNK", 1024)
    vectors = unit_vectors(3000) * spread + unit_vectors(1, seed=2)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = ExactIndex(DIM)
    index.add(vectors)
    found = {}
    for fast in (True, False):
        monkeypatch.setattr(exact, "multiplies_bfloat16", lambda fast=fast: fast)
        found[fast] = index.search(vectors[:9], top_k)
        assert len(index._precisions(9)) == 1 + fast
    np.testing.assert_array_equal(found[True][0], found[False][0])
    np.testing.assert_array_equal(found[True][1], found[False][1])
    np.testing.assert_allclose(found[True][0], numpy_search(vectors, vectors[:9], top_k)[0], atol=1e-6)


def test_embeddings_added_one_by_one_are_joined_into_few_parts():
    vectors = unit_vectors(1000)
    index = ExactIndex(DIM)
    for vector in vectors:
        index.add(vector[None])
    assert len(index._parts) <= 10  # log2(1000): a part each would make every search a thousand products
    np.testing.assert_array_equal(index.search(vectors, 1)[1][:, 0], np.arange(1000))


def test_a_loaded_exact_index_is_mapped_from_the_file_and_never_written_to(tmp_path):
    index = ExactIndex(DIM)
    index.add(unit_vectors(50))
    index.save(tmp_path)
    before = (tmp_path / "vectors.npy").read_bytes()
    loaded = ExactIndex.load(tmp_path, {})
    loaded._parts[0].zero_()
    assert (tmp_path / "vectors.npy").read_bytes() == before
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), unit_vectors(50))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_exact_search_on_a_gpu():
    vectors, queries = unit_vectors(500), unit_vectors(20, seed=1)
    index = ExactIndex(DIM, device="cuda")
    index.add(vectors)
    np.testing.assert_array_equal(index.search(queries, 5)[1], numpy_search(vectors, queries, 5)[1])


# --- faiss -------------------------------------------------------------------------------------------------------


def test_the_inverted_file_uses_the_inner_product_within_cells_too():
    """For vectors of different lengths, L2 distance would give another cell and another order."""
    faiss = pytest.importorskip("faiss")
    vectors = unit_vectors(400) * np.linspace(0.2, 3, 400, dtype=np.float32)[:, None]
    index = make_local("ivf", cells=4, probes=4)
    index.add(vectors)
    queries = unit_vectors(10, seed=1)
    np.testing.assert_array_equal(index.search(queries, 5)[1], numpy_search(vectors, queries, 5)[1])
    assert index._index.metric_type == faiss.METRIC_INNER_PRODUCT
    assert index._index.quantizer.metric_type == faiss.METRIC_INNER_PRODUCT


def test_cells_are_computed_from_all_embeddings_not_only_the_first():
    """With cells from the first of two distant groups alone, one cell would hold the whole second group."""
    rng = np.random.default_rng(0)
    groups = [
        direction + 0.3 * rng.standard_normal((400, DIM)) for direction in (np.eye(DIM)[0] * 3, -np.eye(DIM)[0] * 3)
    ]
    index = make_local("ivf", cells=8, probes=1)
    for group in groups:
        index.add((group / np.linalg.norm(group, axis=1, keepdims=True)).astype(np.float32))
    index.search(unit_vectors(1), 1)
    sizes = [index._index.invlists.list_size(cell) for cell in range(8)]
    assert max(sizes) < 400 and sum(sizes) == 800


def test_fewer_embeddings_than_cells_give_fewer_results():
    index = make_local("ivf", cells=100, probes=1)
    index.add(unit_vectors(5))
    scores, positions = index.search(unit_vectors(5)[:1], 5)
    assert positions[0, 0] == 0 and (positions[0, 1:] == -1).any()


def test_the_default_number_of_cells_depends_on_the_number_of_embeddings():
    index = make_local("ivf", cells=None, probes=None)
    index.add(unit_vectors(10_000))
    index.search(unit_vectors(1), 1)
    assert index._index.nlist == 10_000 // 39
    few = make_local("ivf", cells=None, probes=None)
    few.add(unit_vectors(3))
    assert few.search(unit_vectors(3)[1:2], 1)[1].tolist() == [[1]]


def test_more_candidates_find_more_of_the_true_neighbours(tmp_path):
    vectors, queries = unit_vectors(3000, dim=64), unit_vectors(100, seed=1, dim=64)
    truth = numpy_search(vectors, queries, 10)[1]
    index = make_local("hnsw", dim=64, neighbors=8, ef_construction=40, ef_search=10)
    index.add(vectors)
    index.save(tmp_path)

    def recall(index):
        positions = index.search(queries, 10)[1]
        return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(positions, truth, strict=True)])

    low = recall(index)
    assert index.search(queries, 10)[0].shape == (100, 10)
    options = index.options() | {"ef_search": 1000}
    assert low < 0.8 and recall(FaissIndex.load(tmp_path, options)) > 0.95


@pytest.mark.parametrize("options", [{"kind": "lsh"}, {"kind": "ivf", "cells": 0}, {"kind": "hnsw", "ef_search": 0}])
def test_invalid_faiss_settings_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        FaissIndex(DIM, **options)


@pytest.mark.parametrize(
    "library, index, extra",
    [
        ("faiss", FaissIndex, "faiss"),
        ("qdrant_client", QdrantIndex, "qdrant"),
        ("psycopg", PgvectorIndex, "pgvector"),
        ("pgvector.psycopg", PgvectorIndex, "pgvector"),
    ],
)
def test_a_missing_library_is_reported_with_the_extra_to_install(monkeypatch, library, index, extra):
    monkeypatch.setitem(__import__("sys").modules, library, None)
    options = {"url": "postgresql://localhost/base"} if extra == "pgvector" else {}
    with pytest.raises(ImportError, match=rf"simcse-hf\[{extra}\]"):
        index(DIM, **options)


# --- Qdrant ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    """Simulate a server: all clients of a URL share one collection store, and the API keys are recorded."""
    qdrant_client = pytest.importorskip("qdrant_client", reason="the extra `qdrant` is not installed")
    store, asked = qdrant_client.QdrantClient(":memory:"), []

    def connect(location=None, *, url=None, api_key=None, **_):
        asked.append((location, url, api_key))
        return store

    monkeypatch.setattr(qdrant_client, "QdrantClient", connect)
    return asked


def test_a_collection_on_a_server_is_not_copied(server, tmp_path, monkeypatch):
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    vectors, queries = unit_vectors(600), unit_vectors(300, seed=1)
    index = QdrantIndex(DIM, url="https://qdrant.example:6333", collection="wiki")
    assert server == [(None, "https://qdrant.example:6333", "secret")]
    index.add(vectors)
    index.save(tmp_path)
    assert not list(tmp_path.iterdir()) and "secret" not in str(index.options())
    loaded = QdrantIndex.load(tmp_path, index.options())
    assert len(loaded) == 600 and loaded.dim == DIM
    np.testing.assert_array_equal(loaded.search(queries, 3)[1], numpy_search(vectors, queries, 3)[1])
    with pytest.raises(ValueError, match="has a collection 'wiki' already"):
        QdrantIndex(DIM, url="https://qdrant.example:6333", collection="wiki")
    with pytest.raises(ValueError, match="has no collection 'other'"):
        QdrantIndex.load(tmp_path, index.options() | {"collection": "other"})


def test_a_server_that_does_not_answer_is_named():
    pytest.importorskip("qdrant_client", reason="the extra `qdrant` is not installed")
    with pytest.raises(ValueError, match=r"the Qdrant server at http://127\.0\.0\.1:9 refused or failed a request"):
        QdrantIndex(DIM, url="http://127.0.0.1:9")


def test_an_embedded_collection_is_saved_without_pickles(tmp_path):
    index = make_local("qdrant")
    index.add(unit_vectors(300))
    index.save(tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy", allow_pickle=False), unit_vectors(300))
    assert [path.name for path in tmp_path.rglob("*")] == ["vectors.npy"]


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_a_quantised_collection_keeps_codes_in_memory_and_rescores_them(server, precision, monkeypatch):
    """What a server is asked for; the stand-in compares the embeddings themselves."""
    import qdrant_client

    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    store = qdrant_client.QdrantClient()
    created, asked = [], []
    create, query = store.create_collection, store.query_batch_points
    monkeypatch.setattr(store, "create_collection", lambda *a, **k: (created.append(k), create(*a, **k))[1])
    monkeypatch.setattr(store, "query_batch_points", lambda *a, **k: (asked.extend(a[1]), query(*a, **k))[1])
    index = QdrantIndex(DIM, url="http://localhost:6333", precision=precision)
    index.add(unit_vectors(50))
    assert index.search(unit_vectors(50)[:1], 1)[1].tolist() == [[0]]
    assert created[0]["vectors_config"].on_disk
    codes = created[0]["quantization_config"]
    assert (codes.scalar.type.value if precision == "int8" else "binary") == precision
    assert (codes.scalar if precision == "int8" else codes.binary).always_ram
    assert asked[0].params.quantization.rescore and asked[0].params.quantization.oversampling > 1
    with pytest.raises(ValueError, match="precision must be one of float32, int8, binary for Qdrant"):
        QdrantIndex(DIM, precision="float16")
