"""Arguments of the training scripts: names of the reference, and command line before YAML before defaults."""

import logging
from pathlib import Path

import pytest
import yaml
from conftest import FAMILIES, tiny_config
from trainer_helpers import refuses

from simcse_hf import AutoModelForCL
from simcse_hf.cli.main import main
from simcse_hf.data.sample import sample_files
from simcse_hf.models.settings import LOSS_OPTIONS, SETTING_NAMES, dropout_rates, resolve_settings
from simcse_hf.objectives import OBJECTIVES, build_objective
from simcse_hf.training.arguments import ModelArguments
from simcse_hf.training.parser import DEFAULTS, RECIPES
from simcse_hf.training.recipe import Recipe

OF_SIMCSE = sorted(RECIPES.glob("*sup-simcse*.yaml"))
OF_OTHERS = [
    path for path in sorted(RECIPES.glob("*.yaml")) if path not in OF_SIMCSE and not path.stem.startswith("pretrain")
]


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


@pytest.fixture(scope="module")
def of_the_reference():
    return decide(OF_THE_REFERENCE.split())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pooler_type", "cls"),
        ("mlp_only_train", True),
        ("do_mlm", True),
        ("mlm_weight", 0.2),
        ("objective", "simcse"),
    ],
)
def test_the_model_takes_the_settings_of_the_reference_implementation(of_the_reference, name, value):
    assert getattr(settings_of(of_the_reference), name) == value


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.07), ("hard_negative_weight", 0.5)])
def test_the_loss_takes_the_options_of_the_reference_implementation(of_the_reference, name, value):
    assert settings_of(of_the_reference).objective_options[name] == value


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 3e-5), ("mlm_probability", 0.2)])
def test_training_takes_the_arguments_of_the_reference_implementation(of_the_reference, name, value):
    assert getattr(of_the_reference.training, name) == value


def test_the_training_file_of_the_reference_implementation_is_read(of_the_reference):
    assert of_the_reference.data.train_file == "data/wiki1m.txt"


# --- on the command line or in YAML ---

WORDS = (
    "--objective vicreg --objective_options projector_dim=64 covariance_weight=5e-1 --matryoshka_dims 64,32 "
    "--view eda --view_rate 0.2 --no_unpadded --max_seq_length anchor=32,positive=256"
).split()
RECIPE = """
objective: vicreg
objective_options:
  projector_dim: 64
  covariance_weight: 0.5
matryoshka_dims: [64, 32]
unpadded: false
view: eda
view_rate: 0.2
max_seq_length: {anchor: 32, positive: 256}
prompts: {anchor: "query: ", positive: "passage: "}
"""
BOTH_WAYS = pytest.mark.parametrize("way", ["command line", "YAML"], scope="module")


@pytest.fixture(scope="module")
def arguments(way, tmp_path_factory):
    if way == "command line":
        return decide([*WORDS, "--prompts", "anchor=query: ", "positive=passage: "])
    path = tmp_path_factory.mktemp("recipe") / "run.yaml"
    path.write_text(RECIPE)
    return decide([str(path)])


@BOTH_WAYS
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("objective", "vicreg"),
        ("matryoshka_dims", [64, 32]),
        ("objective_options", {"projector_dim": 64, "covariance_weight": 0.5}),
    ],
)
def test_settings_of_the_model_can_be_set(arguments, name, value):
    assert arguments.model.settings(tiny_config())[name] == value


@BOTH_WAYS
def test_the_removal_of_padding_can_be_turned_off(arguments):
    assert arguments.model.unpadded is False


@BOTH_WAYS
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("view", "eda"),
        ("view_rate", 0.2),
        ("max_seq_length", {"anchor": 32, "positive": 256}),
        ("prompts", {"anchor": "query: ", "positive": "passage: "}),
    ],
)
def test_views_prompts_and_lengths_can_be_set(arguments, name, value):
    assert getattr(arguments.training, name) == value


def test_a_recipe_may_ask_for_no_matryoshka_dimensions(parse):
    settings = parse("", recipe="matryoshka_dims: []\n").model.settings(tiny_config())
    assert settings["matryoshka_dims"] == []


@pytest.mark.parametrize("name", ["sup-simcse-roberta-base", "sup-simcse-roberta-base.yaml"])
def test_a_recipe_of_the_package_is_found_by_its_name(parse, name):
    assert parse([name, "--bf16", "false"]).training.learning_rate == 5e-5


def test_a_file_of_the_user_goes_before_a_recipe_of_the_package(parse):
    Path("sup-simcse-roberta-base.yaml").write_text("learning_rate: 1\n")
    assert parse("sup-simcse-roberta-base.yaml").training.learning_rate == 1


def test_the_error_of_an_unknown_recipe_names_those_of_the_package(parse):
    words = "(?s)something-else.* tsdae-bert-base-uncased"
    with pytest.raises(ValueError, match=words):
        parse("something-else")


