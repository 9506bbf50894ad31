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
from simcse_hf.encoding.batching import BatchEncoder, tokenize_texts
from simcse_hf.encoding.files import encode, read_shards
from simcse_hf.encoding.graphs import export_graph
from simcse_hf.evaluation.tasks.senteval import ScoredPairs
from simcse_hf.kernels import cpu
from simcse_hf.models.pooling import POOLERS
from simcse_hf.names import POOLER_TYPES
from simcse_hf.runtime.files import digest
from simcse_hf.training.dev_sets import SimilarityEvalCallback

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
def test_embeddings_equal_those_of_each_text_alone_in_the_stock_encoder(
    token_budget,
    pooler_type,
    make,
):
    simcse = make(pooler_type=pooler_type)
    vectors = simcse.encode(TEXTS, normalize_embeddings=False, token_budget=token_budget)
    expected = torch.stack([slow_encode(simcse, text, pooler_type) for text in TEXTS])
    assert_close(vectors, expected)


@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
def test_different_texts_can_be_told_apart(pooler_type, make):
    vectors = make(pooler_type=pooler_type).encode(TEXTS, normalize_embeddings=False)
    other_texts = torch.tensor([[one != other for other in TEXTS] for one in TEXTS])
    assert torch.equal(torch.cdist(vectors, vectors) > 1e-3, other_texts)


@pytest.mark.parametrize("training", [True, False])
def test_encode_runs_in_evaluation_mode(training, simcse):
    simcse.model.train(training)
    assert torch.equal(simcse.encode(TEXTS), simcse.encode(TEXTS))


@pytest.mark.parametrize("training", [True, False])
def test_encode_restores_the_mode(training, simcse):
    simcse.model.train(training)
    simcse.encode(TEXTS)
    assert simcse.model.training is training


@pytest.mark.parametrize("family", ["bert", "albert", "deberta-v2"])
def test_linear_layers_by_onednn_change_no_embedding(family, make, monkeypatch):
    simcse = make(family)
    texts = TEXTS * 10
    monkeypatch.setattr(cpu, "_MKL_IS_SLOW", False)
    expected = simcse.encode(texts)
    monkeypatch.setattr(cpu, "_MKL_IS_SLOW", torch.backends.mkldnn.is_available())
    assert_close(simcse.encode(texts), expected)


@pytest.mark.parametrize(
    "texts, shape",
    [
        pytest.param("a cat", (32,), id="a text"),
        pytest.param(("a cat", "dog"), (2, 32), id="a tuple"),
        pytest.param([], (0, 32), id="no texts"),
    ],
)
def test_a_text_has_a_vector_and_several_have_a_matrix(simcse, texts, shape):
    assert simcse.encode(texts).shape == shape


def test_texts_may_come_from_an_iterator(simcse):
    assert simcse.encode(iter(TEXTS)).shape == (7, 32)


def test_no_texts_have_an_empty_array(simcse):
    assert simcse.encode([], convert_to_numpy=True).shape == (0, 32)


def test_embeddings_are_float32_tensors_on_the_cpu_without_a_gradient(simcse):
    vectors = simcse.encode(TEXTS)
    assert vectors.dtype == torch.float32
    assert vectors.device.type == "cpu"
    assert not vectors.requires_grad


def test_embeddings_are_arrays_of_numpy_if_asked_for(simcse):
    array = simcse.encode(TEXTS, convert_to_numpy=True)
    np.testing.assert_array_equal(array, simcse.encode(TEXTS).numpy(), strict=True)


def test_embeddings_are_normalized_unless_asked_otherwise(simcse):
    raw = simcse.encode(TEXTS, normalize_embeddings=False)
    assert (raw.norm(dim=1) - 1).abs().min() > 1e-3
    torch.testing.assert_close(simcse.encode(TEXTS), F.normalize(raw, dim=1))


# --- batches ---

LENGTHS = [3, 9, 1, 9, 4, 4, 7, 2, 16, 1]
BUDGETS = pytest.mark.parametrize("budget", [1, 7, 16, 100])


