"""What `--model` may name."""

import numpy as np
import pytest
from conftest import tiny_config
from evaluation_helpers import write
from transformers import BertModel

from simcse_hf.cli.loading import load_model
from simcse_hf.evaluation.word_vectors import WordVectors
from simcse_hf.inference.simcse import SimCSE


def test_word_vector_files(tmp_path):
    for name in ("glove.6B.300d.txt", "wiki.vec"):
        assert isinstance(load_model(str(write(tmp_path / name, ["the 1 2"]))), WordVectors)


def test_a_function_of_a_module_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "my_encoder_module.py",
        ["class E:", "    def encode(self, texts): return [[1.0]]", "def make(): return E()", "def wrong(): return 1"],
    )
    assert load_model("my_encoder_module:make").encode(["a"]) == [[1.0]]
    for name, said in (
        ("my_encoder_module:wrong", "int without a method encode"),
        ("my_encoder_module:absent", "has no function 'absent'"),
        ("no_such_module:make", "there is no module no_such_module"),
    ):
        with pytest.raises(ValueError, match=said):
            load_model(name)


def test_a_checkpoint(save_checkpoint):
    path = str(save_checkpoint(BertModel(tiny_config())))
    model = load_model(path, pooler_type="avg", max_length=8)
    assert isinstance(model, SimCSE) and model.pooler_type == "avg" and model.max_length == 8
    assert np.asarray(model.encode(["a cat"])).shape[0] == 1


def test_what_is_none_of_these_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="a model is a folder"):
        load_model(str(write(tmp_path / "model.safetensors", ["x"])))
    with pytest.raises(ValueError, match="no file of word vectors"):
        load_model(str(tmp_path / "glove.txt"))
    with pytest.raises(ValueError, match="no model could be loaded from"):
        load_model(str(tmp_path / "absent"))
    glove = str(write(tmp_path / "glove.txt", ["the 1 2"]))
    for settings in ({"pooler_type": "cls"}, {"max_length": 32}):
        with pytest.raises(ValueError, match="takes no pooler and no max_length"):
            load_model(glove, **settings)
