"""A folder knows its model: what its files say is what the loaded model is, whatever the model has in training."""

import pytest
import torch
from conftest import NEEDS_PEFT, tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.encoding.saved import SavedModel
from simcse_hf.models.adapters import add_lora
from simcse_hf.models.checkpoint import WeightDigests

DENSE = [{"in_features": 32, "out_features": 16, "bias": True, "activation_function": "torch.nn.Tanh"}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "kind, settings",
    [
        ("bert", {"pooler_type": "cls", "do_mlm": True, "mlp_only_train": True}),
        ("bert", {"pooler_type": "ngrams", "objective": "is_bert"}),
        ("roberta", {"pooler_type": "avg", "prompts": {"query": "ask "}, "default_prompt_name": "query"}),
        pytest.param("bert", {"pooler_type": "cls", "lora": True}, marks=NEEDS_PEFT),
    ],
    ids=str,
)
def test_the_files_say_which_model_is_loaded(kind, settings, dtype, tokenizer, tmp_path):
    config = tiny_config(kind)
    lora = settings.pop("lora", False)
    model = AutoModelForCL.from_config(config, **settings).to(dtype)
    if lora:
        add_lora(model, {"r": 2, "init_lora_weights": False})
    model.prepare_objective()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert WeightDigests.read(tmp_path) is not None
    for loaded_as in (torch.float32, torch.bfloat16):
        loaded = SimCSE(tmp_path, device="cpu", dtype=loaded_as)
        identity = SavedModel(tmp_path).identity(str(loaded_as).removeprefix("torch."))
        assert identity == loaded.identity()
    digests = SavedModel(tmp_path).digests()
    assert digests.encoder == AutoModelForCL.from_pretrained(tmp_path).digest_encoder()
    (tmp_path / "model.safetensors").write_bytes(b"other")
    assert WeightDigests.read(tmp_path) is None


def test_the_files_of_a_whitened_model_say_which_model_is_loaded(transformed):
    saved = SavedModel(transformed("whitening"))
    assert WeightDigests.read(saved.folder) is not None
    assert saved.identity() == SimCSE(saved.folder, device="cpu").identity()
