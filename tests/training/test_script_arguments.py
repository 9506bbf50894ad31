"""Arguments of the training scripts: names of the reference, and command line before YAML before defaults."""

import json
import logging

import pytest
import yaml
from conftest import FAMILIES, tiny_config
from transformers import BertModel

from simcse_hf import AutoModelForCL
from simcse_hf.cli.main import main
from simcse_hf.models.settings import SETTING_NAMES, ContrastiveSettings
from simcse_hf.objectives import OBJECTIVES, make_objective
from simcse_hf.objectives.info_nce import SimCSEObjective
from simcse_hf.training.parser import RECIPES as PACKAGE_RECIPES
from simcse_hf.training.run import UNSUP_DEFAULTS, UNSUP_SAMPLE, load_model
from simcse_hf.training.script_arguments import dropout_settings, parse_arguments


def resolved(model_args):
    """Return the settings that a plain encoder gets from the arguments."""
    return ContrastiveSettings.resolve(**{k: v for k, v in model_args.settings().items() if k in SETTING_NAMES})


RECIPES = sorted(PACKAGE_RECIPES.glob("*sup-simcse*.yaml"))


def test_the_command_line_of_the_reference_implementation_is_accepted(tmp_path):
    line = (
        f"--model_name_or_path bert-base-uncased --train_file data/wiki1m.txt --output_dir {tmp_path} "
        "--num_train_epochs 1 --per_device_train_batch_size 64 --learning_rate 3e-5 --max_seq_length 32 "
        "--metric_for_best_model stsb_spearman --load_best_model_at_end --eval_strategy steps --eval_steps 125 "
        "--pooler_type cls --mlp_only_train --temp 0.07 --hard_negative_weight 0.5 --do_mlm --mlm_weight 0.2 "
        "--mlm_probability 0.2 --pad_to_max_length --preprocessing_num_workers 4 --do_train --do_eval --use_cpu"
    )
    model, data, training = parse_arguments(line.split())
    assert model.settings() == {
        "head": "auto",
        "pooler_type": "cls",
        "mlp_only_train": True,
        "temperature": 0.07,
        "similarity": None,
        "hard_negative_weight": 0.5,
        "do_mlm": True,
        "mlm_weight": 0.2,
        "objective": "simcse",
        "objective_options": None,
        "matryoshka_dims": None,
        "encoders": None,
        "unpadded": True,
        "templates": None,
        "denoising": None,
    }
    assert data.train_file == "data/wiki1m.txt"
    assert training.learning_rate == 3e-5 and training.pad_to_max_length and training.mlm_probability == 0.2
    assert training.save_steps == 125  # a checkpoint is saved at each evaluation, as in the reference


def test_an_objective_and_its_options_can_be_set_on_the_command_line_or_in_yaml(tmp_path):
    line = (
        f"--output_dir {tmp_path} --use_cpu --objective vicreg --objective_options projector_dim=64 "
        "covariance_weight=5e-1 --matryoshka_dims 64,32 --encoders 2 --view eda --view_rate 0.2 --no_unpadded"
    )
    model, _, training = parse_arguments(line.split())
    file = tmp_path / "run.yaml"
    file.write_text(
        f"output_dir: {tmp_path}\nuse_cpu: true\nobjective: vicreg\nobjective_options:\n  projector_dim: 64\n"
        "  covariance_weight: 0.5\nmatryoshka_dims: [64, 32]\nencoders: 2\nunpadded: false\nview: eda\n"
        "view_rate: 0.2\n"
    )
    from_yaml, _, training_from_yaml = parse_arguments([str(file)])
    for settings in (model.settings(), from_yaml.settings()):
        assert (settings["objective"], settings["matryoshka_dims"], settings["encoders"]) == ("vicreg", [64, 32], 2)
        assert settings["unpadded"] is False
        assert settings["objective_options"] == {"projector_dim": 64, "covariance_weight": 0.5}
    for arguments in (training, training_from_yaml):
        assert (arguments.view, arguments.view_rate) == ("eda", 0.2)


