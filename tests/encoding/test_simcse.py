"""`SimCSE.encode`: the right pooler, in the order of the texts, in any batches, and never a random head."""

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_config
from trainer_helpers import refuses
from transformers import AutoModel, BertForMaskedLM

from simcse_hf import AutoModelForCL, BertForCL, SimCSE
from simcse_hf.data.collator import length_sorted_batches
from simcse_hf.encoding.batching import tokenize_texts
from simcse_hf.encoding.probes import has_weights_of, probe_embedding
from simcse_hf.encoding.simcse import load_model
from simcse_hf.models.pooling import POOLERS
from simcse_hf.names import POOLER_TYPES
from simcse_hf.publishing.hub import push_model

#: Seven texts, of which the first and the fifth are the same.
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
        model = AutoModelForCL.from_config(tiny_config(family), **settings)
        return SimCSE(save_checkpoint(model, f"{family}-model"), device="cpu", **(options or {}))

    return make


@pytest.fixture
def simcse(make):
    return make()


def slow_encode(simcse, text, pooler_type):
    """Encode one text with the stock encoder, without padding."""
    stock = AutoModel.from_pretrained(simcse.name_or_path).eval()
    inputs = simcse.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        output = stock(**inputs, output_hidden_states=True)
    if pooler_type == "cls":
        return output.pooler_output[0]
    pooler = POOLERS[pooler_type]
    pooled = pooler.pool(output.last_hidden_state, inputs["attention_mask"], output.hidden_states)
    return pooled[0]


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


# --- vectors ---


@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
@pytest.mark.parametrize("token_budget", [1, 20, 1024])
def test_embeddings_equal_those_of_each_text_alone_in_the_stock_encoder(token_budget, pooler_type, make):
    """They are normalized unless asked otherwise."""
    simcse = make(pooler_type=pooler_type)
    vectors = simcse.encode(TEXTS, normalize_embeddings=False, token_budget=token_budget)
    expected = torch.stack([slow_encode(simcse, text, pooler_type) for text in TEXTS])
    assert_close(vectors, expected)
    assert_close(simcse.encode(TEXTS), F.normalize(expected, dim=1))


@pytest.mark.parametrize("training", [True, False])
def test_encode_runs_in_evaluation_mode_and_restores_the_mode(training, simcse):
    simcse.model.train(training)
    assert torch.equal(simcse.encode(TEXTS), simcse.encode(TEXTS))
    assert simcse.model.training is training


def test_embeddings_are_float32_on_the_cpu_without_a_gradient(simcse):
    for texts, shape in (("a cat", (32,)), (("a cat", "dog"), (2, 32)), (iter(TEXTS), (7, 32)), ([], (0, 32))):
        vectors = simcse.encode(texts)
        assert vectors.shape == shape
        assert vectors.dtype == torch.float32 and vectors.device.type == "cpu" and vectors.requires_grad is False


# --- batches ---

LENGTHS = [3, 9, 1, 9, 4, 4, 7, 2, 16, 1]


@pytest.mark.parametrize("budget", [1, 7, 100])
def test_batches_are_longest_first_and_fill_the_budget(budget):
    batches = length_sorted_batches(LENGTHS, budget)
    order = [text for batch in batches for text in batch]
    assert sorted(order) == list(range(10))
    assert [LENGTHS[text] for text in order] == sorted(LENGTHS, reverse=True)
    for batch in batches:
        longest = LENGTHS[batch[0]]
        assert len(batch) == 1 or len(batch) * longest <= budget
        assert batch is batches[-1] or (len(batch) + 1) * longest > budget
    assert length_sorted_batches([], budget) == []


def test_windows_are_put_together_in_order(simcse, monkeypatch):
    texts = [f"a cat {'sat ' * (number % 9)}" for number in range(50)]
    expected = simcse.encode(texts)
    monkeypatch.setattr("simcse_hf.encoding.simcse._SORTED_TOGETHER", 7)
    assert_close(simcse.encode(texts), expected)
    word = simcse.tokenizer.convert_tokens_to_ids("bird")
    with torch.no_grad():
        simcse.model.base_model.embeddings.word_embeddings.weight[word] = torch.nan
    with refuses("text 30 ('bird')"):
        simcse.encode(["dog"] * 30 + ["bird"] + ["dog"] * 10)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("simcse-")], "no thread is left"


# --- lengths ---


def test_a_maximum_length_of_none_is_the_limit_of_the_model_and_one_of_numpy_is_saved(make, tmp_path):
    simcse = make(options={"max_length": 6})
    simcse.max_seq_length = None
    assert simcse.max_length == 40
    simcse.max_seq_length = np.int64(6)
    simcse.save_pretrained(tmp_path / "saved")
    assert SimCSE(tmp_path / "saved", device="cpu").max_length == 6


