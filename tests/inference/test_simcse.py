"""`SimCSE.encode`: the right pooler, in the order of the texts, in any batches, and never a random head."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_config
from transformers import AutoModel, BertForMaskedLM, RobertaForMaskedLM

from simcse_hf import AutoModelForCL, BertForCL, SimCSE
from simcse_hf.data.collator import length_sorted_batches
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.inference.encode import encode
from simcse_hf.inference.encoder import Encoder
from simcse_hf.inference.encoding import encode_token_ids, tokenize_texts
from simcse_hf.inference.shards import read_shards
from simcse_hf.models.pooling import POOLERS
from simcse_hf.names import POOLER_TYPES
from simcse_hf.ops import cpu
from simcse_hf.ops.files import digest
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
    pooler = POOLERS[pooler_type]
    return pooler.pool(output.last_hidden_state, inputs["attention_mask"], output.hidden_states)[0]


# --- vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
@pytest.mark.parametrize("token_budget", [1, 20, 1024])
def test_embeddings_equal_those_of_each_text_alone_in_the_stock_encoder(token_budget, pooler_type, make):
    simcse = make(pooler_type=pooler_type)
    vectors = simcse.encode(TEXTS, normalize_embeddings=False, token_budget=token_budget)
    wanted = torch.stack([slow_encode(simcse, text, pooler_type) for text in TEXTS])
    torch.testing.assert_close(vectors, wanted, rtol=0, atol=1e-6)
    assert (torch.cdist(wanted, wanted) > 1e-3).sum() == 7 * 7 - 7 - 2, "the six texts can be told apart"


@pytest.mark.parametrize("training", [True, False])
def test_encode_runs_in_evaluation_mode_and_restores_the_mode(training, make):
    simcse = make()
    simcse.model.train(training)
    assert torch.equal(simcse.encode(TEXTS), simcse.encode(TEXTS))
    assert simcse.model.training is training


@pytest.mark.parametrize("family", ["bert", "albert", "deberta-v2"])
def test_linear_layers_by_onednn_change_no_embedding(family, make, monkeypatch):
    simcse, texts = make(family), TEXTS * 10
    monkeypatch.setattr(cpu, "_MKL_IS_SLOW", False)
    expected = simcse.encode(texts)
    monkeypatch.setattr(cpu, "_MKL_IS_SLOW", torch.backends.mkldnn.is_available())
    torch.testing.assert_close(simcse.encode(texts), expected, rtol=0, atol=1e-6)


def test_shapes_types_and_lengths(make):
    simcse = make()
    assert simcse.encode("a cat").shape == (32,)
    assert simcse.encode(("a cat", "dog")).shape == (2, 32)
    assert simcse.encode(iter(TEXTS)).shape == (7, 32)
    assert simcse.encode([]).shape == (0, 32) and simcse.encode([], convert_to_numpy=True).shape == (0, 32)
    tensor, array = simcse.encode(TEXTS), simcse.encode(TEXTS, convert_to_numpy=True)
    assert tensor.dtype == torch.float32 and tensor.device.type == "cpu" and not tensor.requires_grad
    np.testing.assert_array_equal(array, tensor.numpy(), strict=True)
    raw = simcse.encode(TEXTS, normalize_embeddings=False)
    assert (raw.norm(dim=1) - 1).abs().min() > 1e-3
    torch.testing.assert_close(F.normalize(raw, dim=1), tensor)


# --- batches ------------------------------------------------------------------------------------------------------


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


def test_an_accelerator_gets_windows_and_its_results_are_put_together_in_order(make, monkeypatch):
    simcse = make()
    texts = [f"a cat {'sat ' * (number % 9)}" for number in range(50)]
    expected = simcse.encode(texts)
    monkeypatch.setattr(simcse, "device", SimpleNamespace(type="accelerator"))  # the model itself stays on the CPU
    monkeypatch.setattr("simcse_hf.inference.simcse._WINDOW", 7)
    torch.testing.assert_close(simcse.encode(texts), expected, rtol=0, atol=1e-6)
    with torch.no_grad():
        word = simcse.tokenizer.convert_tokens_to_ids("bird")
        simcse.model.base_model.embeddings.word_embeddings.weight[word] = torch.nan
    with pytest.raises(ValueError, match=r"text 30 \('bird'\) has an embedding that is not finite"):
        simcse.encode(["dog"] * 30 + ["bird"] + ["dog"] * 10)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("simcse-")]


@pytest.mark.parametrize("pooler_type", ["avg", "cls_before_pooler"])
def test_no_batch_waits_for_the_device(pooler_type):
    """On meta tensors, which have no values, every wait is an error."""
    model = AutoModelForCL.from_config(tiny_config("bert"), pooler_type=pooler_type).eval().to("meta")
    finished = []
    model.register_forward_hook(lambda module, inputs, output: finished.append(len(output.sentence_embeddings)))
    token_ids = [[1, *range(5, 5 + number % 4), 2] for number in range(12)]
    assert encode_token_ids(model, token_ids, 0, batch_size=3).device.type == "meta"
    assert finished == [3, 3, 3, 3]


# --- lengths ------------------------------------------------------------------------------------------------------


def test_a_maximum_length_of_numpy_is_saved(make, tmp_path):
    make(options={"max_length": np.int64(6)}).save_pretrained(tmp_path / "saved")
    assert SimCSE(tmp_path / "saved", device="cpu").max_length == 6


def test_a_maximum_length_of_none_is_the_limit_of_the_model(make):
    simcse = make(options={"max_length": 6})
    simcse.max_seq_length = None
    assert simcse.max_length == 40


def test_max_length_truncates_and_the_length_of_training_does_not(make):
    simcse = make(max_seq_length=5, options={"max_length": 6})
    torch.testing.assert_close(simcse.encode("a cat sat on the mat"), simcse.encode("a cat sat on"))
    torch.testing.assert_close(simcse.encode("a cat sat", max_length=np.int64(4)), simcse.encode("a cat"))
    longer = simcse.encode("a cat sat on the", max_length=7)
    assert not torch.allclose(longer, simcse.encode("a cat sat on the"), atol=1e-5)


def test_a_tokenizer_with_an_encoding_of_its_own_is_called_as_a_whole(tokenizer, monkeypatch):
    class Shouting(type(tokenizer)):
        def _encode_plus(self, text, **options):
            return super()._encode_plus([f"{entry} dog" for entry in text], **options)

    expected = tokenizer(["cat dog", "a cat dog"])["input_ids"]
    monkeypatch.setattr(tokenizer, "__class__", Shouting)
    assert tokenize_texts(tokenizer, ["cat", "a cat"]) == expected


# --- similarity ---------------------------------------------------------------------------------------------------


def test_similarity_is_the_cosine_of_texts_or_embeddings_and_its_shape_follows_the_arguments(make):
    simcse = make()
    vectors = simcse.encode(TEXTS, normalize_embeddings=False)
    cosines = F.cosine_similarity(vectors[:, None].double(), vectors.double(), dim=-1).float()
    one = simcse.similarity(TEXTS[0], TEXTS[1])
    assert isinstance(one, float) and one == pytest.approx(cosines[0, 1].item(), abs=1e-6)
    for a, b, wanted in [
        (TEXTS[0], TEXTS, cosines[0]),
        (TEXTS[:3], TEXTS, cosines[:3]),
        (TEXTS, TEXTS[:1], cosines[:, :1]),
        (3 * vectors[:2], TEXTS, cosines[:2]),
        (TEXTS[:2], -5 * vectors.numpy().astype(np.float64), -cosines[:2]),
    ]:
        torch.testing.assert_close(simcse.similarity(a, b), wanted, rtol=0, atol=1e-6)
    assert simcse.similarity([], TEXTS).shape == (0, 7)
    pairs = simcse.similarity_pairwise(vectors[:3].numpy(), TEXTS[2:5])
    torch.testing.assert_close(pairs, cosines[range(3), range(2, 5)], rtol=0, atol=1e-6)


# --- which pooler -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooler", [None, *POOLER_TYPES])
def test_the_pooler_is_the_one_named_or_that_of_the_config_whatever_the_folder_is_called(pooler, save_checkpoint):
    model = BertForCL(tiny_config(), pooler_type="cls", mlp_only_train=True)
    simcse = SimCSE(save_checkpoint(model, "unsup-simcse-bert"), pooler_type=pooler, device="cpu")
    assert simcse.pooler_type == (pooler or "cls_before_pooler")
    wanted = slow_encode(simcse, TEXTS[2], simcse.pooler_type)
    torch.testing.assert_close(simcse.encode(TEXTS[2], normalize_embeddings=False), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        BertForMaskedLM(tiny_config()),
        RobertaForMaskedLM(tiny_config("roberta")),
        BertForCL(tiny_config(), pooler_type="avg"),
        AutoModelForCL.from_config(tiny_config("distilbert"), pooler_type="avg"),
    ],
)
def test_an_untrained_head_is_refused(model, save_checkpoint):
    directory = save_checkpoint(model)
    with pytest.raises(ValueError, match="no trained head for pooler_type 'cls'.*would be random.*avg"):
        SimCSE(directory, pooler_type="cls", device="cpu")
    assert SimCSE(directory, pooler_type="avg", device="cpu").pooler_type == "avg"


# --- one length -----------------------------------------------------------------------------------------------------


def test_texts_that_are_cut_or_have_unknown_tokens_are_counted_once(make, caplog):
    model = make(pooler_type="avg")
    for _ in range(2):
        model.encode(TEXTS, max_length=6)
        model.encode(["猫 坐 在 垫子 上"] * 8)
    assert caplog.text.count("the texts to encode: 100% of the tokens are unknown") == 1
    assert caplog.text.count("fill the maximum length of 6 tokens") == 1 and "4 of 7 texts (57.1%)" in caplog.text


def test_an_encoder_gives_the_embeddings_of_simcse_with_its_prompt_and_length(make):
    model = make(pooler_type="avg", prompts={"query": "the dog : "}, default_prompt_name="query", max_length=9)
    encoder = Encoder(model.model, model.tokenizer)
    prefix = encoder.resolve_prompt()
    found = encoder.embed(encoder.tokenize(TEXTS, prefix))
    assert torch.equal(found, model.encode(TEXTS, normalize_embeddings=False))
    assert encoder.reading(prefix) == model.reading(prefix) != encoder.reading()


def test_dev_scores_of_training_use_the_length_of_inference(make):
    model = make(pooler_type="avg")
    model.tokenizer.model_max_length = 6
    pairs = ScoredPairs("stsb", TEXTS[:3], TEXTS[2:5], [1.0, 2.0, 3.0])
    dev_set = SimilarityEvalCallback(pairs)
    dev_set.evaluate(model.model, model.tokenizer)
    assert max(map(len, dev_set._token_ids)) == 6


def test_an_export_is_encoded_to_shards_and_searched_like_its_model(make, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    plain, folder, texts = make(), str(tmp_path / "onnx"), tmp_path / "texts.txt"
    export_onnx(plain, folder)
    exported = SimCSE(folder, backend="onnx")
    texts.write_text("the cat sat\na dog\n")
    encode(exported, texts, tmp_path / "shards")
    np.testing.assert_allclose(
        np.load(tmp_path / "shards/vectors.npy"), plain.encode(["the cat sat", "a dog"]).numpy(), atol=1e-5
    )
    with pytest.raises(ValueError, match="leave out device"):
        exported.encode("a dog", device="meta")

    exported.build_index(texts, vectors=read_shards(tmp_path / "shards"))
    assert exported.search("a dog")[0][0] == "a dog"

    exported.model.digests = [digest(texts)]  # another graph
    with pytest.raises(ValueError, match="made with other settings .model weights"):
        encode(exported, texts, tmp_path / "shards", resume=True)
