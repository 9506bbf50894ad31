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
from simcse_hf.models.resolve import resolve_settings
from simcse_hf.models.settings import LOSS_OPTIONS, SETTING_NAMES
from simcse_hf.objectives import OBJECTIVES, build_objective
from simcse_hf.training.parser import DEFAULTS, RECIPES
from simcse_hf.training.recipe import Recipe
from simcse_hf.training.script_arguments import dropout_settings

OF_SIMCSE = sorted(RECIPES.glob("*sup-simcse*.yaml"))
OF_OTHERS = [
    x
    for x in sorted(RECIPES.glob("*.yaml"))
    if x not in OF_SIMCSE and not x.stem.startswith("pretrain")
]


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """`parse(words, recipe="temp: 0.1")` returns the arguments of a run on a CPU, in an empty folder.

    A run that names no model that is there starts from the encoder of the sample.
    """
    monkeypatch.chdir(tmp_path)

    def parse(words, recipe=None):
        words = words.split() if isinstance(words, str) else list(map(str, words))
        if recipe is not None:
            (tmp_path / "run.yaml").write_text(recipe)
            words = ["run.yaml", *words]
        recipe = Recipe.read("unsup", [*words, "--use_cpu", "--output_dir", "out"])
        if not Path(recipe.given.get("model_name_or_path", "none")).is_dir():
            recipe = recipe.but(
                model_name_or_path=str(sample_files()[1]), model_revision="main"
            )
        return recipe.decide()

    return parse


def settings_of(arguments):
    """The settings that a plain encoder gets from the arguments."""
    names = SETTING_NAMES | set(LOSS_OPTIONS)
    return resolve_settings(
        **{
            name: value
            for name, value in arguments.model.settings().items()
            if name in names
        }
    )


def test_the_command_line_of_the_reference_implementation_is_accepted(parse):
    arguments = parse(
        "--model_name_or_path bert-base-uncased --train_file data/wiki1m.txt --num_train_epochs 1 "
        "--per_device_train_batch_size 64 --learning_rate 3e-5 --max_seq_length 32 "
        "--metric_for_best_model stsb_spearman --load_best_model_at_end --eval_strategy steps --eval_steps 125 "
        "--pooler_type cls --mlp_only_train --temp 0.07 --hard_negative_weight 0.5 --do_mlm --mlm_weight 0.2 "
        "--mlm_probability 0.2 --do_train --do_eval --dev_file dev.tsv"
    )
    settings = settings_of(arguments)
    assert (settings.pooler_type, settings.mlp_only_train) == ("cls", True)
    assert (settings.do_mlm, settings.mlm_weight, settings.objective) == (
        True,
        0.2,
        "simcse",
    )
    assert settings.objective_options["temperature"] == 0.07
    assert settings.objective_options["hard_negative_weight"] == 0.5
    assert arguments.data.train_file == "data/wiki1m.txt"
    training = arguments.training
    assert training.learning_rate == 3e-5 and training.mlm_probability == 0.2


WORDS = (
    "--objective vicreg --objective_options projector_dim=64 covariance_weight=5e-1 --matryoshka_dims 64,32 "
    "--view eda --view_rate 0.2 --no_unpadded --max_seq_length anchor=32,positive=256"
).split()
RECIPE = (
    "objective: vicreg\nobjective_options:\n  projector_dim: 64\n  covariance_weight: 0.5\n"
    "matryoshka_dims: [64, 32]\nunpadded: false\nview: eda\nview_rate: 0.2\n"
    'max_seq_length: {anchor: 32, positive: 256}\nprompts: {anchor: "query: ", positive: "passage: "}\n'
)


@pytest.mark.parametrize(
    "words, recipe",
    [
        ([*WORDS, "--prompts", "anchor=query: ", "positive=passage: "], None),
        ("", RECIPE),
    ],
)
def test_options_prompts_and_lengths_can_be_set_on_the_command_line_or_in_yaml(
    parse, words, recipe
):
    arguments = parse(words, recipe=recipe)
    settings, training = arguments.model.settings(), arguments.training
    assert settings["objective"] == "vicreg" and settings["matryoshka_dims"] == [64, 32]
    assert settings["objective_options"] == {
        "projector_dim": 64,
        "covariance_weight": 0.5,
    }
    assert arguments.model.unpadded is False
    assert (training.view, training.view_rate) == ("eda", 0.2)
    assert training.max_seq_length == {"anchor": 32, "positive": 256}
    assert training.prompts == {"anchor": "query: ", "positive": "passage: "}


