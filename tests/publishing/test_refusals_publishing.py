"""What a card or a push refuses, and that its message names the file and what is wrong with it."""

import json

import pytest
from cli_helpers import push_main
from conftest import tiny_config
from safetensors.torch import load_file, save_file
from trainer_helpers import refuses

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


CARDS = [
    (holds("evaluation.json", "{"), "evaluation.json"),
    (holds("results.json", "{}"), "results.json"),
    (holds("comparison.json", "{}"), "comparison.json simcse-hf compare --output"),
    (truncated, "cannot be loaded, because a file is missing or damaged"),
    (export, "holds no weights like an export"),
    (lambda folder: (folder / "config.json").unlink(), "holds no model"),
    (lambda folder: tiny_config().save_pretrained(folder), "the pooler is unknown"),
    (holds(CARD, "My own words."), "README.md was not written by `simcse-hf card`"),
]


@pytest.mark.parametrize("prepare, message", CARDS)
def test_a_card_is_not_written_for_what_is_damaged_and_not_over_one_by_hand(prepare, message, directory):
    prepare(directory)
    with refuses(message):
        write_card(directory)
    assert not (directory / CARD).exists() or (directory / CARD).read_text() == "My own words."


def lacks(name):
    return lambda folder: (folder / name).unlink(), rf"lacks .*\({name}\)"


TOKEN = json.dumps({"command": ["--hub_token", "hf_" + 34 * "t"]})
PUSHES = [
    lacks("config.json"),
    lacks("model.safetensors"),
    lacks("tokenizer_config.json"),
    (holds("results.json", TOKEN), "results.json contains an access token"),
    (link, r"notes\.txt is a symbolic link to .*diary\.txt"),
    (break_number, "NaN or infinity"),
    (truncated, "damaged"),
]


@pytest.mark.parametrize("prepare, message", PUSHES)
def test_nothing_is_pushed_or_previewed_of_a_folder_that_is_not_whole_or_holds_a_secret(prepare, message, saved, hub):
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
    with refuses("nowhere is not a folder"):
        push_model(directory / "nowhere", "org/name")
    with refuses("'a//b' is not a valid repository name"):
        push_model(directory, "a//b")
