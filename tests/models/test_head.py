"""Encoders without a pooler get our head, which is saved in a file beside the unchanged stock weights."""

import json

import pytest
import torch
from conftest import random_batch, tiny_config
from safetensors.torch import load_file, save_file
from transformers import AutoModel, DistilBertModel, PreTrainedModel

from simcse_hf import AutoModelForCL
from simcse_hf.models.pooling import load_layer


@pytest.mark.parametrize("family", ["distilbert", "electra", "deberta-v2", "modernbert"])
def test_a_model_keeps_its_head_in_that_file(family, save_checkpoint):
    model = AutoModelForCL.from_config(tiny_config(family)).eval()
    directory = save_checkpoint(model)
    assert not [name for name in load_file(directory / "model.safetensors") if "sentence_head" in name]
    batch = random_batch(4)
    loaded = AutoModelForCL.from_pretrained(directory).eval()
    assert loaded.head_source == "kept"
    assert torch.equal(loaded(**batch).sentence_embeddings, model(**batch).sentence_embeddings)
    encoder = AutoModel.from_pretrained(directory).eval()
    by_hand = model.sentence_head(encoder(**batch).last_hidden_state[:, 0])
    torch.testing.assert_close(by_hand, model(**batch).sentence_embeddings, rtol=0, atol=1e-5)


def test_saves_the_state_dict_that_is_passed(save_checkpoint, tmp_path):
    """The Trainer passes a gathered state dict, whose tensors need not be those of the model."""
    model = AutoModelForCL.from_config(tiny_config("distilbert"))
    given = {name: torch.full_like(tensor, 0.25) for name, tensor in model.state_dict().items()}
    names = set(given)
    model.save_pretrained(tmp_path, state_dict=given)
    loaded = AutoModelForCL.from_pretrained(tmp_path)
    assert all((tensor == 0.25).all() for tensor in loaded.state_dict().values())
    assert set(given) == names, "the caller's dict is its own"


@pytest.mark.skipif(
    not hasattr(PreTrainedModel, "should_save_on_this_rank"), reason="transformers writes in every process here"
)
def test_only_the_main_process_writes(tmp_path):
    AutoModelForCL.from_config(tiny_config("distilbert")).save_pretrained(tmp_path / "x", is_main_process=False)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("activation", ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"])
@pytest.mark.parametrize("width", [16, 32])
def test_another_models_dense_module_is_not_our_head(width, activation, save_checkpoint):
    directory = save_checkpoint(DistilBertModel(tiny_config("distilbert")))
    (directory / "2_Dense").mkdir()
    tensors = {"linear.weight": torch.zeros(width, 32), "linear.bias": torch.zeros(width)}
    save_file(tensors, directory / "2_Dense" / "model.safetensors")
    layer = {"in_features": 32, "out_features": width, "bias": True, "activation_function": activation}
    (directory / "2_Dense" / "config.json").write_text(json.dumps(layer))
    assert AutoModelForCL.from_pretrained(directory).head_source == "fresh"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_damaged_weights_are_an_error_that_names_the_file(tmp_path, name):
    layer = torch.nn.Linear(8, 8)
    folder = tmp_path / "2_Dense"
    folder.mkdir()
    tensors = {f"linear.{key}": tensor for key, tensor in layer.state_dict().items()}
    save_file(tensors, folder / name) if name.endswith("safetensors") else torch.save(tensors, folder / name)
    assert load_layer(layer, tmp_path, "2_Dense", "linear.")
    whole = (folder / name).read_bytes()
    for content in (whole[:-5], whole[:10], b""):
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: damaged, or not the weights of this layer"):
            load_layer(layer, tmp_path, "2_Dense", "linear.")
