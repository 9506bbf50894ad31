"""`SimCSE` beside `SentenceTransformer`: the same arguments, prompts and embeddings, and the same methods."""

import pytest
import torch
from conftest import tiny_config
from encoding_helpers import as_sentence_transformer
from sentence_transformers import SentenceTransformer
from transformers import BertModel

from simcse_hf import BertForCL, SimCSE

TEXTS = [
    "a cat sat on the mat .",
    "dog",
    "the big old man slept in a small red house .",
    "a bird sang",
    "",
]
PROMPTS = {"query": "the dog sang : ", "passage": "a small mat : ", "clustering": "old house : "}


def add_modules(directory, default_prompt_name=None, normalize=True):
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    options = {"prompts": PROMPTS, "default_prompt_name": default_prompt_name}
    return as_sentence_transformer(directory, pooling, normalize, **options)


@pytest.fixture
def directory(save_checkpoint):
    return save_checkpoint(BertModel(tiny_config()))


def both(directory):
    return SimCSE(directory, device="cpu"), SentenceTransformer(str(directory), device="cpu")


def assert_close(ours, theirs):
    torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(theirs), rtol=0, atol=1e-6)


# --- prompts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("default_prompt_name", [None, "clustering"])
def test_prompts_give_the_embeddings_of_sentence_transformers(default_prompt_name, directory):
    ours, theirs = both(add_modules(directory, default_prompt_name=default_prompt_name))
    for options in (
        {},
        {"prompt_name": "passage"},
        {"prompt": "red cat : "},
        {"prompt": ""},
        {"prompt_name": "query"},
    ):
        assert_close(ours.encode(TEXTS, **options), theirs.encode(TEXTS, **options))
    assert_close(ours.encode_query(TEXTS), theirs.encode_query(TEXTS))
    assert_close(ours.encode_document(TEXTS), theirs.encode_document(TEXTS))
    assert_close(
        ours.encode_document(TEXTS, prompt_name="passage"),
        theirs.encode(TEXTS, prompt_name="passage"),
    )
    assert not torch.allclose(ours.encode(TEXTS, prompt=""), ours.encode(TEXTS, prompt_name="passage"), atol=1e-3)


def test_a_passage_prompt_that_documents_do_not_get_is_mentioned(directory, caplog):
    SimCSE(add_modules(directory), device="cpu").encode_document(TEXTS)
    assert "no prompt 'document'" in caplog.text and "model.prompts['passage']" in caplog.text


# --- encode -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
def test_the_arguments_of_sentence_transformers_mean_the_same(normalize, directory):
    ours, theirs = both(add_modules(directory, normalize=normalize))
    shared = {"batch_size": 2, "show_progress_bar": False}
    for options in (
        {"normalize_embeddings": False},
        {"normalize_embeddings": False, "truncate_dim": 8},
        {"normalize_embeddings": True, "truncate_dim": 8},
        {"normalize_embeddings": True, "precision": "ubinary"},
        {"normalize_embeddings": True, "device": "cpu"},
    ):
        assert_close(
            ours.encode(TEXTS, **shared, **options),
            theirs.encode(TEXTS, **shared, **options),
        )
    for options in ({"convert_to_tensor": True}, {"convert_to_numpy": True}):
        for texts in (TEXTS, "dog"):
            mine, other = ours.encode(texts, **options), theirs.encode(texts, **options)
            assert type(mine) is type(other) and mine.shape == other.shape


def test_batch_size_limits_the_texts_of_a_batch_and_changes_no_embedding(directory):
    model, sizes = SimCSE(directory, device="cpu"), []
    expected = model.encode(TEXTS)
    model.model.register_forward_hook(
        lambda _, __, kwargs, ___: sizes.append(len(kwargs["input_ids"])),
        with_kwargs=True,
    )
    assert_close(model.encode(TEXTS, batch_size=2), expected)
    assert sizes == [2, 2, 1]


# --- methods ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooler_type", ["cls", "avg_no_cls"])
def test_a_saved_model_gives_the_same_embeddings(pooler_type, save_checkpoint, tmp_path):
    directory = save_checkpoint(BertForCL(tiny_config(), pooler_type="cls"))
    model = SimCSE(directory, pooler_type=pooler_type, device="cpu", max_length=6)
    model.prompts["query"], model.default_prompt_name = "dog : ", "query"
    model.save_pretrained(tmp_path / "copy")
    copy = SimCSE(tmp_path / "copy", device="cpu")
    assert copy.pooler_type == pooler_type and copy.max_length == 6 and copy.prompts == model.prompts
    torch.testing.assert_close(copy.encode(TEXTS), model.encode(TEXTS))


def test_push_to_hub_uploads_what_save_pretrained_writes_in_one_commit(directory, hub, monkeypatch):
    model = SimCSE(directory, pooler_type="avg", device="cpu")
    monkeypatch.delenv("HF_TOKEN")
    url = model.push_to_hub("name", private=True, token=hub.token)
    repository = hub.repositories["org/name"]
    assert url.startswith(f"{hub.url}/org/name/commit/") and repository.private
    repository.branches["v1"] = repository.branches["main"]
    model.prompts["query"] = "red cat : "
    model.push_to_hub("name", token=hub.token, commit_message="Again", revision="v1")
    assert repository.messages[1:] == [("main", "Upload model"), ("v1", "Again")]
    assert torch.equal(
        SimCSE("org/name", device="cpu", token=hub.token).encode(TEXTS),
        model.encode(TEXTS),
    )
