"""The settings are saved in config.json, and an invalid one is refused at construction."""

import json

import pytest
from conftest import tiny_config
from transformers import AutoConfig

from simcse_hf import BertForCL, ContrastiveSettings
from simcse_hf.models.configuration import SECTION, SETTING_NAMES
from simcse_hf.models.poolers import POOLER_TYPES

OTHER_VALUES = {
    "pooler_type": "cls",
    "mlp_only_train": True,
    "temperature": 0.07,
    "similarity": "dot",
    "hard_negative_weight": -0.693,
    "do_mlm": True,
    "mlm_weight": 0.2,
    "fixed_mask": True,
    "max_seq_length": 17,
    "objective": "vicreg",
    "objective_options": {"projector_dim": 64},
    "matryoshka_dims": [16, 8],
    "encoders": 2,
    "templates": [],
    "mask_token_id": 9,
    "template_edges": [[1, 3]],
    "denoising": "none",
    "max_length": 20,
    "prompts": {"query": "query: "},
    "default_prompt_name": "query",
    "dense_layers": [
        {
            "in_features": 32,
            "out_features": 8,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
    ],
    "normalize": True,
}
IN_A_TEMPLATE = {
    "pooler_type": "mask",
    "mlp_only_train": False,
    "templates": ["{text} is [MASK] ."],
    "denoising": "tanh",
}


def test_the_defaults_are_the_papers():
    assert ContrastiveSettings().to_dict() == {
        "pooler_type": "cls",
        "mlp_only_train": False,
        "temperature": 0.05,
        "similarity": "cosine",
        "hard_negative_weight": 0.0,
        "do_mlm": False,
        "mlm_weight": 0.1,
        "fixed_mask": False,
        "max_seq_length": 32,
        "objective": "simcse",
        "objective_options": {},
        "matryoshka_dims": [],
        "encoders": 1,
        "templates": [],
        "mask_token_id": -1,
        "template_edges": [],
        "denoising": "none",
        "max_length": None,
        "prompts": {},
        "default_prompt_name": None,
        "dense_layers": [],
        "normalize": False,
    }


@pytest.mark.parametrize("values", [OTHER_VALUES, OTHER_VALUES | IN_A_TEMPLATE], ids=["plain", "template"])
def test_every_setting_is_saved_in_config_json_and_loaded_again(values, tmp_path):
    assert values.keys() == SETTING_NAMES
    BertForCL(tiny_config(), **values).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())[SECTION] == values
    assert ContrastiveSettings.from_config(AutoConfig.from_pretrained(tmp_path)).to_dict() == values
    assert BertForCL.from_pretrained(tmp_path).settings.to_dict() == values


def test_model_type_stays_the_stock_one(tmp_path):
    """Others can load the model without this package and without remote code."""
    BertForCL(tiny_config()).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "bert" and "auto_map" not in saved


def test_overrides_take_precedence_over_the_section_without_changing_it():
    config = tiny_config()
    setattr(config, SECTION, {"temperature": 0.2, "pooler_type": "avg"})
    settings = ContrastiveSettings.from_config(config, temperature=0.3)
    assert (settings.temperature, settings.pooler_type, settings.max_seq_length) == (0.3, "avg", 32)
    assert getattr(config, SECTION) == {"temperature": 0.2, "pooler_type": "avg"}


def test_overrides_may_change_two_settings_that_depend_on_each_other():
    config = tiny_config()
    setattr(config, SECTION, {"pooler_type": "cls", "mlp_only_train": True})
    assert ContrastiveSettings.from_config(config, pooler_type="avg", mlp_only_train=False).pooler_type == "avg"


@pytest.mark.parametrize("empty", [None, {}])
def test_a_config_without_section_has_the_defaults(empty):
    config = tiny_config()
    assert ContrastiveSettings.from_config(config) == ContrastiveSettings()
    setattr(config, SECTION, empty)
    assert ContrastiveSettings.from_config(config) == ContrastiveSettings()


