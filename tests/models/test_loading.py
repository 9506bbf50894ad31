"""Loading a model runs no code of its author, makes up no weight, and says what is wrong with a folder."""

import json
import logging
import shutil

import pytest
import torch
from conftest import tiny_config
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from model_helpers import edit_json
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from trainer_helpers import assert_same_weights, refuses
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, BertConfig, BertModel

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.objectives.masked_lm import load_masked_lm
from simcse_hf.runtime.errors import no_model
from simcse_hf.runtime.loading import explain_damage


def edit_config(directory, **changes):
    edit_json(directory / "config.json", **changes)


def edit_weights(directory, change):
    weights = load_file(directory / "model.safetensors")
    save_file(change(weights), directory / "model.safetensors", {"format": "pt"})


def without(part):
    return lambda directory: edit_weights(directory, lambda x: {n: y for n, y in x.items() if part not in n})


def make_nan(weights):
    next(x for name, x in weights.items() if "layer.1.output.dense.bias" in name)[0] = float("nan")
    return weights


def only_an_adapter(directory):
    for name in ("model.safetensors", "config.json"):
        (directory / name).unlink()
    (directory / "adapter_config.json").write_text('{"base_model_name_or_path": "./nowhere"}')


def need_own_code(directory):
    edit_config(directory, model_type="own", auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"})
    (directory / "evil.py").write_text("raise SystemExit('custom code ran')")


def truncate(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


#: What is done to a saved model, and what the refusal says.
DAMAGES = [
    (without("layer.1."), r"lacks the weights .*layer\.1\..* and 13 more"),
    (lambda x: edit_config(x, num_hidden_layers=1), r"no place for: .*layer\.1\."),
    (lambda x: edit_weights(x, make_nan), "holds NaN or infinity"),
    (truncate, "damaged"),
    (lambda x: (x / "config.json").write_text("{"), "damaged"),
    (only_an_adapter, "adapter of peft(, not a whole model. Merge it| for ./nowhere, which could not)"),
    (need_own_code, "needs custom code from its author, which is not supported"),
]
LOADERS = [
    AutoModelForCL.from_pretrained,
    lambda x: SimCSE(x, pooler_type="avg", device="cpu"),
    load_masked_lm,
]


@pytest.fixture
def saved(save_checkpoint):
    return save_checkpoint(AutoModelForMaskedLM.from_config(tiny_config()))


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("change, message", DAMAGES)
def test_a_model_that_is_not_whole_is_refused_in_one_line(change, message, load, saved, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked whether to run code"))
    change(saved)
    with pytest.raises(ValueError, match=f"{saved}.* {message}"):
        load(saved)


def test_an_adapter_in_place_of_a_masked_lm_is_refused_with_what_to_do(saved):
    only_an_adapter(saved)
    with refuses("is an adapter of peft, not a whole model. Merge it first"):
        load_masked_lm(saved)


def test_custom_code_is_refused_when_asked_for_and_ignored_beside_a_known_encoder(saved, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    edit_config(saved, auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"})
    (saved / "evil.py").write_text("raise SystemExit('custom code ran')")
    AutoModelForCL.from_pretrained(saved)
    with refuses("custom code is not supported"):
        AutoModelForCL.from_pretrained(saved, trust_remote_code=True)


def test_a_config_that_turns_named_outputs_off_changes_nothing(saved):
    edit_config(saved, return_dict=False)
    assert SimCSE(saved, pooler_type="avg", device="cpu").encode("a cat").shape == (32,)


def test_the_model_of_an_adapter_of_another_program_is_looked_for_in_the_given_cache(saved, tmp_path):
    hub = tmp_path / "cache/models--org--base"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs/main").write_text("a" * 40)
    model = get_peft_model(BertModel(tiny_config()), LoraConfig(r=2, target_modules=["query"]))
    model.peft_config["default"].base_model_name_or_path = "org/base"
    model.save_pretrained(tmp_path / "adapter")
    arguments = {"cache_dir": tmp_path / "cache", "local_files_only": True, "pooler_type": "avg"}
    with refuses("adapter of peft for org/base, which could not be loaded"):
        AutoModelForCL.from_pretrained(tmp_path / "adapter", **arguments)
    shutil.copytree(saved, hub / "snapshots" / ("a" * 40))
    assert AutoModelForCL.from_pretrained(tmp_path / "adapter", **arguments).settings.pooler_type == "avg"


def test_an_error_of_the_hub_is_not_taken_for_damage(tmp_path):
    with pytest.raises(OSError, match="not reached"), explain_damage(tmp_path):
        raise OSError("not reached") from LocalEntryNotFoundError("offline")


def test_a_model_that_is_missing_says_whether_the_hub_was_asked(tmp_path, monkeypatch):
    error = OSError("not reached")
    assert "a file that this folder names could not be loaded (not reached)" in no_model(tmp_path, error)
    for load in (SimCSE, AutoModelForCL.from_pretrained):
        for name in ("bert-base-uncsed", "a/b/c", "two words"):
            with refuses(f"{name}: the hub is not asked because HF_HUB_OFFLINE is set"):
                load(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert "one on the hub that can be reached (not reached)" in no_model("bert-base-uncsed", error)


@pytest.mark.parametrize("kinds", ["StaticEmbedding", "Router", "Transformer + Pooling"])
def test_a_model_of_sentence_transformers_without_an_encoder_is_refused_by_its_modules(kinds, tmp_path):
    modules = [{"path": f"{kind}", "type": f"sentence_transformers.models.{kind}"} for kind in kinds.split(" + ")]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for load in (SimCSE, AutoModelForCL.from_pretrained):
        with refuses(f"model of {kinds}, with no encoder"):
            load(tmp_path)


def test_layers_may_be_left_out_and_the_config_of_another_checkpoint_taken_on_purpose(saved, save_checkpoint):
    assert AutoModelForCL.from_pretrained(saved, num_hidden_layers=1).config.num_hidden_layers == 1
    other = save_checkpoint(AutoModelForMaskedLM.from_config(tiny_config(dropout=0.4)), "other")
    assert AutoModelForCL.from_pretrained(saved, config=other).bert.embeddings.dropout.p == 0.4


class OwnConfig(BertConfig):
    model_type = "own-bert"


class OwnModel(BertModel):
    config_class = OwnConfig


def test_a_registered_encoder_that_extends_another_is_saved_and_loaded(tmp_path):
    AutoConfig.register("own-bert", OwnConfig, exist_ok=True)
    AutoModel.register(OwnConfig, OwnModel, exist_ok=True)
    model = AutoModelForCL.from_config(OwnConfig(**tiny_config().to_diff_dict() | {"model_type": "own-bert"}))
    model.save_pretrained(tmp_path)
    assert sum("layer.0.output.dense.weight" in name for name in model.state_dict()) == 1
    again = AutoModelForCL.from_pretrained(tmp_path)
    assert_same_weights(model.state_dict(), again.state_dict())


def test_a_model_that_averages_writes_no_head_that_nothing_uses(tmp_path):
    for family, pooler_type in (("bert", "cls"), ("distilbert", "avg")):
        AutoModelForCL.from_config(tiny_config(family), pooler_type=pooler_type).save_pretrained(tmp_path)
        assert (tmp_path / "2_Dense").exists() == (pooler_type == "cls")
    assert AutoModelForCL.from_pretrained(tmp_path).settings.pooler_type == "avg"


# --- what transformers reports ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", "bert roberta distilbert electra modernbert albert".split())
def test_transformers_reports_only_what_the_package_does_not_explain(family, save_checkpoint, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    directory = save_checkpoint(AutoModelForMaskedLM.from_config(tiny_config(family)))
    assert AutoModelForCL.from_pretrained(directory).head_source == "fresh"
    SimCSE(directory, pooler_type="avg", device="cpu")
    assert "LOAD REPORT" not in caplog.text
    edit_weights(directory, lambda weights: weights | {"extra": torch.zeros(1)})
    AutoModelForCL.from_pretrained(directory)
    assert "LOAD REPORT" in caplog.text and "extra" in caplog.text
