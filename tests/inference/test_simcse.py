"""`SimCSE.encode`: the right pooler, in the order of the texts, in any batches, and never a random head."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import CLS, PAD, SEP, tiny_config
from transformers import AutoModel, BertForMaskedLM, BertModel, RobertaForMaskedLM

from simcse_hf import AutoModelForCL, BertForCL, SimCSE
from simcse_hf.cli.search import index_main, search_main
from simcse_hf.data.collator import length_sorted_batches
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.inference.encoding import default_token_budget, encode_token_ids, tokenize_texts
from simcse_hf.inference.shards import encode_file
from simcse_hf.models.pooling import POOLER_TYPES, pool
from simcse_hf.publishing.export import export_onnx
from simcse_hf.training.dev_sets import SimilarityEvalCallback

TEXTS = [
    "a cat sat on the mat .",
    "dog",
    "the big old man slept in a small red house , the woman sang .",
    "a bird sang",
    "a cat sat on the mat .",
    "",
    "the dog ran in the big house .",
]


@pytest.fixture
def make(save_checkpoint):
    """`make(family, **settings)` saves a checkpoint and loads it as `SimCSE`."""

    def make(family="bert", options=None, **settings):
        directory = save_checkpoint(AutoModelForCL.from_config(tiny_config(family), **settings), f"{family}-model")
        return SimCSE(directory, device="cpu", **(options or {}))

    return make


def slow_encode(simcse, text, pooler_type):
    """Encode one text with the stock encoder, without padding."""
    stock = AutoModel.from_pretrained(simcse.name_or_path).eval()
    inputs = simcse.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        output = stock(**inputs, output_hidden_states=True)
    if pooler_type == "cls":
        return output.pooler_output[0]
    return pool(pooler_type, output.last_hidden_state, inputs["attention_mask"], output.hidden_states)[0]


# --- vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
@pytest.mark.parametrize("token_budget", [1, 20, 1024])
def test_embeddings_equal_those_of_each_text_alone_in_the_stock_encoder(token_budget, pooler_type, make):
    simcse = make(pooler_type=pooler_type)
    vectors = simcse.encode(TEXTS, normalize_embeddings=False, token_budget=token_budget)
    wanted = torch.stack([slow_encode(simcse, text, pooler_type) for text in TEXTS])
    torch.testing.assert_close(vectors, wanted, rtol=0, atol=1e-6)
    assert (torch.cdist(wanted, wanted) > 1e-3).sum() == 7 * 7 - 7 - 2, "the six texts can be told apart"


@pytest.mark.parametrize("family", ["roberta", "mpnet", "albert", "distilbert", "electra", "deberta-v2", "modernbert"])
def test_padding_does_not_change_the_embeddings_of_any_encoder(family, make):
    simcse = make(family)
    together = simcse.encode(TEXTS)
    alone = torch.stack([simcse.encode(text) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_encode_runs_in_evaluation_mode_and_restores_the_mode(make):
    simcse = make()
    for training in (True, False):
        simcse.model.train(training)
        assert torch.equal(simcse.encode(TEXTS), simcse.encode(TEXTS))
        assert simcse.model.training is training


def test_embeddings_are_normalized_by_default(make):
    simcse = make()
    raw, unit = simcse.encode(TEXTS, normalize_embeddings=False), simcse.encode(TEXTS)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(7))
    torch.testing.assert_close(F.normalize(raw, dim=1), unit)
    assert (raw.norm(dim=1) - 1).abs().min() > 1e-3


def test_shapes_and_types(make):
    simcse = make()
    assert simcse.encode("a cat").shape == (32,)
    assert simcse.encode(["a cat"]).shape == (1, 32)
    assert simcse.encode(("a cat", "dog")).shape == (2, 32)
    assert simcse.encode(iter(TEXTS)).shape == (7, 32)
    assert simcse.encode([]).shape == (0, 32) and simcse.encode([], convert_to_numpy=True).shape == (0, 32)
    tensor, array = simcse.encode(TEXTS), simcse.encode(TEXTS, convert_to_numpy=True)
    assert tensor.dtype == torch.float32 and tensor.device.type == "cpu" and not tensor.requires_grad
    assert isinstance(array, np.ndarray) and array.dtype == np.float32
    np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (["a cat", None], "sentence 1: expected a text, got None"),
        ([["a", "b"]], r"sentence 0: expected a text, got \['a', 'b'\]"),
        ([3.0], "sentence 0: expected a text, got 3.0"),
    ],
)
def test_an_item_that_is_not_a_text_is_named_with_its_position(sentences, message, make):
    with pytest.raises(ValueError, match=message):
        make().encode(sentences)


# --- batches ------------------------------------------------------------------------------------------------------


def test_the_default_token_budget_depends_on_device_and_padding():
    model = AutoModelForCL.from_config(tiny_config("bert"))
    cpu = torch.device("cpu")
    assert default_token_budget(model, cpu) == 4096
    model.unpadded = False
    assert default_token_budget(model, cpu) == 1024
    assert default_token_budget(model, torch.device("cuda")) == 32_768


@pytest.mark.parametrize("token_budget", [1, 7, 16, 100])
def test_batches_are_longest_first_and_within_the_budget(token_budget):
    lengths = [3, 9, 1, 9, 4, 4, 7, 2, 16, 1]
    batches = length_sorted_batches(lengths, token_budget)
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(10))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or len(batch) * longest <= token_budget
    for batch, following in zip(batches, batches[1:], strict=False):
        assert (len(batch) + 1) * lengths[batch[0]] > token_budget, f"there was room for {following[0]}"
    assert length_sorted_batches([], token_budget) == []


def test_the_model_gets_batches_sorted_by_length_and_padded():
    model, seen = BertForCL(tiny_config(), pooler_type="avg"), []
    model.register_forward_hook(lambda _, __, kwargs, ___: seen.append(kwargs), with_kwargs=True)
    token_ids = [[CLS, *[7] * n, SEP] for n in (1, 8, 3, 3, 5, 1)]
    vectors = encode_token_ids(model, token_ids, PAD, token_budget=20)
    assert [tuple(call["input_ids"].shape) for call in seen] == [(2, 10), (4, 5)]
    for call in seen:
        assert torch.equal(call["input_ids"] != PAD, call["attention_mask"] == 1)
    assert vectors.shape == (6, 32) and vectors.dtype == torch.float32


def test_an_accelerator_gets_windows_and_its_results_are_put_together_in_order(make, monkeypatch):
    simcse = make()
    texts = [f"a cat {'sat ' * (number % 9)}" for number in range(50)]
    expected = simcse.encode(texts)
    monkeypatch.setattr(simcse, "device", SimpleNamespace(type="accelerator"))  # the model itself stays on the CPU
    monkeypatch.setattr("simcse_hf.inference.simcse._ACCELERATOR_WINDOW", 7)
    torch.testing.assert_close(simcse.encode(texts), expected, rtol=0, atol=1e-6)
    with torch.no_grad():
        word = simcse.tokenizer.convert_tokens_to_ids("bird")
        simcse.model.base_model.embeddings.word_embeddings.weight[word] = torch.nan
    with pytest.raises(ValueError, match=r"text 30 \('bird'\) has an embedding that is not finite"):
        simcse.encode(["dog"] * 30 + ["bird"] + ["dog"] * 10)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("simcse-")]


@pytest.mark.parametrize("pooler_type", ["avg", "cls_before_pooler"])
def test_no_batch_waits_for_the_device(pooler_type):
    """On meta tensors, which have no values, every wait is an error: here, only the copy of all embeddings."""
    model = AutoModelForCL.from_config(tiny_config("bert"), pooler_type=pooler_type).eval().to("meta")
    finished = []
    model.register_forward_hook(lambda module, inputs, output: finished.append(len(output.sentence_embeddings)))
    token_ids = [[1, *range(5, 5 + number % 4), 2] for number in range(12)]
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        encode_token_ids(model, token_ids, 0, batch_size=3)
    assert finished == [3, 3, 3, 3]


def test_threads_with_different_lengths_get_the_embeddings_of_one_thread(make):
    """A fast tokenizer keeps the truncation of its last call, which used to leak into other threads."""
    simcse, lengths = make(), [3, 4, 5, 8, 16]
    alone = {length: simcse.encode(TEXTS, max_length=length) for length in lengths}

    def encode(number):
        length = lengths[number % len(lengths)]
        return torch.equal(simcse.encode(TEXTS, max_length=length), alone[length])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(encode, range(60)))


def test_encode_leaves_the_tokenizer_as_it_was(make):
    simcse = make()
    backend = simcse.tokenizer.backend_tokenizer
    for state in (lambda: backend.enable_truncation(7, stride=2), backend.no_truncation):
        state()
        backend.enable_padding(length=11)
        before = backend.truncation, backend.padding
        simcse.encode(TEXTS, max_length=4)
        assert (backend.truncation, backend.padding) == before


# --- lengths ------------------------------------------------------------------------------------------------------

LONG = " ".join(["cat dog bird"] * 50)


@pytest.mark.parametrize(
    ("family", "positions"), [("bert", 40), ("roberta", 38), ("xlm-roberta", 38), ("mpnet", 38), ("distilbert", 40)]
)
def test_a_text_longer_than_the_positions_is_truncated(family, positions, make):
    """RoBERTa's 40 positions are enough for 38 tokens, because positions start after the padding id 1."""
    simcse = make(family)
    assert simcse.max_length == positions
    fitting = " ".join(LONG.split()[: positions - 2])
    torch.testing.assert_close(simcse.encode(LONG), simcse.encode(fitting))
    shorter = " ".join(LONG.split()[: positions - 3])
    assert not torch.allclose(simcse.encode(LONG), simcse.encode(shorter), atol=1e-5)


