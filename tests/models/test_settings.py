"""The settings of a model: how they are saved in config.json, which value of a setting decides, what is refused."""

import copy
import json
from dataclasses import asdict

import numpy as np
import pytest
from conftest import tiny_config
from model_helpers import edit_json
from trainer_helpers import refuses
from transformers import AutoConfig, BertForMaskedLM

from simcse_hf import AutoModelForCL, BertForCL, ContrastiveSettings
from simcse_hf.models.settings import (
    SECTION,
    SETTING_NAMES,
    TABLES,
    max_positions,
    resolve_settings,
    settings_of_config,
)
from simcse_hf.objectives import OBJECTIVES

LAYER = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": "torch.nn.Identity"}
#: Another value than the default of every setting, without a template.
OTHER_VALUES = {
    "pooler_type": "cls",
    "mlp_only_train": True,
    "templates": [],
    "mask_token_id": -1,
    "template_edges": [],
    "denoising": "none",
    "dense_layers": [LAYER],
    "normalize": True,
    "similarity_fn_name": "dot",
    "max_length": 20,
    "prompts": {"query": "query: "},
    "default_prompt_name": "query",
    "truncate_dim": 6,
    "objective": "barlow_twins",
    "objective_options": {"projector_dim": 64, "off_diagonal_weight": 0.01, "matryoshka_dims": [16, 8]},
    "dataset_objectives": {"plain": {}, "other": {"objective": "cosent", "objective_options": {"temperature": 0.2}}},
    "do_mlm": True,
    "mlm_weight": 0.2,
    "fixed_mask": True,
    "max_seq_length": 17,
}
IN_A_TEMPLATE = {"pooler_type": "mask", "mlp_only_train": False, "templates": ["{text} is [MASK] ."]}
IN_A_TEMPLATE |= {"mask_token_id": 9, "template_edges": [[1, 3]], "denoising": "tanh"}


def test_the_defaults_are_the_papers():
    settings = resolve_settings()
    assert settings.objective == "simcse" and settings.pooler_type == "cls" and settings.max_seq_length == 32
    assert settings.objective_options["temperature"] == 0.05 and settings.objective_options["similarity"] == "cosine"
    assert settings.mlm_weight == 0.1


@pytest.mark.parametrize("values", [OTHER_VALUES, OTHER_VALUES | IN_A_TEMPLATE])
def test_every_setting_is_saved_in_config_json_and_loaded_again(values, tmp_path):
    assert values.keys() == SETTING_NAMES
    BertForCL(tiny_config(), **values).save_pretrained(tmp_path)
    section = json.loads((tmp_path / "config.json").read_text())[SECTION]
    assert section.keys() == TABLES.keys() and section["pooling"] | section["training"] == values
    assert asdict(settings_of_config(AutoConfig.from_pretrained(tmp_path))) == values
    assert asdict(BertForCL.from_pretrained(tmp_path).settings) == values


# The settings of a checkpoint.
SAVED = {
    "pooling": {"pooler_type": "cls", "mlp_only_train": True, "dense_layers": [LAYER], "max_length": 20},
    "training": {
        "objective": "simcse",
        "objective_options": {"temperature": 0.2, "similarity": "cosine", "encoders": 2},
    },
}
RESOLVED = [  # what is given over SAVED, and what comes out
    ({}, {"pooler_type": "cls", "mlp_only_train": True, "temperature": 0.2, "max_length": 20, "encoders": 2}),
    ({"max_length": None}, {"max_length": None, "dense_layers": [LAYER]}),
    ({"objective_options": {"similarity": "dot"}}, {"temperature": 1.0}),
    ({"similarity": "dot", "temperature": 0.2}, {"temperature": 0.2}),
    ({"pooler_type": "avg"}, {"mlp_only_train": False, "dense_layers": [], "max_length": 20, "temperature": 0.2}),
    ({"pooler_type": "cls"}, {"dense_layers": [LAYER]}),
    ({"pooler_type": "cls_before_pooler"}, {"mlp_only_train": False, "dense_layers": [LAYER]}),
    ({"objective": "supcon"}, {"similarity": "dot", "temperature": 1.0, "pooler_type": "cls"}),
    (
        {"objective": "simcse+distill", "objective_options": {"simcse.similarity": "dot"}},
        {"simcse.temperature": 1.0},
    ),
    ({"objective": "declutr"}, {"do_mlm": True, "mlm_weight": 1.0, "pooler_type": "cls", "mlp_only_train": True}),
    ({"matryoshka_dims": [8]}, {"matryoshka_dims": [8], "temperature": 0.2}),
    ({"mlm_weight": np.float64(0.5)}, {"mlm_weight": 0.5}),
]


