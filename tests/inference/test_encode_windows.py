"""Encoding windows of texts: the same bits as `encode`, tokenizing while the device computes, and a clean end."""

import os
import signal
import threading
import time
from contextlib import closing, redirect_stderr
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import WORDS, tiny_config
from torch import nn

from benchmarks.kills import start_process
from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.cli.main import main
from simcse_hf.inference import encoding
from simcse_hf.inference.batches import plan_batches, start_encoding
from simcse_hf.inference.encoding import EncodingSettings, encode_windows
from simcse_hf.inference.shards import encode_file


@pytest.fixture
def model(save_checkpoint):
    return SimCSE(save_checkpoint(AutoModelForCL.from_config(tiny_config("bert"), pooler_type="avg")), device="cpu")


def make_texts(count, seed=0):
    words = [word for word in WORDS.split() if word.isalpha()]
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(words, generator.integers(1, 12))) for _ in range(count)]


def background_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("simcse-")]


def in_windows(texts, size):
    return [texts[start : start + size] for start in range(0, len(texts), size)]


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize_embeddings": False, "truncate_dim": 8},
        {"precision": "ubinary"},
        {"prompt": "a red ", "max_length": 5, "token_budget": 30},
        {"batch_size": 3, "batch_invariant": True},
    ],
)
def test_each_window_has_the_bits_of_a_call_of_encode(model, settings):
    windows = in_windows(make_texts(50), 20)
    for embeddings, window in zip(model.encode_windows(iter(windows), **settings), windows, strict=True):
        assert torch.equal(embeddings, model.encode(window, **settings))
    assert not background_threads()


def test_an_accelerator_gets_windows_and_its_results_are_put_together_in_order(model, monkeypatch):
    texts = make_texts(50)
    expected = model.encode(texts, batch_invariant=True)
    monkeypatch.setattr(model, "device", SimpleNamespace(type="accelerator"))  # the model itself stays on the CPU
    monkeypatch.setattr("simcse_hf.inference.simcse.ACCELERATOR_WINDOW", 7)
    assert torch.equal(model.encode(texts, batch_invariant=True), expected)
    with torch.no_grad():
        model.model.base_model.embeddings.word_embeddings.weight[model.tokenizer.convert_tokens_to_ids("cat")] = (
            torch.nan
        )
    with pytest.raises(ValueError, match=r"text 30 \('cat'\) has an embedding that is not finite"):
        model.encode(["dog"] * 30 + ["cat"] + ["dog"] * 10)


def test_no_texts_give_no_embeddings(model):
    assert model.encode([]).shape == (0, 32)
    assert [part.shape for part in model.encode_windows([["a cat"], []])] == [(1, 32), (0, 32)]
    assert list(model.encode_windows([])) == []


@pytest.mark.parametrize("pooler_type", ["avg", "cls_before_pooler"])
def test_no_batch_waits_for_the_device(save_checkpoint, pooler_type):
    """On meta tensors, which have no values, every wait is an error: here, only the copy of all embeddings."""
    model = AutoModelForCL.from_config(tiny_config("bert"), pooler_type=pooler_type).eval().to("meta")
    finished = []
    model.register_forward_hook(lambda module, inputs, output: finished.append(len(output.sentence_embeddings)))
    token_ids = [[1, *range(5, 5 + number % 4), 2] for number in range(12)]
    plan = plan_batches(token_ids, None, 3, False)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        start_encoding(model, token_ids, 0, plan)
    assert finished == [3, 3, 3, 3]


# --- overlap -------------------------------------------------------------------------------------------------------