def test_max_length_truncates(make):
    simcse = make(options={"max_length": 5})
    torch.testing.assert_close(simcse.encode("a cat sat on the mat"), simcse.encode("a cat sat"))
    torch.testing.assert_close(simcse.encode("a cat sat", max_length=4), simcse.encode("a cat"))
    longer = simcse.encode("a cat sat on", max_length=6)
    assert not torch.allclose(longer, simcse.encode("a cat sat on"), atol=1e-5)


@pytest.mark.parametrize(("family", "positions"), [("bert", 40), ("roberta", 38)])
def test_a_max_length_beyond_the_positions_is_refused(family, positions, make):
    simcse = make(family, options={"max_length": positions})
    message = f"max_seq_length is {positions + 1}, but this encoder .* has {positions} positions"
    with pytest.raises(ValueError, match=message):
        simcse.encode(LONG, max_length=positions + 1)
    with pytest.raises(ValueError, match=message):
        SimCSE(simcse.name_or_path, max_length=positions + 1)


def test_max_seq_length_of_training_does_not_truncate_in_inference(make):
    simcse = make(max_seq_length=5)
    assert not torch.allclose(simcse.encode("a cat sat on the mat"), simcse.encode("a cat sat"), atol=1e-5)


@pytest.mark.parametrize("max_length", [None, 2, 5])
def test_tokenize_texts_gives_the_ids_of_the_tokenizer(tokenizer, max_length):
    texts = [
        "",
        "a cat [MASK] sat",
        "CAT  cat\n",
        "\u732b \u00e9t\u00e9 e\u0301",
        "the cat " * 40,
        "[CLS] dog [SEP]",
        " \x00dog",
    ]
    options = {"truncation": max_length is not None, "max_length": max_length}
    expected = tokenizer(texts, **options)["input_ids"]
    assert tokenize_texts(tokenizer, texts, max_length) == expected
    assert tokenize_texts(tokenizer, texts[::-1], max_length) == expected[::-1]


