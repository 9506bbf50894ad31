"""A tokenizer is saved so that every program that reads its files cuts no text shorter than the model does."""

import json

import pytest
from conftest import VOCABULARY, tiny_config
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from simcse_hf import AutoModelForCL
from simcse_hf.models.checkpoint import save_tokenizer

LONG = "the cat sat on the mat . " * 9


@pytest.fixture
def used(tokenizer):
    """A tokenizer without a class of its own that has cut and padded texts to 8 tokens, as training does."""
    backend = BertTokenizer(vocab=tokenizer.get_vocab()).backend_tokenizer
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", model_max_length=30)
    fast([LONG, "a"], truncation=True, padding=True, max_length=8, pad_to_multiple_of=8)
    return fast


@pytest.mark.parametrize(("max_length", "wanted"), [(None, 30), (20, 20), (35, 35), (60, 40)])
def test_the_length_is_that_of_inference(used, tmp_path, max_length, wanted):
    model = AutoModelForCL.from_config(tiny_config(), pooler_type="avg", max_length=max_length)
    save_tokenizer(used, tmp_path, model)
    raw = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert len(raw.encode(LONG).ids) == wanted and len(raw.encode("a").ids) == 3


def test_a_class_that_transformers_4_knows_is_named_also_after_loading(used, tmp_path):
    model = AutoModelForCL.from_config(tiny_config(), pooler_type="avg")
    used.save_pretrained(tmp_path)
    for tokenizer in (used, AutoTokenizer.from_pretrained(tmp_path)):
        save_tokenizer(tokenizer, tmp_path, model)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and config["model_max_length"] == 30
        assert not {"max_length", "stride", "truncation_strategy", "pad_to_multiple_of"} & config.keys()
        again = AutoTokenizer.from_pretrained(tmp_path)
        assert again("a cat")["input_ids"] == used("a cat")["input_ids"] and len(again) == len(VOCABULARY)
