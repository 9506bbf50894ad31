"""Vectors of frozen models for training rows: matched by position and digest, weighted, encoded once, and mined."""

import json
import os
import pickle
import shutil
import signal
import threading
from functools import partial

import numpy as np
import pytest
import torch
from cli_helpers import encode_main
from datasets import Dataset, config
from inference_helpers import random_texts
from process_helpers import held_elsewhere, in_processes

from simcse_hf.data.read import load_text_dataset
from simcse_hf.inference import encoder as encoder_module
from simcse_hf.inference import vectors as module
from simcse_hf.inference.encode import encode
from simcse_hf.inference.shards import write_vectors
from simcse_hf.inference.simcse import SimCSE
from simcse_hf.inference.vectors import RowVectors

CPU = torch.device("cpu")


def rows_of(count=7, columns=3):
    texts = random_texts(count * columns, words=(5, 6))
    return Dataset.from_dict({f"sent{i}": texts[i::columns] for i in range(columns)})


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def written(folder, rows, dim=4, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(*rows.shape, dim)).astype(np.float32)
    write_vectors(folder, rows, vectors, "an API", shard_size=5)
    return str(folder), unit(vectors)


def vectors_of(rows, *sources):
    return RowVectors([*map(str, sources)], rows, CPU)(np.arange(len(rows)))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "simcse_hf" / "vectors"


def test_vectors_of_an_api_are_found_by_row_and_column(tmp_path):
    rows = rows_of()
    folder, expected = written(tmp_path / "api", rows)
    vectors = RowVectors([folder], rows, CPU)
    np.testing.assert_allclose(vectors(np.array([4, 0, 6])), expected[[4, 0, 6]], rtol=1e-6)
    again = pickle.loads(pickle.dumps(vectors))  # as a worker of the data loader gets it
    np.testing.assert_array_equal(again(np.arange(7)), vectors(np.arange(7)))


def test_a_product_of_vectors_is_the_weighted_mean_of_the_teachers_cosines(tmp_path):
    rows = rows_of()
    first, a = written(tmp_path / "a:3", rows, dim=4)  # a path with a colon is no weight
    second, b = written(tmp_path / "b", rows, dim=6, seed=1)
    found = vectors_of(rows, f"{first}:1", f"{second}:3").reshape(21, -1)
    a, b = a.reshape(21, -1), b.reshape(21, -1)
    np.testing.assert_allclose(found @ found.T, 0.25 * a @ a.T + 0.75 * b @ b.T, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    equal = vectors_of(rows, first, second).reshape(21, -1)
    np.testing.assert_allclose(equal @ equal.T, (a @ a.T + b @ b.T) / 2, atol=1e-6)


def test_encode_writes_what_a_run_on_the_same_file_reads(model, checkpoint, tmp_path):
    rows = rows_of()
    rows.rename_columns({"sent0": "query", "sent1": "positive", "sent2": "negative"}).to_csv(tmp_path / "rows.csv")
    words = ["--model", str(checkpoint), "--input", str(tmp_path / "rows.csv"), "--output", str(tmp_path / "out")]
    assert encode_main([*words, "--columns", "query", "positive", "negative", "--shard_size", "4", "--quiet"]) == 0
    loaded = load_text_dataset(str(tmp_path / "rows.csv"))
    found = vectors_of(loaded, tmp_path / "out")
    for column in range(3):
        expected = model.encode(rows[f"sent{column}"][:], convert_to_numpy=True)
        np.testing.assert_allclose(found[:, column], expected, atol=1e-6)


def test_a_model_encodes_the_texts_once_for_all_runs(model, checkpoint, cache, monkeypatch):
    rows = rows_of()
    found = vectors_of(rows, checkpoint)
    expected = model.encode(rows["sent1"][:], convert_to_numpy=True)
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-6)
    monkeypatch.setattr(encoder_module, "encode_token_ids", None)
    np.testing.assert_array_equal(vectors_of(rows, checkpoint), found)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