def test_a_tokenizer_with_an_encoding_of_its_own_is_called_as_a_whole(tokenizer, monkeypatch):
    class Shouting(type(tokenizer)):
        def _encode_plus(self, text, **options):
            return super()._encode_plus([f"{entry} dog" for entry in text], **options)

    expected = tokenizer(["cat dog", "a cat dog"])["input_ids"]
    monkeypatch.setattr(tokenizer, "__class__", Shouting)
    assert tokenize_texts(tokenizer, ["cat", "a cat"]) == expected


# --- similarity ---------------------------------------------------------------------------------------------------


def test_similarity_is_the_cosine_and_its_shape_follows_the_arguments(make):
    simcse = make()
    vectors = simcse.encode(TEXTS, normalize_embeddings=False).double()
    cosines = torch.stack([F.cosine_similarity(v[None], vectors) for v in vectors]).float()
    one = simcse.similarity(TEXTS[0], TEXTS[1])
    assert isinstance(one, float) and one == pytest.approx(cosines[0, 1].item(), abs=1e-6)
    torch.testing.assert_close(simcse.similarity(TEXTS[0], TEXTS), cosines[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(simcse.similarity(TEXTS[:3], TEXTS), cosines[:3], rtol=0, atol=1e-6)
    torch.testing.assert_close(simcse.similarity(TEXTS, TEXTS[:1]), cosines[:, :1], rtol=0, atol=1e-6)
    assert simcse.similarity([], TEXTS).shape == (0, 7)


def test_similarity_takes_embeddings_of_any_length(make):
    simcse = make()
    wanted = simcse.similarity(TEXTS[:2], TEXTS)
    vectors = simcse.encode(TEXTS)
    torch.testing.assert_close(simcse.similarity(3 * vectors[:2], TEXTS), wanted)
    torch.testing.assert_close(simcse.similarity(TEXTS[:2], 5 * vectors.numpy().astype(np.float64)), wanted)
    assert simcse.similarity(vectors[0], vectors[0]) == pytest.approx(1.0, abs=1e-6)
    assert math.isclose(simcse.similarity(vectors[0], -vectors[0]), -1.0, abs_tol=1e-6)


# --- which pooler -------------------------------------------------------------------------------------------------


def test_the_pooler_is_read_from_the_config_and_not_from_the_name(save_checkpoint):
    for name, settings, expected in [
        ("unsup-simcse-bert", {"pooler_type": "cls"}, "cls"),
        ("sup-simcse-bert", {"pooler_type": "cls", "mlp_only_train": True}, "cls_before_pooler"),
        ("bert-avg", {"pooler_type": "avg_first_last"}, "avg_first_last"),
    ]:
        simcse = SimCSE(save_checkpoint(BertForCL(tiny_config(), **settings), name), device="cpu")
        assert simcse.pooler_type == expected
        wanted = slow_encode(simcse, TEXTS[2], expected)
        torch.testing.assert_close(simcse.encode(TEXTS[2], normalize_embeddings=False), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooler", POOLER_TYPES)
def test_a_named_pooler_overrides_the_config(pooler, save_checkpoint):
    directory = save_checkpoint(BertForCL(tiny_config(), pooler_type="cls", mlp_only_train=True))
    simcse = SimCSE(directory, pooler_type=pooler, device="cpu")
    assert simcse.pooler_type == pooler
    wanted = slow_encode(simcse, TEXTS[2], pooler)
    torch.testing.assert_close(simcse.encode(TEXTS[2], normalize_embeddings=False), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("cls", "family"), [(BertForMaskedLM, "bert"), (RobertaForMaskedLM, "roberta")])
def test_an_untrained_head_is_refused(cls, family, save_checkpoint):
    directory = save_checkpoint(cls(tiny_config(family)))
    for pooler in (None, "cls"):
        with pytest.raises(ValueError, match="no trained head for pooler_type 'cls'.*would be random.*avg"):
            SimCSE(directory, pooler_type=pooler, device="cpu")
    simcse = SimCSE(directory, pooler_type="avg", device="cpu")
    wanted = slow_encode(simcse, TEXTS[0], "avg")
    torch.testing.assert_close(simcse.encode(TEXTS[0], normalize_embeddings=False), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_the_head_of_a_model_trained_without_it_is_refused(family, save_checkpoint):
    directory = save_checkpoint(AutoModelForCL.from_config(tiny_config(family), pooler_type="avg"))
    assert SimCSE(directory, device="cpu").pooler_type == "avg"
    with pytest.raises(ValueError, match="no trained head"):
        SimCSE(directory, pooler_type="cls", device="cpu")


def test_the_old_argument_pooler_is_refused_and_pooler_type_named(save_checkpoint):
    directory = save_checkpoint(BertForCL(tiny_config()))
    with pytest.raises(TypeError, match="unknown argument.* pooler;"):
        SimCSE(directory, pooler="avg")
    with pytest.raises(TypeError, match="unknown argument.* trust_me;"):
        SimCSE(directory, trust_me=True)


# --- sentence-transformers' layout --------------------------------------------------------------------------------


def as_sentence_transformer(directory, pooling, modules=("Transformer", "Pooling", "Normalize"), length=7):
    """Write the files that sentence-transformers saves beside the encoder."""
    folders = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    rows = [
        {"idx": i, "name": str(i), "path": folders.get(kind, f"{i}_{kind}"), "type": f"sentence_transformers.x.{kind}"}
        for i, kind in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(rows))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))


@pytest.mark.parametrize(
    ("pooling", "pooler"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "avg"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls_before_pooler"),
        ({"pooling_mode": "mean"}, "avg"),
        ({"pooling_mode": "cls"}, "cls_before_pooler"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode_max_tokens": True}, "max"),
    ],
)
def test_pooler_and_length_of_a_sentence_transformers_model_are_read(pooling, pooler, save_checkpoint):
    directory = save_checkpoint(BertModel(tiny_config()))
    as_sentence_transformer(directory, pooling)
    simcse = SimCSE(directory, device="cpu")
    assert (simcse.pooler_type, simcse.max_length) == (pooler, 7)
    wanted = slow_encode(simcse, "a cat sat", pooler)
    torch.testing.assert_close(simcse.encode("a cat sat", normalize_embeddings=None), wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(simcse.encode(LONG), simcse.encode(" ".join(LONG.split()[:5])))


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode": "weightedmean"},
        {"pooling_mode_weightedmean_tokens": 1},
        {},
        {"pooling_mode_mean_tokens": False},
    ],
)
def test_an_unknown_pooling_is_refused(pooling, save_checkpoint):
    directory = save_checkpoint(BertModel(tiny_config()))
    as_sentence_transformer(directory, pooling)
    with pytest.raises(ValueError, match="pools by .* pass pooler_type"):
        SimCSE(directory)
    assert SimCSE(directory, pooler_type="avg", device="cpu").pooler_type == "avg"


def test_the_length_of_a_sentence_transformers_6_model_is_read(save_checkpoint, tokenizer):
    """sentence-transformers 6 saves it as the tokenizer's model_max_length instead of max_seq_length."""
    directory = save_checkpoint(BertModel(tiny_config()))
    rows = [
        {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
    ]
    (directory / "modules.json").write_text(json.dumps(rows))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "feature-extraction"}))
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 20}))
    assert SimCSE(directory, device="cpu").max_length == 20