# --- the order in which values count ---


@pytest.fixture
def of_all_sources(parse, monkeypatch):
    """Arguments from defaults of the command, a recipe and the command line."""
    defaults = {"learning_rate": 1.0, "max_seq_length": 64}
    monkeypatch.setitem(DEFAULTS, "unsup", defaults)
    recipe = "learning_rate: 3e-5\ntemp: 0.1\nmlp_only_train: true\ncolumns: [a, b]\n"
    return parse("--temp 0.2", recipe=recipe)


def test_a_recipe_overrides_the_defaults(of_all_sources):
    """YAML reads 3e-5 as a string."""
    assert of_all_sources.training.learning_rate == 3e-5


def test_the_command_line_overrides_a_recipe(of_all_sources):
    assert of_all_sources.model.temp == 0.2


def test_a_default_counts_where_nothing_else_is_said(of_all_sources):
    assert of_all_sources.training.max_seq_length == 64


def test_a_truth_value_of_a_recipe_counts(of_all_sources):
    assert of_all_sources.model.mlp_only_train


def test_a_list_of_a_recipe_counts(of_all_sources):
    assert of_all_sources.data.columns == ["a", "b"]


# --- what a recipe says ---


@pytest.mark.parametrize(
    "text, words",
    [
        ("temperatur: 0.1\n", "run.yaml temperatur temp"),
        ("- temp\n", "table"),
        ("temp: [0.1\n", "YAML"),
        ("learning_rate: fast\n", "run.yaml learning_rate 'fast' float"),
        ("max_seq_length: long\n", "max_seq_length 'long' lengths"),
        ("mlp_only_train: perhaps\n", "mlp_only_train perhaps true/false"),
        ("learning_rate: [1, 2]\n", "learning_rate list"),
        ("output_dir: {a: b}\n", "output_dir table"),
        ("objective_options: [64]\n", "objective_options name=value 64"),
        ("matryoshka_dims: 64;32\n", "matryoshka_dims 256,128,64 '64;32'"),
        ("seed: 7\nseeds: [3]\n", "seed 7 seeds 3"),
        ("seeds: [5, x]\n", "seeds 'x' int"),
    ],
)
def test_the_error_names_an_invalid_yaml_file(parse, text, words):
    with refuses(words):
        parse("", recipe=text)


#: What stands in a recipe, and what the options of text, numbers and truth values are.
WRITTEN = [
    ("output_dir", "2024_11_26", "2024_11_26"),
    ("output_dir", "007", "007"),
    ("run_name", "12:30", "12:30"),
    ("run_name", "1.10", "1.10"),
    ("train_file", "2024-11-26", "2024-11-26"),
    ("run_name", "2024-13-45", "2024-13-45"),
    ("train_file", "on", "on"),
    ("dataset_name", "0x10", "0x10"),
    ("model_revision", "1e5", "1e5"),
    ("model_revision", "'007'", "007"),
    ("eval_strategy", "no", "no"),
    ("eval_strategy", '"no"', "no"),
    ("save_strategy", "no", "no"),
    ("report_to", "none", "none"),
    ("dev_file", "null", None),
    ("dev_file", "", None),
    ("columns", "[no, 1.10, 12:30]", ["no", "1.10", "12:30"]),
    ("columns", "\n- yes\n- 'off'\n- 007", ["yes", "off", "007"]),
    ("templates", "[2024-11-26]", ["2024-11-26"]),
    ("prompts", "{anchor: no, positive: 12:30}", {"anchor": "no", "positive": "12:30"}),
    ("learning_rate", "1e-5", 1e-5),
    ("learning_rate", "3.0e-5", 3e-5),
    ("seed", "7", 7),
    ("max_steps", "1_000", 1000),
    ("seeds", "[1, 2]", [1, 2]),
    ("mlp_only_train", "on", True),
    ("do_mlm", "No", False),
    ("max_seq_length", "{anchor: 16, positive: 32}", {"anchor": 16, "positive": 32}),
    ("matryoshka_dims", "[64, 32]", ["64", "32"]),
    (
        "objective_options",
        "{temperature: 5e-2, symmetric: yes, scale: 1.5e3}",
        {"temperature": 0.05, "symmetric": True, "scale": 1500.0},
    ),
    ("objective_options", "{generator: '007'}", {"generator": "007"}),
    (
        "datasets",
        "{no: {train_file: 007, columns: [on, b], share: 2, max_seq_length: 16}, 12: {objective: off}}",
        {
            "no": {
                "train_file": "007",
                "columns": ["on", "b"],
                "share": 2,
                "max_seq_length": 16,
            },
            "12": {"objective": "off"},
        },
    ),
]


def with_type(value):
    return type(value), value


