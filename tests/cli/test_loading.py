"""What `--model` may name in `simcse-hf evaluate` and `compare`."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_helpers import model_options
from conftest import tiny_config
from evaluation_helpers import write
from transformers import BertModel

from simcse_hf.cli.loading import load_model
from simcse_hf.evaluation.word_vectors import WordVectors
from simcse_hf.inference.simcse import SimCSE

DEFAULTS = model_options()


@pytest.mark.parametrize("name", ["glove.6B.300d.txt", "wiki.vec"])
def test_loads_a_file_of_word_vectors(name, tmp_path):
    assert isinstance(load_model(str(write(tmp_path / name, ["the 1 2"])), DEFAULTS), WordVectors)


def test_calls_a_function_of_a_module_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "my_encoder_module.py",
        ["class E:", "    def encode(self, texts): return [[1.0]]", "def make(): return E()", "def wrong(): return 1"],
    )
    assert load_model("my_encoder_module:make", DEFAULTS).encode(["a"]) == [[1.0]]
    for name, message in (
        ("my_encoder_module:wrong", "int, which has no method encode"),
        ("my_encoder_module:absent", "has no function 'absent'"),
        ("no_such_module:make", "there is no module no_such_module"),
    ):
        with pytest.raises(ValueError, match=message):
            load_model(name, DEFAULTS)


def test_the_documented_models_of_other_libraries_are_loaded_and_called_in_batches(tmp_path, monkeypatch):
    """`baselines.py` of docs/evaluation.md, with stand-ins for tensorflow_hub and InferSent's models.py."""
    text = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (program,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def infersent" in block)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "baselines.py", [program])
    write(tmp_path / "tensorflow_hub.py", ["def load(url): return lambda texts: [[len(t), 1.0] for t in texts]"])
    write(
        tmp_path / "models.py",
        ["class InferSent:", "    def __init__(self, options): self.dim = options['enc_lstm_dim']"]
        + ["    def load_state_dict(self, state): self.state = state"]
        + ["    def set_w2v_path(self, path): self.path = path"]
        + ["    def build_vocab_k_words(self, K): self.words = K"]
        + ["    def encode(self, texts, bsize, tokenize): return [[float(self.words)] for _ in texts]"],
    )
    (tmp_path / "encoder").mkdir()
    torch.save({"weight": torch.zeros(1)}, tmp_path / "encoder/infersent1.pkl")
    use = load_model("baselines:universal_sentence_encoder", DEFAULTS)
    texts = ["a" * (n % 7) for n in range(600)]
    np.testing.assert_array_equal(use.encode(texts), [[n % 7, 1.0] for n in range(600)])
    assert load_model("baselines:infersent", DEFAULTS).encode(texts[:3]).tolist() == [[100_000.0]] * 3


def test_loads_a_checkpoint_with_the_options_of_the_command_line(save_checkpoint):
    path = str(save_checkpoint(BertModel(tiny_config())))
    model = load_model(path, model_options("--pooler_type", "avg", "--max_length", "8", "--device", "cpu"))
    assert isinstance(model, SimCSE) and model.pooler_type == "avg" and model.max_length == 8
    assert np.asarray(model.encode(["a cat"])).shape[0] == 1


def test_refuses_what_is_not_a_model(tmp_path):
    with pytest.raises(ValueError, match="a model is a folder"):
        load_model(str(write(tmp_path / "model.safetensors", ["x"])), DEFAULTS)
    with pytest.raises(ValueError, match="no file of word vectors"):
        load_model(str(tmp_path / "glove.txt"), DEFAULTS)
    with pytest.raises(ValueError, match="no model could be loaded from"):
        load_model(str(tmp_path / "absent"), DEFAULTS)


@pytest.mark.parametrize("words", [("--pooler_type", "cls"), ("--max_length", "32")])
def test_refuses_options_that_word_vectors_do_not_have(words, tmp_path):
    glove = str(write(tmp_path / "glove.txt", ["the 1 2"]))
    with pytest.raises(ValueError, match=f"takes no {words[0]}: only a transformer checkpoint"):
        load_model(glove, model_options(*words))