@pytest.mark.parametrize("max_length", [0, -1])
def test_a_max_length_below_1_is_refused(max_length, save_checkpoint):
    directory = save_checkpoint(BertForCL(tiny_config()))
    with pytest.raises(ValueError, match="max_"):
        SimCSE(directory, device="cpu", max_length=max_length)
    with pytest.raises(ValueError, match="max_"):
        SimCSE(directory, device="cpu").encode("a cat", max_length=max_length)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_checkpoint_is_an_error_that_names_its_folder(save_checkpoint, name):
    checkpoint = save_checkpoint(BertForCL(tiny_config("bert"), pooler_type="avg"))
    path = checkpoint / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=f"{checkpoint}: cannot be loaded, because a file is missing or damaged"):
        SimCSE(checkpoint, device="cpu")


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_tokenizer_with_ids_beyond_the_embeddings_is_refused(save_checkpoint, content):
    checkpoint = save_checkpoint(AutoModelForCL.from_config(tiny_config(vocab_size=20), pooler_type="avg"))
    (checkpoint / "tokenizer_config.json").unlink()
    if content is not None:
        (checkpoint / "tokenizer_config.json").write_text(content)
    with pytest.raises(ValueError, match=f"{checkpoint}: the tokenizer .* ids below 20.*Save the model's own"):
        SimCSE(checkpoint, device="cpu")