@pytest.mark.parametrize("pooler_type", POOLER_TYPES)
def test_an_mlp_only_train_model_infers_without_its_head(pooler_type):
    assert ContrastiveSettings(pooler_type).inference_pooler == pooler_type
    assert ContrastiveSettings("cls", mlp_only_train=True).inference_pooler == "cls_before_pooler"


def test_an_int_is_accepted_for_a_float():
    settings = ContrastiveSettings(temperature=1, hard_negative_weight=0, mlm_weight=0)
    assert [type(v) for v in (settings.temperature, settings.hard_negative_weight, settings.mlm_weight)] == [float] * 3


WRONG = [
    ("pooler_type", "mean", "one of cls, cls_before_pooler, avg"),
    ("pooler_type", None, "must be str, got None"),
    ("mlp_only_train", "false", "must be bool, got 'false'"),
    ("mlp_only_train", 1, "must be bool"),
    ("temperature", 0, "a number above 0, got 0"),
    ("temperature", -0.05, "a number above 0"),
    ("temperature", float("nan"), "a number above 0"),
    ("temperature", float("inf"), "a number above 0"),
    ("temperature", "0.05", "must be float, got '0.05'"),
    ("temperature", True, "must be float"),
    ("similarity", "euclidean", "one of cosine, dot, got 'euclidean'"),
    ("hard_negative_weight", float("inf"), "finite"),
    ("hard_negative_weight", float("-inf"), "finite"),
    ("hard_negative_weight", float("nan"), "finite"),
    ("do_mlm", 0, "must be bool"),
    ("mlm_weight", -0.1, "0 or more"),
    ("mlm_weight", float("inf"), "0 or more"),
    ("mlm_weight", float("nan"), "0 or more"),
    ("fixed_mask", "yes", "must be bool"),
    ("max_seq_length", 2, "at least 3"),
    ("max_seq_length", 32.0, "must be int, got 32.0"),
    ("max_seq_length", True, "must be int"),
    ("max_length", 2, "at least 3"),
    ("prompts", {"query": 1}, "a table of texts by name"),
    ("default_prompt_name", "query", r"one of the prompts \(none\)"),
    ("dense_layers", ["dense"], "a list of tables"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_an_invalid_value_is_refused_at_construction(name, value, message):
    with pytest.raises(ValueError, match=f"{name} must be .*{message}" if "must be" not in message else message) as e:
        BertForCL(tiny_config(), **{name: value})
    assert name in str(e.value) and repr(value) in str(e.value)


@pytest.mark.parametrize("section", [{"temperature": -1.0}, {"temp": 0.1}, "cls", ["cls"]])
def test_an_invalid_section_of_config_json_is_refused(section, tmp_path):
    BertForCL(tiny_config()).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {SECTION: section}))
    with pytest.raises(ValueError, match="temperature|temp|simcse"):
        BertForCL.from_pretrained(tmp_path)


def test_an_unknown_setting_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(
        ValueError, match=r"unknown setting\(s\) temp for the contrastive head; known settings are .*do_mlm, .*"
    ):
        BertForCL(tiny_config(), temp=0.05)


@pytest.mark.parametrize("pooler_type", [p for p in POOLER_TYPES if p != "cls"])
def test_mlp_only_train_needs_the_head(pooler_type):
    with pytest.raises(ValueError, match=f"mlp_only_train .*'{pooler_type}' has none"):
        ContrastiveSettings(pooler_type, mlp_only_train=True)


def test_the_default_temperature_follows_the_similarity():
    config = tiny_config()
    assert ContrastiveSettings.from_config(config).temperature == 0.05
    assert ContrastiveSettings.from_config(config, similarity="dot").temperature == 1.0
    assert ContrastiveSettings.from_config(config, similarity="dot", temperature=0.2).temperature == 0.2
    setattr(config, SECTION, {"similarity": "cosine", "temperature": 0.1})
    assert ContrastiveSettings.from_config(config).temperature == 0.1
    assert ContrastiveSettings.from_config(config, similarity="dot").temperature == 1.0
    assert ContrastiveSettings.from_config(config, similarity="cosine").temperature == 0.1
