"""Arguments of the training scripts: names of the reference, and command line before YAML before defaults."""

import json
import logging
import re
from pathlib import Path

import pytest
import yaml
from conftest import FAMILIES, tiny_config
from trainer_helpers import model_of, refuses

from simcse_hf.cli.main import main
from simcse_hf.data.sample import sample_files
from simcse_hf.models.settings import LOSS_OPTIONS, SETTING_NAMES, dropout_rates, resolve_settings
from simcse_hf.objectives import OBJECTIVES, build_objective
from simcse_hf.training.arguments import ModelArguments
from simcse_hf.training.parser import RECIPES
from simcse_hf.training.recipe import Recipe

OF_OTHERS = [path for path in sorted(RECIPES.glob("*.yaml")) if not re.search("sup-simcse|^pretrain", path.stem)]


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """`parse(words, recipe="temp: 0.1")` returns the arguments of a run on a CPU, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def parse(words, recipe=None):
        words = words.split() if isinstance(words, str) else list(map(str, words))
        if recipe is not None:
            Path("run.yaml").write_text(recipe)
            words = ["run.yaml", *words]
        return decide(words)

    return parse


def decide(words):
    """The arguments of a run, which starts from the encoder of the sample unless it names a folder."""
    recipe = Recipe.read("unsup", [*words, "--use_cpu", "--output_dir", "out"])
    if not Path(recipe.given.get("model_name_or_path", "none")).is_dir():
        encoder = str(sample_files()[1])
        recipe = recipe.but(model_name_or_path=encoder, model_revision="main")
    return recipe.decide()


def settings_of(arguments):
    """The settings that a plain encoder gets from the arguments."""
    names = SETTING_NAMES | set(LOSS_OPTIONS)
    given = arguments.model.settings(arguments.checkpoint.config).items()
    return resolve_settings(**{name: value for name, value in given if name in names})


# --- the command line of the reference implementation ---

OF_THE_REFERENCE = (
    "--model_name_or_path bert-base-uncased --train_file data/wiki1m.txt --num_train_epochs 1 "
    "--per_device_train_batch_size 64 --learning_rate 3e-5 --max_seq_length 32 "
    "--metric_for_best_model stsb_spearman --load_best_model_at_end --eval_strategy steps --eval_steps 125 "
    "--pooler_type cls --mlp_only_train --temp 0.07 --hard_negative_weight 0.5 --do_mlm --mlm_weight 0.2 "
    "--mlm_probability 0.2 --do_train --do_eval --dev_file dev.tsv"
)


def test_the_command_line_of_the_reference_implementation_has_its_meaning():
    arguments = decide(OF_THE_REFERENCE.split())
    settings = settings_of(arguments)
    assert (settings.pooler_type, settings.mlp_only_train, settings.objective) == ("cls", True, "simcse")
    assert (settings.do_mlm, settings.mlm_weight, arguments.training.mlm_probability) == (True, 0.2, 0.2)
    options = settings.objective_options
    assert (options["temperature"], options["hard_negative_weight"]) == (0.07, 0.5)
    assert arguments.training.learning_rate == 3e-5
    assert arguments.data.train_file == "data/wiki1m.txt"


# --- on the command line ---


def test_every_kind_of_option_can_be_set():
    line = (
        "--objective vicreg --objective_options projector_dim=64 covariance_weight=5e-1 --matryoshka_dims 64,32 "
        "--view eda --view_rate 0.2 --no_unpadded --max_seq_length anchor=32,positive=256"
    )
    arguments = decide([*line.split(), "--prompts", "anchor=query: ", "positive=passage: "])
    found = vars(arguments.model) | vars(arguments.training)
    expected = {
        "objective": "vicreg",
        "matryoshka_dims": [64, 32],
        "objective_options": {"projector_dim": 64, "covariance_weight": 0.5},
        "unpadded": False,
        "view": "eda",
        "view_rate": 0.2,
        "max_seq_length": {"anchor": 32, "positive": 256},
        "prompts": {"anchor": "query: ", "positive": "passage: "},
    }
    assert {name: found[name] for name in expected} == expected


def test_a_separator_of_labels_has_no_effect_where_nothing_has_labels_and_the_log_says_so(tmp_path, caplog):
    values = {"label_separator": ";", "max_train_samples": 32, "output_dir": str(tmp_path / "out")}
    Recipe("unsup", values).trainer()
    assert "label_separator has no effect" in caplog.text


def test_a_recipe_may_ask_for_no_matryoshka_dimensions(parse):
    settings = parse("", recipe="matryoshka_dims: []\n").model.settings(tiny_config())
    assert settings["matryoshka_dims"] == []


def test_a_recipe_of_the_package_is_found_by_its_name_after_a_file_of_the_user(parse):
    for name in ("sup-simcse-roberta-base", "sup-simcse-roberta-base.yaml"):
        assert parse([name, "--bf16", "false"]).training.learning_rate == 5e-5
    Path("sup-simcse-roberta-base.yaml").write_text("learning_rate: 1\n")
    assert parse("sup-simcse-roberta-base.yaml").training.learning_rate == 1
    with refuses("something-else tsdae-bert-base-uncased"):
        parse("something-else")


# --- what a recipe says ---


@pytest.mark.parametrize(
    "text, words",
    [
        ("temperatur: 0.1\n", "run.yaml temperatur temp"),
        ("- temp\n", "run.yaml"),
        ("temp: [0.1\n", "YAML"),
        ("learning_rate: fast\n", "run.yaml learning_rate float 'fast'"),
        ("mlp_only_train: perhaps\n", "mlp_only_train perhaps true/false"),
        ("learning_rate: [1, 2]\n", "learning_rate list"),
        ("output_dir: {a: b}\n", "output_dir table"),
        ("objective_options: [64]\n", "objective_options name=value 64"),
        ("matryoshka_dims: 64;32\n", "matryoshka_dims 256,128,64 '64;32'"),
        ("seed: 1:30\n", "seed '1:30'"),
        ("temp: 0.1\nseed: 7\ntemp: 0.2\n", "run.yaml temp twice line 3"),
        ("prompts: {anchor: a, anchor: b}\n", "run.yaml anchor twice"),
        ("max_seq_length: {anchor: 32, positive: 1:30}\n", "max_seq_length 'positive=1:30'"),
        ("view: delete_word\n", "view did you mean delete_words"),
    ],
)
def test_the_error_names_an_invalid_yaml_file(parse, text, words):
    with refuses(words):
        parse("", recipe=text)


#: What stands in a recipe, and what the options of text, numbers and truth values are.
WRITTEN = [
    ("output_dir", "2024_11_26", "2024_11_26"),
    ("eval_strategy", "no", "no"),
    ("dev_file", "null", None),
    ("columns", "[no, 1.10, 12:30]", ["no", "1.10", "12:30"]),
    ("prompts", "{anchor: no, positive: 12:30}", {"anchor": "no", "positive": "12:30"}),
    ("learning_rate", "1e-5", 1e-5),
    ("max_steps", "1_000", 1000),
    ("seed", "042", 42),
    ("lora", "{r: 010, lora_dropout: 1e-1}", {"r": 10, "lora_dropout": 0.1}),
    ("mlp_only_train", "on", True),
    ("max_seq_length", "{anchor: 16, positive: 32}", {"anchor": 16, "positive": 32}),
    ("matryoshka_dims", "[64, 32]", ["64", "32"]),
    (
        "objective_options",
        "{temperature: 5e-2, symmetric: yes, scale: 1.5e3}",
        {"temperature": 0.05, "symmetric": True, "scale": 1500.0},
    ),
    (
        "datasets",
        "{no: {train_file: 007, columns: [on, b], share: 2, max_seq_length: 16}, 12: {objective: off}}",
        {
            "no": {"train_file": "007", "columns": ["on", "b"], "share": 2, "max_seq_length": 16},
            "12": {"objective": "off"},
        },
    ),
    (
        "datasets",
        "\n  a: &shared {train_file: 007, share: 1}\n  b: {<<: *shared, train_file: on}",
        {"a": {"train_file": "007", "share": 1}, "b": {"train_file": "on", "share": 1}},
    ),
]


@pytest.mark.parametrize("name, written, expected", WRITTEN)
def test_a_text_in_a_recipe_is_the_word_that_was_written(tmp_path, name, written, expected):
    """And a value has the type of its option."""
    (tmp_path / "run.yaml").write_text(f"{name}: {written}\n")
    value = Recipe.read("unsup", str(tmp_path / "run.yaml")).given[name]
    assert (type(value), value) == (type(expected), expected)


def test_data_sets_on_a_command_line_are_read_like_those_of_a_recipe():
    table = '{"a": {"train_file": "007", "columns": ["on", "b"], "max_seq_length": 16}}'
    assert Recipe.read("sup", ["--datasets", table]).given["datasets"] == json.loads(table)


def test_only_a_run_without_files_is_that_of_the_sample():
    corpus, encoder = sample_files()
    assert Recipe("unsup", {}).decide().is_sample
    assert not Recipe("unsup", {"model_name_or_path": str(encoder)}).decide().is_sample
    assert Recipe("unsup", {"num_train_epochs": 3.0}).decide().training.max_steps == -1
    with refuses("model_name_or_path"):
        Recipe("unsup", {"train_file": str(corpus.train_sentences)}).decide()


@pytest.mark.parametrize("content, words", [(None, "No such file"), (b"temp: \xff\n", "UTF-8")])
def test_a_recipe_that_cannot_be_read_is_an_input_error(tmp_path, capsys, content, words):
    if content is not None:
        (tmp_path / "run.yaml").write_bytes(content)
    assert main(["train", "unsup", str(tmp_path / "run.yaml")]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


# --- lengths and dropout ---


def test_a_papers_length_is_limited_to_what_the_encoder_can_take(parse, save_checkpoint, caplog):
    start = save_checkpoint(model_of(), "start")
    words = f"--objective tsdae --model_name_or_path {start}"  # whose paper has 512 tokens
    with caplog.at_level(logging.INFO, "simcse_hf"):
        assert parse(words).training.max_seq_length == 40
    assert "max_seq_length is 40" in caplog.text
    assert parse(f"{words} --max_seq_length 16").training.max_seq_length == 16


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_sets_every_dropout_rate_of_the_encoder_but_that_of_a_classifier(family):
    config = tiny_config(family)
    settings = ModelArguments(dropout=0.3).settings(config)
    assert {settings[name] for name in dropout_rates(config)} == {0.3}
    assert not [name for name in settings if "classifier" in name]
    assert not ModelArguments().settings(config).keys() & dropout_rates(config).keys()
    with refuses("dropout"):
        ModelArguments(dropout=1.0)


# --- recipes and papers ---


def test_every_method_of_the_papers_has_a_recipe():
    methods = {yaml.safe_load(path.read_text())["objective"] for path in OF_OTHERS}
    of_papers = {"softmax:0.7+supcon:0.3", "simcse+distill"}
    for name, objective in OBJECTIVES.items():
        if objective.__module__.startswith("simcse_hf.") and objective.papers:
            of_papers.add(name)
    assert methods | {"simcse", "class_labels"} == of_papers


#: SBERT's own settings (arXiv:1908.10084, section 3), not those of Liao 2021.
OF_SBERT = {"pooler_type": "avg", "train_sampling_strategy": "random", "per_device_train_batch_size": 16}


@pytest.mark.parametrize("path", OF_OTHERS, ids=lambda path: path.stem)
def test_each_recipe_agrees_with_its_objective_and_keeps_the_best_model_of_a_dev_set_in_half_precision(path):
    values = yaml.safe_load(path.read_text())
    options = dict(settings_of(decide([str(path), "--bf16", "false"])).objective_options)
    if "projector_dim" in options:
        options["projector_dim"] = 16
    objective = build_objective(values["objective"], 8, options)
    of_paper = dict(type(objective).defaults)
    if path.stem.startswith("sup-promptbert"):
        of_paper = {}
    if path.stem.startswith("sbert"):
        assert OF_SBERT.keys() <= values.keys() and options["layers"] == 1
        of_paper |= OF_SBERT
    found = {name: values[name] for name in of_paper if name in values}
    assert found == {name: of_paper[name] for name in found}
    given = {name for name, value in values.items() if value}
    assert given >= {"bf16", "save_only_model", "dev_file", "load_best_model_at_end"}
    assert values["save_steps"] == values["eval_steps"]


#: Batch size and learning rate of Table A.1.
TABLE_A1 = {
    "unsup-simcse-bert-base-uncased": (64, 3e-5),
    "unsup-simcse-bert-large-uncased": (64, 1e-5),
    "unsup-simcse-roberta-base": (512, 1e-5),
    "unsup-simcse-roberta-large": (512, 3e-5),
    "sup-simcse-bert-base-uncased": (512, 5e-5),
    "sup-simcse-bert-large-uncased": (512, 1e-5),
    "sup-simcse-roberta-base": (512, 5e-5),
    "sup-simcse-roberta-large": (512, 1e-5),
}


@pytest.mark.parametrize("name", TABLE_A1)
def test_the_simcse_recipes_are_those_of_the_paper(name):
    assert yaml.safe_load((RECIPES / f"{name}.yaml").read_text())["bf16"] is True
    found = decide([name, "--bf16", "false"])
    training = found.training
    assert (training.per_device_train_batch_size, training.learning_rate) == TABLE_A1[name]
    assert found.model.mlp_only_train == name.startswith("unsup"), "the head is for training only without labels"
    assert training.num_train_epochs == (1 if name.startswith("unsup") else 3)
    assert (training.max_seq_length, training.eval_steps) == (32, 250)
    assert settings_of(found).objective_options["temperature"] == 0.05


def test_texts_of_the_command_line_replace_the_hubs_data_set_of_a_recipe(parse):
    recipe = ["sup-simcse-bert-base-uncased", "--bf16", "false"]
    data = parse(recipe).data
    assert (data.dataset_name, data.train_file) == ("sentence-transformers/nli-for-simcse:triplet", None)
    assert data.dev_file == "sentence-transformers/stsb:validation"
    data = parse([*recipe, "--train_file", "nli.csv", "--dev_file", "dev.csv"]).data
    assert (data.dataset_name, data.train_file, data.dev_file) == (None, "nli.csv", "dev.csv")


def test_epochs_of_the_command_line_replace_the_steps_of_a_recipe_or_a_paper(parse):
    for words in (["tsdae-bert-base-uncased"], ["--objective", "tsdae"]):
        training = parse([*words, "--num_train_epochs", "2"]).training
        assert (training.num_train_epochs, training.max_steps) == (2, -1)
    both = parse(["tsdae-bert-base-uncased", "--num_train_epochs", "2", "--max_steps", "7"]).training
    assert both.max_steps == 7