@pytest.mark.parametrize("given, expected", RESOLVED)
def test_what_is_given_comes_before_what_is_saved_and_before_the_objectives_paper(given, expected):
    before = copy.deepcopy(SAVED)
    settings = asdict(resolve_settings(SAVED, **given))
    settings |= settings["objective_options"]
    assert {name: settings[name] for name in expected} == expected
    assert before == SAVED


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_objective_has_the_settings_of_its_paper_whatever_it_starts_from(objective, save_checkpoint):
    start = save_checkpoint(BertForMaskedLM(tiny_config()), "start")
    model = AutoModelForCL.from_pretrained(start, objective=objective)
    assert AutoModelForCL.from_pretrained(save_checkpoint(model, "saved")).settings == model.settings
    switched = AutoModelForCL.from_pretrained(save_checkpoint(BertForCL(tiny_config()), "other"), objective=objective)
    assert switched.settings.to_section()["training"] == model.settings.to_section()["training"]
    for name, value in OBJECTIVES[objective].defaults.items():
        if name in SETTING_NAMES - {"max_seq_length"}:
            assert getattr(model.settings, name) == value, name


WRONG = {
    "pooler_type": ["mean", ["cls"]],
    "mlp_only_train": [1],
    "temperature": [-0.05, True],
    "objective": [["simcse"]],
    "mlm_weight": [-0.1, float("nan")],
    "max_seq_length": [2, 32.0],
    "prompts": [{"query": 1}],
    "default_prompt_name": ["query"],
    "dense_layers": [["dense"]],
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_value_is_refused_at_construction_by_its_name(name):
    for value in WRONG[name]:
        shown = value[0] if isinstance(value, list) else value
        with refuses(f"{name} {shown!r}"):
            BertForCL(tiny_config(), **{name: value})


@pytest.mark.parametrize("section", [{"training": {"mlm_weight": -1.0}}, {"temp": 1}, "cls"])
def test_an_invalid_section_of_config_json_is_refused(section, tmp_path):
    BertForCL(tiny_config()).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", **{SECTION: section})
    with pytest.raises(ValueError, match="mlm_weight|temp|simcse"):
        BertForCL.from_pretrained(tmp_path)


def test_an_unknown_setting_is_refused_and_a_similar_one_is_named():
    with refuses("mlm_wieght mlm_weight"):
        BertForCL(tiny_config(), mlm_wieght=0.05)


def test_an_option_that_no_part_of_the_objective_reads_is_refused():
    objective = "cosent"
    with refuses(f"{objective} similarity"):
        resolve_settings(objective=objective, similarity="dot")
    assert resolve_settings(objective=objective, temperature=0.07).objective_options["temperature"] == 0.07
    saved = {"training": {"objective": objective, "objective_options": {"temperature": 1.0}}}
    assert resolve_settings(saved).objective_options["temperature"] == 1.0


def test_an_objective_that_a_checkpoint_names_is_not_imported(tmp_path):
    """A checkpoint must not run code."""
    model = BertForCL(tiny_config())
    model.config.simcse = {"training": {"objective": "antigravity:Fly"}}
    model.config.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    loaded = BertForCL(config)
    with refuses("antigravity"):
        loaded.prepare_objective()


def test_mlp_only_train_needs_the_head():
    with refuses("mlp_only_train 'avg' has none"):
        ContrastiveSettings(pooler_type="avg", mlp_only_train=True)


@pytest.mark.parametrize("family", "bert nystromformer roberta luke lilt markuplm esm mpnet".split())
def test_a_text_is_cut_at_the_positions_that_an_encoder_can_use(family):
    config = AutoConfig.for_model(family, max_position_embeddings=24, pad_token_id=1)
    assert max_positions(config) == (24 if family in ("bert", "nystromformer") else 22)