def test_a_recipe_may_ask_for_no_matryoshka_dimensions(parse):
    assert (
        parse("", recipe="matryoshka_dims: []\n").model.settings()["matryoshka_dims"]
        == []
    )


def test_a_recipe_of_the_package_is_found_by_its_name(parse, tmp_path):
    for name in ("sup-simcse-roberta-base", "sup-simcse-roberta-base.yaml"):
        assert parse([name, "--bf16", "false"]).training.learning_rate == 5e-5
    (tmp_path / "sup-simcse-roberta-base.yaml").write_text(
        "learning_rate: 1\n"
    )  # a file of the user goes first
    assert parse("sup-simcse-roberta-base.yaml").training.learning_rate == 1
    with pytest.raises(
        ValueError, match="(?s)something-else.* tsdae-bert-base-uncased"
    ):
        parse("something-else")


def test_yaml_overrides_the_defaults_and_the_command_line_overrides_yaml(
    parse, monkeypatch
):
    recipe = "learning_rate: 3e-5\ntemp: 0.1\nmlp_only_train: true\ncolumns: [a, b]\n"
    monkeypatch.setitem(DEFAULTS, "unsup", {"learning_rate": 1.0, "max_seq_length": 64})
    arguments = parse("--temp 0.2", recipe=recipe)
    assert arguments.training.learning_rate == 3e-5  # YAML reads 3e-5 as a string
    assert arguments.training.max_seq_length == 64
    assert arguments.model.temp == 0.2 and arguments.model.mlp_only_train
    assert arguments.data.columns == ["a", "b"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("temperatur: 0.1\n", "run.yaml temperatur temp"),
        ("- temp\n", "table"),
        ("temp: [0.1\n", "YAML"),
        ("learning_rate: fast\n", "run.yaml learning_rate 'fast' number"),
        ("max_steps: 1.5\n", "max_steps 1.5 whole"),
        ("max_seq_length: long\n", "max_seq_length 'long' whole"),
        ("mlp_only_train: perhaps\n", "mlp_only_train 'perhaps' true false"),
        ("learning_rate: [1, 2]\n", "learning_rate list"),
        ("output_dir: {a: b}\n", "output_dir table"),
        ("objective_options: [64]\n", "objective_options name=value 64"),
        ("matryoshka_dims: 64;32\n", "matryoshka_dims 256,128,64 '64;32'"),
        ("seed: 7\nseeds: [3]\n", "seed 7 seeds 3"),
        ("seeds: [5, x]\n", "seeds 'x' whole"),
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
    ("matryoshka_dims", "[64, 32]", [64, 32]),
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


@pytest.mark.parametrize(("name", "written", "expected"), WRITTEN)
def test_a_text_in_a_recipe_is_the_word_that_was_written(
    tmp_path, name, written, expected
):
    (tmp_path / "run.yaml").write_text(f"{name}: {written}\n")
    value = Recipe.read("unsup", str(tmp_path / "run.yaml")).given[name]
    assert value == expected and type(value) is type(expected)


def test_data_sets_of_a_recipe_may_share_settings(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "datasets:\n  a: &shared {train_file: 007, share: 1}\n  b: {<<: *shared, train_file: on}\n"
    )
    tables = Recipe.read("unsup", str(tmp_path / "run.yaml")).given["datasets"]
    assert tables == {
        "a": {"train_file": "007", "share": 1},
        "b": {"train_file": "on", "share": 1},
    }


def test_the_own_files_of_the_sample_may_be_named():
    corpus, encoder = sample_files()
    assert Recipe("unsup", {}).is_sample
    assert not Recipe("unsup", {"train_file": str(corpus.train_sentences)}).is_sample
    assert not Recipe("unsup", {"model_name_or_path": str(encoder)}).is_sample


@pytest.mark.parametrize(
    "content, message", [(None, "No such file"), (b"temp: \xff\n", "UTF-8")]
)
def test_a_recipe_that_cannot_be_read_is_an_input_error(
    tmp_path, content, message, capsys
):
    if content is not None:
        (tmp_path / "run.yaml").write_bytes(content)
    assert main(["train", "unsup", str(tmp_path / "run.yaml")]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_papers_length_is_limited_to_what_the_encoder_can_take(
    parse, save_checkpoint, caplog
):
    """The paper of TSDAE has 512 tokens. The tiny encoder has 40 positions, the one of the sample fewer than 512."""
    start = save_checkpoint(AutoModelForCL.from_config(tiny_config()), "start")
    words = f"--objective tsdae --model_name_or_path {start}"
    with caplog.at_level(logging.INFO, "simcse_hf"):
        assert parse(words).training.max_seq_length == 40
    assert "max_seq_length is 40" in caplog.text
    assert parse(f"{words} --max_seq_length 16").training.max_seq_length == 16
    sample = Recipe("unsup", {"objective": "tsdae", "use_cpu": True})
    assert sample.completed().decide().training.max_seq_length == 32


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_sets_every_dropout_rate_of_the_encoder(family):
    names = dropout_settings(tiny_config(family), 0.3)
    assert names and set(names.values()) == {0.3}
    assert not any("classifier" in name for name in names)
    assert dropout_settings(tiny_config(family), None) == {}
    with pytest.raises(ValueError, match="dropout"):
        dropout_settings(tiny_config(family), 1.0)


# --- recipes and papers ---


def test_every_method_of_the_papers_has_a_recipe():
    methods = {yaml.safe_load(path.read_text())["objective"] for path in OF_OTHERS}
    assert methods | {"simcse", "class_labels"} == {
        "softmax:0.7+supcon:0.3",
        "simcse+distill",
    } | {
        name
        for name, cls in OBJECTIVES.items()
        if cls.__module__.startswith("simcse_hf.") and cls.papers
    }


@pytest.mark.parametrize("path", OF_OTHERS, ids=lambda path: path.stem)
def test_each_recipe_is_valid_and_agrees_with_the_objectives_defaults(path, parse):
    values = yaml.safe_load(path.read_text())
    settings = settings_of(parse([path, "--bf16", "false"]))
    options = settings.objective_options
    if "projector_dim" in options:
        options = options | {"projector_dim": 16}
    objective = build_objective(values["objective"], 8, options)
    papers = {} if path.stem.startswith("sup-promptbert") else type(objective).defaults
    defaults = {name: value for name, value in papers.items() if name in values}
    if path.stem.startswith(
        "sbert"
    ):  # SBERT's own settings (arXiv:1908.10084, section 3), not those of Liao 2021
        defaults |= {
            "pooler_type": "avg",
            "train_sampling_strategy": "random",
            "per_device_train_batch_size": 16,
        }
        assert settings.objective_options["layers"] == 1
    assert defaults == {name: values[name] for name in defaults}
    assert values["bf16"] and values["save_only_model"]
    assert (
        values["dev_file"]
        and values["load_best_model_at_end"]
        and values["save_steps"] == values["eval_steps"]
    )


def test_the_simcse_recipes_match_table_a1_of_the_paper(parse):
    table = {}
    for recipe in OF_SIMCSE:
        arguments = parse([recipe, "--bf16", "false"])
        training = arguments.training
        unsupervised = recipe.stem.startswith("unsup")
        assert (
            arguments.model.mlp_only_train == unsupervised
            and training.max_seq_length == 32
        )
        assert settings_of(arguments).objective_options["temperature"] == 0.05
        assert training.num_train_epochs == (1 if unsupervised else 3)
        assert (
            yaml.safe_load(recipe.read_text())["bf16"] is True
            and training.eval_steps == 250
        )
        table[recipe.stem] = (
            training.per_device_train_batch_size,
            training.learning_rate,
        )
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


def test_texts_of_the_command_line_replace_the_hubs_data_set_of_a_recipe(parse):
    words = ["sup-simcse-bert-base-uncased", "--bf16", "false"]
    data = parse(words).data
    assert (
        data.dataset_name == "sentence-transformers/nli-for-simcse:triplet"
        and data.train_file is None
    )
    assert data.dev_file == "sentence-transformers/stsb:validation"
    data = parse([*words, "--train_file", "nli.csv", "--dev_file", "dev.csv"]).data
    assert (data.dataset_name, data.train_file, data.dev_file) == (
        None,
        "nli.csv",
        "dev.csv",
    )