def test_the_maximum_length_of_the_model_or_the_call_truncates_and_that_of_training_does_not(make):
    simcse = make(max_seq_length=5, options={"max_length": 6})
    found = simcse.encode("a cat sat on the mat")
    torch.testing.assert_close(found, simcse.encode("a cat sat on"))
    torch.testing.assert_close(simcse.encode("a cat sat", max_length=np.int64(4)), simcse.encode("a cat"))
    assert not torch.allclose(simcse.encode("a cat sat on the", max_length=7), found, atol=1e-5)


def test_a_tokenizer_with_an_encoding_of_its_own_is_called_as_a_whole(tokenizer, monkeypatch):
    class Shouting(type(tokenizer)):
        def _encode_plus(self, text, **options):
            return super()._encode_plus([f"{entry} dog" for entry in text], **options)

    expected = tokenizer(["cat dog", "a cat dog"])["input_ids"]
    monkeypatch.setattr(tokenizer, "__class__", Shouting)
    assert tokenize_texts(tokenizer, ["cat", "a cat"]) == expected


# --- similarity ---


def test_texts_and_embeddings_are_compared_by_their_cosine(simcse):
    vectors = simcse.encode(TEXTS, normalize_embeddings=False)
    cosines = F.cosine_similarity(vectors[:, None].double(), vectors.double(), dim=-1).float()
    number = simcse.similarity(TEXTS[0], TEXTS[1])
    assert isinstance(number, float)
    assert number == pytest.approx(cosines[0, 1].item(), abs=1e-6)
    assert_close(simcse.similarity(TEXTS[0], TEXTS), cosines[0])
    assert_close(simcse.similarity(TEXTS[:3], TEXTS), cosines[:3])
    assert_close(simcse.similarity(3 * vectors[:2], TEXTS), cosines[:2])
    opposite = -5 * vectors.numpy().astype(np.float64)
    assert_close(simcse.similarity(TEXTS[:2], opposite), -cosines[:2])
    assert simcse.similarity([], TEXTS).shape == (0, 7)
    assert_close(simcse.similarity_pairwise(vectors[:3].numpy(), TEXTS[2:5]), cosines.diagonal(2)[:3])


# --- which pooler ---


@pytest.mark.parametrize("pooler", [None, "max"])
def test_the_pooler_is_that_of_the_call_or_of_the_config_whatever_the_folder_is_called(pooler, save_checkpoint):
    model = BertForCL(tiny_config(), pooler_type="cls", mlp_only_train=True)
    simcse = SimCSE(save_checkpoint(model, "unsup-simcse-bert"), pooler_type=pooler, device="cpu")
    assert simcse.pooler_type == (pooler or "cls_before_pooler")
    expected = slow_encode(simcse, TEXTS[2], simcse.pooler_type)
    assert_close(simcse.encode(TEXTS[2], normalize_embeddings=False), expected)


@pytest.mark.parametrize(
    "model",
    [BertForMaskedLM(tiny_config()), AutoModelForCL.from_config(tiny_config("distilbert"), pooler_type="avg")],
)
def test_an_untrained_head_is_refused(model, save_checkpoint):
    folder = save_checkpoint(model)
    with refuses("'cls'"):
        SimCSE(folder, pooler_type="cls", device="cpu")
    assert SimCSE(folder, pooler_type="avg", device="cpu").pooler_type == "avg"


# --- what is reported ---


def test_unknown_tokens_and_texts_that_are_cut_are_reported_once(make, caplog):
    model = make(pooler_type="avg")
    for _ in range(2):
        model.encode(["猫 坐 在 垫子 上"] * 8)
        model.encode(TEXTS, max_length=6)
    assert caplog.text.count("the texts to encode: 100% of the tokens are unknown") == 1
    assert caplog.text.count("4 of 7 texts (57.1%) fill the maximum length of 6 tokens") == 1


# --- probes ---


def test_only_a_graph_that_rounds_may_have_a_probe_with_a_cosine_of_0_99(simcse):
    probe = torch.tensor(probe_embedding(simcse, None))
    across = torch.nn.functional.normalize(probe.roll(1) - probe.roll(1) @ probe * probe, dim=0)
    turned = (0.99 * probe + (1 - 0.99**2) ** 0.5 * across).tolist()
    assert not has_weights_of(simcse, turned, None)
    simcse.model.rounds = True
    assert has_weights_of(simcse, turned, None)


# --- a model of the hub, and what a command names ---


def test_a_model_is_of_one_commit_although_the_branch_moves_while_it_is_loaded(hub, saved):
    push_model(saved("bert"), "org/name", revision="main")
    push_model(saved("distilbert"), "org/name", revision="next")
    branches = hub.repositories["org/name"].branches
    first = branches["main"]

    def move_before_the_tokenizer(method, path):
        if path.endswith("tokenizer_config.json"):
            branches["main"] = branches["next"]
        return False

    hub.cut = move_before_the_tokenizer
    model = SimCSE("org/name")
    assert model.revision == first != branches["main"]
    expected = load_model("org/name", revision=first, dtype="fp32").encode(TEXTS)
    assert torch.equal(model.encode(TEXTS), expected)
    assert load_model("org/name", dtype="bf16").model.dtype == torch.bfloat16