@pytest.mark.parametrize(("name", "written", "expected"), WRITTEN)
def test_a_text_in_a_recipe_is_the_word_that_was_written(tmp_path, name, written, expected):
    """And a value has the type of its option."""
    (tmp_path / "run.yaml").write_text(f"{name}: {written}\n")
    value = Recipe.read("unsup", str(tmp_path / "run.yaml")).given[name]
    assert with_type(value) == with_type(expected)


def test_data_sets_of_a_recipe_may_share_settings(tmp_path):
    recipe = tmp_path / "run.yaml"
    recipe.write_text("datasets:\n  a: &shared {train_file: 007, share: 1}\n  b: {<<: *shared, train_file: on}\n")
    tables = Recipe.read("unsup", str(recipe)).given["datasets"]
    assert tables == {
        "a": {"train_file": "007", "share": 1},
        "b": {"train_file": "on", "share": 1},
    }


def test_a_run_without_files_is_that_of_the_sample():
    assert Recipe("unsup", {}).decide().is_sample


def test_the_own_file_of_the_sample_may_be_named():
    corpus, _ = sample_files()
    named = {"train_file": str(corpus.train_sentences)}
    with pytest.raises(ValueError, match="model_name_or_path is missing"):
        Recipe("unsup", named).decide()


def test_the_own_encoder_of_the_sample_may_be_named():
    _, encoder = sample_files()
    assert not Recipe("unsup", {"model_name_or_path": str(encoder)}).decide().is_sample


