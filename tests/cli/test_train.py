"""`simcse-hf train` reads its words as the arguments of a method, or prints its help."""

import json
import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from cli_helpers import status
from conftest import read_json, tiny_config
from transformers import BertModel

from simcse_hf.apps.pretraining import PretrainingArguments
from simcse_hf.data.sample import sample_files
from simcse_hf.data.views import VIEW_CLASSES
from simcse_hf.models.pooling import POOLERS
from simcse_hf.objectives import OBJECTIVES
from simcse_hf.training.parser import DEFAULTS, RECIPES
from simcse_hf.training.recipe import ARGUMENTS

SAMPLE = sample_files()[1]
METHODS = {
    "unsup": (ARGUMENTS, DEFAULTS["unsup"]),
    "sup": (ARGUMENTS, DEFAULTS["sup"]),
    "mlm": ([PretrainingArguments], DEFAULTS["mlm"]),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_help_of_a_method_is_short_and_shows_its_names_and_the_defaults_of_a_real_run(method, capsys):
    assert status("train", method, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: simcse-hf train {method} ") and len(text.splitlines()) <= 120
    words = set(re.split(r"[\s,:.{}]+", text))
    recipes = {"unsup": "tsdae-bert-base-uncased", "sup": "cosent-bert-base-uncased", "mlm": "pretrain-mlm-small"}
    assert [name for name, recipe in recipes.items() if recipe in words] == [method]
    for table in (OBJECTIVES, VIEW_CLASSES, POOLERS) if method != "mlm" else ():
        assert {name for name, cls in table.items() if cls.__module__.startswith("simcse_hf.")} <= words
    classes, defaults = METHODS[method]
    actual = {field.name: field.default for cls in classes for field in fields(cls)} | defaults
    options = text.partition("--help_all")[2].partition("RECIPE")[0].split("\n  --")[1:]
    assert len(options) > 12
    for option in options:
        name, *described = option.split()
        default = " ".join(described).partition("default: ")[2]
        is_open = actual[name] in (None, MISSING)  # the words say what decides it, if they say anything
        assert is_open or default == str(actual[name]) or (not default and actual[name] in (False, -1)), option


def test_help_of_a_recipe_shows_what_it_sets(capsys):
    assert status("train", "sup", "rankcse-bert-base", "--help") == 0
    assert (RECIPES / "rankcse-bert-base.yaml").read_text() in capsys.readouterr().out
    Path("rankcse-bert-base.yaml").write_text("temp: 0.125\n")  # a file of the user goes first, as in training
    assert status("train", "sup", "rankcse-bert-base.yaml", "--help") == 0
    assert "temp: 0.125" in capsys.readouterr().out


LOSS = """
from simcse_hf.objectives import Objective

class Hinge(Objective):
    \"\"\"A loss.

    Args:
        dim (`int`): Embedding size.
        margin (`float`, *optional*, defaults to `0.2`): How far a positive must be above.
    \"\"\"

    def __init__(self, dim, margin=0.2):
        super().__init__(dim)
"""


@pytest.fixture
def losses(tmp_path, monkeypatch, forget_definitions):
    """A module with an objective of the user, and a recipe `r` with it, in the current folder."""
    monkeypatch.syspath_prepend(tmp_path)
    Path("losses.py").write_text(LOSS)
    Path("r").write_text("objective: losses:Hinge\n")
    yield
    sys.modules.pop("losses", None)


@pytest.mark.parametrize("option", ["--help", "--help_all"])
@pytest.mark.parametrize(
    "words, name, described",
    [
        ("--objective=vicreg+barlow_twins:0.1", "covariance_weight", "(default: 1.0"),
        ("rankcse-bert-base", "consistency_weight", "(default: 1.0"),
        ("--objective simcse+losses:Hinge:0.5", "margin", "How far a positive must be above. (default: 0.2"),
        ("r", "margin", "How far a positive must be above. (default: 0.2"),
    ],
)
def test_help_lists_the_options_of_an_objective_that_is_named_with_their_defaults(
    words, name, described, option, losses, capsys
):
    assert status("train", "unsup", *words.split(), option) == 0
    entry = capsys.readouterr().out.partition(f"\n  {name} ")[2].partition(")\n")[0]
    assert described in " ".join(entry.split())


@pytest.mark.parametrize("words, listed", [("", "build-nli"), ("train", "unsup"), ("train unsup --help", "RECIPE")])
def test_a_terminal_breaks_no_word_of_a_listing(words, listed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert status(*words.split()) == 0
    text = capsys.readouterr().out
    assert listed in text and max(map(len, text.splitlines())) <= 80


def test_help_all_shows_an_argument_once_with_one_default_under_its_class(capsys):
    assert status("train", "unsup", "--help_all") == 0
    text = capsys.readouterr().out
    assert text.count("  --max_seq_length ") == 1
    options = ("--objective ", "--dev_file ", "--teacher ", "--max_steps ", "mask_duplicates ")
    places = [text.index(f"\n  {name}") for name in options]
    assert places == sorted(places), "by class: the model, texts, training, transformers' own, the objective"
    for option in re.split(r"\n  (?=\S)", text)[1:]:
        assert option.count("default: ") + option.count("(default)") <= 1, option


@pytest.mark.parametrize(
    "method, words",
    [
        ("unsup", "--dev_task pairs=nosuch.csv --dev_task pairs=texts.txt"),
        ("mlm", "--train_file nosuch.csv"),
    ],
)
def test_a_missing_file_is_found_before_anything_is_deleted_or_loaded(method, words, capsys):
    Path("out/checkpoint-1").mkdir(parents=True)
    Path("out/results.json").write_text("{}")
    Path("texts.txt").write_text("a cat\n" * 20)
    line = f"--train_file texts.txt --output_dir out --model {SAMPLE} --overwrite_output_dir --use_cpu {words}"
    assert status("train", method, *line.split()) == 2
    assert "nosuch.csv: there is no such file" in capsys.readouterr().err.splitlines()[-1]
    assert Path("out/results.json").exists() and Path("out/checkpoint-1").exists()


METHOD_OPTIONS = {
    "unsup": "--per_device_train_batch_size 4 --save_strategy no",
    "mlm": "--hidden_size 32 --num_hidden_layers 1 --num_attention_heads 2 --vocab_size 60 --train_tokenizer",
}


@pytest.mark.parametrize("method", METHOD_OPTIONS)
def test_quiet_json_and_overwrite_are_those_of_every_command(method, save_checkpoint, capsys):
    lines = [f"a {size} cat {animal}\n" for size in "abcdefg" for animal in ["sat", "ran"] * 4]
    Path("texts.txt").write_text("".join(lines))
    line = f"train {method} --train_file texts.txt --output_dir out --max_steps 2 --use_cpu --report_to none "
    line += f"--logging_steps 1 {METHOD_OPTIONS[method]}"
    if method == "unsup":
        line += f" --model_name_or_path {save_checkpoint(BertModel(tiny_config()))} --pooler_type avg"
    assert status(*line.split(), "--quiet", "--json") == 0
    printed = capsys.readouterr()
    results = json.loads(printed.out)
    assert results == {**results, **read_json("out/results.json")}
    assert "step " not in printed.err and "INFO" not in printed.err
    assert status(*line.split()) == 2
    assert "--overwrite_output_dir" in capsys.readouterr().err
    assert status(*line.split(), "--overwrite") == 0
    printed = capsys.readouterr()
    assert "step     1" in printed.err and "{" not in printed.out