def test_a_model_folder_without_a_tokenizer_is_refused(save_checkpoint):
    checkpoint = save_checkpoint(AutoModelForCL.from_config(tiny_config(), pooler_type="avg"))
    for file in checkpoint.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match=f"{checkpoint}: the tokenizer .* no words, because its files are missing"):
        SimCSE(checkpoint, device="cpu")


# --- one length -----------------------------------------------------------------------------------------------------


def test_a_prompt_that_leaves_no_room_for_the_text_is_refused(make):
    model = make(pooler_type="avg")
    with pytest.raises(ValueError, match="no room is left"):
        model.encode(TEXTS, prompt="the big old man slept in a small red house", max_length=8)
    assert len(model.encode(TEXTS, prompt="the cat", max_length=8)) == len(TEXTS)


def test_texts_that_are_cut_are_counted_once(make, caplog):
    model = make(pooler_type="avg")
    for _ in range(2):
        model.encode(TEXTS, max_length=6)
    assert caplog.text.count("fill the maximum length of 6 tokens") == 1 and "4 of 7 texts (57.1%)" in caplog.text


def test_dev_scores_of_training_use_the_length_of_inference(make, monkeypatch):
    model = make(pooler_type="avg")
    model.tokenizer.model_max_length = 6
    pairs = ScoredPairs("stsb", TEXTS[:3], TEXTS[2:5], [1.0, 2.0, 3.0])
    dev_set = SimilarityEvalCallback(pairs)
    dev_set._encode(model.model, model.tokenizer)
    assert max(map(len, dev_set._token_ids)) == 6


