"""What `SimCSE`, `encode` and `quantize` refuse, and what the message names."""

import numpy as np
import pytest
from conftest import tiny_config
from trainer_helpers import refuses

from simcse_hf import BertForCL, SimCSE
from simcse_hf.encoding.files import encode, read_shards
from simcse_hf.encoding.quantization import calibrate_ranges, quantize
from simcse_hf.encoding.simcse import load_model

VECTORS = np.ones((3, 4), dtype=np.float32)


def test_options_of_encode_are_refused_by_their_names(model):
    """The model reads 40 tokens."""
    for options, message in (
        ({"max_length": 41}, "max_seq_length is 41 40 positions"),
        ({"max_length": 0}, "max_"),
        ({"prompt": "the dog sang", "max_length": 5}, "the dog sang"),
        ({"prompt_name": ""}, "no prompt named ''; query, document"),
        ({"precision": "int4"}, "precision"),
        ({"precision": "int8"}, "ranges"),
        ({"batch_size": 0}, "batch_size"),
        ({"long_texts": "max"}, "long_texts"),
    ):
        with refuses(message):
            model.encode(["a cat"], **options)


def test_arguments_are_refused_by_their_names(model):
    folder = model.name_or_path
    for call, message in (
        (lambda: model.encode(["a cat", None]), "sentence 1: None"),
        (lambda: encode(model, ["a"], folder, prompt="\ud83d"), "prompt: surrogate pair"),
        (lambda: model.similarity_pairwise(["a"], ["a", "b"]), "1 and 2"),
        (lambda: model.similarity(VECTORS.astype(np.int8), VECTORS), "int8"),
        (lambda: model.search("a"), "no index yet"),
        (lambda: SimCSE(folder, long_texts="max"), "long_texts"),
        (lambda: SimCSE(folder, pooler_type="sum"), "pooler_type"),
        (lambda: load_model(folder, model_backend="onnx"), "has no onnx"),
        (lambda: load_model(folder, dtype="float32"), "dtype must be bf16 'float32'"),
        (lambda: encode(model, ["a"], folder, dtype="fp32"), "loaded already: leave out dtype"),
        (lambda: load_model("model", device="meta"), "device meta: this machine cannot use it"),
        (lambda: load_model("bm25"), "bm25 is keyword search, no vectors: evaluate and compare a folder ./bm25"),
        (lambda: calibrate_ranges(VECTORS[:1]), "at least two embeddings"),
        (lambda: quantize(VECTORS, "int8", np.array([[1.0] * 4, [0.0] * 4])), "minimum"),
    ):
        with refuses(message):
            call()


def test_an_unknown_setting_of_a_model_is_named(model):
    with refuses("unknown argument pooler;", TypeError):
        SimCSE(model.name_or_path, pooler="avg")


def test_a_tokenizer_that_is_damaged_missing_or_of_another_model_is_refused(checkpoint, save_checkpoint):
    path = checkpoint / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-40])
    with refuses(f"{checkpoint}: damaged"):
        SimCSE(checkpoint, device="cpu")
    for file in checkpoint.glob("tokenizer*"):
        file.unlink()
    with refuses(f"{checkpoint}: the tokenizer missing"):
        SimCSE(checkpoint, device="cpu")
    narrow = save_checkpoint(BertForCL(tiny_config(vocab_size=20), pooler_type="avg"), "narrow")
    with refuses(f"{narrow}: the tokenizer ids below 20"):
        SimCSE(narrow, device="cpu")


def test_folders_and_inputs_of_encode_are_refused(model, tmp_path):
    texts, full, bad, out = (tmp_path / name for name in ("t.txt", "full", "b.jsonl", "out"))
    texts.write_text("a cat\na dog\n")
    bad.write_text('{"text": "fine"}\n{"text": "half \\ud83d of one"}\n{"text": null}\n')
    full.mkdir()
    (full / "letter.txt").write_text("mine")
    ranges = np.zeros((2, 32))
    for source, folder, options, named in [
        (texts, texts, {}, "is a file"),
        (tmp_path / "no.txt", out, {}, r"no\.txt"),
        (texts, full, {}, "other files"),
        (bad, out, {}, r"b\.jsonl, line 2"),
        (texts, out, {"format": "csv"}, "format"),
        (texts, out, {"shard_size": 0}, "shard_size"),
        (texts, out, {"resume": True, "overwrite": True}, "resume .* overwrite"),
        (texts, out, {"ranges": ranges}, "ranges"),
        (texts, out, {"precision": "int8", "ranges": ranges[:, :3]}, r"ranges must be \(2, 32\)"),
        (texts, out, {"column": "a", "columns": ["a"]}, "column and columns"),
    ]:
        with pytest.raises(ValueError, match=named):
            encode(model, source, folder, **options)
        assert not list(out.glob("*.npy")), "nothing is encoded before an input is checked"
    with refuses("_manifest.json"):
        list(read_shards(full))