class SlowDevice(nn.Module):
    """A model that takes a fixed time for each batch, in which the host is free, as beside an accelerator."""

    embedding_dim = 4
    settings = SimpleNamespace(templates=[])

    def __init__(self, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seconds, self.busy = seconds, 0.0

    def forward(self, input_ids, attention_mask):
        begin = time.perf_counter()
        time.sleep(self.seconds)
        self.busy += time.perf_counter() - begin
        return SimpleNamespace(sentence_embeddings=torch.ones(len(input_ids), 4))


def best_overlap(measure):
    """The largest overlap of measurements with longer and longer work: other load on the machine only hides it."""
    overlaps = []
    for seconds in (0.05, 0.1, 0.2, 0.4):
        busy, wall = measure(seconds)
        overlaps.append((sum(busy) - wall) / (sum(busy) - max(busy)))
        if overlaps[-1] >= 0.8:
            break
    return max(overlaps)


def test_tokenizing_and_computing_overlap_by_at_least_80_percent(monkeypatch):
    """Overlap is the part of the shorter work that is hidden: 1 if the wall time is that of the longer one alone."""
    tokenizing = duration = 0.0

    def slow_tokenize(tokenizer, texts, max_length, templates):
        nonlocal tokenizing
        begin = time.perf_counter()
        time.sleep(duration)
        tokenizing += time.perf_counter() - begin
        return [[1, 2, 3] for _ in texts]

    monkeypatch.setattr(encoding, "tokenize_texts", slow_tokenize)
    monkeypatch.setattr(encoding, "evaluation_view", lambda model: model)

    def measure(seconds):
        nonlocal tokenizing, duration
        device, tokenizing, duration = SlowDevice(seconds), 0.0, seconds
        windows = ([f"text {number}"] * 8 for number in range(20))
        begin = time.perf_counter()
        parts = list(encode_windows(device, SimpleNamespace(pad_token_id=0), None, windows, EncodingSettings()))
        assert len(parts) == 20
        return (device.busy, tokenizing), time.perf_counter() - begin

    assert best_overlap(measure) >= 0.8


def test_reading_tokenizing_computing_and_writing_a_file_overlap_by_at_least_80_percent(model, tmp_path, monkeypatch):
    busy, duration = {"tokenize": 0.0, "compute": 0.0, "write": 0.0}, 0.0

    def slow(name, function):
        def call(*arguments, **options):
            begin = time.perf_counter()
            time.sleep(duration)
            result = function(*arguments, **options)
            busy[name] += time.perf_counter() - begin
            return result

        return call

    monkeypatch.setattr(encoding, "tokenize_texts", slow("tokenize", encoding.tokenize_texts))
    monkeypatch.setattr(encoding, "start_encoding", slow("compute", encoding.start_encoding))
    monkeypatch.setattr("simcse_hf.inference.shards.write_whole", slow("write", lambda path, write: None))
    source = tmp_path / "t.txt"
    source.write_text("a cat\n" * 200)

    def measure(seconds):
        nonlocal duration
        duration = seconds
        busy.update(dict.fromkeys(busy, 0.0))
        begin = time.perf_counter()
        encode_file(model, source, tmp_path / f"out{begin}", shard_size=10)
        return tuple(busy.values()), time.perf_counter() - begin

    assert best_overlap(measure) >= 0.8


# --- errors and interrupts -------------------------------------------------------------------------------------------


def test_an_abandoned_iterator_ends_its_thread_and_closes_the_source(model):
    closed = []

    def windows():
        try:
            while True:
                yield ["a cat"]
        finally:
            closed.append(True)

    with closing(model.encode_windows(windows())) as embeddings:
        next(embeddings)
        assert background_threads()
    assert closed == [True] and not background_threads()


def test_an_error_of_the_source_reaches_the_caller_after_the_windows_before_it(model):
    def windows():
        yield ["a cat"]
        raise OSError("the share is gone")

    embeddings = model.encode_windows(windows())
    assert next(embeddings).shape == (1, 32)
    with pytest.raises(OSError, match="the share is gone"):
        next(embeddings)
    assert not background_threads()


def failing_on(word, tokenize):
    def call(tokenizer, texts, *arguments):
        if any(word in text for text in texts):
            raise RuntimeError("no such symbol")
        return tokenize(tokenizer, texts, *arguments)

    return call


def test_a_text_on_which_the_tokenizer_fails_is_named_by_its_position_or_by_file_and_row(model, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "tokenize_texts", failing_on("dog", encoding.tokenize_texts))
    with pytest.raises(ValueError, match=r"text 3 \('a dog'\) cannot be tokenized: no such symbol\. Change or drop"):
        list(model.encode_windows([["a cat"] * 2, ["a cat", "a dog"]]))
    source = tmp_path / "t.txt"
    source.write_text("a cat\n\n" * 7 + "a dog\na cat\n")
    with pytest.raises(ValueError, match=r"t\.txt: the text of line or row 15 cannot be tokenized: no such symbol"):
        encode_file(model, source, tmp_path / "out", shard_size=5)
    assert not background_threads()


@pytest.mark.parametrize("where", ["start_encoding", "tokenize_texts"])
def test_an_interrupt_leaves_complete_shards_that_a_resumed_run_keeps(model, tmp_path, monkeypatch, where):
    source = tmp_path / "t.txt"
    source.write_text("\n".join(make_texts(60)))
    whole = encode_file(model, source, tmp_path / "whole", shard_size=10)
    with monkeypatch.context() as patch:
        call, calls = getattr(encoding, where), []

        def interrupted(*arguments, **options):
            calls.append(1)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return call(*arguments, **options)

        patch.setattr(encoding, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            encode_file(model, source, tmp_path / "out", shard_size=10)
    assert not background_threads()
    written = sorted(path.name for path in (tmp_path / "out").glob("vectors-*"))
    assert written == [path.name for path in whole[: len(written)]] and len(written) == 3
    assert not list((tmp_path / "out").glob(".*"))
    for ours, expected in zip(
        encode_file(model, source, tmp_path / "out", shard_size=10, resume=True), whole, strict=True
    ):
        assert ours.read_bytes() == expected.read_bytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_with_complete_shards_and_no_temporary_file(
    model, tmp_path, monkeypatch, number, status
):
    source, folder = tmp_path / "t.txt", tmp_path / "out"
    source.write_text("\n".join(make_texts(500)))
    whole = encode_file(model, source, tmp_path / "whole", shard_size=10)
    start = encoding.start_encoding

    def slow(*arguments, **options):
        time.sleep(0.05)
        return start(*arguments, **options)

    words = ["encode", "--model", model.name_or_path, "--input", str(source), "--output", str(folder), "--quiet"]
    words += ["--shard_size", "10", "--device", "cpu"]

    def command():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
        monkeypatch.setattr(encoding, "start_encoding", slow)
        with open(tmp_path / "log", "a") as log, redirect_stderr(log):
            raise SystemExit(main(words))

    pid = start_process(command, tmp_path / "log")
    deadline = time.monotonic() + 60
    while len(list(folder.glob("vectors-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(pid, number)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status, (tmp_path / "log").read_text()
    assert ("interrupted" if number == signal.SIGINT else "run again with --resume") in (tmp_path / "log").read_text()
    written = sorted(folder.glob("vectors-*"))
    assert 3 <= len(written) < 50 and not list(folder.glob(".*"))
    for ours, expected in zip(written, whole, strict=False):
        assert ours.read_bytes() == expected.read_bytes()
    assert main([*words, "--resume"]) == 0
    assert [path.read_bytes() for path in sorted(folder.glob("vectors-*"))] == [path.read_bytes() for path in whole]