@BUDGETS
def test_batches_are_longest_first_and_hold_each_text_once(budget):
    order = [text for batch in length_sorted_batches(LENGTHS, budget) for text in batch]
    assert sorted(order) == list(range(10))
    assert [LENGTHS[text] for text in order] == sorted(LENGTHS, reverse=True)


@BUDGETS
def test_batches_are_within_the_budget_unless_a_single_text_is_longer(budget):
    for batch in length_sorted_batches(LENGTHS, budget):
        longest = max(LENGTHS[text] for text in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget


@BUDGETS
def test_batches_have_no_room_for_another_text(budget):
    *all_but_last, _ = length_sorted_batches(LENGTHS, budget)
    for batch in all_but_last:
        longest = LENGTHS[batch[0]]
        assert (len(batch) + 1) * longest > budget


@BUDGETS
def test_no_texts_have_no_batches(budget):
    assert length_sorted_batches([], budget) == []


@pytest.fixture
def move_to_accelerator(monkeypatch):
    """`move_to_accelerator(simcse)` lets a model believe it is on one, which gets windows of seven texts."""

    def move(simcse):
        monkeypatch.setattr(simcse, "device", SimpleNamespace(type="accelerator"))
        monkeypatch.setattr("simcse_hf.encoding.simcse._SORTED_TOGETHER", 7)

    return move


def test_the_windows_of_an_accelerator_are_put_together_in_order(simcse, move_to_accelerator):
    texts = [f"a cat {'sat ' * (number % 9)}" for number in range(50)]
    expected = simcse.encode(texts)
    move_to_accelerator(simcse)
    assert_close(simcse.encode(texts), expected)


def test_an_embedding_that_is_not_finite_is_named_in_a_later_window(simcse, move_to_accelerator):
    move_to_accelerator(simcse)
    word = simcse.tokenizer.convert_tokens_to_ids("bird")
    with torch.no_grad():
        simcse.model.base_model.embeddings.word_embeddings.weight[word] = torch.nan
    message = r"text 30 \('bird'\) has an embedding that is not finite"
    with pytest.raises(ValueError, match=message):
        simcse.encode(["dog"] * 30 + ["bird"] + ["dog"] * 10)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("simcse-")], "no thread is left"


@pytest.mark.parametrize("pooler_type", ["avg", "cls_before_pooler"])
def test_no_batch_waits_for_the_device(pooler_type):
    """On meta tensors, which have no values, every wait is an error."""
    model = AutoModelForCL.from_config(tiny_config("bert"), pooler_type=pooler_type)
    model.eval().to("meta")
    batch_sizes = []

    def record(module, inputs, output):
        batch_sizes.append(len(output.sentence_embeddings))

    model.register_forward_hook(record)
    token_ids = [[1, *range(5, 5 + number % 4), 2] for number in range(12)]
    encoder = BatchEncoder(model, SimpleNamespace(pad_token_id=0), 8)
    assert encoder.embed(token_ids, batch_size=3).device.type == "meta"
    assert batch_sizes == [3, 3, 3, 3]


# --- lengths ---


def test_a_maximum_length_of_numpy_is_saved(make, tmp_path):
    make(options={"max_length": np.int64(6)}).save_pretrained(tmp_path / "saved")
    assert SimCSE(tmp_path / "saved", device="cpu").max_length == 6


def test_a_maximum_length_of_none_is_the_limit_of_the_model(make):
    simcse = make(options={"max_length": 6})
    simcse.max_seq_length = None
    assert simcse.max_length == 40


@pytest.fixture
def of_six_tokens(make):
    """A model that was trained on five tokens and reads six."""
    return make(max_seq_length=5, options={"max_length": 6})


def test_the_maximum_length_truncates_and_that_of_training_does_not(of_six_tokens):
    found = of_six_tokens.encode("a cat sat on the mat")
    torch.testing.assert_close(found, of_six_tokens.encode("a cat sat on"))


def test_a_shorter_maximum_length_of_a_call_truncates(of_six_tokens):
    found = of_six_tokens.encode("a cat sat", max_length=np.int64(4))
    torch.testing.assert_close(found, of_six_tokens.encode("a cat"))


