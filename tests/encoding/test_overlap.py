"""Encoding a file reads, tokenizes, computes and writes at the same time, and waits for a GPU in one thread only."""

import threading
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from encoding_helpers import random_texts
from evaluation_helpers import write

from simcse_hf import SimCSE
from simcse_hf.encoding import files as encode_module
from simcse_hf.encoding.files import Shard, encode
from simcse_hf.encoding.quantization import calibrate_ranges, quantize
from simcse_hf.names import PRECISIONS


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "texts.txt", random_texts(53))


@pytest.fixture
def run(model, source, tmp_path):
    """`run(...)` encodes the file into the folder `out` of the test, in shards of 20 texts."""
    return partial(encode, model, source, tmp_path / "out", shard_size=20)


@pytest.fixture
def windows(monkeypatch):
    """The number of texts of each window that is tokenized. A window is small."""
    numbers, tokenize = [], SimCSE.tokenize

    def count(model, texts, *args):
        numbers.append(len(texts))
        return tokenize(model, texts, *args)

    monkeypatch.setattr(encode_module, "_READ_AHEAD", 8)
    monkeypatch.setattr(SimCSE, "tokenize", count)
    return numbers


# --- windows -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_tokenizes_the_windows_of_missing_shards_only(run, tmp_path, windows):
    names = run(format="parquet").shards
    assert windows == [8, 8, 4, 8, 8, 4, 8, 5]
    (tmp_path / "out" / names[1]).unlink()
    windows.clear()
    run(format="parquet", resume=True)
    assert windows == [8, 8, 4]


def test_windows_that_begin_in_the_middle_of_a_row_have_the_prompts_of_their_columns(model, tmp_path, windows):
    model.prompts = {"query": "a small ", "document": "the old "}
    texts = random_texts(60)
    columns = ["sent0", "sent1", "hard_neg"]
    pd.DataFrame({name: texts[i::3] for i, name in enumerate(columns)}).to_csv(tmp_path / "t.csv")
    encode(model, tmp_path / "t.csv", tmp_path / "out", columns=columns, shard_size=20)
    prompted = [model.prompts["document" if place % 3 else "query"] + text for place, text in enumerate(texts)]
    expected = model.encode(prompted, prompt="", convert_to_numpy=True)
    np.testing.assert_allclose(np.load(tmp_path / "out/vectors.npy"), expected, atol=1e-6)


# --- writing -----------------------------------------------------------------------------------------------------


def test_a_shard_is_written_while_the_next_one_is_computed(run, tmp_path, monkeypatch):
    write_shard, begun = Shard.write, [threading.Event() for _ in range(3)]

    def wait_for_the_next_one(shard, *args):
        assert shard.number == 2 or begun[shard.number + 1].wait(timeout=20), "the next shard waits for this one"
        write_shard(shard, *args)

    calls = iter(begun)
    embed = SimCSE.embed
    monkeypatch.setattr(SimCSE, "embed", lambda *args, **options: (next(calls).set(), embed(*args, **options))[1])
    monkeypatch.setattr(Shard, "write", wait_for_the_next_one)
    run()
    assert len(np.load(tmp_path / "out/vectors.npy")) == 53


def test_an_error_while_a_shard_is_written_ends_the_run_and_leaves_no_half_array(run, tmp_path, monkeypatch):
    write_shard = Shard.write

    def fail(shard, *args):
        if shard.number == 1:
            raise OSError("the disk is gone")
        write_shard(shard, *args)

    monkeypatch.setattr(Shard, "write", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        run()
    assert (tmp_path / "out/vectors-00000-of-00003.npy").exists()
    assert not list((tmp_path / "out").glob(".*.partial")) and not (tmp_path / "out/vectors.npy").exists()


# --- a GPU, for which stand-ins play -------------------------------------------------------------------------------


class OnGPU(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def test_only_the_thread_that_writes_waits_for_a_gpu(run, monkeypatch):
    stream = SimCSE.encode_stream
    waiting = []

    def encode_stream(*args, **options):
        for key, vectors in stream(*args, **options):
            yield key, vectors.as_subclass(OnGPU)

    monkeypatch.setattr(SimCSE, "encode_stream", encode_stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waiting.append(threading.current_thread()))
    run()
    assert len(waiting) == 3 and threading.current_thread() not in waiting


def test_no_window_waits_for_the_device(model):
    """On meta tensors, which have no values, every wait is an error."""
    texts = [["a cat", "the dog ran"], ["a bird sang"]]
    windows = [(number, model.tokenize(window)) for number, window in enumerate(texts)]
    model.model.to("meta")
    computed = list(model.encode_stream(windows, truncate_dim=8))
    assert [(key, x.device.type, x.shape) for key, x in computed] == [(0, "meta", (2, 8)), (1, "meta", (1, 8))]


# --- codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_codes_of_a_tensor_are_those_of_an_array(precision):
    vectors = np.random.default_rng(0).standard_normal((50, 13)).astype(np.float32)
    ranges = calibrate_ranges(vectors[:20])
    codes = quantize(torch.from_numpy(vectors), precision, ranges)
    np.testing.assert_array_equal(codes, quantize(vectors, precision, ranges), strict=True)
