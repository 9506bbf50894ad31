"""Vectors of frozen models for training rows: matched by position and digest, weighted, encoded once, and mined."""

import os
import pickle
import signal
import threading

import numpy as np
import pytest
import torch
from cli_helpers import encode_main
from datasets import Dataset, config
from encoding_helpers import random_texts
from process_helpers import held_elsewhere
from trainer_helpers import refuses

from simcse_hf import SimCSE, load_text_dataset
from simcse_hf.encoding.files import encode, write_vectors
from simcse_hf.encoding.vectors import RowVectors


def write_random(folder, rows, dim=4, seed=0):
    """Write random vectors of the texts of rows; return the folder and the normalized vectors."""
    vectors = np.random.default_rng(seed).normal(size=(*rows.shape, dim)).astype(np.float32)
    write_vectors(folder, rows, vectors, "an API", shard_size=5)
    return str(folder), vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def row_vectors(rows, *sources):
    return RowVectors([str(source) for source in sources], rows, torch.device("cpu"))


def all_vectors(rows, *sources):
    """The vectors of all rows, of shape `(rows, columns, dim)`."""
    return row_vectors(rows, *sources)(np.arange(len(rows)))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder in which the vectors of models are kept."""
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache/simcse_hf/vectors"


@pytest.fixture
def rows():
    """Seven rows of three random texts, which are the same in every test."""
    texts = random_texts(21, words=(5, 6))
    return Dataset.from_dict({f"sent{i}": texts[i::3] for i in range(3)})


# --- vectors of an API ---


def test_vectors_of_an_api_are_found_by_row_and_column_also_by_a_worker(tmp_path, rows):
    folder, expected = write_random(tmp_path / "api", rows)
    vectors = row_vectors(rows, folder)
    for of_process in (vectors, pickle.loads(pickle.dumps(vectors))):
        np.testing.assert_allclose(of_process(np.array([4, 0, 6])), expected[[4, 0, 6]], rtol=1e-6)


# --- several teachers ---


def products(vectors):
    """The product of each two texts."""
    flat = vectors.reshape(21, -1)
    return flat @ flat.T


@pytest.mark.parametrize("weights, shares", [((":1", ":3"), (0.25, 0.75)), (("", ""), (0.5, 0.5))])
def test_a_product_of_vectors_is_the_weighted_mean_of_the_teachers_cosines(tmp_path, rows, weights, shares):
    first, a = write_random(tmp_path / "a:3", rows, dim=4)  # a path with a colon is no weight
    second, b = write_random(tmp_path / "b", rows, dim=6, seed=1)
    found = all_vectors(rows, first + weights[0], second + weights[1])
    expected = shares[0] * products(a) + shares[1] * products(b)
    np.testing.assert_allclose(products(found), expected, atol=1e-6)


# --- vectors of a model ---


def test_encode_writes_what_a_run_on_the_same_file_reads(model, checkpoint, tmp_path, rows):
    names = ["query", "positive", "negative"]
    file = tmp_path / "rows.csv"
    rows.rename_columns(dict(zip(rows.column_names, names, strict=True))).to_csv(file)
    words = f"--model {checkpoint} --input {file} --output {tmp_path / 'out'} --shard_size 4 --quiet --columns"
    assert encode_main([*words.split(), *names]) == 0
    found = all_vectors(load_text_dataset(file), tmp_path / "out")
    for column in range(3):
        expected = model.encode(rows[f"sent{column}"][:], convert_to_numpy=True)
        np.testing.assert_allclose(found[:, column], expected, atol=1e-6)


def test_a_model_encodes_the_texts_once_for_all_runs(model, checkpoint, monkeypatch, rows):
    found = all_vectors(rows, checkpoint)
    expected = model.encode(rows["sent1"][:], convert_to_numpy=True)
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-6)
    monkeypatch.setattr(SimCSE, "embed", None)
    np.testing.assert_array_equal(all_vectors(rows, checkpoint), found)


def test_a_run_waits_for_the_shards_of_another_run(checkpoint, cache, rows):
    found = all_vectors(rows, checkpoint)
    [folder] = [path for path in cache.iterdir() if path.is_dir()]
    with held_elsewhere(folder) as child:
        threading.Timer(0.3, os.kill, (child, signal.SIGKILL)).start()
        np.testing.assert_array_equal(all_vectors(rows, checkpoint), found)


# --- digests ---


def test_the_digest_stands_for_texts_weights_shares_and_dimensions_and_not_for_names(model, tmp_path, rows):
    for name, seed in (("a", 0), ("copy", 0), ("c", 1)):
        write_random(tmp_path / name, rows, seed=seed)
    encode(model, rows, tmp_path / "whole")
    encode(model, rows, tmp_path / "16", truncate_dim=16)
    a, copy, c = (tmp_path / name for name in ("a", "copy", "c"))
    sources = [[a], [c], [f"{a}:2", f"{c}:1"], [a, c], [tmp_path / "whole"], [tmp_path / "16"]]
    digests = {row_vectors(rows, *each).digest for each in sources}
    assert len(digests) == len(sources)
    assert row_vectors(rows, copy).digest == row_vectors(rows, a).digest


# --- refusals ---


def test_vectors_that_no_run_can_use_are_refused(model, tmp_path, rows):
    folder, vectors = write_random(tmp_path / "api", rows)
    vectors[4, 1] = 0
    write_vectors(tmp_path / "zero", rows, vectors, "an API")
    encode(model, rows, tmp_path / "int8", precision="int8")
    incomplete, _ = write_random(tmp_path / "incomplete", rows)
    next((tmp_path / "incomplete").glob("*.npy")).unlink()
    for source, named in [
        (tmp_path / "zero", "training row 5"),
        (f"{folder}:0", "weight 0"),
        (tmp_path / "nothing-here", "nothing-here"),
        (tmp_path / "int8", "int8"),
        (incomplete, "missing"),
    ]:
        with refuses(named):
            all_vectors(rows, source)
    with refuses("7 vectors for 21 texts"):
        write_vectors(tmp_path / "fewer", rows, np.ones((7, 4)), "an API")
    with refuses("api is not empty"):
        write_vectors(folder, rows, vectors, "an API")


@pytest.mark.parametrize("kept", [range(6, -1, -1), range(6)])
def test_vectors_of_other_texts_or_of_another_order_are_refused(tmp_path, rows, kept):
    folder, _ = write_random(tmp_path / "api", rows)
    with refuses("api holds the vectors of other texts (21 there,"):
        row_vectors(rows.select(kept), folder)