def test_the_digest_stands_for_texts_weights_shares_and_dimensions_but_not_for_names(model, tmp_path):
    rows = rows_of()
    a, b, c = (written(tmp_path / name, rows, seed=seed)[0] for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    for dim in (None, 16):
        encode(model, rows, tmp_path / str(dim), truncate_dim=dim)
    sources = [[a], [c], [f"{a}:2", f"{c}:1"], [a, c], [str(tmp_path / "None")], [str(tmp_path / "16")]]
    digests = [RowVectors(names, rows, CPU).digest for names in sources]
    assert len(set(digests)) == len(sources)
    assert RowVectors([b], rows, CPU).digest == digests[0]


def test_the_cache_knows_models_by_their_tokenizers_and_templates(model, checkpoint, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    rules = json.loads((other / "tokenizer.json").read_text())
    rules["model"]["vocab"] |= {"cat": rules["model"]["vocab"]["dog"], "dog": rules["model"]["vocab"]["cat"]}
    (other / "tokenizer.json").write_text(json.dumps(rules))
    before = model.identity()
    model.encode("the cat " * 60, max_length=8)  # the truncation of a call does not count
    assert model.identity() == before
    now = SimCSE(other, device="cpu").identity()
    assert before.changes(now) == ["another tokenizer"] and before.templates == []


def test_a_run_waits_for_the_shards_of_another_run(checkpoint, cache):
    rows = rows_of()
    found = vectors_of(rows, checkpoint)
    (folder,) = [path for path in cache.iterdir() if path.is_dir()]
    with held_elsewhere(folder) as child:
        threading.Timer(0.3, os.kill, (child, signal.SIGKILL)).start()
        np.testing.assert_array_equal(vectors_of(rows, checkpoint), found)


# --- refusals ---


def test_a_vector_without_a_direction_is_refused_by_its_row(tmp_path):
    rows, vectors = rows_of(columns=2), np.ones((7, 2, 4))
    vectors[4, 1] = 0
    write_vectors(tmp_path / "api", rows, vectors, "an API")
    with pytest.raises(ValueError, match="the vector of training row 5 is zero or not finite"):
        vectors_of(rows, tmp_path / "api")
    for folder, shape in (("fewer", (7, 4)), ("api", (7, 2, 4))):
        with pytest.raises(ValueError, match="7 vectors for 14 texts|api is not empty: name a new folder"):
            write_vectors(tmp_path / folder, rows, np.ones(shape), "an API")


@pytest.mark.parametrize("kept", [range(6, -1, -1), range(6)])
def test_vectors_of_other_texts_or_of_another_order_are_refused(tmp_path, kept):
    rows = rows_of()
    folder, _ = written(tmp_path / "api", rows)
    with pytest.raises(ValueError, match=r"api holds the vectors of other texts, .* \(21 there, "):
        RowVectors([folder], rows.select(kept), CPU)


def test_unsuitable_sources_are_refused(model, tmp_path):
    rows = rows_of(columns=1)
    folder, _ = written(tmp_path / "api", rows)
    encode(model, rows, tmp_path / "int8", precision="int8")
    incomplete, _ = written(tmp_path / "incomplete", rows)
    next((tmp_path / "incomplete").glob("*.npy")).unlink()
    for source, message in {
        f"{folder}:0": "the weight 0 is not a number above 0",
        str(tmp_path / "nothing-here"): "nothing-here is neither a model nor a folder that `simcse-hf encode` wrote",
        str(tmp_path / "int8"): "int8 in npy; a teacher or guide needs float32 in npy",
        incomplete: "is missing, because the run was interrupted: finish it with resume",
    }.items():
        with pytest.raises(ValueError, match=message):
            RowVectors([source], rows, CPU)


# --- neighbours ---


@pytest.mark.parametrize("block", [100, 12])
def test_neighbours_are_the_rows_with_the_nearest_anchors(tmp_path, monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    rows = rows_of(24, columns=2)
    folder, expected = written(tmp_path / "api", rows, dim=8)
    vectors = RowVectors([folder], rows, CPU)
    found = vectors.neighbors(4)
    blocks = np.array_split(np.arange(24), -(-24 // block))
    for part in blocks:
        cosines = expected[part, 0] @ expected[part, 0].T
        np.testing.assert_array_equal(found[part], part[np.argsort(-cosines, axis=1)[:, :4]])
    monkeypatch.setattr(module, "ExactIndex", None)  # they are searched once
    np.testing.assert_array_equal(RowVectors([folder], rows, CPU).neighbors(4), found)


def _neighbors(folder, cache, rank, processes):
    config.HF_DATASETS_CACHE, module._BLOCK = cache, 6
    blocks, write = [], module.write_npy
    module.write_npy = lambda path, found: (blocks.append(path.stem[-1]), write(path, found))
    found = RowVectors([folder], rows_of(24), CPU).neighbors(4)
    return np.array(found).tolist(), blocks[:2]


def test_processes_divide_the_search_for_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 6)
    folder, _ = written(tmp_path / "api", rows_of(24), dim=8)
    alone = np.array(RowVectors([folder], rows_of(24), CPU).neighbors(4)).tolist()
    (first, some), (second, others) = in_processes(partial(_neighbors, folder, str(tmp_path / "two")), tmp_path)
    assert first == second == alone
    assert (some, others) == (["0", "2"], ["1", "3"])
    assert [path.suffix for path in (tmp_path / "two" / "simcse_hf" / "vectors").iterdir()] == [".npy"]