def test_a_recipe_of_the_package_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = {"output_dir": "out", "use_cpu": True}
    for name in ("sup-simcse-roberta-base", "sup-simcse-roberta-base.yaml"):
        model, _, training = parse_arguments([name, "--bf16", "false", "--model", "m"], own)
        assert training.learning_rate == 5e-5 and model.model_name_or_path == "m"
    (tmp_path / "sup-simcse-roberta-base.yaml").write_text("learning_rate: 1\n")  # a file of the user goes first
    assert parse_arguments(["sup-simcse-roberta-base.yaml"], own)[2].learning_rate == 1
    with pytest.raises(ValueError, match="(?s)neither a YAML file nor a recipe .* tsdae-bert-base-uncased"):
        parse_arguments(["something-else"], own)


def test_save_steps_must_match_eval_steps_only_with_a_dev_set(tmp_path):
    defaults = {"eval_strategy": "steps", "eval_steps": 125, "save_steps": 125, "load_best_model_at_end": True}
    line = f"--output_dir {tmp_path} --use_cpu --save_steps 7".split()
    _, _, training = parse_arguments(line, defaults)
    assert training.save_steps == 7 and not training.load_best_model_at_end
    with pytest.raises(ValueError, match="round multiple of the evaluation steps"):
        parse_arguments([*line, "--dev_file", "dev.csv"], defaults)
    assert parse_arguments([*line, "--dev_file", "dev.csv", "--eval_steps", "7"], defaults)[2].load_best_model_at_end
    assert parse_arguments([*line[:3], "--eval_steps", "125", "--save_steps", "250"])[2].save_steps == 250


def test_yaml_overrides_the_defaults_and_the_command_line_overrides_yaml(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("learning_rate: 3e-5\ntemp: 0.1\nmlp_only_train: true\nuse_cpu: true\ncolumns: [a, b]\n")
    argv = [str(file), "--temp", "0.2", "--output_dir", str(tmp_path)]
    model, data, training = parse_arguments(argv, {"learning_rate": 1.0, "max_seq_length": 64})
    assert training.learning_rate == 3e-5  # YAML reads 3e-5 as a string
    assert training.max_seq_length == 64
    assert model.temp == 0.2 and model.mlp_only_train
    assert data.columns == ["a", "b"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("temperatur: 0.1\n", r"run\.yaml: unknown argument\(s\) temperatur"),
        ("- temp\n", "must hold a table"),
        ("temp: [0.1\n", "not valid YAML"),
        ("learning_rate: fast\n", r"run\.yaml: learning_rate is 'fast', but must be a number"),
        ("max_steps: 1.5\n", "max_steps is 1.5, but must be a whole number"),
        ("mlp_only_train: perhaps\n", "mlp_only_train is 'perhaps', but must be true or false"),
        ("learning_rate: [1, 2]\n", "learning_rate is a list, not a single value"),
        ("output_dir: {a: b}\n", "output_dir is a table, not a single value"),
        ("objective_options: [64]\n", "takes name=value"),
        ("matryoshka_dims: 64;32\n", "takes numbers with commas, such as 256,128,64, got '64;32'"),
        ("seed: 7\nseeds: [3]\n", "seed is 7 and seeds .3.: give one of the two"),
        ("seeds: 3\nseeds: [5, x]\n", "seeds is 'x', but must be a whole number"),
    ],
)
def test_the_error_names_an_invalid_yaml_file(tmp_path, text, message):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        parse_arguments([str(file)])