def test_texts_of_unknown_tokens_are_reported_once_a_model(make, caplog):
    model = make()
    for _ in range(2):
        model.encode(["猫 坐 在 垫子 上"] * 8)
    assert caplog.text.count("the texts to encode: 100% of the tokens are unknown") == 1


def test_an_export_is_encoded_to_shards_and_searched_like_its_model(make, tmp_path, capsys):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    plain, folder, texts = make(), str(tmp_path / "onnx"), tmp_path / "texts.txt"
    with pytest.raises(ValueError, match=r"Write one with `simcse-hf export .* --to onnx --output FOLDER`"):
        SimCSE(plain.name_or_path, backend="onnx")
    export_onnx(plain, folder)
    exported = SimCSE(folder, backend="onnx")
    texts.write_text("the cat sat\na dog\n")
    (shard,) = encode_file(exported, texts, tmp_path / "shards")
    np.testing.assert_allclose(np.load(shard), plain.encode(["the cat sat", "a dog"]).numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="leave out device"):
        exported.encode("a dog", device="meta")

    words = ["--input", str(texts), "--vectors", str(tmp_path / "shards"), "--output", str(tmp_path / "index")]
    assert index_main(["--model", folder, "--model_backend", "onnx", "--quiet", *words]) == 0
    capsys.readouterr()
    assert search_main(["a dog", "--index", str(tmp_path / "index"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["sentence"] == "a dog"

    exported.model.files = [texts]  # another graph
    with pytest.raises(ValueError, match="made with other settings .model weights"):
        encode_file(exported, texts, tmp_path / "shards", resume=True)
