"""What `SimCSE`, `encode` and `quantize` refuse, and what the message names."""

import json

import numpy as np
import pytest
import torch
from conftest import tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.encoding.files import encode, read_manifest, read_shards
from simcse_hf.encoding.quantization import calibrate_ranges, quantize

VECTORS = np.ones((3, 4), dtype=np.float32)

#: What is called with a model that reads 40 tokens, and what the message names.
OF_MODELS = {
    "a missing text": (
        lambda model: model.encode(["a cat", None]),
        "sentence 1: expected a text, got None",
    ),
    "a list": (
        lambda model: model.encode([["a", "b"]]),
        r"sentence 0: expected a text, got \['a', 'b'\]",
    ),
    "a dict": (
        lambda model: model.encode({"q1": "a cat", "q2": "a dog"}),
        "a list of texts, got a dict",
    ),
    "a set": (
        lambda model: model.similarity({"a cat", "a dog"}, "a cat"),
        "a list of texts, got a set",
    ),
    "half a pair": (
        lambda model: model.encode(["fine", "half \ud83d"]),
        "sentence 1: .* surrogate pair",
    ),
    "positions": (
        lambda model: model.encode("a cat", max_length=41),
        "max_seq_length is 41.* has 40 positions",
    ),
    "length": (lambda model: model.encode("a cat", max_length=0), "max_"),
    "positions set": (
        lambda model: setattr(model, "max_seq_length", 41),
        "max_seq_length is 41.* has 40 positions",
    ),
    "no room for a token set": (
        lambda model: setattr(model, "max_length", 2),
        "at least 3",
    ),
    "room": (
        lambda model: model.encode(["a"], prompt="the dog sang", max_length=5),
        "no room is left",
    ),
    "prompt": (
        lambda model: model.encode(["a"], prompt_name="sts"),
        "no prompt named 'sts'; .* query, document",
    ),
    "no name of a prompt": (
        lambda model: model.encode(["a"], prompt_name=""),
        "no prompt named ''",
    ),
    "precision": (
        lambda model: model.encode(["a"], precision="int4"),
        "precision must be one of",
    ),
    "ranges": (
        lambda model: model.encode(["a"], precision="int8"),
        "int8 needs ranges",
    ),
    "width": (
        lambda model: model.encode(["a"], truncate_dim=33),
        "truncate_dim must be .* between 1 and 32",
    ),
    "no width": (
        lambda model: model.encode(["a"], truncate_dim=0),
        "truncate_dim must be .* between 1 and 32",
    ),
    "batch": (
        lambda model: model.encode(["a"], batch_size=0),
        "batch_size must be an integer above 0, got 0",
    ),
    "budget": (
        lambda model: model.encode(["a"], token_budget=0),
        "token_budget must be an integer above 0, got 0",
    ),
    "long texts": (
        lambda model: model.encode(["a"], long_texts="max"),
        "long_texts .* cut, mean, got 'max'",
    ),
    "pairs": (
        lambda model: model.similarity_pairwise(["a"], ["a", "b"]),
        "equally many items .* 1 and 2",
    ),
    "codes": (
        lambda model: model.similarity(VECTORS.astype(np.int8), VECTORS),
        "embeddings are int8: .*no codes",
    ),
    "bits": (
        lambda model: model.similarity_pairwise(torch.ones(3, 4, dtype=torch.uint8), VECTORS),
        "embeddings are torch.uint8: .*no codes",
    ),
    "length of a model": (
        lambda model: SimCSE(model.name_or_path, max_length=41),
        "max_seq_length is 41.* 40 pos",
    ),
    "no length": (lambda model: SimCSE(model.name_or_path, max_length=-1), "max_"),
    "long texts of a model": (
        lambda model: SimCSE(model.name_or_path, long_texts="max"),
        "long_texts must be .*got 'max'",
    ),
    "pooler": (
        lambda model: SimCSE(model.name_or_path, pooler_type="sum"),
        "pooler_type must be one of",
    ),
    "shape of ranges": (
        lambda _: quantize(VECTORS, "int8", np.zeros((2, 3))),
        r"ranges must be \(2, 4\)",
    ),
    "order of ranges": (
        lambda _: quantize(VECTORS, "int8", np.array([[1.0] * 4, [0.0] * 4])),
        "each minimum at most its maximum",
    ),
    "one vector": (lambda _: calibrate_ranges(VECTORS[:1]), "at least two"),
    "NaN": (lambda _: calibrate_ranges(VECTORS * np.nan), "row 0 .*not finite"),
    "no index": (
        lambda model: model.search("a"),
        "no index yet: call build_index or load_index",
    ),
}


