"""A folder knows its model: what its files say is what the loaded model is, whatever the model has in training."""

import pytest
import torch
from conftest import NEEDS_PEFT, tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.encoding.saved import SavedModel
from simcse_hf.models.adapters import add_lora
from simcse_hf.models.checkpoint import WeightDigests


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
def test_the_files_say_which_model_is_loaded(kind, settings, dtype, save_checkpoint):
    config = tiny_config(kind)
    lora = settings.pop("lora", False)
    model = AutoModelForCL.from_config(config, **settings).to(dtype)
    if lora:
        add_lora(model, {"r": 2, "init_lora_weights": False})
    model.prepare_objective()
    folder = save_checkpoint(model)
    assert WeightDigests.read(folder) is not None
    for loaded_as in (torch.float32, torch.bfloat16):
        loaded = SimCSE(folder, device="cpu", dtype=loaded_as)
        identity = SavedModel(folder).identity(str(loaded_as).removeprefix("torch."))
        assert identity == loaded.identity()
    digests = SavedModel(folder).digests()
    assert digests.encoder == AutoModelForCL.from_pretrained(folder).digest_encoder()
    (folder / "model.safetensors").write_bytes(b"other")
    assert WeightDigests.read(folder) is None


def test_the_files_of_a_whitened_model_say_which_model_is_loaded(transformed):
    saved = SavedModel(transformed("whitening"))
    assert WeightDigests.read(saved.folder) is not None
    assert saved.identity() == SimCSE(saved.folder, device="cpu").identity()
