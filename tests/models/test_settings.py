"""Which value of a setting decides, how settings are saved in config.json, and which values are refused."""

import copy
import json

import pytest
from conftest import tiny_config
from transformers import AutoConfig, BertForMaskedLM

from simcse_hf import AutoModelForCL, BertForCL, ContrastiveSettings
from simcse_hf.models.pooling import POOLER_TYPES
from simcse_hf.models.settings import SECTION, SETTING_NAMES, TABLES
from simcse_hf.objectives import OBJECTIVES
from simcse_hf.training.script_arguments import parse_arguments

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
    "dataset_objectives": {"plain": {}, "other": {"objective": "simcse"}},
    "matryoshka_dims": [16, 8],
    "encoders": 2,
    "templates": [],
    "mask_token_id": -1,
    "template_edges": [],
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
    "mask_token_id": 9,
    "template_edges": [[1, 3]],
    "denoising": "tanh",
}


def test_the_defaults_are_the_papers():
    settings = ContrastiveSettings.resolve()
    assert settings == ContrastiveSettings()
    assert (settings.objective, settings.pooler_type, settings.max_seq_length) == ("simcse", "cls", 32)
    assert (settings.temperature, settings.similarity, settings.mlm_weight) == (0.05, "cosine", 0.1)


@pytest.mark.parametrize("values", [OTHER_VALUES, OTHER_VALUES | IN_A_TEMPLATE], ids=["plain", "template"])
def test_every_setting_is_saved_in_config_json_and_loaded_again(values, tmp_path):
    assert values.keys() == SETTING_NAMES
    BertForCL(tiny_config(), **values).save_pretrained(tmp_path)
    section = json.loads((tmp_path / "config.json").read_text())[SECTION]
    assert section.keys() == TABLES.keys() and section["pooling"] | section["training"] == values
    assert ContrastiveSettings.from_config(AutoConfig.from_pretrained(tmp_path)).to_dict() == values
    assert BertForCL.from_pretrained(tmp_path).settings.to_dict() == values


def test_model_type_stays_the_stock_one(tmp_path):
    """Others can load the model without this package and without remote code."""
    BertForCL(tiny_config()).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "bert" and "auto_map" not in saved


@pytest.mark.parametrize("empty", [None, {}])
def test_a_config_without_section_has_the_defaults(empty):
    config = tiny_config()
    assert ContrastiveSettings.from_config(config) == ContrastiveSettings()
    setattr(config, SECTION, empty)
    assert ContrastiveSettings.from_config(config) == ContrastiveSettings()


def test_an_mlp_only_train_model_infers_without_its_head():
    for pooler_type in POOLER_TYPES:
        assert ContrastiveSettings(pooler_type=pooler_type).inference_pooler == pooler_type
    assert ContrastiveSettings(pooler_type="cls", mlp_only_train=True).inference_pooler == "cls_before_pooler"


# --- which value decides --------------------------------------------------------------------------------------------

LAYER = {"in_features": 32, "out_features": 8}
SAVED = {
    "pooling": {"pooler_type": "cls", "mlp_only_train": True, "dense_layers": [LAYER], "max_length": 20},
    "training": {"objective": "simcse", "temperature": 0.2, "similarity": "cosine", "encoders": 2},
}
RESOLVED = [  # what is given over SAVED, and what comes out
    ({}, {"pooler_type": "cls", "mlp_only_train": True, "temperature": 0.2, "max_length": 20}),
    ({"temperature": 0.3, "pooler_type": None}, {"temperature": 0.3, "pooler_type": "cls", "encoders": 2}),
    ({"max_length": None}, {"max_length": None, "dense_layers": [LAYER]}),
    ({"similarity": "dot"}, {"temperature": 1.0}),
    ({"similarity": "dot", "temperature": 0.2}, {"temperature": 0.2}),
    ({"similarity": "cosine"}, {"temperature": 0.2}),
    ({"pooler_type": "avg"}, {"mlp_only_train": False, "dense_layers": [], "max_length": 20, "temperature": 0.2}),
    ({"pooler_type": "cls_before_pooler"}, {"mlp_only_train": False, "dense_layers": [LAYER]}),
    ({"objective": "supcon"}, {"similarity": "dot", "temperature": 1.0, "encoders": 1, "pooler_type": "cls"}),
    ({"objective": "declutr"}, {"do_mlm": True, "mlm_weight": 1.0, "pooler_type": "cls", "mlp_only_train": True}),
]