@pytest.mark.parametrize(("call", "message"), OF_MODELS.values(), ids=OF_MODELS)
def test_arguments_are_refused_by_their_names(call, message, model):
    with pytest.raises(ValueError, match=message):
        call(model)


def test_an_unknown_setting_of_a_model_is_named(model):
    with pytest.raises(TypeError, match="unknown argument.* pooler;"):
        SimCSE(model.name_or_path, pooler="avg")


def test_a_damaged_tokenizer_is_an_error_that_names_its_folder(checkpoint):
    path = checkpoint / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(
        ValueError,
        match=f"{checkpoint}: cannot be loaded, because a file is missing or damaged",
    ):
        SimCSE(checkpoint, device="cpu")


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_tokenizer_with_ids_beyond_the_embeddings_is_refused(save_checkpoint, content):
    checkpoint = save_checkpoint(AutoModelForCL.from_config(tiny_config(vocab_size=20), pooler_type="avg"))
    (checkpoint / "tokenizer_config.json").unlink()
    if content is not None:
        (checkpoint / "tokenizer_config.json").write_text(content)
    with pytest.raises(
        ValueError,
        match=f"{checkpoint}: the tokenizer .* ids below 20.*Save the model's own",
    ):
        SimCSE(checkpoint, device="cpu")


def test_a_model_folder_without_a_tokenizer_is_refused(checkpoint):
    for file in checkpoint.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(
        ValueError,
        match=f"{checkpoint}: the tokenizer .* no words, because its files are missing",
    ):
        SimCSE(checkpoint, device="cpu")


def test_folders_and_inputs_of_encode_are_refused(model, tmp_path):
    texts, full, bad = tmp_path / "t.txt", tmp_path / "full", tmp_path / "b.jsonl"
    texts.write_text("a cat\na dog\n")
    bad.write_text('{"text": "fine"}\n{"text": "half \\ud83d of one"}\n{"text": null}\n')
    full.mkdir()
    (full / "letter.txt").write_text("mine")
    ranges = np.zeros((2, 32))
    for arguments, message in [
        ((texts, texts), "is a file"),
        ((tmp_path / "no.txt", tmp_path / "out"), r"no\.txt: no such file"),
        ((texts, full), "holds other files"),
        (
            (bad, tmp_path / "out"),
            r"b\.jsonl, line 2.*: the text .* holds half of a surrogate pair",
        ),
        (
            (texts, tmp_path / "out", {"format": "csv"}),
            "format must be one of npy, parquet, got 'csv'",
        ),
        (
            (texts, tmp_path / "out", {"shard_size": 0}),
            "shard_size must be an integer above 0, got 0",
        ),
        (
            (texts, tmp_path / "out", {"resume": True, "overwrite": True}),
            "resume .* overwrite",
        ),
        (
            (texts, tmp_path / "out", {"ranges": ranges}),
            "ranges are for precision int8 and uint8",
        ),
        (
            (texts, tmp_path / "out", {"precision": "int8", "ranges": ranges[:, :3]}),
            r"ranges must be \(2, 32\)",
        ),
        (
            (texts, tmp_path / "out", {"column": "a", "columns": ["a"]}),
            "column and columns",
        ),
    ]:
        source, folder, *options = arguments
        with pytest.raises(ValueError, match=message):
            encode(model, source, folder, **(options[0] if options else {}))
        assert not list(tmp_path.glob("out/*.npy")), "nothing is encoded before an input is checked"
    with pytest.raises(ValueError, match="not a folder that"):
        list(read_shards(full))
    (full / "_manifest.json").write_text(json.dumps({"input": {}})[:-1])
    with pytest.raises(ValueError, match="not a JSON file"):
        read_manifest(full)