def fails_with(recipe, message, capsys):
    """That a run of a recipe ends as with a wrong input, and with this message."""
    assert main(["train", "unsup", str(recipe)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_recipe_that_does_not_exist_is_an_input_error(tmp_path, capsys):
    fails_with(tmp_path / "run.yaml", "No such file", capsys)


def test_a_recipe_that_is_not_utf_8_is_an_input_error(tmp_path, capsys):
    (tmp_path / "run.yaml").write_bytes(b"temp: \xff\n")
    fails_with(tmp_path / "run.yaml", "UTF-8", capsys)


# --- lengths and dropout ---


@pytest.fixture
def words_of_tsdae(save_checkpoint):
    """A run of TSDAE, whose paper has 512 tokens, from an encoder with 40 positions."""
    start = save_checkpoint(AutoModelForCL.from_config(tiny_config()), "start")
    return f"--objective tsdae --model_name_or_path {start}"


def test_a_papers_length_is_limited_to_what_the_encoder_can_take(parse, words_of_tsdae):
    assert parse(words_of_tsdae).training.max_seq_length == 40


def test_the_limit_of_a_papers_length_is_logged(parse, words_of_tsdae, caplog):
    with caplog.at_level(logging.INFO, "simcse_hf"):
        parse(words_of_tsdae)
    assert "max_seq_length is 40" in caplog.text


def test_a_length_that_is_given_counts_before_a_papers(parse, words_of_tsdae):
    arguments = parse(f"{words_of_tsdae} --max_seq_length 16")
    assert arguments.training.max_seq_length == 16


def test_a_papers_length_is_limited_to_that_of_the_encoder_of_the_sample():
    sample = Recipe("unsup", {"objective": "tsdae", "use_cpu": True})
    assert sample.decide().training.max_seq_length == 32


EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@EVERY_FAMILY
def test_dropout_sets_every_dropout_rate_of_the_encoder(family):
    config = tiny_config(family)
    settings = ModelArguments(dropout=0.3).settings(config)
    assert {settings[name] for name in dropout_rates(config)} == {0.3}


@EVERY_FAMILY
def test_dropout_does_not_set_the_rate_of_a_classifier(family):
    for name in ModelArguments(dropout=0.3).settings(tiny_config(family)):
        assert "classifier" not in name


@EVERY_FAMILY
def test_without_a_rate_no_dropout_is_set(family):
    config = tiny_config(family)
    assert not ModelArguments().settings(config).keys() & dropout_rates(config).keys()


@EVERY_FAMILY
def test_a_dropout_rate_of_one_is_refused(family):
    with pytest.raises(ValueError, match="dropout"):
        ModelArguments(dropout=1.0)


# --- recipes and papers ---


def test_every_method_of_the_papers_has_a_recipe():
    methods = {yaml.safe_load(path.read_text())["objective"] for path in OF_OTHERS}
    of_papers = {"softmax:0.7+supcon:0.3", "simcse+distill"}
    for name, objective in OBJECTIVES.items():
        if objective.__module__.startswith("simcse_hf.") and objective.papers:
            of_papers.add(name)
    assert methods | {"simcse", "class_labels"} == of_papers


def settings_of_recipe(path):
    """The settings of a plain encoder in a run of a recipe, on a CPU."""
    return settings_of(decide([str(path), "--bf16", "false"]))


#: SBERT's own settings (arXiv:1908.10084, section 3), not those of Liao 2021.
OF_SBERT = {
    "pooler_type": "avg",
    "train_sampling_strategy": "random",
    "per_device_train_batch_size": 16,
}
EVERY_RECIPE = pytest.mark.parametrize("path", OF_OTHERS, ids=lambda path: path.stem)


@pytest.fixture
def values(path):
    """What a recipe says."""
    return yaml.safe_load(path.read_text())


@EVERY_RECIPE
def test_each_recipe_is_valid_and_agrees_with_the_objectives_defaults(path, values):
    options = dict(settings_of_recipe(path).objective_options)
    if "projector_dim" in options:
        options["projector_dim"] = 16
    objective = build_objective(values["objective"], 8, options)
    of_paper = dict(type(objective).defaults)
    if path.stem.startswith("sup-promptbert"):
        of_paper = {}
    if path.stem.startswith("sbert"):
        of_paper |= OF_SBERT
    found = {name: values[name] for name in of_paper if name in values}
    assert found == {name: of_paper[name] for name in found}


@pytest.mark.parametrize("name", OF_SBERT)
def test_the_recipe_of_sbert_has_its_own_settings(name):
    [path] = [path for path in OF_OTHERS if path.stem.startswith("sbert")]
    assert name in yaml.safe_load(path.read_text())


def test_the_classifier_of_the_recipe_of_sbert_has_one_layer():
    [path] = [path for path in OF_OTHERS if path.stem.startswith("sbert")]
    assert settings_of_recipe(path).objective_options["layers"] == 1


#: What every recipe asks for.
KEEPS_THE_BEST = {"bf16", "save_only_model", "dev_file", "load_best_model_at_end"}


@EVERY_RECIPE
def test_each_recipe_keeps_the_best_model_of_a_dev_set_in_half_precision(values):
    given = {name for name, value in values.items() if value}
    assert given >= KEEPS_THE_BEST


@EVERY_RECIPE
def test_each_recipe_saves_where_it_evaluates(values):
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
EVERY_SIMCSE_RECIPE = pytest.mark.parametrize("name", [path.stem for path in OF_SIMCSE], scope="module")


@pytest.fixture(scope="module")
def of_recipe(name):
    """The arguments of a recipe of SimCSE, on a CPU."""
    return decide([name, "--bf16", "false"])


def test_each_line_of_table_a1_has_a_recipe():
    assert {path.stem for path in OF_SIMCSE} == set(TABLE_A1)


@EVERY_SIMCSE_RECIPE
def test_the_simcse_recipes_match_table_a1_of_the_paper(name, of_recipe):
    training = of_recipe.training
    batch_size = training.per_device_train_batch_size
    assert (batch_size, training.learning_rate) == TABLE_A1[name]


@EVERY_SIMCSE_RECIPE
def test_the_head_is_for_training_only_without_labels(name, of_recipe):
    assert of_recipe.model.mlp_only_train == name.startswith("unsup")


@EVERY_SIMCSE_RECIPE
def test_a_recipe_of_simcse_has_one_epoch_without_labels_and_three_with_them(name, of_recipe):
    epochs = 1 if name.startswith("unsup") else 3
    assert of_recipe.training.num_train_epochs == epochs


@EVERY_SIMCSE_RECIPE
@pytest.mark.parametrize(("argument", "value"), [("max_seq_length", 32), ("eval_steps", 250)])
def test_the_simcse_recipes_have_the_papers_length_and_evaluations(of_recipe, argument, value):
    assert getattr(of_recipe.training, argument) == value


@EVERY_SIMCSE_RECIPE
def test_the_simcse_recipes_have_the_papers_temperature(of_recipe):
    assert settings_of(of_recipe).objective_options["temperature"] == 0.05


@pytest.mark.parametrize("path", OF_SIMCSE, ids=lambda path: path.stem)
def test_the_simcse_recipes_train_in_half_precision(path):
    assert yaml.safe_load(path.read_text())["bf16"] is True


# --- the hub's data set of a recipe ---

SUPERVISED = ["sup-simcse-bert-base-uncased", "--bf16", "false"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset_name", "sentence-transformers/nli-for-simcse:triplet"),
        ("train_file", None),
        ("dev_file", "sentence-transformers/stsb:validation"),
    ],
)
def test_a_recipe_reads_the_hubs_data_sets(parse, name, value):
    assert getattr(parse(SUPERVISED).data, name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("dataset_name", None), ("train_file", "nli.csv"), ("dev_file", "dev.csv")],
)
def test_texts_of_the_command_line_replace_the_hubs_data_set_of_a_recipe(parse, name, value):
    files = ["--train_file", "nli.csv", "--dev_file", "dev.csv"]
    assert getattr(parse([*SUPERVISED, *files]).data, name) == value