@pytest.mark.parametrize("content, message", [(None, "No such file"), (b"temp: \xff\n", "UTF-8")])
def test_a_recipe_that_cannot_be_read_is_an_input_error(tmp_path, content, message, capsys):
    file = tmp_path / "run.yaml"
    if content is not None:
        file.write_bytes(content)
    assert main(["train", "unsup", str(file)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


class _TwoDefaults(SimCSEObjective):
    """An objective whose paper trains with another pooler and temperature."""

    defaults = {"pooler_type": "avg", "temp": 0.2, "learning_rate": 7e-6}


def test_a_papers_length_is_limited_to_what_the_encoder_can_take(tmp_path, save_checkpoint, caplog):
    """The paper of TSDAE has 512 tokens. The tiny encoder has 40 positions, the one of the sample fewer than 512."""
    start = save_checkpoint(AutoModelForCL.from_config(tiny_config()), "start")
    line = f"--output_dir {tmp_path} --use_cpu --objective tsdae --model_name_or_path {start}".split()
    with caplog.at_level(logging.INFO, "simcse_hf"):
        assert parse_arguments(line)[2].max_seq_length == 40
    assert "max_seq_length is 40, because the encoder has no more positions (paper: 512)" in caplog.text
    assert parse_arguments([*line, "--max_seq_length", "16"])[2].max_seq_length == 16
    sample = parse_arguments(line[:5], UNSUP_DEFAULTS, UNSUP_SAMPLE)[2]
    assert sample.max_seq_length == 32


def test_an_objectives_settings_override_the_defaults_but_not_explicit_arguments(tmp_path, caplog):
    OBJECTIVES["two_defaults"] = _TwoDefaults
    try:
        line = ["--objective", "two_defaults", "--output_dir", str(tmp_path), "--use_cpu"]
        command_defaults = {"learning_rate": 3e-5, "mlp_only_train": True, "temp": 0.2}
        with caplog.at_level("INFO", "simcse_hf"):
            model, _, training = parse_arguments(line, command_defaults)
        settings = resolved(model)
        assert (settings.pooler_type, settings.temperature, training.learning_rate) == ("avg", 0.2, 7e-6)
        assert not settings.mlp_only_train  # The head belongs to the pooler cls.
        assert "pooler_type='avg', learning_rate=7e-06" in caplog.text and "temp" not in caplog.text

        (tmp_path / "run.yaml").write_text("learning_rate: 1e-3\n")
        line = [str(tmp_path / "run.yaml"), *line, "--pooler", "cls", "--mlp_only_train"]
        model, _, training = parse_arguments(line, command_defaults)
        assert (model.pooler_type, model.mlp_only_train, training.learning_rate) == ("cls", True, 1e-3)
    finally:
        del OBJECTIVES["two_defaults"]


def test_a_sentence_transformers_model_keeps_its_pooler_unless_another_is_named(tmp_path, save_checkpoint):
    start = save_checkpoint(BertModel(tiny_config()))
    (start / "1_Pooling").mkdir()
    (start / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    names = ("Transformer", "Pooling")
    modules = [
        {"path": f"{i}_{n}" if i else "", "type": f"sentence_transformers.models.{n}"} for i, n in enumerate(names)
    ]
    (start / "modules.json").write_text(json.dumps(modules))
    line = f"--output_dir {tmp_path} --use_cpu --model_name_or_path {start}".split()
    for words, expected in (([], ("avg", False)), (["--pooler_type", "cls"], ("cls", True))):
        settings = load_model(parse_arguments([*line, *words], {"mlp_only_train": True})[0], 0)[0].settings
        assert (settings.pooler_type, settings.mlp_only_train) == expected


def test_the_dot_product_has_a_default_temperature_of_1(tmp_path):
    line = f"--output_dir {tmp_path} --use_cpu --similarity dot".split()
    for words, temperature in (([], 1.0), (["--temp", "0.5"], 0.5), (["--similarity", "cosine"], 0.05)):
        assert resolved(parse_arguments([*line, *words])[0]).temperature == temperature


def test_an_unknown_argument_is_a_usage_error(tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(f"--output_dir {tmp_path} --use_cpu --temperatur 0.1".split())
    assert "unknown argument(s): --temperatur 0.1" in capsys.readouterr().err


def test_help_lists_this_packages_arguments_first_with_their_defaults(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--help"], {"temp": 0.07})
    text = capsys.readouterr().out
    positions = [text.index(f"\n  --{name}") for name in ("model_name_or_path", "view", "learning_rate")]
    assert (
        positions == sorted(positions)
        and text.index("[recipe.yaml]") < 100
        and "(default: 0.07)" in " ".join(text.split())
    )


def test_a_value_outside_the_choices_is_a_usage_error(tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--pooler_type", "maximum"])
    assert "avg_first_last" in capsys.readouterr().err


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_sets_every_dropout_rate_of_the_encoder(family):
    names = dropout_settings(tiny_config(family), 0.3)
    assert names and set(names.values()) == {0.3}
    assert not any("classifier" in name for name in names)
    assert dropout_settings(tiny_config(family), None) == {}
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1"):
        dropout_settings(tiny_config(family), 1.0)


METHOD_RECIPES = [
    path
    for path in sorted(PACKAGE_RECIPES.glob("*.yaml"))
    if path not in RECIPES and not path.stem.startswith("pretrain")
]


def test_every_method_of_the_papers_has_a_recipe():
    methods = {yaml.safe_load(path.read_text())["objective"] for path in METHOD_RECIPES}
    assert methods | {"simcse", "class_labels"} == {"softmax:0.7+supcon:0.3", "simcse+distill"} | {
        name for name, cls in OBJECTIVES.items() if cls.__module__.startswith("simcse_hf.")
    }


@pytest.mark.parametrize("path", METHOD_RECIPES, ids=lambda path: path.stem)
def test_each_recipe_is_valid_and_agrees_with_the_objectives_defaults(path, tmp_path):
    values = yaml.safe_load(path.read_text())
    model_args, _, _ = parse_arguments([str(path), "--bf16", "false", "--use_cpu", "--output_dir", str(tmp_path)])
    settings = resolved(model_args).to_dict()
    options = {name: min(v, 16) if name == "projector_dim" else v for name, v in settings["objective_options"].items()}
    objective = make_objective(values["objective"], 8, settings | {"template_edges": [[3, 3]] * 2}, options)
    assert settings["objective"] == objective.name
    papers = {} if path.stem.startswith("sup-promptbert") else type(objective).defaults
    defaults = {name: value for name, value in papers.items() if name in values}
    if path.stem.startswith("sbert"):  # SBERT's own settings (arXiv:1908.10084, section 3), not those of Liao 2021
        defaults |= {"pooler_type": "avg", "train_sampling_strategy": "random", "per_device_train_batch_size": 16}
        assert settings["objective_options"] == {"layers": 1}
    assert defaults == {name: values[name] for name in defaults}
    assert values["bf16"] and values["save_only_model"]
    assert values["dev_file"] and values["load_best_model_at_end"] and values["save_steps"] == values["eval_steps"]


@pytest.mark.parametrize("name", [name for name, cls in OBJECTIVES.items() if cls.defaults])
def test_selecting_an_objective_applies_its_papers_settings(name, tmp_path):
    model_args, data, training = parse_arguments(["--objective", name, "--use_cpu", "--output_dir", str(tmp_path)])
    settings = resolved(model_args)
    for argument, value in OBJECTIVES[name].defaults.items():
        parsed = [getattr(x, argument) for x in (settings, model_args, data, training) if hasattr(x, argument)]
        assert value in parsed, argument


def test_the_simcse_recipes_match_table_a1_of_the_paper(tmp_path):
    table = {}
    for recipe in RECIPES:
        model, _, training = parse_arguments(
            [str(recipe), "--bf16", "false", "--use_cpu", "--output_dir", str(tmp_path)]
        )
        unsupervised = recipe.stem.startswith("unsup")
        assert model.mlp_only_train == unsupervised and model.temp == 0.05 and training.max_seq_length == 32
        assert training.num_train_epochs == (1 if unsupervised else 3)
        values = yaml.safe_load(recipe.read_text())
        assert values["bf16"] is True and training.eval_steps == 250
        table[recipe.stem] = (training.per_device_train_batch_size, training.learning_rate)
    assert table == {
        "unsup-simcse-bert-base-uncased": (64, 3e-5),
        "unsup-simcse-bert-large-uncased": (64, 1e-5),
        "unsup-simcse-roberta-base": (512, 1e-5),
        "unsup-simcse-roberta-large": (512, 3e-5),
        "sup-simcse-bert-base-uncased": (512, 5e-5),
        "sup-simcse-bert-large-uncased": (512, 1e-5),
        "sup-simcse-roberta-base": (512, 5e-5),
        "sup-simcse-roberta-large": (512, 1e-5),
    }


def test_texts_of_the_command_line_replace_the_hubs_data_set_of_a_recipe(tmp_path):
    words = ["sup-simcse-bert-base-uncased", "--bf16", "false", "--use_cpu", "--output_dir", str(tmp_path)]
    _, data, _ = parse_arguments(words)
    assert data.dataset_name == "sentence-transformers/nli-for-simcse:triplet" and data.train_file is None
    assert data.dev_file == "sentence-transformers/stsb:validation"
    _, data, _ = parse_arguments([*words, "--train_file", "nli.csv", "--dev_file", "dev.csv"])
    assert (data.dataset_name, data.train_file, data.dev_file) == (None, "nli.csv", "dev.csv")