def test_a_longer_maximum_length_of_a_call_reads_more(of_six_tokens):
    longer = of_six_tokens.encode("a cat sat on the", max_length=7)
    assert not torch.allclose(longer, of_six_tokens.encode("a cat sat on the"), atol=1e-5)


def test_a_tokenizer_with_an_encoding_of_its_own_is_called_as_a_whole(tokenizer, monkeypatch):
    class Shouting(type(tokenizer)):
        def _encode_plus(self, text, **options):
            return super()._encode_plus([f"{entry} dog" for entry in text], **options)

    expected = tokenizer(["cat dog", "a cat dog"])["input_ids"]
    monkeypatch.setattr(tokenizer, "__class__", Shouting)
    assert tokenize_texts(tokenizer, ["cat", "a cat"]) == expected


# --- similarity ---


@pytest.fixture
def vectors(simcse):
    """Embeddings that are not normalized."""
    return simcse.encode(TEXTS, normalize_embeddings=False)


@pytest.fixture
def cosines(vectors):
    """The cosine of each two texts."""
    return F.cosine_similarity(vectors[:, None].double(), vectors.double(), dim=-1).float()


def test_the_similarity_of_two_texts_is_a_number(simcse, cosines):
    found = simcse.similarity(TEXTS[0], TEXTS[1])
    assert isinstance(found, float)
    assert found == pytest.approx(cosines[0, 1].item(), abs=1e-6)


def test_the_similarity_of_a_text_to_several_is_a_vector(simcse, cosines):
    assert_close(simcse.similarity(TEXTS[0], TEXTS), cosines[0])


@pytest.mark.parametrize("first, second", [(3, 7), (7, 1)])
def test_the_similarity_of_several_texts_to_several_is_a_matrix(simcse, cosines, first, second):
    found = simcse.similarity(TEXTS[:first], TEXTS[:second])
    assert_close(found, cosines[:first, :second])


def test_embeddings_of_any_length_are_compared_with_texts(simcse, vectors, cosines):
    assert_close(simcse.similarity(3 * vectors[:2], TEXTS), cosines[:2])


def test_texts_are_compared_with_an_array_of_embeddings(simcse, vectors, cosines):
    opposite = -5 * vectors.numpy().astype(np.float64)
    assert_close(simcse.similarity(TEXTS[:2], opposite), -cosines[:2])


def test_no_texts_have_an_empty_matrix_of_similarities(simcse):
    assert simcse.similarity([], TEXTS).shape == (0, 7)


def test_pairs_of_embeddings_and_texts_are_compared(simcse, vectors, cosines):
    found = simcse.similarity_pairwise(vectors[:3].numpy(), TEXTS[2:5])
    assert_close(found, cosines.diagonal(2)[:3])


# --- which pooler ---


@pytest.fixture
def folder_with_a_misleading_name(save_checkpoint):
    """A model without a head in inference, whose folder is called like one of the paper's."""
    model = BertForCL(tiny_config(), pooler_type="cls", mlp_only_train=True)
    return save_checkpoint(model, "unsup-simcse-bert")


def test_the_pooler_is_that_of_the_config_whatever_the_folder_is_called(
    folder_with_a_misleading_name,
):
    simcse = SimCSE(folder_with_a_misleading_name, device="cpu")
    assert simcse.pooler_type == "cls_before_pooler"


@pytest.mark.parametrize("pooler", [None, *POOLER_TYPES])
def test_texts_are_encoded_with_the_pooler_that_is_named(pooler, folder_with_a_misleading_name):
    simcse = SimCSE(folder_with_a_misleading_name, pooler_type=pooler, device="cpu")
    assert simcse.pooler_type == (pooler or "cls_before_pooler")
    expected = slow_encode(simcse, TEXTS[2], simcse.pooler_type)
    assert_close(simcse.encode(TEXTS[2], normalize_embeddings=False), expected)


