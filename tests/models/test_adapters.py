"""Every kind of adapter that peft can train here is saved and loaded, merged or not, or refused before a step."""

import peft
import pytest
import torch
from conftest import NEEDS_PEFT, OLD_TRANSFORMERS, VOCABULARY, random_batch
from huggingface_hub import ModelCard
from trainer_helpers import refuses

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.models.adapters import check_adapter, load_trained_weights, save_trained_weights
from simcse_hf.publishing.card import write_card
from simcse_hf.publishing.hub import push_model

pytestmark = NEEDS_PEFT
LAYERS = {"target_modules": ["query", "value"]}
IDS = random_batch(3)["input_ids"]
#: The options of each kind beside the layers: by what is trained, and whether peft merges it by `merge` or unloads it.
KINDS = {
    "LoRA": {"r": 4},
    "DoRA": {"r": 4, "use_dora": True},
    "bias": {"r": 4, "bias": "all"},
    "embeddings": {"r": 4, "target_modules": ["query", "word_embeddings"]},
    "tokens": {"r": 4, "trainable_token_indices": [5, 6]},
    "modules": {"r": 4, "modules_to_save": ["LayerNorm"]},
    "IA3Config": {"feedforward_modules": ["value"]},
    "LNTuningConfig": {"target_modules": ["LayerNorm"]},
    "TrainableTokensConfig": {"token_indices": [5, 6], "target_modules": ["word_embeddings"]},
}


def config_of(kind, options):
    cls = getattr(peft, kind if kind.endswith("Config") else "LoraConfig", None)
    if cls is None:
        pytest.skip(f"this version of peft has no {kind}")
    return cls(**LAYERS | options)


def adapted(checkpoint, kind, options, way="get_peft_model"):
    config = config_of(kind, options)
    model = AutoModelForCL.from_pretrained(checkpoint)
    if way == "get_peft_model":
        model = peft.get_peft_model(model, config).get_base_model()
    else:
        model.add_adapter(config)
    assert model.has_adapter()
    return model


def train(model):
    """Take a few steps that change the embeddings."""
    before = model.eval().embed(IDS).detach()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        vectors = model.train().embed(IDS)
        (vectors[0] @ vectors[1]).backward()
        optimizer.step()
    after = model.eval().embed(IDS).detach()
    assert not torch.equal(before, after)
    return after


@pytest.mark.parametrize(
    "kind, way", [*[(kind, "get_peft_model") for kind in KINDS], ("DoRA", "add_adapter"), ("bias", "add_adapter")]
)
def test_a_trained_adapter_is_saved_and_loaded_merged_or_not(kind, way, checkpoint, tmp_path):
    model = adapted(checkpoint, kind, KINDS[kind], way)
    if OLD_TRANSFORMERS and kind == "TrainableTokensConfig":
        with refuses("TRAINABLE_TOKENS cannot be saved merged"):
            check_adapter(model)
        return
    for save_adapter in (False, True):
        model.save_adapter = save_adapter
        check_adapter(model)
    expected = train(model)
    for save_adapter in (False, True):
        model.save_adapter = save_adapter
        model.save_pretrained(tmp_path / "saved")
        assert (tmp_path / "saved/adapter_config.json").exists() == save_adapter
        found = AutoModelForCL.from_pretrained(tmp_path / "saved").embed(IDS)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_the_trained_weights_of_an_adapter_are_loaded_into_a_model_with_it_and_into_no_other(checkpoint, tmp_path):
    model = adapted(checkpoint, "LoRA", {"r": 4})
    expected = train(model)
    save_trained_weights(model, tmp_path)
    again = adapted(checkpoint, "LoRA", {"r": 4})
    load_trained_weights(again, tmp_path)
    assert torch.equal(again.eval().embed(IDS), expected)
    for other, folder in ((again, checkpoint), (AutoModelForCL.from_pretrained(checkpoint), tmp_path)):
        with refuses("another adapter than this run"):
            load_trained_weights(other, folder)


def test_an_adapter_with_weights_outside_of_its_layers_is_saved_merged_only(checkpoint, tmp_path):
    model = adapted(checkpoint, "VeraConfig", {"r": 4})
    model.save_adapter = True
    with refuses("cannot be saved by itself, so leave save_adapter"):
        check_adapter(model)
    model.save_adapter = False
    check_adapter(model)
    expected = train(model)
    model.save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(AutoModelForCL.from_pretrained(tmp_path / "saved").embed(IDS), expected)


def test_an_adapter_that_cannot_be_merged_is_refused(checkpoint):
    model = adapted(checkpoint, "aLoRA", {"r": 4, "alora_invocation_tokens": [5]})
    with refuses("adapter LORA cannot be saved merged"):
        check_adapter(model)


@pytest.mark.parametrize("change", [train, lambda model: model.resize_token_embeddings(len(VOCABULARY) + 2)])
def test_an_adapter_of_a_base_that_was_changed_here_is_not_saved_alone(change, checkpoint):
    model = AutoModelForCL.from_pretrained(checkpoint)
    change(model)
    model.base_model.add_adapter(config_of("LoraConfig", {"r": 4}))
    check_adapter(model)
    model.save_adapter = True
    with refuses("save_adapter: weights of the model differ from those in checkpoint"):
        check_adapter(model)


def test_no_folder_of_this_machine_is_named_as_base_of_an_adapter_for_others(
    checkpoint, tmp_path, tokenizer, monkeypatch
):
    monkeypatch.chdir(checkpoint.parent)
    adapter = save_lora("checkpoint", tmp_path / "adapter", tokenizer)  # which could be a name on the hub
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert encoded(adapter).shape == (32,)
    front_matter = ModelCard.load(write_card(adapter)).data
    assert front_matter.base_model is None and front_matter.base_model_relation == "adapter"


# --- an adapter knows the model that it was trained on ------------------------------------------------------------


def encoded(folder):
    return SimCSE(folder, device="cpu").encode("a cat")


def save_lora(checkpoint, folder, tokenizer):
    model = AutoModelForCL.from_pretrained(checkpoint)
    model.base_model.add_adapter(config_of("LoraConfig", {"r": 4, "init_lora_weights": False}))
    model.save_adapter = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train_again(folder):
    model = AutoModelForCL.from_pretrained(folder)
    train(model)
    model.save_pretrained(folder)


def test_an_adapter_is_refused_after_its_base_was_trained_again_or_replaced(checkpoint, tmp_path, tokenizer):
    adapter = save_lora(checkpoint, tmp_path / "adapter", tokenizer)
    before = encoded(adapter)
    moved = tmp_path / "moved"
    checkpoint.rename(moved)
    config = adapter / "adapter_config.json"
    config.write_text(config.read_text().replace(str(checkpoint), str(moved)))
    assert torch.equal(encoded(adapter), before)
    train_again(moved)
    with refuses(f"{adapter}: other weights than those in {moved}"):
        SimCSE(adapter, device="cpu")


def test_an_adapter_of_a_model_of_the_hub_is_added_to_the_commit_that_it_was_trained_on(
    checkpoint, tmp_path, tokenizer, hub
):
    push_model(checkpoint, "org/base")
    adapter = save_lora("org/base", tmp_path / "adapter", tokenizer)
    before = encoded(adapter)
    train_again(checkpoint)
    push_model(checkpoint, "org/base")
    assert torch.equal(encoded(adapter), before)
    push_model(adapter, "org/adapter")
    assert torch.equal(encoded("org/adapter"), before)
    assert "base" not in SimCSE(adapter, device="cpu").model.config.to_dict()