@pytest.mark.parametrize(("given", "expected"), RESOLVED, ids=[str(given) for given, _ in RESOLVED])
def test_what_is_given_comes_before_what_is_saved_and_before_the_objectives_table(given, expected):
    before = copy.deepcopy(SAVED)
    settings = ContrastiveSettings.resolve(SAVED, **given).to_dict()
    assert {name: settings[name] for name in expected} == expected
    assert before == SAVED


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_python_command_line_yaml_and_checkpoints_have_the_same_defaults(objective, tmp_path, save_checkpoint):
    start = save_checkpoint(BertForMaskedLM(tiny_config()), "start")
    (tmp_path / "run.yaml").write_text(f"objective: {objective}\nmodel_name_or_path: {start}\nuse_cpu: true\n")
    line = f"--objective {objective} --model_name_or_path {start} --use_cpu --output_dir {tmp_path / 'run'}".split()
    arguments = [parse_arguments(argv)[0] for argv in (line, [str(tmp_path / "run.yaml"), *line[-2:]])]
    model = AutoModelForCL.from_pretrained(start, objective=objective)
    others = [AutoModelForCL.from_pretrained(start, **values.settings()) for values in arguments]
    others.append(AutoModelForCL.from_pretrained(save_checkpoint(model, "saved")))
    assert all(other.settings == model.settings for other in others)
    switched = AutoModelForCL.from_pretrained(save_checkpoint(BertForCL(tiny_config()), "other"), objective=objective)
    assert switched.settings.to_section()["training"] == model.settings.to_section()["training"]
    for name, value in OBJECTIVES[objective].defaults.items():
        if name in SETTING_NAMES - {"max_seq_length"}:
            assert getattr(model.settings, name) == value, name


def test_supcon_trains_with_its_own_similarity_and_temperature(save_checkpoint):
    start = save_checkpoint(BertForMaskedLM(tiny_config()))
    model = AutoModelForCL.from_pretrained(start, objective="supcon")
    model.prepare_objective()
    assert (model.objective.similarity, model.objective.temperature) == ("dot", 1.0)


# --- invalid values -------------------------------------------------------------------------------------------------


def test_an_int_is_accepted_for_a_float():
    settings = ContrastiveSettings(temperature=1, hard_negative_weight=0, mlm_weight=0)
    assert [type(v) for v in (settings.temperature, settings.hard_negative_weight, settings.mlm_weight)] == [float] * 3


WRONG = [
    ("pooler_type", "mean", "one of cls, cls_before_pooler, avg"),
    ("pooler_type", 1, "must be str, got 1"),
    ("mlp_only_train", "false", "must be bool, got 'false'"),
    ("mlp_only_train", 1, "must be bool"),
    ("temperature", 0, "a number above 0, got 0"),
    ("temperature", -0.05, "a number above 0"),
    ("temperature", float("nan"), "a number above 0"),
    ("temperature", float("inf"), "a number above 0"),
    ("temperature", "0.05", "must be float, got '0.05'"),
    ("temperature", True, "must be float"),
    ("similarity", "euclidean", "one of cosine, dot, got 'euclidean'"),
    ("similarity", ["dot"], "must be str"),
    ("objective", ["simcse"], "must be str"),
    ("pooler_type", ["cls"], "must be str"),
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


@pytest.mark.parametrize(
    "section", [{"training": {"temperature": -1.0}}, {"pooling": {"temp": 0.1}}, {"temp": 1}, "cls", ["cls"]]
)
def test_an_invalid_section_of_config_json_is_refused(section, tmp_path):
    BertForCL(tiny_config()).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {SECTION: section}))
    with pytest.raises(ValueError, match="temperature|temp|simcse"):
        BertForCL.from_pretrained(tmp_path)


def test_an_unknown_setting_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(
        ValueError, match=r"\(s\) temprature of a contrastive model \(did you mean temperature\?\); known .*do_mlm, .*"
    ):
        BertForCL(tiny_config(), temprature=0.05)


@pytest.mark.parametrize("objective", ["cosent", "angle", "declutr", "distill"])
def test_a_setting_that_the_objective_does_not_read_is_refused_unless_it_is_the_checkpoints(objective):
    with pytest.raises(ValueError, match=f"similarity is 'dot', but objective '{objective}' does not read it: leave"):
        ContrastiveSettings.resolve(objective=objective, similarity="dot")
    assert ContrastiveSettings.resolve(objective=objective, similarity="cosine", temperature=0.07).temperature == 0.07
    assert ContrastiveSettings.resolve(objective=objective, hard_negative_weight=0.0).similarity == "cosine"
    saved = {"training": {"objective": objective, "similarity": "dot", "temperature": 1.0}}
    assert ContrastiveSettings.resolve(saved).similarity == "dot"
    assert ContrastiveSettings.resolve(saved, similarity="dot").temperature == 1.0


def test_a_setting_may_be_read_by_a_part_of_a_sum_or_by_the_objective_of_a_data_set():
    assert ContrastiveSettings.resolve(objective="distill+simcse", similarity="dot").temperature == 1.0
    tables = {"one": {}, "two": {"objective": "simcse"}}
    assert ContrastiveSettings.resolve(objective="cosent", similarity="dot", dataset_objectives=tables)


@pytest.mark.parametrize("pooler_type", [p for p in POOLER_TYPES if p != "cls"])
def test_mlp_only_train_needs_the_head(pooler_type):
    with pytest.raises(ValueError, match=f"mlp_only_train .*'{pooler_type}' has none"):
        ContrastiveSettings(pooler_type=pooler_type, mlp_only_train=True)
