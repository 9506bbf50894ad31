"""What a card or a push refuses, and that its message names the file and what is wrong with it."""

import json

import pytest
from cli_helpers import push_main
from conftest import tiny_config
from safetensors.torch import load_file, save_file

from simcse_hf.publishing.card import CARD, write_card
from simcse_hf.publishing.hub import push_model


def break_number(folder):
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def holds(name, text):
    return lambda folder: (folder / name).write_text(text)


def link(folder):
    (folder.parent / "diary.txt").write_text("dear diary")
    (folder / "notes.txt").symlink_to(folder.parent / "diary.txt")


def export(folder):
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    (folder / "onnx/model_qint8_avx512_vnni.onnx").touch()


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


CARDS = {
    "an evaluation that is no JSON": (holds("evaluation.json", "{"), "evaluation.json"),
    "an evaluation of another form": (holds("evaluation.json", "[]"), "evaluation.json"),
    "a run that is no JSON": (holds("results.json", "{"), "results.json"),
    "a run of another form": (holds("results.json", "{}"), "results.json"),
    "a comparison of another form": (holds("comparison.json", "{}"), "comparison.json.*simcse-hf compare --output"),
    "half a file of weights": (truncated, "cannot be loaded, because a file is missing or damaged"),
    "an export": (export, "holds no weights .* like an export"),
    "a folder without a model": (lambda folder: (folder / "config.json").unlink(), "holds no model"),
    "a model of transformers": (lambda folder: tiny_config().save_pretrained(folder), "the pooler is unknown"),
    "a card written by hand": (holds(CARD, "My own words."), "README.md was not written by `simcse-hf card`"),
}


@pytest.mark.parametrize("case", CARDS)
def test_a_card_is_not_written_for(case, directory):
    prepare, message = CARDS[case]
    prepare(directory)
    with pytest.raises(ValueError, match=message):
        write_card(directory)
    assert case == "a card written by hand" or not (directory / CARD).exists()


def lacks(name):
    return lambda folder: (folder / name).unlink(), rf"lacks .*\({name}\)"


TOKEN = json.dumps({"command": ["--hub_token", "hf_" + 34 * "t"]})
PUSHES = {
    "without a config": lacks("config.json"),
    "without weights": lacks("model.safetensors"),
    "without a tokenizer": lacks("tokenizer_config.json"),
    "with a token": (
        holds("results.json", TOKEN),
        "results.json contains an access token",
    ),
    "with a token of another kind": (
        holds("notes", "hf_oauth_" + 40 * "a"),
        "notes contains an access token",
    ),
    "with a link out of it": (link, r"notes\.txt is a symbolic link to .*diary\.txt"),
    "with a NaN": (break_number, "NaN or infinity"),
    "with half a file": (truncated, "damaged"),
}


@pytest.mark.parametrize("case", PUSHES)
def test_nothing_is_pushed_or_previewed_of_a_folder(case, saved, hub):
    prepare, message = PUSHES[case]
    directory = saved()
    prepare(directory)
    for call in (
        lambda: push_model(directory, "org/name"),
        lambda: push_main([str(directory), "a/b", "--dry_run"]),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            call()
        assert "hf_t" not in str(raised.value)
    assert not hub.requests


def test_nothing_is_pushed_of_a_folder_that_is_not_there_or_to_a_name_that_cannot_be(
    directory,
):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        push_model(directory / "nowhere", "org/name")
    with pytest.raises(ValueError, match="'a//b' is not a valid repository name"):
        push_model(directory, "a//b")