WITHOUT_HEAD = pytest.mark.parametrize(
    "model",
    [
        BertForMaskedLM(tiny_config()),
        RobertaForMaskedLM(tiny_config("roberta")),
        BertForCL(tiny_config(), pooler_type="avg"),
        AutoModelForCL.from_config(tiny_config("distilbert"), pooler_type="avg"),
    ],
    ids=["masked-LM", "masked-LM of RoBERTa", "mean pooling", "DistilBERT"],
)


@WITHOUT_HEAD
def test_an_untrained_head_is_refused(model, save_checkpoint):
    message = "no trained head for pooler_type 'cls'.*would be random.*avg"
    with pytest.raises(ValueError, match=message):
        SimCSE(save_checkpoint(model), pooler_type="cls", device="cpu")


@WITHOUT_HEAD
def test_a_model_without_a_head_takes_a_pooler_without_one(model, save_checkpoint):
    simcse = SimCSE(save_checkpoint(model), pooler_type="avg", device="cpu")
    assert simcse.pooler_type == "avg"


# --- one length in training and inference ---


def test_unknown_tokens_are_reported_once(make, caplog):
    model = make(pooler_type="avg")
    for _ in range(2):
        model.encode(["猫 坐 在 垫子 上"] * 8)
    assert caplog.text.count("the texts to encode: 100% of the tokens are unknown") == 1


def test_texts_that_are_cut_are_counted_and_reported_once(make, caplog):
    model = make(pooler_type="avg")
    for _ in range(2):
        model.encode(TEXTS, max_length=6)
    assert caplog.text.count("fill the maximum length of 6 tokens") == 1
    assert "4 of 7 texts (57.1%)" in caplog.text


@pytest.fixture
def with_prompt(make):
    return make(
        pooler_type="avg",
        prompts={"query": "the dog : "},
        default_prompt_name="query",
        max_length=9,
    )


def test_an_encoder_gives_the_embeddings_of_simcse_with_its_prompt_and_length(
    with_prompt,
):
    encoder = BatchEncoder(with_prompt.model, with_prompt.tokenizer)
    found = encoder.embed(encoder.tokenize(TEXTS, encoder.resolve_prompt()))
    assert torch.equal(found, with_prompt.encode(TEXTS, normalize_embeddings=False))


def test_dev_scores_of_training_use_the_length_of_inference(make):
    model = make(pooler_type="avg")
    model.tokenizer.model_max_length = 6
    dev_set = SimilarityEvalCallback(ScoredPairs("stsb", TEXTS[:3], TEXTS[2:5], [1.0, 2.0, 3.0]))
    dev_set.evaluate(model.model, model.tokenizer)
    assert max(len(ids) for ids in dev_set._token_ids) == 6


# --- an export ---


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """The folder of a model, and that of its export to ONNX."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    plain = tmp_path_factory.mktemp("model")
    AutoModelForCL.from_config(tiny_config()).save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    exported = tmp_path_factory.mktemp("export") / "onnx"
    export_graph(SimCSE(plain, device="cpu"), exported, "onnx")
    return plain, exported


@pytest.fixture
def exported(folders):
    _, folder = folders
    return SimCSE(str(folder), backend="onnx")


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the cat sat\na dog\n")
    return path


@pytest.fixture
def shards(exported, texts, tmp_path):
    """The folder of the texts, encoded by the export."""
    encode(exported, texts, tmp_path / "shards")
    return tmp_path / "shards"


def test_an_export_is_encoded_to_shards_like_its_model(folders, shards):
    plain, _ = folders
    expected = SimCSE(plain, device="cpu").encode(["the cat sat", "a dog"]).numpy()
    np.testing.assert_allclose(np.load(shards / "vectors.npy"), expected, atol=1e-5)


def test_the_shards_of_an_export_are_searched(exported, texts, shards):
    exported.build_index(texts, vectors=read_shards(shards))
    assert exported.search("a dog")[0].sentence == "a dog"


def test_shards_of_another_graph_are_not_continued(exported, texts, shards):
    exported.model.digests = [digest(texts)]
    with pytest.raises(ValueError, match="made with other settings .model weights"):
        encode(exported, texts, shards, resume=True)


def test_an_export_has_no_device(exported):
    with pytest.raises(ValueError, match="leave out device"):
        exported.encode("a dog", device="meta")
