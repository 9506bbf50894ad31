"""A tokenizer is saved so that no program cuts texts shorter than the model does, and it gets words of a domain."""

import json

import pytest
import torch
from conftest import VOCABULARY, tiny_config
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from simcse_hf import BertForCL
from simcse_hf.apps.pretraining import extend_vocabulary
from simcse_hf.models.checkpoint import save_tokenizer

LONG = "the cat sat on the mat . " * 9


@pytest.fixture
def used(tokenizer):
    """A tokenizer without a class of its own that has cut and padded texts to 8 tokens, as training does."""
    backend = BertTokenizer(vocab=tokenizer.get_vocab()).backend_tokenizer
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", model_max_length=30)
    fast([LONG, "a"], truncation=True, padding=True, max_length=8, pad_to_multiple_of=8)
    return fast


@pytest.mark.parametrize("max_length, wanted", [(None, 30), (35, 35), (60, 40)])
def test_the_length_is_that_of_inference(used, tmp_path, max_length, wanted):
    model = BertForCL(tiny_config(), pooler_type="avg", max_length=max_length)
    save_tokenizer(used, tmp_path, model)
    raw = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert len(raw.encode(LONG).ids) == wanted and len(raw.encode("a").ids) == 3


def test_a_class_that_transformers_4_knows_is_named_also_after_loading(used, tmp_path):
    model = BertForCL(tiny_config(), pooler_type="avg")
    used.save_pretrained(tmp_path)
    for tokenizer in (used, AutoTokenizer.from_pretrained(tmp_path)):
        save_tokenizer(tokenizer, tmp_path, model)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and config["model_max_length"] == 30
        assert not {"max_length", "stride", "truncation_strategy", "pad_to_multiple_of"} & config.keys()
        again = AutoTokenizer.from_pretrained(tmp_path)
        assert again("a cat")["input_ids"] == used("a cat")["input_ids"] and len(again) == len(VOCABULARY)


def test_texts_are_cut_where_training_cut_and_padded_on_the_right(used, tmp_path):
    used.truncation_side, used.padding_side, used.split_special_tokens = "left", "left", True
    save_tokenizer(used, tmp_path, BertForCL(tiny_config(), pooler_type="avg"))
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.truncation_side == "left" and again.padding_side == "right" and again.split_special_tokens is True
    raw = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert raw.truncation["direction"] == "left"


# --- words of a domain -----------------------------------------------------------------------------------------------

TEXTS = [
    "Tachycardia, and the heart",
    "the TACHYCARDIA 2024 heart heart.",
    "a heart of tachycardias",
] * 5
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the and a of ta ##chy ##cardia ##s he ##art , .".split()


@pytest.fixture
def wordpiece():
    return BertTokenizer(vocab={token: i for i, token in enumerate(PIECES)}, do_lower_case=True)


def byte_level():
    """A tokenizer that counts the space before a word among the word, as RoBERTa's does."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(initial_alphabet=alphabet, special_tokens=["<pad>", "<mask>"], vocab_size=260)
    backend.train_from_iterator(["the the a of"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", mask_token="<mask>")


def words(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])


def model_for(tokenizer, family="bert", spare=0):
    config = tiny_config(family)
    config.vocab_size = len(tokenizer) + spare
    model = AutoModelForMaskedLM.from_config(config)
    if (bias := model.get_output_embeddings().bias) is not None:
        torch.nn.init.normal_(bias)
    return model


@pytest.mark.parametrize("spare", [0, 7])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_a_new_token_has_the_mean_of_its_pieces_in_the_embeddings_and_in_the_output_layer(wordpiece, family, spare):
    model, size = model_for(wordpiece, family, spare), len(wordpiece)
    old = model.get_input_embeddings().weight.detach().clone()
    bias = model.get_output_embeddings().bias.detach().clone()
    assert extend_vocabulary(model, wordpiece, TEXTS, 9) == 3
    new = {"heart": ["he", "##art"], "tachycardia": ["ta", "##chy", "##cardia"]}
    new["tachycardias"] = [*new["tachycardia"], "##s"]
    assert wordpiece.convert_tokens_to_ids(list(new)) == [size, size + 1, size + 2]  # most frequent first
    table, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    assert torch.equal(table[:size], old[:size])
    for word, pieces in new.items():
        token, ids = (wordpiece.convert_tokens_to_ids(x) for x in (word, pieces))
        torch.testing.assert_close(table[token], old[ids].mean(0))
        torch.testing.assert_close(output.weight[token], old[ids].mean(0))
        torch.testing.assert_close(output.bias[token], bias[ids].mean(0))
    assert len(table) == model.config.vocab_size == max(size + 3, size + spare)
    found = " ".join(words(wordpiece, "Tachycardia, tachycardial the TACHYCARDIA."))
    assert found == "tachycardia , [UNK] the tachycardia .", "whole words in any case"


def test_a_word_is_one_token_with_and_without_a_space_before_it():
    tokenizer = byte_level()
    extend_vocabulary(model_for(tokenizer), tokenizer, ["heart of the heart"] * 5, 1)
    heart = tokenizer.convert_tokens_to_ids("heart")
    ids = tokenizer("heart of heart")["input_ids"]
    assert heart == 260 and ids == [heart, *tokenizer(" of")["input_ids"], heart]


def test_the_most_frequent_words_are_added_and_rare_ones_are_not(wordpiece):
    texts = ["heart"] * 6 + ["tas"] * 5 + ["hes"] * 4
    for found in ("heart ta ##s he ##s", "heart tas he ##s"):
        assert extend_vocabulary(model_for(wordpiece), wordpiece, texts, 1) == 1
        assert words(wordpiece, "heart tas hes") == found.split()
    with pytest.raises(ValueError, match="knows every word that occurs 5 times or more"):
        extend_vocabulary(model_for(wordpiece), wordpiece, texts, 9)
